//! A snapshot: everything that a replica is, for one that has nothing or can be helped no other way.
//!
//! On the wire and in files it is its head, in postcard behind its length; the counts, four bytes each; and its log. The
//! log goes along because of what it is for: who has it can take ranges that others have merged, as the giver could. A
//! snapshot is cut into pieces anywhere, and takes effect when it is whole and its digest is right.

use std::sync::Arc;

use crate::bounded::COUNT_MAX;
use crate::ids::{OriginId, RunId};
use crate::log::cursor::Cursors;
use crate::log::frontier::{Frontier, SEQUENCE_MAX};
use crate::weights::digest::Digest;
use serde::{Deserialize, Serialize};

/// Bytes of the head's length.
const LENGTH_BYTES: usize = 4;
/// The longest head: cursors, which are a few megabytes at most, origins, and what the log consists of.
pub(crate) const HEAD_BYTES_MAX: usize = 64 << 20;
const COUNT_BYTES: usize = size_of::<i32>();

/// How much of an origin is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    /// Which.
    pub origin: OriginId,
    /// Its last batch that is.
    pub sequence: u64,
    /// What its batches add to the digest.
    pub digest: Digest,
}

/// A replica without its counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// The run.
    pub run: RunId,
    /// What is applied.
    pub applied: Vec<Applied>,
    /// Which samples are done.
    pub cursors: Cursors,
    /// The samples in all batches, those trained twice counted twice.
    pub samples: u64,
    /// How many counts there are.
    pub weights: u64,
}

impl Head {
    /// What is applied, as far as frontiers tell.
    #[must_use]
    pub fn frontier(&self) -> Frontier {
        let mut frontier = Frontier::default();
        for one in &self.applied {
            frontier.raise(one.origin, one.sequence);
        }
        frontier
    }
}

/// What an entry of a log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A batch.
    Batch,
    /// Several batches of one origin.
    Range,
    /// Batches of several origins. Each of these has the entry in its log, with the same bytes.
    Bundle,
}

/// One entry of a log: what it holds of one origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// Whose batches.
    pub origin: OriginId,
    /// The sequence before the first.
    pub from: u64,
    /// The last one's.
    pub to: u64,
    /// The batch, range or bundle as it was encoded.
    pub bytes: Arc<[u8]>,
    /// Which of them it is.
    pub kind: EntryKind,
}

/// A replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// What it is the sum of.
    pub head: Head,
    /// The counts.
    pub counts: Vec<i32>,
    /// Batches that some member may still need.
    pub log: Vec<LogEntry>,
}

/// What stands at the beginning.
#[derive(Serialize, Deserialize)]
struct WireHead {
    head: Head,
    log: Vec<WireEntry>,
}

#[derive(Serialize, Deserialize)]
struct WireEntry {
    origin: OriginId,
    from: u64,
    to: u64,
    kind: WireKind,
    bytes: u32,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
enum WireKind {
    Batch,
    Range,
    Bundle,
    /// The bundle of an entry before, whose bytes are not told again.
    SameBundle(u32),
}

impl WireKind {
    fn of(at: usize, log: &[LogEntry]) -> Self {
        match log[at].kind {
            EntryKind::Batch => Self::Batch,
            EntryKind::Range => Self::Range,
            EntryKind::Bundle => {
                let same = |entry: &LogEntry| Arc::ptr_eq(&entry.bytes, &log[at].bytes);
                match log[..at].iter().position(same) {
                    Some(earlier) => Self::SameBundle(earlier as u32),
                    None => Self::Bundle,
                }
            }
        }
    }

