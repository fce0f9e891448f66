//! A counter-based random number generator: value `i` of a stream is a pure function of seed, stream number and `i`.
//!
//! Every node draws the same initial weights and the same sample order from a run's seed. Nothing here may therefore
//! depend on a platform's maths library: only integers are used, and products of `f64`, which IEEE 754 fixes to the
//! bit.

/// Mixes an index with the finaliser of `SplitMix64`, a bijection of 64-bit words whose output looks random.
#[must_use]
pub const fn splitmix64(index: u64) -> u64 {
    let mut z = index.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Stream of pseudo-random 64-bit words that can be read in order or at any position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterRng {
    key: u64,
    counter: u64,
}

impl CounterRng {
    /// Creates the stream of pseudo-random words that has this number among those of a seed. Different streams of one
    /// seed are independent.
    #[must_use]
    pub const fn new(seed: u64, stream: u64) -> Self {
        Self {
            key: splitmix64(seed ^ splitmix64(stream)),
            counter: 0,
        }
    }

    /// Returns the pseudo-random 64-bit word at a position of the stream, regardless of the words that were read
    /// before.
    #[must_use]
    pub const fn at(&self, position: u64) -> u64 {
        splitmix64(self.key ^ splitmix64(position))
    }

    /// Returns the next pseudo-random 64-bit word of the stream.
    pub const fn next_u64(&mut self) -> u64 {
        let word = self.at(self.counter);
        self.counter += 1;
        word
    }

    /// Returns an unbiased random number below `bound` (multiply and reject).
    ///
    /// # Panics
    /// If `bound` is zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "the upper bound of a random number must be above 0");
        let rejected = bound.wrapping_neg() % bound;
        loop {
            let product = u128::from(self.next_u64()) * u128::from(bound);
            if (product as u64) >= rejected {
                return (product >> 64) as u64;
            }
        }
    }

    /// Puts the items of a slice into random order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix64_gives_the_published_sequence_for_seed_zero() {
        // The reference generator adds the golden-ratio constant before each output.
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        assert_eq!(splitmix64(0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(splitmix64(STEP), 0x6e78_9e6a_a1b9_65f4);
        assert_eq!(splitmix64(STEP.wrapping_mul(2)), 0x06c4_5d18_8009_454f);
    }

    #[test]
    fn reading_in_order_is_reading_by_position() {
        let mut stream = CounterRng::new(7, 3);
        let fixed = stream.clone();
        for position in 0..100 {
            assert_eq!(stream.next_u64(), fixed.at(position));
        }
    }

    #[test]
    fn below_reaches_every_value_about_equally() {
        let mut stream = CounterRng::new(1, 0);
        let mut seen = [0u32; 7];
        for _ in 0..70_000 {
            seen[stream.below(7) as usize] += 1;
        }
        assert!(seen.iter().all(|&n| (9_500..10_500).contains(&n)), "{seen:?}");
    }

    #[test]
    fn a_shuffle_keeps_every_item() {
        let mut items: Vec<u32> = (0..1000).collect();
        CounterRng::new(5, 5).shuffle(&mut items);
        assert!(items.windows(2).any(|pair| pair[0] > pair[1]));
        items.sort_unstable();
        assert_eq!(items, (0..1000).collect::<Vec<_>>());
    }
}
