//! Balanced order: makes every section of a shard have about the class mix of the whole shard.

use super::classes::Classes;
use protocol::rng::CounterRng;

/// Reorders the samples of shards so that their classes alternate evenly, shard by shard, keeping its working memory
/// between them.
pub(super) struct Interleaver<'a> {
    classes: &'a Classes,
    tie_break: CounterRng,
    /// Number of samples of each class in the shard that is being reordered; all zero between shards.
    counts: Vec<u32>,
    /// Number of samples of each class that are already placed in the reordered shard; all zero between shards.
    ranks: Vec<u32>,
    keyed: Vec<(u64, u64, u32)>,
}

impl<'a> Interleaver<'a> {
    /// Creates an interleaver that orders samples which are due at the same place by the given random numbers.
    pub(super) fn new(classes: &'a Classes, tie_break: CounterRng) -> Self {
        let none = vec![0; classes.sizes().len()];
        Self {
            classes,
            tie_break,
            counts: none.clone(),
            ranks: none,
            keyed: Vec::new(),
        }
    }

    /// Spreads the samples of each class evenly over the shard. Samples of one class keep their order.
    pub(super) fn interleave(&mut self, shard: &mut [u32]) {
        for &sample in &*shard {
            self.counts[self.classes.of(sample)] += 1;
        }
        self.keyed.clear();
        for &sample in &*shard {
            let class = self.classes.of(sample);
            let due = due(self.ranks[class], self.counts[class]);
            self.ranks[class] += 1;
            self.keyed.push((due, self.tie_break.next_u64(), sample));
        }
        // Clears only the touched counters: with many classes, a shard holds few of them.
        for &sample in &*shard {
            let class = self.classes.of(sample);
            self.counts[class] = 0;
            self.ranks[class] = 0;
        }
        self.keyed.sort_unstable();
        for (place, &(_, _, sample)) in shard.iter_mut().zip(&self.keyed) {
            *place = sample;
        }
    }
}

/// Returns the place in the shard at which a sample is due: (rank + 1/2) / count, in units of 2^-31.
///
/// Whole numbers make the order the same on every machine.
fn due(rank: u32, count: u32) -> u64 {
    ((2 * u64::from(rank) + 1) << 30) / u64::from(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interleaved(labels: &[u32]) -> Vec<u32> {
        let classes = Classes::new(labels);
        let mut shard: Vec<u32> = (0..labels.len() as u32).collect();
        Interleaver::new(&classes, CounterRng::new(1, 1)).interleave(&mut shard);
        shard.iter().map(|&sample| labels[sample as usize]).collect()
    }

    #[test]
    fn a_rare_class_stands_in_the_middle_of_its_share() {
        assert_eq!(interleaved(&[1, 0, 0, 0, 0]), [0, 0, 1, 0, 0]);
        // The two samples are due at 1/4 and 3/4; the six at 1/12, 3/12, ...: ties with the second and the fifth.
        let order = interleaved(&[1, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(order[..4].iter().sum::<u32>(), 1);
        assert_eq!((order[0], order[3], order[4], order[7]), (0, 0, 0, 0));
    }

    #[test]
    fn equal_classes_take_turns_in_changing_order() {
        let labels: Vec<u32> = (0..300).map(|sample| sample / 100).collect();
        let order = interleaved(&labels);
        for round in order.chunks(3) {
            let mut round = round.to_vec();
            round.sort_unstable();
            assert_eq!(round, [0, 1, 2]);
        }
        assert!(order.chunks(3).any(|round| round != &order[..3]));
    }
}
