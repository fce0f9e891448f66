//! Parcels: ranges, bundles and snapshots, which are too large for one message, sent in pieces. A link carries one
//! parcel at a time in each direction.

use std::sync::Arc;

use protocol::ids::OriginId;

use protocol::wire::link::{ParcelKind, Piece};
use protocol::wire::snapshot::Encoded;

/// A parcel (a large item in pieces) that is being sent to a peer, with the number of bytes sent and confirmed.
#[derive(Clone, Debug)]
pub(super) struct Outgoing {
    contents: Contents,
    total: u64,
    sent: u64,
    got: u64,
}

#[derive(Clone, Debug)]
enum Contents {
    /// The parcel is a range or a bundle (a sum of batches). For each origin (a worker's stream of batches) in it,
    /// `ends` names the last batch that the receiver has once the parcel has arrived.
    Batches {
        kind: ParcelKind,
        ends: Arc<[(OriginId, u64)]>,
        bytes: Arc<[u8]>,
    },
    /// The parcel is a snapshot (a whole replica). Its weights are a copy, so that the ledger can change meanwhile.
    Snapshot(Encoded),
}

impl Outgoing {
    pub(super) fn range(origin: OriginId, to: u64, bytes: Arc<[u8]>) -> Self {
        Self::batches(ParcelKind::Range, [(origin, to)].into(), bytes)
    }

    pub(super) fn bundle(batches: Arc<[(OriginId, u64)]>, bytes: Arc<[u8]>) -> Self {
        Self::batches(ParcelKind::Bundle, batches, bytes)
    }

    fn batches(kind: ParcelKind, ends: Arc<[(OriginId, u64)]>, bytes: Arc<[u8]>) -> Self {
        Self::new(bytes.len(), Contents::Batches { kind, ends, bytes })
    }

    pub(super) fn snapshot(snapshot: Encoded) -> Self {
        Self::new(snapshot.length(), Contents::Snapshot(snapshot))
    }

    fn new(total: usize, contents: Contents) -> Self {
        Self {
            contents,
            total: total as u64,
            sent: 0,
            got: 0,
        }
    }

    pub(super) fn is_snapshot(&self) -> bool {
        matches!(self.contents, Contents::Snapshot(_))
    }

    /// Returns true if later batches of an origin (a worker's stream of batches) must wait until this parcel is sent.
    pub(super) fn blocks(&self, origin: OriginId) -> bool {
        match &self.contents {
            Contents::Batches { ends, .. } => ends.iter().any(|&(of, _)| of == origin) && !self.is_sent(),
            Contents::Snapshot(_) => true,
        }
    }

    /// For each origin (a worker's stream of batches), the last batch that the receiver has once a range or a bundle
    /// has arrived; empty for a snapshot.
    pub(super) fn ends(&self) -> Vec<(OriginId, u64)> {
        match &self.contents {
            Contents::Batches { ends, .. } => ends.to_vec(),
            Contents::Snapshot(_) => Vec::new(),
        }
    }

    /// Returns the next piece, of at most `length` bytes, of the parcel (a large item in pieces), if fewer than
    /// `window` bytes are in flight.
    pub(super) fn next(&mut self, length: usize, window: usize) -> Option<Piece> {
        if self.is_sent() || self.sent - self.got >= window as u64 {
            return None;
        }
        let offset = self.sent;
        let length = length.min((self.total - offset) as usize);
        let (kind, bytes) = match &mut self.contents {
            Contents::Batches { kind, bytes, .. } => (*kind, bytes[offset as usize..][..length].into()),
            Contents::Snapshot(snapshot) => (ParcelKind::Snapshot, snapshot.next(length).into()),
        };
        self.sent += length as u64;
        Some(Piece {
            kind,
            total: self.total,
            offset,
            bytes,
        })
    }

    pub(super) fn is_sent(&self) -> bool {
        self.sent == self.total
    }

    /// Records that the receiver has the first `got` bytes of the parcel (a large item in pieces). Returns true if
    /// these are all.
    pub(super) fn confirm(&mut self, got: u64) -> bool {
        self.got = self.got.max(got.min(self.sent));
        self.got == self.total
    }

    /// Number of bytes of the parcel (a large item in pieces) that the receiver has confirmed.
    pub(super) fn got(&self) -> u64 {
        self.got
    }
}

/// A parcel (a large item in pieces) that is being received from a peer.
#[derive(Clone, Debug)]
pub(super) struct Incoming {
    kind: ParcelKind,
    total: u64,
    bytes: Vec<u8>,
}

