//! How far each shard has been trained: the part of the replicated state that says which samples are done.
//!
//! A cursor is the number of contiguous samples done from the start of a shard. Cursors ride on the batches
//! that carry the work they count, and merge by maximum, so batches may arrive late, twice or in any order.
//!
//! A shard has as many samples in every epoch, so where epochs are done its cursor is the same in all of them. Cursors
//! are therefore kept as epoch spans, and take no more room after a million epochs than after one.

#[cfg(test)]
mod tests;
mod wire;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::bounded::BoundedVec;

/// The most epoch spans that a set of cursors holds: three for each shard of 5,000 workers. Only a member that lies makes
/// more, and what it says beyond that is not taken note of; at worst, samples are trained again.
pub const EPOCH_SPANS_MAX: usize = 1 << 18;

/// The name of a shard in the whole run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ShardId {
    /// The epoch, from zero.
    pub epoch: u32,
    /// The number of the shard in its epoch's plan.
    pub shard: u32,
}

/// The news that a shard is done up to some sample. It rides on the batch that holds the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CursorAdvance {
    /// The shard.
    pub shard: ShardId,
    /// Contiguous samples done from the start of the shard, these included.
    pub done: u32,
}

/// Consecutive epochs in which a shard is done up to the same sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct EpochSpan {
    /// The number of the shard in the plans of these epochs.
    pub shard: u32,
    /// The first of the epochs.
    pub first: u32,
    /// The last of them.
    pub last: u32,
    /// Contiguous samples done from the start of the shard.
    pub done: u32,
}

impl EpochSpan {
    /// Whether it says something of a shard.
    #[must_use]
    pub const fn contains(&self, shard: ShardId) -> bool {
        self.shard == shard.shard && self.first <= shard.epoch && shard.epoch <= self.last
    }

    /// What it says of the only shard that it says something of, if it is of one epoch.
    #[must_use]
    pub fn single(self) -> Option<CursorAdvance> {
        let shard = ShardId {
            epoch: self.first,
            shard: self.shard,
        };
        let done = self.done;
        (self.first == self.last).then_some(CursorAdvance { shard, done })
    }

    /// The shards that it says something of.
    pub fn shards(self) -> impl Iterator<Item = ShardId> {
        let shard = self.shard;
        (self.first..=self.last).map(move |epoch| ShardId { epoch, shard })
    }
}

impl From<CursorAdvance> for EpochSpan {
    fn from(advance: CursorAdvance) -> Self {
        let CursorAdvance { shard, done } = advance;
        Self {
            shard: shard.shard,
            first: shard.epoch,
            last: shard.epoch,
            done,
        }
    }
}

/// What was new in something that was taken note of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// Samples that were not known to be done.
    pub samples: u64,
    /// Shards of which none were.
    pub begun: u64,
}

/// The cursors of all shards.
///
/// Two sets of cursors are equal if they say the same of every shard: a shard that was not begun has no
/// entry, and epoch spans are as long as can be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "BoundedVec<EpochSpan, EPOCH_SPANS_MAX>")]
pub struct Cursors {
    /// By shard and first epoch.
    epoch_spans: BTreeMap<(u32, u32), SpanEnd>,
    /// The sum over all shards, kept so that progress can be asked for at any time.
    samples_done: u64,
}

/// What an epoch span has beside its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SpanEnd {
    last: u32,
    done: u32,
}

impl Cursors {
    /// Takes note of an advance, and returns how many samples were not known to be done before.
    pub fn advance(&mut self, advance: CursorAdvance) -> u32 {
        // No more than `done`, which is as large.
        self.raise(advance.into()).samples as u32
    }

    /// Takes note that a shard is done that far in some consecutive epochs.
    pub fn raise(&mut self, to: EpochSpan) -> News {
        let mut news = News::default();
        let mut first = to.first;
        while first <= to.last {
            let (last, done) = self.level(to.shard, first, to.last);
            let part = EpochSpan { first, last, ..to };
            if to.done > done && self.set(part) {
                let epochs = u64::from(last - first) + 1;
                news.samples += epochs * u64::from(to.done - done);
                news.begun += if done == 0 { epochs } else { 0 };
            }
            let Some(next) = last.checked_add(1) else {
                break;
            };
            first = next;
        }
        self.samples_done = self.samples_done.saturating_add(news.samples);
        news
    }

    /// Takes note of all that another set of cursors knows.
    pub fn merge(&mut self, other: &Self) {
        for epoch_span in other.epoch_spans() {
            self.raise(epoch_span);
        }
    }

