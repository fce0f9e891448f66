//! Cursors: the progress in each shard. They are the part of the replicated state that says which samples are done.
//!
//! A cursor is the number of contiguous samples done from the start of a shard. Cursors travel with the batches whose
//! work they count, and merge by maximum, so batches may arrive late, twice or in any order.
//!
//! A shard has the same number of samples in every epoch, so its cursor is the same in all epochs that are done.
//! Cursors are therefore kept as epoch spans, and take no more room after a million epochs than after one.

#[cfg(test)]
mod tests;
mod wire;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::bounded::BoundedVec;

/// Most epoch spans (epochs in which a shard has the same progress) in a set of cursors: three for each shard of 5,000
/// workers. Only a hostile member needs more. Further spans are ignored; at worst, their samples are trained again.
pub const EPOCH_SPANS_MAX: usize = 1 << 18;

/// Name of a shard, a part of an epoch's samples, unique within a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ShardId {
    /// Epoch that the shard (a part of its samples) belongs to, counted from 0.
    pub epoch: u32,
    /// Number of the shard among those of its epoch.
    pub shard: u32,
}

/// Progress in a shard (a part of an epoch's samples). It travels with the batch that holds the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CursorAdvance {
    /// Shard (part of an epoch's samples) in which samples were trained.
    pub shard: ShardId,
    /// Number of contiguous samples done from the start of the shard, including those of the batch.
    pub done: u32,
}

/// Span of epochs in which a shard (a part of an epoch's samples) has the same progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct EpochSpan {
    /// Number of the shard among the shards of its epoch, the same in all epochs of this span.
    pub shard: u32,
    /// First epoch of a span of epochs in which a shard has the same progress.
    pub first: u32,
    /// Last epoch of a span of epochs in which a shard has the same progress.
    pub last: u32,
    /// Number of contiguous samples done from the start of the shard, in each of these epochs.
    pub done: u32,
}

impl EpochSpan {
    /// True if the given shard of one epoch is in this span of epochs.
    #[must_use]
    pub const fn contains(&self, shard: ShardId) -> bool {
        self.shard == shard.shard && self.first <= shard.epoch && shard.epoch <= self.last
    }

    /// Returns the shard and its progress if the span covers one epoch; `None` if it covers more.
    #[must_use]
    pub fn single(self) -> Option<CursorAdvance> {
        let shard = ShardId {
            epoch: self.first,
            shard: self.shard,
        };
        let done = self.done;
        (self.first == self.last).then_some(CursorAdvance { shard, done })
    }

    /// Returns the shards in this span of epochs, one for each epoch.
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

/// Result of recording progress in a set of cursors (the progress of all shards): the part of it that was not known
/// before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// Number of samples that were not known to be trained before this progress was recorded.
    pub samples: u64,
    /// Number of shards (parts of an epoch's samples) that had no progress before this progress was recorded.
    pub begun: u64,
}

/// Progress in all shards (parts of epochs) of a run: the number of samples done from the start of each.
///
/// Two sets of cursors are equal if they agree on every shard: a shard that was not begun has no entry, and epoch spans
/// are as long as possible.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "BoundedVec<EpochSpan, EPOCH_SPANS_MAX>")]
pub struct Cursors {
    /// Progress of each shard, as spans of epochs with equal progress. The key is the shard and the span's first epoch.
    epoch_spans: BTreeMap<(u32, u32), SpanEnd>,
    /// Number of samples done in all shards, kept up to date so that progress can be read at any time.
    samples_done: u64,
}

/// Fields of an epoch span that are not part of its key: the last epoch and the progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SpanEnd {
    last: u32,
    done: u32,
}

impl Cursors {
    /// Records progress in a shard, and returns the number of samples that were not known to be done.
    pub fn advance(&mut self, advance: CursorAdvance) -> u32 {
        // This is at most `done`, which is a `u32`.
        self.raise(advance.into()).samples as u32
    }

    /// Records that a shard's progress has reached a value in some consecutive epochs, and returns what was new.
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

    /// Merges the progress of another set of cursors into this one: the maximum of each shard counts.
    pub fn merge(&mut self, other: &Self) {
        for epoch_span in other.epoch_spans() {
            self.raise(epoch_span);
        }
    }

    /// Returns the number of contiguous samples done from the start of a shard.
    #[must_use]
    pub fn done(&self, shard: ShardId) -> u32 {
        self.epoch_span_at(shard).map_or(0, |epoch_span| epoch_span.done)
    }

    /// Returns the span of epochs that contains a shard and has its progress; `None` if the shard was not begun.
    #[must_use]
    pub fn epoch_span_at(&self, shard: ShardId) -> Option<EpochSpan> {
        let ShardId { epoch, shard } = shard;
        let before = self.epoch_spans.range((shard, 0)..=(shard, epoch)).next_back();
        before.map(epoch_span).filter(|found| found.last >= epoch)
    }

    /// Returns the number of samples done in all shards together.
    #[must_use]
    pub const fn samples_done(&self) -> u64 {
        self.samples_done
    }

    /// Returns the progress of all begun shards, as spans of epochs with equal progress, sorted by shard and epoch.
    pub fn epoch_spans(&self) -> impl Iterator<Item = EpochSpan> + '_ {
        self.epoch_spans.iter().map(epoch_span)
    }

    /// Returns the last epoch, at most `limit`, up to which the shard has the same progress as in `epoch`, and this
    /// progress. New progress can thus be recorded for all these epochs at once.
    fn level(&self, shard: u32, epoch: u32, limit: u32) -> (u32, u32) {
        if let Some(here) = self.epoch_span_at(ShardId { epoch, shard }) {
            return (here.last.min(limit), here.done);
        }
        // No span contains the epoch itself, so a span that is found lies behind it.
        let next = self.epoch_spans.range((shard, epoch)..=(shard, limit)).next();
        (next.map_or(limit, |(&(_, first), _)| first - 1), 0)
    }

    /// Raises the progress of a shard in a span of epochs in which it was the same. Returns `false`, without effect, if
    /// that would exceed the limit of epoch spans.
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
        // The remaining ends of the span that is cut have a lower cursor, so only neighbouring spans can join the new
        // one.
        let neighbour = |epoch: Option<u32>| {
            let found = epoch.and_then(|epoch| self.epoch_span_at(at(epoch)));
            found.filter(|found| found.done == done)
        };
        let before = neighbour(first.checked_sub(1));
        let after = neighbour(last.checked_add(1));
        // Usual case: an epoch is done after the epochs before it, and their span becomes longer.
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
