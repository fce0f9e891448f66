//! Cursors in bytes and texts: a list of stretches, in order.

use std::fmt;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Cursors, STRETCHES_MAX, Stretch};

impl Serialize for Cursors {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // A list, not a map: text formats know no maps whose keys are structures.
        serializer.collect_seq(self.stretches())
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
        write!(f, "at most {STRETCHES_MAX} stretches of epochs, in order")
    }

    /// Takes only what is written by the above: stretches that lie apart are put in their places one by one, and nobody
    /// can make that much work with few bytes.
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Cursors, A::Error> {
        let mut cursors = Cursors::default();
        let mut before: Option<Stretch> = None;
        while let Some(stretch) = items.next_element::<Stretch>()? {
            let follows = before.is_none_or(|before| (before.shard, before.last) < (stretch.shard, stretch.first));
            if !follows || stretch.first > stretch.last || stretch.done == 0 {
                return Err(Error::custom("stretches of epochs that are out of order"));
            }
            let known = cursors.samples_done();
            let new = cursors.raise(stretch).samples;
            if new == 0 || known.checked_add(new).is_none() {
                return Err(Error::custom("more stretches of epochs, or samples, than there can be"));
            }
            before = Some(stretch);
        }
        Ok(cursors)
    }
}
