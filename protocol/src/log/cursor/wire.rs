//! Cursors in bytes and texts: a list of epoch spans, in order.

use serde::{Serialize, Serializer};

use super::{Cursors, EPOCH_SPANS_MAX, EpochSpan};
use crate::bounded::BoundedVec;

impl Serialize for Cursors {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // A list and not a map, because text formats have no maps with structures as keys.
        serializer.collect_seq(self.epoch_spans())
    }
}

impl TryFrom<BoundedVec<EpochSpan, EPOCH_SPANS_MAX>> for Cursors {
    type Error = &'static str;

    /// Accepts only lists of epoch spans as they are serialised: in order, without overlaps. Each span is then inserted
    /// in one place, so a few bytes cannot cause much work.
    fn try_from(epoch_spans: BoundedVec<EpochSpan, EPOCH_SPANS_MAX>) -> Result<Self, Self::Error> {
        let mut cursors = Self::default();
        let mut before: Option<EpochSpan> = None;
        for &epoch_span in epoch_spans.iter() {
            let follows =
                before.is_none_or(|before| (before.shard, before.last) < (epoch_span.shard, epoch_span.first));
            if !follows || epoch_span.first > epoch_span.last || epoch_span.done == 0 {
                return Err("the epoch spans of a cursor list are empty or out of order");
            }
            let known = cursors.samples_done();
            let new = cursors.raise(epoch_span).samples;
            if new == 0 || known.checked_add(new).is_none() {
                return Err("a cursor list exceeds the limit of epoch spans or samples");
            }
            before = Some(epoch_span);
        }
        Ok(cursors)
    }
}