    /// The contiguous samples done of a shard.
    #[must_use]
    pub fn done(&self, shard: ShardId) -> u32 {
        self.epoch_span_at(shard).map_or(0, |epoch_span| epoch_span.done)
    }

    /// The epoch span that a shard is in, if it was begun.
    #[must_use]
    pub fn epoch_span_at(&self, shard: ShardId) -> Option<EpochSpan> {
        let ShardId { epoch, shard } = shard;
        let before = self.epoch_spans.range((shard, 0)..=(shard, epoch)).next_back();
        before.map(epoch_span).filter(|found| found.last >= epoch)
    }

    /// The samples done in all shards together.
    #[must_use]
    pub const fn samples_done(&self) -> u64 {
        self.samples_done
    }

    /// All that is known, by shard and epoch.
    pub fn epoch_spans(&self) -> impl Iterator<Item = EpochSpan> + '_ {
        self.epoch_spans.iter().map(epoch_span)
    }

    /// How far the shard is done in an epoch, and up to which epoch, at most `limit`, it is done as far.
    fn level(&self, shard: u32, epoch: u32, limit: u32) -> (u32, u32) {
        if let Some(here) = self.epoch_span_at(ShardId { epoch, shard }) {
            return (here.last.min(limit), here.done);
        }
        // Nothing begins at the epoch itself, so what is found is behind it.
        let next = self.epoch_spans.range((shard, epoch)..=(shard, limit)).next();
        (next.map_or(limit, |(&(_, first), _)| first - 1), 0)
    }

    /// Puts a shard further in epochs in which it was equally far. Refuses what would be one epoch span too many.
    fn set(&mut self, to: EpochSpan) -> bool {
        let EpochSpan {
            shard,
            mut first,
            mut last,
            done,
        } = to;
        let at = |epoch| ShardId { epoch, shard };
        let cut = self.epoch_span_at(at(first));
        let left = cut.filter(|cut| cut.first < first);
        let right = cut.filter(|cut| cut.last > last);
        // What is left of the epoch span that is cut is less far, so it is the neighbours alone that may go on in this one.
        let neighbour = |epoch: Option<u32>| {
            let found = epoch.and_then(|epoch| self.epoch_span_at(at(epoch)));
            found.filter(|found| found.done == done)
        };
        let before = neighbour(first.checked_sub(1));
        let after = neighbour(last.checked_add(1));
        // Mostly an epoch is done after those before it were, and their epoch span becomes longer.
        if let (None, Some(before), None) = (cut, before, after) {
            self.epoch_spans.insert((shard, before.first), SpanEnd { last, done });
            return true;
        }
        let gone = [cut, before, after].iter().flatten().count();
        let made = 1 + [left, right].iter().flatten().count();
        if made > gone && self.epoch_spans.len() + made - gone > EPOCH_SPANS_MAX {
            return false;
        }
        for old in [cut, before, after].into_iter().flatten() {
            self.epoch_spans.remove(&(shard, old.first));
        }
        if let Some(left) = left {
            let last = first - 1;
            self.epoch_spans
                .insert((shard, left.first), SpanEnd { last, done: left.done });
        }
        if let Some(right) = right {
            let (last, done) = (right.last, right.done);
            self.epoch_spans.insert((shard, to.last + 1), SpanEnd { last, done });
        }
        first = before.map_or(first, |before| before.first);
        last = after.map_or(last, |after| after.last);
        self.epoch_spans.insert((shard, first), SpanEnd { last, done });
        true
    }
}

fn epoch_span((&(shard, first), &SpanEnd { last, done }): (&(u32, u32), &SpanEnd)) -> EpochSpan {
    EpochSpan {
        shard,
        first,
        last,
        done,
    }
}

impl Extend<CursorAdvance> for Cursors {
    fn extend<I: IntoIterator<Item = CursorAdvance>>(&mut self, advances: I) {
        for advance in advances {
            self.advance(advance);
        }
    }
}

impl FromIterator<CursorAdvance> for Cursors {
    fn from_iter<I: IntoIterator<Item = CursorAdvance>>(advances: I) -> Self {
        let mut cursors = Self::default();
        cursors.extend(advances);
        cursors
    }
}

impl From<Vec<CursorAdvance>> for Cursors {
    fn from(advances: Vec<CursorAdvance>) -> Self {
        advances.into_iter().collect()
    }
}