    fn is_told(self) -> bool {
        !matches!(self, Self::SameBundle(_))
    }
}

/// A snapshot as bytes that are made when they are asked for, in order.
#[derive(Clone, Debug)]
pub struct Encoded {
    chunks: Vec<Chunk>,
    /// Where reading stands: the chunk, and the bytes of it that were read.
    chunk: usize,
    read: usize,
    length: usize,
}

#[derive(Clone, Debug)]
enum Chunk {
    Bytes(Arc<[u8]>),
    Counts(Arc<[i32]>),
}

impl Chunk {
    fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Counts(counts) => counts.len() * COUNT_BYTES,
        }
    }

    fn copy(&self, from: usize, length: usize, out: &mut Vec<u8>) {
        match self {
            Self::Bytes(bytes) => out.extend_from_slice(&bytes[from..from + length]),
            Self::Counts(counts) => {
                let first = from / COUNT_BYTES;
                let bytes = counts[first..].iter().flat_map(|count| count.to_le_bytes());
                out.extend(bytes.skip(from % COUNT_BYTES).take(length));
            }
        }
    }
}

/// The bytes of a snapshot.
#[must_use]
pub fn encode(head: Head, counts: Arc<[i32]>, log: &[LogEntry]) -> Encoded {
    let entries = log.iter().enumerate().map(|(at, entry)| {
        let kind = WireKind::of(at, log);
        WireEntry {
            origin: entry.origin,
            from: entry.from,
            to: entry.to,
            bytes: if kind.is_told() { entry.bytes.len() as u32 } else { 0 },
            kind,
        }
    });
    let wire = WireHead {
        head,
        log: entries.collect(),
    };
    let mut bytes = vec![0; LENGTH_BYTES];
    // Writing to memory does not fail.
    let written = postcard::to_io(&wire, &mut bytes).map(|_| ());
    debug_assert!(written.is_ok());
    let length = (bytes.len() - LENGTH_BYTES) as u32;
    bytes[..LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
    let mut chunks = vec![Chunk::Bytes(bytes.into()), Chunk::Counts(counts)];
    let told = log.iter().zip(&wire.log).filter(|(_, entry)| entry.kind.is_told());
    chunks.extend(told.map(|(entry, _)| Chunk::Bytes(Arc::clone(&entry.bytes))));
    Encoded {
        length: chunks.iter().map(Chunk::len).sum(),
        chunks,
        chunk: 0,
        read: 0,
    }
}

impl Encoded {
    /// The bytes of all of it.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// The next bytes, at most so many; none after the last.
    pub fn next(&mut self, length: usize) -> Vec<u8> {
        let mut out = Vec::new();
        while out.len() < length
            && let Some(chunk) = self.chunks.get(self.chunk)
        {
            let taken = (chunk.len() - self.read).min(length - out.len());
            chunk.copy(self.read, taken, &mut out);
            self.read += taken;
            if self.read == chunk.len() {
                (self.chunk, self.read) = (self.chunk + 1, 0);
            }
        }
        out
    }
}

/// The most bytes that a snapshot of a model can have, with a log of so many bytes.
#[must_use]
pub fn length_max(weights: usize, log_bytes: usize) -> usize {
    (LENGTH_BYTES + HEAD_BYTES_MAX + weights * COUNT_BYTES).saturating_add(log_bytes)
}

/// How many weights a snapshot says that it has.
#[must_use]
pub fn weights(bytes: &[u8]) -> Option<usize> {
    let (length, rest) = bytes.split_first_chunk::<LENGTH_BYTES>()?;
    let head = rest.get(..u32::from_le_bytes(*length) as usize)?;
    let (wire, _) = postcard::take_from_bytes::<WireHead>(head).ok()?;
    usize::try_from(wire.head.weights).ok()
}

/// Reads a whole snapshot of a model of so many weights. What it says is not checked beyond its form.
#[must_use]
pub fn decode(bytes: &[u8], weights: usize) -> Option<Snapshot> {
    let (length, rest) = bytes.split_first_chunk::<LENGTH_BYTES>()?;
    let length = u32::from_le_bytes(*length) as usize;
    if length > HEAD_BYTES_MAX {
        return None;
    }
    let (head, rest) = rest.split_at_checked(length)?;
    let Ok((WireHead { head, log }, [])) = postcard::take_from_bytes::<WireHead>(head) else {
        return None;
    };
    let (counts, mut rest) = rest.split_at_checked(weights.checked_mul(COUNT_BYTES)?)?;
    let (counts, []) = counts.as_chunks::<COUNT_BYTES>() else {
        return None;
    };
    let mut entries: Vec<LogEntry> = Vec::with_capacity(log.len());
    for entry in log {
        let (told, after) = rest.split_at_checked(entry.bytes as usize)?;
        rest = after;
        let (kind, bytes) = match entry.kind {
            WireKind::Batch => (EntryKind::Batch, told.into()),
            WireKind::Range => (EntryKind::Range, told.into()),
            WireKind::Bundle => (EntryKind::Bundle, told.into()),
            WireKind::SameBundle(earlier) => (EntryKind::Bundle, Arc::clone(&entries.get(earlier as usize)?.bytes)),
        };
        entries.push(LogEntry {
            origin: entry.origin,
            from: entry.from,
            to: entry.to,
            bytes,
            kind,
        });
    }
    let are_bounded = head.applied.iter().all(|one| one.sequence <= SEQUENCE_MAX) && head.samples <= COUNT_MAX;
    if head.weights != weights as u64 || !rest.is_empty() || !are_bounded {
        return None;
    }
    Some(Snapshot {
        head,
        counts: counts.iter().map(|&bytes| i32::from_le_bytes(bytes)).collect(),
        log: entries,
    })
}

#[cfg(test)]
mod tests {
    use crate::log::cursor::{CursorAdvance, ShardId};

    use super::*;

    fn snapshot() -> Snapshot {
        let shard = ShardId { epoch: 1, shard: 7 };
        let bundle: Arc<[u8]> = vec![4; 9].into();
        Snapshot {
            head: Head {
                run: RunId(3),
                applied: vec![Applied {
                    origin: OriginId(5),
                    sequence: 300,
                    digest: Digest(9),
                }],
                cursors: [CursorAdvance { shard, done: 12 }].into_iter().collect(),
                samples: 40,
                weights: 5,
            },
            counts: vec![1, -2, i32::MAX, 4, -5],
            log: [
                (0, EntryKind::Batch, vec![9; 7].into()),
                (3, EntryKind::Range, vec![].into()),
                (3, EntryKind::Bundle, Arc::clone(&bundle)),
                (4, EntryKind::Batch, vec![8; 2].into()),
                (5, EntryKind::Bundle, bundle),
            ]
            .into_iter()
            .map(|(from, kind, bytes)| LogEntry {
                origin: OriginId(5),
                from,
                to: 300,
                kind,
                bytes,
            })
            .collect(),
        }
    }

    fn encoded(snapshot: &Snapshot) -> Encoded {
        encode(snapshot.head.clone(), snapshot.counts.clone().into(), &snapshot.log)
    }

    #[test]
    fn it_comes_back_from_pieces_of_any_size() {
        let snapshot = snapshot();
        let total = encoded(&snapshot).length();
        for size in 1..=total {
            let mut pieces = encoded(&snapshot);
            let mut bytes = Vec::new();
            while bytes.len() < total {
                bytes.extend(pieces.next(size));
            }
            assert!(bytes.len() == total && pieces.next(size).is_empty());
            assert_eq!(decode(&bytes, 5).as_ref(), Some(&snapshot));
        }
    }

    #[test]
    fn other_forms_are_refused() {
        let bytes = encoded(&snapshot()).next(10_000);
        assert!(decode(&bytes, 5).is_some());
        assert!(decode(&bytes, 4).is_none());
        assert!(decode(&[bytes.clone(), vec![0; 4]].concat(), 5).is_none());
        assert!(decode(&bytes, usize::MAX).is_none());
        for end in 0..bytes.len() {
            assert!(decode(&bytes[..end], 5).is_none(), "cut at {end}");
        }
        assert!(decode(&[255, 255, 255, 255, 0], 5).is_none());
        let mut boundless = [snapshot(), snapshot()];
        boundless[0].head.applied[0].sequence = SEQUENCE_MAX + 1;
        boundless[1].head.samples = COUNT_MAX + 1;
        for snapshot in boundless {
            assert!(
                decode(&encoded(&snapshot).next(10_000), 5).is_none(),
                "{:?}",
                snapshot.head
            );
        }
    }
}
