//! Tests of data that no honest member and no honest worker sends.

use protocol::log::batch::BatchError;
use protocol::weights::changes::ChangesError;

use super::super::Breach;
use super::newcomers::newcomer;
use super::*;
use crate::ledger::LedgerError;

#[test]
fn what_no_honest_member_sends_is_put_in_quarantine() {
    let header = Header {
        run: RUN,
        origin: OriginId(2),
        sequence: 2,
        seen: 0,
        digest: Digest::default(),
        cursors: Vec::new(),
        samples: 1,
        loss: 0.0,
        status: OriginStatus::default(),
    };
    let encoded = |header: &Header, changes: &[u32]| {
        let mut bytes = Vec::new();
        let payload = Payload::Steps {
            tau: Tau::ONE_STEP,
            changes: changes.to_vec(),
        };
        header.encode(&payload, &mut bytes).unwrap();
        Message::Batch(bytes.into())
    };
    let foreign = Header {
        run: RunId(77),
        ..header.clone()
    };
    let conflicting = batch(OriginId(2), 1, &[change(9, false)], Tau::ONE_STEP);
    let huge = Message::Piece(Piece {
        kind: ParcelKind::Range,
        total: u64::MAX,
        offset: 0,
        bytes: [0; 10].into(),
    });
    // This length is allowed for a snapshot, but far too long for a range of such a small model.
    let fat = Message::Piece(Piece {
        kind: ParcelKind::Range,
        total: 20 << 20,
        offset: 0,
        bytes: [0; 10].into(),
    });
    let beyond = ChangesError::IndexOutOfRange {
        index: WEIGHTS as u64,
        weights: WEIGHTS,
    };
    let members = (10..10_000).map(NodeId).collect();
    let frontier = Frontier::default();
    let crowd = Note::Mark {
        number: 1,
        frontier,
        members,
    };
    // The checksum of no bytes is zero: these bytes count as undamaged, and are empty.
    let empty = vec![0; 4];
    let cases = [
        (Message::Batch(empty.as_slice().into()), BatchError::WrongLength.into()),
        (Message::Batch(simple(44, 1)), Breach::UnknownOrigin(OriginId(44))),
        (
            Message::Batch(simple(1, 1)),
            Breach::NeverMade {
                origin: OriginId(1),
                sequence: 1,
            },
        ),
        (
            Message::Batch(conflicting),
            Breach::OtherContents {
                origin: OriginId(2),
                sequence: 1,
            },
        ),
        (
            encoded(&foreign, &[]),
            Breach::Ledger(LedgerError::ForeignRun {
                expected: RUN,
                found: RunId(77),
            }),
        ),
        (
            encoded(&header, &[change(WEIGHTS as u32, true)]),
            BatchError::Payload(beyond.into()).into(),
        ),
        (encoded(&header, &[change(1, true)]), BatchError::DigestDisagrees.into()),
        (huge, Breach::OversizeParcel(u64::MAX)),
        (fat, Breach::OversizeParcel(20 << 20)),
        (whole(ParcelKind::Range, empty), BatchError::WrongLength.into()),
        (Message::Note(crowd), Breach::TooManyMembers),
    ];
    for (message, breach) in cases {
        let mut exchange = node(LIMITS);
        receive(&mut exchange, PEER, Message::Batch(simple(2, 1)));
        let digest = exchange.ledger().digest();
        let effects = receive(&mut exchange, PEER, message);
        let quarantined = Effect::Quarantine {
            peer: PEER,
            reason: breach,
        };
        assert_eq!(effects.last(), Some(&quarantined));
        assert!(
            receive(&mut exchange, PEER, Message::Batch(simple(2, 2))).is_empty(),
            "messages of a quarantined peer are ignored"
        );
        assert_eq!(exchange.ledger().digest(), digest);
        assert!(tell(&mut exchange, Event::LinkUp(PEER)).is_empty());
    }
}

#[test]
fn a_peer_that_names_origins_without_end_is_put_in_quarantine() {
    let mut exchange = node(LIMITS);
    let mut name = |id: u64| receive(&mut exchange, PEER, Message::Origin(origin(id)));
    let quarantined = |effects: Vec<Effect>| {
        let is = |effect: &Effect| matches!(effect, Effect::Quarantine { peer: PEER, .. });
        effects.iter().any(is)
    };
    assert!((4..4000).all(|id| !quarantined(name(id))));
    assert!((4000..5000).any(|id| quarantined(name(id))));
}

#[test]
fn a_peer_whose_snapshot_does_not_add_up_is_put_in_quarantine() {
    let mut giver = node(LIMITS);
    tell(&mut giver, Event::Local(simple(1, 1)));
    let effects = receive(&mut giver, THIRD, Message::Note(Note::Ask));
    let (kind, mut bytes) = parcel_to(&mut giver, THIRD, effects);
    *bytes.last_mut().unwrap() ^= 1;
    let mut exchange = newcomer();
    receive(&mut exchange, PEER, Message::Origin(origin(1)));
    let effects = receive(&mut exchange, PEER, whole(kind, bytes));
    assert!(
        matches!(effects.last(), Some(Effect::Quarantine { peer: PEER, .. })),
        "{effects:?}"
    );
    assert_eq!(exchange.ledger().frontier(), &Frontier::default());
    let effects = tell(&mut exchange, Event::Tick);
    assert_eq!(
        notes_to(&effects, THIRD),
        [Note::Ask],
        "another peer is asked for a snapshot"
    );
}

#[test]
fn a_worker_that_is_out_of_turn_is_named() {
    let mut exchange = node(LIMITS);
    for bytes in [simple(1, 2), simple(2, 1), vec![0].into()] {
        let effects = tell(&mut exchange, Event::Local(bytes));
        assert!(matches!(effects[..], [Effect::WorkerFault(_)]), "{effects:?}");
    }
}

#[test]
fn who_hands_on_a_batch_with_other_contents_is_not_blamed() {
    let mut exchange = node(LIMITS);
    receive(&mut exchange, PEER, Message::Batch(simple(2, 1)));
    let other = batch(OriginId(2), 1, &[change(9, false)], Tau::ONE_STEP);
    let digest = exchange.ledger().digest();
    assert!(receive(&mut exchange, THIRD, Message::Batch(other)).is_empty());
    assert_eq!(exchange.ledger().digest(), digest);
}

#[test]
fn an_origin_cannot_be_taken_over() {
    let mut exchange = node(LIMITS);
    let stolen = OriginInfo {
        node: PEER,
        ..origin(1)
    };
    receive(&mut exchange, PEER, Message::Origin(stolen));
    assert!(!sent_to(&tell(&mut exchange, Event::Local(simple(1, 1))), PEER).is_empty());
}

/// A peer cannot end an origin (a worker's stream of batches) of this node: the worker would get no more messages.
#[test]
fn nobody_else_can_say_that_this_nodes_origin_has_ended() {
    let mut exchange = node(LIMITS);
    let ended = OriginInfo {
        ended: Some(0),
        ..origin(1)
    };
    let effects = receive(&mut exchange, PEER, Message::Origin(ended));
    assert!(effects.is_empty(), "{effects:?}");
    assert!(exchange.origins().all(|info| info.ended.is_none()));
    // This node itself can end it.
    tell(&mut exchange, Event::Origin(ended));
    assert!(exchange.origins().any(|info| *info == ended));
}
