//! Tests of an exchange, event by event. The simulation tests whole runs.

mod catching_up;
mod damage;
mod lies;
mod links;
mod mute;
mod newcomers;
mod streams;

use std::sync::Arc;

use protocol::ids::{NodeId, OriginId, RunId};
use protocol::log::batch::{Header, OriginStatus, Payload};
use protocol::log::frontier::{Frontier, SequenceRange};
use protocol::log::merged_range::MergedRange;
use protocol::weights::changes::change;
use protocol::weights::digest::Digest;
use protocol::weights::lattice::Tau;

use super::{Effect, Event, Exchange, Limits, parcel};
use crate::ledger::Ledger;
use protocol::wire::link::{Message, Note, OriginInfo, ParcelKind, Piece};

pub(in crate::exchange) const RUN: RunId = RunId(9);
pub(in crate::exchange) const WEIGHTS: usize = 64;

pub(in crate::exchange) fn batch(origin: OriginId, sequence: u64, changes: &[u32], tau: Tau) -> Arc<[u8]> {
    let changes = changes.to_vec();
    batch_of(origin, sequence, &Payload::Steps { tau, changes })
}

pub(in crate::exchange) fn batch_of(origin: OriginId, sequence: u64, payload: &Payload) -> Arc<[u8]> {
    batch_in_round(origin, sequence, payload, OriginStatus::default())
}

pub(in crate::exchange) fn batch_in_round(
    origin: OriginId,
    sequence: u64,
    payload: &Payload,
    status: OriginStatus,
) -> Arc<[u8]> {
    let header = Header {
        run: RUN,
        origin,
        sequence,
        seen: 0,
        digest: payload.digest(),
        cursors: Vec::new(),
        samples: 1,
        loss: 0.0,
        status,
    };
    let mut frame = Vec::new();
    header.encode(payload, &mut frame).unwrap();
    frame.into()
}

pub(in crate::exchange) fn simple(origin: u64, sequence: u64) -> Arc<[u8]> {
    batch(
        OriginId(origin),
        sequence,
        &[change(sequence as u32 % 64, true)],
        Tau::ONE_STEP,
    )
}

/// The announcement of node `id`'s only origin, which has the node's number as its name.
pub(in crate::exchange) fn origin(id: u64) -> OriginInfo {
    OriginInfo {
        origin: OriginId(id),
        node: NodeId(id),
        slot: id as u32 - 1,
        ended: None,
    }
}

pub(in crate::exchange) const LIMITS: Limits = Limits::for_weights(WEIGHTS);
pub(in crate::exchange) const ME: NodeId = NodeId(1);
pub(in crate::exchange) const PEER: NodeId = NodeId(2);
pub(in crate::exchange) const THIRD: NodeId = NodeId(3);

/// Makes node 1 with its worker's origin (stream of batches), and the linked peers 2 and 3 with theirs. The peers have
/// told that they have no batches.
pub(in crate::exchange) fn node(limits: Limits) -> Exchange {
    let mut exchange = Exchange::new(ME, Ledger::new(RUN, vec![0; WEIGHTS]), limits);
    for id in 1..=3 {
        tell(&mut exchange, Event::Founder(NodeId(id)));
        tell(&mut exchange, Event::Origin(origin(id)));
    }
    for peer in [PEER, THIRD] {
        tell(&mut exchange, Event::LinkUp(peer));
        receive(&mut exchange, peer, Message::Have(Frontier::default()));
    }
    exchange
}

pub(in crate::exchange) fn tell(exchange: &mut Exchange, event: Event) -> Vec<Effect> {
    let mut effects = Vec::new();
    exchange.handle(event, &mut effects);
    // Each change of a link causes messages about links, which have tests of their own.
    let about_links = |effect: &Effect| {
        matches!(
            effect,
            Effect::Send {
                message: Message::Note(Note::Links(_)),
                ..
            }
        )
    };
    effects.retain(|effect| !about_links(effect));
    effects
}

pub(in crate::exchange) fn receive(exchange: &mut Exchange, from: NodeId, message: Message) -> Vec<Effect> {
    tell(exchange, Event::Received { from, message })
}

pub(in crate::exchange) fn has(sequences: &[(u64, u64)]) -> Message {
    let mut frontier = Frontier::default();
    for &(origin, sequence) in sequences {
        frontier.raise(OriginId(origin), sequence);
    }
    Message::Have(frontier)
}

/// The encoded batches that effects send to a node.
pub(in crate::exchange) fn sent_to(effects: &[Effect], node: NodeId) -> Vec<Arc<[u8]>> {
    effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Send {
                to,
                message: Message::Batch(bytes),
            } if *to == node => Some(Arc::clone(bytes)),
            _ => None,
        })
        .collect()
}

/// Collects the pieces of a parcel that an exchange sends to a node, and acknowledges each. Returns the whole parcel.
pub(in crate::exchange) fn parcel_to(
    exchange: &mut Exchange,
    node: NodeId,
    mut effects: Vec<Effect>,
) -> (ParcelKind, Vec<u8>) {
    let mut incoming = None;
    loop {
        let pieces: Vec<Piece> = effects
            .iter()
            .filter_map(|effect| match effect {
                Effect::Send {
                    to,
                    message: Message::Piece(piece),
                } if *to == node => Some(piece.clone()),
                _ => None,
            })
            .collect();
        assert!(
            !pieces.is_empty(),
            "no further piece of the parcel was sent: {effects:?}"
        );
        effects.clear();
        for piece in pieces {
            match parcel::take(&mut incoming, &piece) {
                parcel::PieceOutcome::Part(got) => {
                    effects.extend(receive(exchange, node, Message::Note(Note::Got(got))));
                }
                parcel::PieceOutcome::Whole(kind, bytes) => return (kind, bytes),
                parcel::PieceOutcome::OutOfPlace => panic!("pieces come in order"),
            }
        }
    }
}

/// Makes a message that holds a whole parcel in one piece.
pub(in crate::exchange) fn whole(kind: ParcelKind, bytes: Vec<u8>) -> Message {
    Message::Piece(Piece {
        kind,
        total: bytes.len() as u64,
        offset: 0,
        bytes: bytes.into(),
    })
}

pub(in crate::exchange) fn notes_to(effects: &[Effect], node: NodeId) -> Vec<Note> {
    let note = |effect: &Effect| match effect {
        Effect::Send {
            to,
            message: Message::Note(note),
        } if *to == node => Some(note.clone()),
        _ => None,
    };
    effects.iter().filter_map(note).collect()
}
