//! Cursors in bytes and texts: a list of epoch spans, in order.

use std::fmt;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Cursors, EPOCH_SPANS_MAX, EpochSpan};

impl Serialize for Cursors {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // A list, not a map: text formats know no maps whose keys are structures.
        serializer.collect_seq(self.epoch_spans())
    }
}

impl<'de> Deserialize<'de> for Cursors {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Cursors;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {EPOCH_SPANS_MAX} epoch spans in ascending order")
    }

    /// Takes only what is written by the above: epoch spans that lie apart are put in their places one by one, and nobody
    /// can make that much work with few bytes.
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Cursors, A::Error> {
        let mut cursors = Cursors::default();
        let mut before: Option<EpochSpan> = None;
        while let Some(epoch_span) = items.next_element::<EpochSpan>()? {
            let follows =
                before.is_none_or(|before| (before.shard, before.last) < (epoch_span.shard, epoch_span.first));
            if !follows || epoch_span.first > epoch_span.last || epoch_span.done == 0 {
                return Err(Error::custom(
                    "the epoch spans of a cursor list are empty or out of order",
                ));
            }
            let known = cursors.samples_done();
            let new = cursors.raise(epoch_span).samples;
            if new == 0 || known.checked_add(new).is_none() {
                return Err(Error::custom(
                    "a cursor list exceeds the limit of epoch spans or samples",
                ));
            }
            before = Some(epoch_span);
        }
        Ok(cursors)
    }
}
