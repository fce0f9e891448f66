//! Encoding of a snapshot: a whole replica with its log, for a node that has nothing or cannot be helped by batches.
//!
//! The bytes, on the wire and in files, are the length of the head, the head in postcard, the counts with four bytes
//! each, and the log. With the log, the receiver can apply ranges that other nodes have merged, as the giver could. A
//! snapshot may be cut into pieces anywhere, and takes effect once it is whole and its digest is right.

use std::sync::Arc;

use crate::bounded::COUNT_MAX;
use crate::ids::{OriginId, RunId};
use crate::log::cursor::Cursors;
use crate::log::frontier::{Frontier, SEQUENCE_MAX};
use crate::weights::digest::Digest;
use serde::{Deserialize, Serialize};

/// Length in bytes of the field of a snapshot that holds its head's length.
const LENGTH_BYTES: usize = 4;
/// Maximum length of a snapshot's head in bytes. A head holds the numbers of samples done in each shard (a few
/// megabytes), the origins (workers' streams of batches), and the list of log entries.
pub(crate) const HEAD_BYTES_MAX: usize = 64 << 20;
const COUNT_BYTES: usize = size_of::<i32>();

/// The batches of one worker that a replica has applied: all from the first up to one sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    pub origin: OriginId,
    /// Sequence number of the worker's last batch that is applied.
    pub sequence: u64,
    /// The amount that the worker's applied batches add to the digest of the weights.
    pub digest: Digest,
}

/// Head of a snapshot: everything of a replica except its counts (the weights) and its log of batches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    pub run: RunId,
    /// The batches of each worker that the replica has applied.
    pub applied: Vec<Applied>,
    /// Cursors of the replica: the number of samples done in each shard of an epoch.
    pub cursors: Cursors,
    /// Number of samples in all applied batches; samples trained twice count twice.
    pub samples: u64,
    /// Number of the replica's weights.
    pub weights: u64,
}

impl Head {
    /// Returns the frontier of the replica: the last applied batch of each worker.
    #[must_use]
    pub fn frontier(&self) -> Frontier {
        let mut frontier = Frontier::default();
        for one in &self.applied {
            frontier.raise(one.origin, one.sequence);
        }
        frontier
    }

    /// Returns the sum of the digests of the replica's batches: the digest of its weights minus that of the run's first
    /// weights.
    #[must_use]
    pub fn digest_of_batches(&self) -> Digest {
        let digests = self.applied.iter().map(|one| one.digest);
        digests.fold(Digest::default(), |sum, digest| sum + digest)
    }
}

/// Kind of an entry in the log of batches that other nodes may still need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    Batch,
    /// Kind of log entry: a merged range, which is several batches of one origin (worker) as one sum.
    Range,
    /// Kind of log entry: batches of several origins (workers) as one sum. The log of each of these origins has the
    /// entry, with the same bytes.
    Bundle,
}

/// An entry in the log of batches that other nodes may still need: one or several batches of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    pub origin: OriginId,
    /// Sequence number of the batch before the first one in the log entry.
    pub from: u64,
    /// Sequence number of the last batch in the log entry.
    pub to: u64,
    /// The encoded contents of the entry: a batch, merged range or bundle.
    pub bytes: Arc<[u8]>,
    pub kind: EntryKind,
}

/// A replica with its log of batches, as one node gives it to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Everything of the replica but its weights and log: the batches that add up to the weights in `counts`, and the
    /// samples in them.
    pub head: Head,
    /// The weights, each as a multiple of the step between two neighbouring values.
    pub counts: Vec<i32>,
    /// Log of the batches that some member may still need.
    pub log: Vec<LogEntry>,
}

/// Head of a snapshot as it is encoded, with the list of log entries.
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
    /// The log entry is the same bundle as the earlier log entry at this position, so its bytes are not repeated.
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

/// An encoded snapshot (a replica with its log of batches), whose bytes are produced in order, as they are requested.
#[derive(Clone, Debug)]
pub struct Encoded {
    chunks: Vec<Chunk>,
    /// Index of the chunk that holds the next byte to produce; `read` is the number of bytes of that chunk already
    /// produced.
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

/// Encodes a snapshot (a replica with its log of batches) from its head, weights and log.
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
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// Returns the next bytes of the snapshot, at most `length` of them; none after the last.
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

/// Returns the maximum length in bytes of a snapshot of a model with this many weights and a log of this many bytes.
#[must_use]
pub fn length_max(weights: usize, log_bytes: usize) -> usize {
    (LENGTH_BYTES + HEAD_BYTES_MAX + weights * COUNT_BYTES).saturating_add(log_bytes)
}

/// Reads the number of weights from the head of an encoded snapshot, which another node may have sent.
#[must_use]
pub fn weights(bytes: &[u8]) -> Option<usize> {
    let (length, rest) = bytes.split_first_chunk::<LENGTH_BYTES>()?;
    let head = rest.get(..u32::from_le_bytes(*length) as usize)?;
    let (wire, _) = postcard::take_from_bytes::<WireHead>(head).ok()?;
    usize::try_from(wire.head.weights).ok()
}

/// Decodes a whole snapshot of a model with this many weights; `None` if its form is wrong. Does not check the digest.
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