/// The result of taking a piece of a parcel (a large item in pieces).
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PieceOutcome {
    /// The parcel (a large item that comes in pieces) is incomplete; this many bytes have arrived.
    Part(u64),
    /// The parcel (a large item that comes in pieces) is complete; its kind and bytes.
    Whole(ParcelKind, Vec<u8>),
    /// The piece does not continue the parcel (a large item in pieces) that is being received: an earlier piece was
    /// lost.
    OutOfPlace,
}

/// Adds a piece to the parcel that is being received, or starts a new parcel if the piece is a first one.
pub(super) fn take(incoming: &mut Option<Incoming>, piece: &Piece) -> PieceOutcome {
    if piece.offset == 0 {
        *incoming = Some(Incoming {
            kind: piece.kind,
            total: piece.total,
            bytes: Vec::new(),
        });
    }
    let fits = |parcel: &mut Incoming| {
        (parcel.kind, parcel.total, parcel.bytes.len() as u64) == (piece.kind, piece.total, piece.offset)
            && !piece.bytes.is_empty()
            && piece.offset + piece.bytes.len() as u64 <= piece.total
    };
    let Some(mut parcel) = incoming.take_if(fits) else {
        return PieceOutcome::OutOfPlace;
    };
    parcel.bytes.extend_from_slice(&piece.bytes);
    let there = parcel.bytes.len() as u64;
    if there == parcel.total {
        return PieceOutcome::Whole(parcel.kind, parcel.bytes);
    }
    *incoming = Some(parcel);
    PieceOutcome::Part(there)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_make_the_parcel_whole() {
        let bytes: Arc<[u8]> = (0..100).collect();
        let mut outgoing = Outgoing::range(OriginId(1), 9, Arc::clone(&bytes));
        let mut incoming = None;
        let mut pieces = 0;
        loop {
            assert!(outgoing.blocks(OriginId(1)) && !outgoing.blocks(OriginId(2)));
            let piece = outgoing.next(7, 14).unwrap();
            pieces += 1;
            match take(&mut incoming, &piece) {
                PieceOutcome::Part(got) => assert!(!outgoing.confirm(got)),
                PieceOutcome::Whole(kind, whole) => {
                    assert_eq!((kind, &whole[..]), (ParcelKind::Range, &bytes[..]));
                    assert!(outgoing.confirm(100) && !outgoing.blocks(OriginId(1)));
                    break;
                }
                PieceOutcome::OutOfPlace => panic!("pieces that come in order must be taken"),
            }
        }
        assert_eq!((pieces, outgoing.ends()), (15, vec![(OriginId(1), 9)]));
        assert!(incoming.is_none());
    }

    #[test]
    fn a_window_bounds_what_is_under_way() {
        let mut outgoing = Outgoing::range(OriginId(1), 9, vec![0; 100].into());
        assert_eq!(std::iter::from_fn(|| outgoing.next(10, 30)).count(), 3);
        assert!(!outgoing.confirm(20));
        assert_eq!(std::iter::from_fn(|| outgoing.next(10, 30)).count(), 2);
        assert!(
            !outgoing.confirm(1000),
            "confirmed bytes are capped at the bytes that were sent"
        );
        assert_eq!(outgoing.got(), 50);
    }

    #[test]
    fn a_gap_is_noticed() {
        let mut outgoing = Outgoing::range(OriginId(1), 9, vec![7; 11].into());
        let pieces: Vec<Piece> = std::iter::from_fn(|| outgoing.next(4, 100)).collect();
        assert_eq!(pieces.len(), 3);
        let mut incoming = None;
        assert_eq!(take(&mut incoming, &pieces[1]), PieceOutcome::OutOfPlace);
        assert_eq!(take(&mut incoming, &pieces[0]), PieceOutcome::Part(4));
        assert_eq!(take(&mut incoming, &pieces[2]), PieceOutcome::OutOfPlace);
        assert_eq!(
            take(&mut incoming, &pieces[0]),
            PieceOutcome::Part(4),
            "a parcel may start again with its first piece"
        );
        assert_eq!(take(&mut incoming, &pieces[1]), PieceOutcome::Part(8));
        assert_eq!(
            take(&mut incoming, &pieces[1]),
            PieceOutcome::OutOfPlace,
            "a piece that was already taken is out of place"
        );
    }
}
