//! The log: encoded batches that some member may still need.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use protocol::frontier::Frontier;
use protocol::ids::OriginId;

use super::Frame;

/// Consecutive batches of each origin, up to the newest.
#[derive(Clone, Debug, Default)]
pub(super) struct Log {
    origins: BTreeMap<OriginId, Batches>,
    bytes: usize,
}

#[derive(Clone, Debug, Default)]
struct Batches {
    /// The sequence before the first batch kept.
    from: u64,
    frames: VecDeque<Arc<[u8]>>,
    bytes: usize,
}

impl Batches {
    fn pop_oldest(&mut self) -> Option<usize> {
        let bytes = self.frames.pop_front()?.len();
        self.from += 1;
        self.bytes -= bytes;
        Some(bytes)
    }
}

impl Log {
    /// Appends the next batch of its origin.
    pub(super) fn append(&mut self, frame: Frame) {
        let batches = self.origins.entry(frame.origin).or_insert_with(|| Batches {
            from: frame.sequence - 1,
            frames: VecDeque::new(),
            bytes: 0,
        });
        debug_assert_eq!(
            batches.from + batches.frames.len() as u64 + 1,
            frame.sequence,
            "the log has a gap"
        );
        self.bytes += frame.bytes.len();
        batches.bytes += frame.bytes.len();
        batches.frames.push_back(frame.bytes);
    }

    /// A batch, if it is kept.
    pub(super) fn get(&self, origin: OriginId, sequence: u64) -> Option<&Arc<[u8]>> {
        let batches = self.origins.get(&origin)?;
        let position = sequence.checked_sub(batches.from + 1)?;
        batches.frames.get(position as usize)
    }

    /// Forgets what everybody has.
    pub(super) fn trim(&mut self, everybody: &Frontier) {
        for (origin, batches) in &mut self.origins {
            let applied = everybody.applied(*origin);
            while batches.from < applied
                && let Some(bytes) = batches.pop_oldest()
            {
                self.bytes -= bytes;
            }
        }
    }

    /// Forgets the oldest batch of the origin that takes the most room; `false` when there is nothing left.
    pub(super) fn drop_oldest(&mut self) -> bool {
        let largest = self.origins.values_mut().max_by_key(|batches| batches.bytes);
        match largest.and_then(Batches::pop_oldest) {
            Some(bytes) => {
                self.bytes -= bytes;
                true
            }
            None => false,
        }
    }

    /// The bytes of all batches kept.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(origin: u64, sequence: u64) -> Frame {
        Frame {
            origin: OriginId(origin),
            sequence,
            bytes: vec![0; 10].into(),
        }
    }

    fn frontier(origin: u64, sequences: u64) -> Frontier {
        let mut frontier = Frontier::default();
        for sequence in 1..=sequences {
            frontier.advance(OriginId(origin), sequence).unwrap();
        }
        frontier
    }

    #[test]
    fn batches_stay_until_everybody_has_them() {
        let mut log = Log::default();
        (1..=5).for_each(|sequence| log.append(frame(1, sequence)));
        log.append(frame(2, 1));
        assert_eq!(log.bytes(), 60);
        log.trim(&frontier(1, 3));
        assert!(log.get(OriginId(1), 3).is_none());
        assert!(log.get(OriginId(1), 4).is_some() && log.get(OriginId(1), 5).is_some());
        assert!(log.get(OriginId(1), 6).is_none());
        assert!(log.get(OriginId(2), 1).is_some());
        assert_eq!(log.bytes(), 30);
        log.append(frame(1, 6));
        assert!(log.get(OriginId(1), 6).is_some());
    }

    #[test]
    fn a_log_can_start_in_the_middle() {
        let mut log = Log::default();
        log.append(frame(1, 8));
        assert!(log.get(OriginId(1), 7).is_none());
        assert!(log.get(OriginId(1), 8).is_some());
    }

    #[test]
    fn the_largest_origin_loses_its_oldest_first() {
        let mut log = Log::default();
        (1..=3).for_each(|sequence| log.append(frame(1, sequence)));
        log.append(frame(2, 1));
        assert!(log.drop_oldest());
        assert!(log.get(OriginId(1), 1).is_none() && log.get(OriginId(2), 1).is_some());
        while log.drop_oldest() {}
        assert_eq!(log.bytes(), 0);
    }
}
