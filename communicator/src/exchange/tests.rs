use std::sync::Arc;

use protocol::batch::{Flags, Header};
use protocol::changes::word;
use protocol::digest::Digest;
use protocol::frontier::{Frontier, SequenceRange};
use protocol::ids::{NodeId, OriginId, RunId};
use protocol::lattice::Tau;
use protocol::merged_range::MergedRange;

use super::{Effect, Event, Exchange, Limits, Message, OriginInfo, ParcelKind, Piece, Word, parcel};
use crate::ledger::Ledger;

pub(super) const RUN: RunId = RunId(9);
pub(super) const WEIGHTS: usize = 64;

pub(super) fn batch(origin: OriginId, sequence: u64, words: &[u32], tau: Tau) -> Arc<[u8]> {
    let header = Header {
        run: RUN,
        origin,
        sequence,
        seen: 0,
        tau,
        digest: Digest::of_changes(words, tau),
        cursors: Vec::new(),
        samples: 1,
        loss: 0.0,
        flags: Flags::default(),
    };
    let mut frame = Vec::new();
    header.encode(words, &mut frame).unwrap();
    frame.into()
}

pub(super) fn simple(origin: u64, sequence: u64) -> Arc<[u8]> {
    batch(
        OriginId(origin),
        sequence,
        &[word(sequence as u32 % 64, true)],
        Tau::ONE_STEP,
    )
}

/// Node n's only origin has the name n.
pub(super) fn origin(id: u64) -> OriginInfo {
    OriginInfo {
        origin: OriginId(id),
        home: NodeId(id),
        slot: id as u32 - 1,
        ended: None,
    }
}

pub(super) const LIMITS: Limits = Limits::for_weights(WEIGHTS);
pub(super) const ME: NodeId = NodeId(1);
pub(super) const PEER: NodeId = NodeId(2);
pub(super) const THIRD: NodeId = NodeId(3);

/// Node 1 with its origin 1, and the linked peers 2 and 3 with theirs; both have nothing yet.
pub(super) fn node(limits: Limits) -> Exchange {
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

pub(super) fn tell(exchange: &mut Exchange, event: Event) -> Vec<Effect> {
    let mut effects = Vec::new();
    exchange.handle(event, &mut effects);
    // Words about links follow every change of one; those that are about them have tests of their own.
    let about_links = |effect: &Effect| {
        matches!(
            effect,
            Effect::Send {
                message: Message::Word(Word::Links(_)),
                ..
            }
        )
    };
    effects.retain(|effect| !about_links(effect));
    effects
}

pub(super) fn receive(exchange: &mut Exchange, from: NodeId, message: Message) -> Vec<Effect> {
    tell(exchange, Event::Received { from, message })
}

pub(super) fn has(sequences: &[(u64, u64)]) -> Message {
    let mut frontier = Frontier::default();
    for &(origin, sequence) in sequences {
        frontier.raise(OriginId(origin), sequence);
    }
    Message::Have(frontier)
}

/// The batches sent to a node, by the bytes that they are.
pub(super) fn sent_to(effects: &[Effect], node: NodeId) -> Vec<Arc<[u8]>> {
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

#[test]
fn a_batch_goes_to_everybody_and_is_encoded_once() {
    let mut exchange = node(LIMITS);
    let bytes = simple(1, 1);
    let effects = tell(&mut exchange, Event::Local(Arc::clone(&bytes)));
    for peer in [PEER, THIRD] {
        let sent = sent_to(&effects, peer);
        assert!(
            sent.len() == 1 && Arc::ptr_eq(&sent[0], &bytes),
            "the bytes are shared, not copied"
        );
    }
    assert!(
        effects.iter().any(|effect| matches!(effect, Effect::Deliver { .. })),
        "other workers of this node need it too"
    );
}

#[test]
fn nothing_is_sent_before_a_peer_says_what_it_has() {
    let mut exchange = node(LIMITS);
    tell(&mut exchange, Event::LinkDown(PEER));
    assert!(sent_to(&tell(&mut exchange, Event::Local(simple(1, 1))), PEER).is_empty());
    tell(&mut exchange, Event::Local(simple(1, 2)));
    let hello = tell(&mut exchange, Event::LinkUp(PEER));
    let origins = (1..=3).map(|id| Message::Origin(origin(id)));
    let expected = origins
        .chain([has(&[(1, 2)])])
        .map(|message| Effect::Send { to: PEER, message });
    assert_eq!(hello, expected.collect::<Vec<_>>());
    let effects = receive(&mut exchange, PEER, has(&[(1, 1)]));
    assert_eq!(sent_to(&effects, PEER), [simple(1, 2)], "it resumes where the peer is");
}

#[test]
fn a_window_bounds_what_is_under_way_and_acknowledgements_open_it() {
    let mut exchange = node(Limits { window: 3, ..LIMITS });
    let mut sent = 0;
    for sequence in 1..=10 {
        sent += sent_to(&tell(&mut exchange, Event::Local(simple(1, sequence))), PEER).len();
    }
    assert_eq!(sent, 3);
    let effects = receive(&mut exchange, PEER, has(&[(1, 2)]));
    assert_eq!(sent_to(&effects, PEER), [simple(1, 4), simple(1, 5)]);
    // Both peers are more than a window behind; when one of the two is near, that is enough.
    assert!(exchange.should_pause());
    receive(&mut exchange, PEER, has(&[(1, 8)]));
    assert!(!exchange.should_pause());
}

#[test]
fn duplicates_change_nothing_and_gaps_reset_the_link() {
    let mut exchange = node(LIMITS);
    receive(&mut exchange, PEER, Message::Batch(simple(2, 1)));
    let digest = exchange.ledger().digest();
    assert!(receive(&mut exchange, THIRD, Message::Batch(simple(2, 1))).is_empty());
    assert_eq!(exchange.ledger().digest(), digest);
    assert_eq!(
        receive(&mut exchange, PEER, Message::Batch(simple(2, 3))),
        [Effect::Reset(PEER)]
    );
    assert!(
        receive(&mut exchange, PEER, Message::Batch(simple(2, 4))).is_empty(),
        "one reset is enough"
    );
    assert_eq!(exchange.ledger().digest(), digest);
}

#[test]
fn batches_are_kept_for_members_without_a_link() {
    let mut exchange = node(LIMITS);
    tell(&mut exchange, Event::Local(simple(1, 1)));
    tell(&mut exchange, Event::LinkDown(THIRD));
    tell(&mut exchange, Event::Left(PEER));
    assert!(exchange.log_bytes() > 0, "a member without a link may come back");
    tell(&mut exchange, Event::Left(THIRD));
    assert_eq!(exchange.log_bytes(), 0);
}

#[test]
fn survivors_hand_on_the_batches_of_a_node_that_is_gone() {
    let limits = Limits {
        patience_ticks: 2,
        ..LIMITS
    };
    let mut exchange = node(limits);
    receive(&mut exchange, THIRD, Message::Batch(simple(3, 1)));
    tell(&mut exchange, Event::LinkDown(THIRD));
    let mut sent = Vec::new();
    for _ in 0..4 {
        sent.extend(sent_to(&tell(&mut exchange, Event::Tick), PEER));
    }
    assert_eq!(sent, [simple(3, 1)], "sent once, after patience");
}

/// What a node sent as a parcel, put together; it gets to hear how much has come.
fn parcel_to(exchange: &mut Exchange, node: NodeId, mut effects: Vec<Effect>) -> (ParcelKind, Vec<u8>) {
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
        assert!(!pieces.is_empty(), "the parcel does not go on: {effects:?}");
        effects.clear();
        for piece in pieces {
            match parcel::take(&mut incoming, &piece) {
                parcel::Taken::Part(got) => {
                    effects.extend(receive(exchange, node, Message::Word(Word::Got(got))));
                }
                parcel::Taken::Whole(kind, bytes) => return (kind, bytes),
                parcel::Taken::OutOfPlace => panic!("pieces come in order"),
            }
        }
    }
}

/// A parcel in one piece.
fn whole(kind: ParcelKind, bytes: Vec<u8>) -> Message {
    Message::Piece(Piece {
        kind,
        total: bytes.len() as u64,
        offset: 0,
        bytes: bytes.into(),
    })
}

fn words_to(effects: &[Effect], node: NodeId) -> Vec<Word> {
    let word = |effect: &Effect| match effect {
        Effect::Send {
            to,
            message: Message::Word(word),
        } if *to == node => Some(word.clone()),
        _ => None,
    };
    effects.iter().filter_map(word).collect()
}

/// Twenty batches, of which the third node got three and acknowledged none before it was lost.
fn node_with_a_merged_log() -> Exchange {
    let mut exchange = node(Limits {
        single_bytes_max: 3 * simple(1, 1).len(),
        window: 3,
        piece_bytes: 10,
        parcel_window: 30,
        ..LIMITS
    });
    for sequence in 1..=3 {
        tell(&mut exchange, Event::Local(simple(1, sequence)));
    }
    tell(&mut exchange, Event::LinkDown(THIRD));
    for sequence in 4..=20 {
        tell(&mut exchange, Event::Local(simple(1, sequence)));
    }
    tell(&mut exchange, Event::LinkUp(THIRD));
    exchange
}

#[test]
fn who_is_far_behind_gets_a_range_and_takes_away_what_it_has() {
    let mut exchange = node_with_a_merged_log();
    let effects = receive(&mut exchange, THIRD, has(&[(1, 3)]));
    assert!(sent_to(&effects, THIRD).is_empty());
    let (kind, bytes) = parcel_to(&mut exchange, THIRD, effects);
    assert_eq!(kind, ParcelKind::Range);
    let range = MergedRange::decode(&bytes, WEIGHTS).unwrap();
    let (start, end) = (range.header.from, range.header.to);
    assert!(start == 0 && end > 3, "there is no point at 3");

    let mut third = Exchange::new(THIRD, Ledger::new(RUN, vec![0; WEIGHTS]), LIMITS);
    tell(&mut third, Event::Founder(THIRD));
    tell(&mut third, Event::Founder(ME));
    tell(&mut third, Event::Origin(origin(1)));
    tell(&mut third, Event::LinkUp(ME));
    for sequence in 1..=3 {
        receive(&mut third, ME, Message::Batch(simple(1, sequence)));
    }
    let total = bytes.len() as u64;
    let effects = receive(&mut third, ME, whole(kind, bytes));
    assert_eq!(third.ledger().frontier().applied(OriginId(1)), end);
    receive(&mut exchange, THIRD, Message::Word(Word::Got(total)));
    for sequence in end + 1..=20 {
        receive(&mut third, ME, Message::Batch(simple(1, sequence)));
    }
    assert_eq!(third.ledger().counts(), exchange.ledger().counts());
    assert_eq!(third.ledger().frontier(), exchange.ledger().frontier());
    let shifted = effects.iter().find_map(|effect| match effect {
        Effect::Shift(shift) => Some(shift.batches),
        _ => None,
    });
    assert_eq!(shifted, Some(end - 3), "workers get what is new");
}

#[test]
fn a_range_that_cannot_be_taken_is_followed_by_a_snapshot() {
    let mut exchange = node_with_a_merged_log();
    let effects = receive(&mut exchange, THIRD, has(&[(1, 5)]));
    let (kind, _) = parcel_to(&mut exchange, THIRD, effects);
    assert_eq!(kind, ParcelKind::Range);
    let range = SequenceRange {
        origin: OriginId(1),
        from: 0,
        to: 20,
    };
    let effects = receive(&mut exchange, THIRD, Message::Word(Word::Cannot(range)));
    assert_eq!(effects, [Effect::Reset(THIRD)]);
    tell(&mut exchange, Event::LinkUp(THIRD));
    let effects = receive(&mut exchange, THIRD, has(&[(1, 5)]));
    assert_eq!(words_to(&effects, THIRD), [Word::TooFar]);
    assert!(
        words_to(&tell(&mut exchange, Event::Local(simple(1, 21))), THIRD).is_empty(),
        "said once"
    );
    let effects = receive(&mut exchange, THIRD, Message::Word(Word::Ask));
    assert!(effects.contains(&Effect::Giving(THIRD)));
    let (kind, bytes) = parcel_to(&mut exchange, THIRD, effects);
    assert_eq!(kind, ParcelKind::Snapshot);
    let snapshot = crate::snapshot::decode(&bytes, WEIGHTS).unwrap();
    assert_eq!(snapshot.counts, exchange.ledger().counts());
    // It is still listened to, and once it has caught up the stream goes on.
    receive(&mut exchange, THIRD, Message::Word(Word::Got(bytes.len() as u64)));
    receive(&mut exchange, THIRD, has(&[(1, 21)]));
    let effects = tell(&mut exchange, Event::Local(simple(1, 22)));
    assert_eq!(sent_to(&effects, THIRD), [simple(1, 22)]);
}

#[test]
fn a_snapshot_waits_for_what_only_the_taker_has() {
    let mut exchange = node_with_a_merged_log();
    receive(&mut exchange, THIRD, has(&[(1, 5), (3, 2)]));
    let effects = receive(&mut exchange, THIRD, Message::Word(Word::Ask));
    assert!(!effects.contains(&Effect::Giving(THIRD)), "it would lose its own");
    receive(&mut exchange, THIRD, Message::Batch(simple(3, 1)));
    receive(&mut exchange, THIRD, Message::Batch(simple(3, 2)));
    receive(&mut exchange, THIRD, Message::Word(Word::Got(u64::MAX)));
    let range = SequenceRange {
        origin: OriginId(1),
        from: 0,
        to: 20,
    };
    receive(&mut exchange, THIRD, Message::Word(Word::Cannot(range)));
    tell(&mut exchange, Event::LinkUp(THIRD));
    receive(&mut exchange, THIRD, has(&[(1, 5), (3, 2)]));
    let effects = receive(&mut exchange, THIRD, Message::Word(Word::Ask));
    assert!(effects.contains(&Effect::Giving(THIRD)));
}

#[test]
fn marks_let_the_log_go() {
    let mut exchange = node(Limits {
        mark_ticks: 2,
        ..LIMITS
    });
    tell(&mut exchange, Event::Local(simple(1, 1)));
    for peer in [PEER, THIRD] {
        receive(&mut exchange, peer, has(&[(1, 1)]));
    }
    assert!(
        exchange.log_bytes() > 0,
        "all have it, but nobody has said that it can do without ranges from before"
    );
    tell(&mut exchange, Event::Tick);
    let effects = tell(&mut exchange, Event::Tick);
    let mut frontier = Frontier::default();
    frontier.raise(OriginId(1), 1);
    for peer in [PEER, THIRD] {
        let number = 1;
        let mark = Word::Mark {
            number,
            frontier: frontier.clone(),
            members: vec![if peer == PEER { THIRD } else { PEER }],
        };
        let marked = Word::Marked {
            number,
            except: Vec::new(),
        };
        assert_eq!(words_to(&effects, peer), std::slice::from_ref(&mark));
        let effects = receive(&mut exchange, peer, Message::Word(mark));
        assert_eq!(words_to(&effects, peer), std::slice::from_ref(&marked));
        receive(&mut exchange, peer, Message::Word(marked));
    }
    assert_eq!(exchange.log_bytes(), 0);
}

#[test]
fn too_much_that_is_kept_is_kept_no_more_except_ones_own() {
    let mut exchange = node(Limits {
        single_bytes_max: 100,
        merged_bytes_max: 60,
        window: 2,
        ..LIMITS
    });
    tell(&mut exchange, Event::LinkDown(THIRD));
    for sequence in 1..=40 {
        tell(&mut exchange, Event::Local(simple(1, sequence)));
        receive(&mut exchange, PEER, Message::Batch(simple(2, sequence)));
    }
    assert!(exchange.forgotten().any(|node| node == THIRD));
    tell(&mut exchange, Event::LinkUp(THIRD));
    let effects = receive(&mut exchange, THIRD, Message::Have(Frontier::default()));
    let (kind, bytes) = parcel_to(&mut exchange, THIRD, effects);
    assert_eq!(kind, ParcelKind::Range);
    assert_eq!(MergedRange::decode(&bytes, WEIGHTS).unwrap().header.origin, OriginId(1));
}

#[test]
fn what_no_honest_member_sends_is_put_in_quarantine() {
    let header = Header {
        run: RUN,
        origin: OriginId(2),
        sequence: 2,
        seen: 0,
        tau: Tau::ONE_STEP,
        digest: Digest::default(),
        cursors: Vec::new(),
        samples: 1,
        loss: 0.0,
        flags: Flags::default(),
    };
    let encoded = |header: &Header, words: &[u32]| {
        let mut frame = Vec::new();
        header.encode(words, &mut frame).unwrap();
        Message::Batch(frame.into())
    };
    let foreign = Header {
        run: RunId(77),
        ..header.clone()
    };
    let conflicting = batch(OriginId(2), 1, &[word(9, false)], Tau::ONE_STEP);
    let huge = Message::Piece(Piece {
        kind: ParcelKind::Range,
        total: u64::MAX,
        offset: 0,
        bytes: [0; 10].into(),
    });
    // As long as a snapshot may be, and far too long for a range of so small a model.
    let fat = Message::Piece(Piece {
        kind: ParcelKind::Range,
        total: 20 << 20,
        offset: 0,
        bytes: [0; 10].into(),
    });
    let members = (10..10_000).map(NodeId).collect();
    let frontier = Frontier::default();
    let crowd = Word::Mark {
        number: 1,
        frontier,
        members,
    };
    let cases = [
        (Message::Batch(vec![1, 2, 3].into()), "length"),
        (Message::Batch(simple(44, 1)), "unknown"),
        (Message::Batch(simple(1, 1)), "never made"),
        (Message::Batch(conflicting), "other contents"),
        (encoded(&foreign, &[]), "run"),
        (encoded(&header, &[word(WEIGHTS as u32, true)]), "weights"),
        (encoded(&header, &[word(1, true)]), "digest"),
        (huge, "a parcel of"),
        (fat, "a parcel of"),
        (whole(ParcelKind::Range, vec![1, 2, 3]), "length"),
        (Message::Word(crowd), "members"),
    ];
    for (message, says) in cases {
        let mut exchange = node(LIMITS);
        receive(&mut exchange, PEER, Message::Batch(simple(2, 1)));
        let digest = exchange.ledger().digest();
        let effects = receive(&mut exchange, PEER, message);
        let Some(Effect::Quarantine { peer: PEER, reason }) = effects.last() else {
            panic!("{effects:?}");
        };
        assert!(reason.contains(says), "{reason} does not say {says}");
        assert!(
            receive(&mut exchange, PEER, Message::Batch(simple(2, 2))).is_empty(),
            "it is heard no more"
        );
        assert_eq!(exchange.ledger().digest(), digest);
        assert!(tell(&mut exchange, Event::LinkUp(PEER)).is_empty());
    }
}

#[test]
fn whoever_names_origins_without_end_is_put_in_quarantine() {
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
fn whoever_gives_a_snapshot_that_does_not_add_up_is_put_in_quarantine() {
    let mut giver = node(LIMITS);
    tell(&mut giver, Event::Local(simple(1, 1)));
    let effects = receive(&mut giver, THIRD, Message::Word(Word::Ask));
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
    assert_eq!(words_to(&effects, THIRD), [Word::Ask], "another one is asked");
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
fn a_silent_link_is_reset() {
    let mut exchange = node(Limits {
        reset_ticks: 3,
        ..LIMITS
    });
    tell(&mut exchange, Event::Local(simple(1, 1)));
    let resets: Vec<Effect> = (0..4)
        .flat_map(|_| tell(&mut exchange, Event::Tick))
        .filter(|e| *e == Effect::Reset(PEER))
        .collect();
    assert!(!resets.is_empty());
    receive(&mut exchange, PEER, has(&[(1, 1)]));
    for _ in 0..10 {
        assert!(!tell(&mut exchange, Event::Tick).contains(&Effect::Reset(PEER)));
    }
}

#[test]
fn a_diverging_batch_still_reaches_everybody() {
    let mut exchange = node(LIMITS);
    let far = |sequence| batch(OriginId(1), sequence, &[word(0, true)], Tau::MAX);
    let effects = tell(&mut exchange, Event::Local(far(1)));
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Diverged(_))));
    let effects = tell(&mut exchange, Event::Local(far(2)));
    assert_eq!(
        effects
            .iter()
            .filter(|effect| matches!(effect, Effect::Diverged(_)))
            .count(),
        1
    );
    assert_eq!(sent_to(&effects, PEER), [far(2)]);
    assert!(tell(&mut exchange, Event::Local(far(3))).is_empty(), "the run is over");
    assert!(receive(&mut exchange, PEER, Message::Batch(simple(2, 1))).is_empty());
}

#[test]
fn a_link_may_be_there_before_its_member() {
    let mut exchange = Exchange::new(ME, Ledger::new(RUN, vec![0; WEIGHTS]), LIMITS);
    tell(&mut exchange, Event::Founder(ME));
    assert!(tell(&mut exchange, Event::LinkUp(PEER)).is_empty());
    let hello = tell(&mut exchange, Event::Founder(PEER));
    assert_eq!(
        hello,
        [Effect::Send {
            to: PEER,
            message: has(&[])
        }]
    );
}

#[test]
fn a_link_on_which_nothing_is_said_is_reset_and_pauses_nobody() {
    let mut exchange = node(Limits {
        window: 1,
        reset_ticks: 3,
        ..LIMITS
    });
    for peer in [PEER, THIRD] {
        tell(&mut exchange, Event::LinkDown(peer));
        tell(&mut exchange, Event::LinkUp(peer));
    }
    (1..=5).for_each(|sequence| drop(tell(&mut exchange, Event::Local(simple(1, sequence)))));
    assert!(!exchange.should_pause());
    let mut effects: Vec<Effect> = (0..5).flat_map(|_| tell(&mut exchange, Event::Tick)).collect();
    effects.retain(|effect| matches!(effect, Effect::Reset(_)));
    assert_eq!(effects, [Effect::Reset(PEER), Effect::Reset(THIRD)]);
}

#[test]
fn who_hands_on_a_batch_with_other_contents_is_not_blamed() {
    let mut exchange = node(LIMITS);
    receive(&mut exchange, PEER, Message::Batch(simple(2, 1)));
    let other = batch(OriginId(2), 1, &[word(9, false)], Tau::ONE_STEP);
    let digest = exchange.ledger().digest();
    assert!(receive(&mut exchange, THIRD, Message::Batch(other)).is_empty());
    assert_eq!(exchange.ledger().digest(), digest);
}

#[test]
fn an_origin_cannot_be_taken_over() {
    let mut exchange = node(LIMITS);
    let stolen = OriginInfo {
        home: PEER,
        ..origin(1)
    };
    receive(&mut exchange, PEER, Message::Origin(stolen));
    assert!(!sent_to(&tell(&mut exchange, Event::Local(simple(1, 1))), PEER).is_empty());
}

#[test]
fn news_of_an_origin_goes_on_before_its_batches_and_only_once() {
    let mut exchange = node(LIMITS);
    let (fresh, ended) = (
        origin(44),
        OriginInfo {
            ended: Some(1),
            ..origin(44)
        },
    );
    let to_third = |message| Effect::Send { to: THIRD, message };
    let effects = receive(&mut exchange, PEER, Message::Origin(fresh));
    assert_eq!(effects, [to_third(Message::Origin(fresh))]);
    assert!(receive(&mut exchange, PEER, Message::Origin(fresh)).is_empty());
    let effects = receive(&mut exchange, PEER, Message::Batch(simple(44, 1)));
    assert!(matches!(effects[..], [Effect::Deliver { .. }]));
    let effects = receive(&mut exchange, PEER, Message::Origin(ended));
    assert_eq!(effects, [Effect::Ended(OriginId(44)), to_third(Message::Origin(ended))]);
    assert!(receive(&mut exchange, PEER, Message::Origin(ended)).is_empty());
    // Nobody else knows of an origin of this node's that it does not know itself.
    let forged = OriginInfo { home: ME, ..origin(45) };
    assert!(receive(&mut exchange, PEER, Message::Origin(forged)).is_empty());
}

#[test]
fn bytes_under_way_are_bounded_too() {
    let bytes = simple(1, 1).len();
    let mut exchange = node(Limits {
        window_bytes: bytes + bytes / 2,
        ..LIMITS
    });
    let mut sent = 0;
    for sequence in 1..=10 {
        sent += sent_to(&tell(&mut exchange, Event::Local(simple(1, sequence))), PEER).len();
    }
    assert_eq!(sent, 2);
    let effects = receive(&mut exchange, PEER, has(&[(1, 1)]));
    assert_eq!(sent_to(&effects, PEER), [simple(1, 3)]);
}

#[test]
fn a_link_that_is_only_slow_is_not_reset() {
    let mut exchange = node(Limits {
        reset_ticks: 3,
        ..LIMITS
    });
    tell(&mut exchange, Event::Local(simple(1, 1)));
    for _ in 0..10 {
        tell(&mut exchange, Event::Progress(PEER));
        assert!(!tell(&mut exchange, Event::Tick).contains(&Effect::Reset(PEER)));
    }
}

#[test]
fn who_is_frozen_takes_no_further_batch_and_stands_where_it_stood() {
    let mut exchange = node(LIMITS);
    tell(&mut exchange, Event::Local(simple(1, 1)));
    receive(&mut exchange, PEER, Message::Batch(simple(2, 1)));
    let stand = exchange.stand();
    tell(&mut exchange, Event::Freeze(true));
    receive(&mut exchange, PEER, Message::Batch(simple(2, 2)));
    assert_eq!(exchange.stand(), stand);
    tell(&mut exchange, Event::Freeze(false));
    receive(&mut exchange, PEER, Message::Batch(simple(2, 2)));
    assert_ne!(exchange.stand(), stand);
}

#[test]
fn batches_are_handed_on_at_once_between_peers_that_have_no_link() {
    let mut exchange = node(LIMITS);
    receive(&mut exchange, PEER, has(&[]));
    receive(&mut exchange, THIRD, has(&[]));
    let to_third = |effects: &[Effect]| {
        let batch = |effect: &&Effect| {
            matches!(
                effect,
                Effect::Send {
                    to: THIRD,
                    message: Message::Batch(_)
                }
            )
        };
        effects.iter().filter(batch).count()
    };
    let links = |nodes: &[NodeId]| Message::Word(Word::Links(nodes.to_vec()));
    receive(&mut exchange, PEER, links(&[NodeId(1), THIRD]));
    let effects = receive(&mut exchange, PEER, Message::Batch(simple(2, 1)));
    assert_eq!(to_third(&effects), 0, "its home sends it");
    let effects = receive(&mut exchange, PEER, links(&[NodeId(1)]));
    assert_eq!(to_third(&effects), 1, "its home cannot");
    let effects = receive(&mut exchange, PEER, Message::Batch(simple(2, 2)));
    assert_eq!(to_third(&effects), 1);
    receive(&mut exchange, PEER, links(&[NodeId(1), THIRD]));
    let effects = receive(&mut exchange, PEER, Message::Batch(simple(2, 3)));
    assert_eq!(to_third(&effects), 0, "it can again");
}

#[test]
fn a_damaged_frame_is_damage_and_not_a_lie_unless_there_is_nothing_else() {
    let mut exchange = node(LIMITS);
    let mut frame = simple(2, 1).to_vec();
    frame[9] ^= 4;
    let damaged: Arc<[u8]> = frame.into();
    let mut effects = Vec::new();
    for _ in 0..8 {
        effects = receive(&mut exchange, PEER, Message::Batch(Arc::clone(&damaged)));
        assert!(effects.contains(&Effect::Reset(PEER)), "{effects:?}");
        tell(&mut exchange, Event::LinkUp(PEER));
    }
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Quarantine { .. })));
    let effects = receive(&mut exchange, PEER, Message::Batch(damaged));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Quarantine { .. })));
}

#[test]
fn a_batch_that_was_spoilt_while_it_was_kept_is_not_sent() {
    let mut exchange = node(LIMITS);
    for sequence in 1..=3 {
        tell(&mut exchange, Event::Local(simple(1, sequence)));
    }
    exchange.log.spoil(OriginId(1), 2);
    tell(&mut exchange, Event::LinkDown(PEER));
    tell(&mut exchange, Event::LinkUp(PEER));
    let effects = receive(&mut exchange, PEER, has(&[(1, 1)]));
    assert!(effects.contains(&Effect::Spoilt), "{effects:?}");
    let effects = tell(&mut exchange, Event::Tick);
    let too_far = Effect::Send {
        to: PEER,
        message: Message::Word(Word::TooFar),
    };
    assert!(effects.contains(&too_far), "it takes a snapshot instead: {effects:?}");
}

#[test]
fn a_flipped_bit_is_mended_alone_and_more_with_a_peers_help() {
    let mut exchange = node(LIMITS);
    tell(&mut exchange, Event::Local(simple(1, 1)));
    exchange.ledger.flip(5, 20);
    // A peer that asks is not given what it would take for a lie.
    receive(&mut exchange, PEER, has(&[(1, 1)]));
    let effects = receive(&mut exchange, PEER, Message::Word(Word::Ask));
    assert!(effects.contains(&Effect::Mended(5)) && effects.contains(&Effect::Giving(PEER)));
    assert!(!exchange.is_damaged() && exchange.ledger().audit().is_ok());

    exchange.ledger.flip(5, 20);
    exchange.ledger.flip(6, 2);
    receive(&mut exchange, THIRD, has(&[(1, 1)]));
    let effects = receive(&mut exchange, THIRD, Message::Word(Word::Ask));
    assert!(exchange.is_damaged() && !effects.contains(&Effect::Giving(THIRD)));
    assert!(matches!(effects[0], Effect::Damaged(_)));
    assert_eq!(words_to(&effects, PEER), [Word::Ask]);
}

#[test]
fn a_weight_that_left_the_range_by_a_flipped_bit_ends_no_run() {
    let mut exchange = node(LIMITS);
    exchange.ledger.flip(1, 28);
    let effects = tell(&mut exchange, Event::Local(simple(1, 1)));
    assert!(effects.contains(&Effect::Mended(1)), "{effects:?}");
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Diverged(_))));
    assert_eq!(tell(&mut exchange, Event::Local(simple(1, 2))).len(), 3);
}

#[test]
fn nobody_waits_for_a_peer_that_hangs_and_its_link_is_given_up_in_the_end() {
    let mut exchange = node(LIMITS);
    tell(&mut exchange, Event::Left(THIRD));
    for sequence in 1..=2 * LIMITS.window {
        tell(&mut exchange, Event::Local(simple(1, sequence)));
    }
    assert!(exchange.should_pause(), "it may be slow");
    let mut effects = Vec::new();
    for tick in 1..=4 * LIMITS.reset_ticks {
        assert_eq!(exchange.should_pause(), tick <= LIMITS.reset_ticks, "at tick {tick}");
        assert!(!effects.contains(&Effect::Reset(PEER)), "at tick {tick}");
        // Small words still leave: they do not even fill the kernel's buffer.
        tell(&mut exchange, Event::Progress(PEER));
        effects.extend(tell(&mut exchange, Event::Tick));
    }
    assert!(effects.contains(&Effect::Reset(PEER)));
}

/// A node that comes late, and has heard that 2 and 3 have some batches of origin 2.
fn newcomer() -> Exchange {
    let mut exchange = Exchange::new(ME, Ledger::new(RUN, vec![0; WEIGHTS]), LIMITS);
    for node in [PEER, THIRD] {
        tell(&mut exchange, Event::Joined(node));
        let hello = tell(&mut exchange, Event::LinkUp(node));
        let message = Message::Word(Word::Newcomer);
        assert_eq!(hello, [Effect::Send { to: node, message }]);
    }
    receive(&mut exchange, PEER, Message::Origin(origin(2)));
    let effects = receive(&mut exchange, PEER, has(&[(2, 20)]));
    assert_eq!(words_to(&effects, PEER), [Word::Ask]);
    let effects = receive(&mut exchange, THIRD, has(&[(2, 20)]));
    assert_eq!(effects, [], "one is asked at a time");
    exchange
}

#[test]
fn a_newcomer_takes_nothing_before_a_snapshot() {
    let mut exchange = newcomer();
    receive(&mut exchange, PEER, Message::Batch(simple(2, 1)));
    assert_eq!(exchange.ledger().frontier(), &Frontier::default());
    assert!(!exchange.is_caught_up(|_| true));
    let mut giver = node(LIMITS);
    receive(&mut giver, PEER, Message::Batch(simple(2, 1)));
    let effects = receive(&mut giver, THIRD, Message::Word(Word::Ask));
    let (kind, bytes) = parcel_to(&mut giver, THIRD, effects);
    let effects = receive(&mut exchange, PEER, whole(kind, bytes));
    for to in [PEER, THIRD] {
        let message = has(&[(2, 1)]);
        assert!(effects.contains(&Effect::Send { to, message }), "all hear what it has");
    }
    receive(&mut exchange, PEER, Message::Batch(simple(2, 2)));
    assert_eq!(exchange.ledger().frontier().applied(OriginId(2)), 2);
}

#[test]
fn a_newcomer_that_is_not_answered_asks_another_and_says_that_it_is_there() {
    let mut exchange = newcomer();
    let effects: Vec<Effect> = (0..LIMITS.reset_ticks)
        .flat_map(|_| tell(&mut exchange, Event::Tick))
        .collect();
    assert_eq!(words_to(&effects, PEER), [Word::Newcomer, Word::Newcomer]);
    assert_eq!(words_to(&effects, THIRD), [Word::Newcomer, Word::Newcomer, Word::Ask]);
    assert_eq!(effects.len(), 5, "no link is given up for that");
}

#[test]
fn a_giver_is_asked_again_when_its_link_is_replaced() {
    let mut exchange = newcomer();
    tell(&mut exchange, Event::LinkDown(PEER));
    tell(&mut exchange, Event::LinkUp(PEER));
    let effects = receive(&mut exchange, PEER, has(&[(2, 20)]));
    assert_eq!(words_to(&effects, PEER), [Word::Ask]);
    assert_eq!(receive(&mut exchange, PEER, has(&[(2, 21)])), [], "once on a link");
}

#[test]
fn whoever_is_the_last_to_have_anything_has_caught_up() {
    let mut exchange = node(LIMITS);
    receive(&mut exchange, PEER, has(&[(2, 1000)]));
    assert!(!exchange.is_caught_up(|_| true), "it lacks much");
    assert!(exchange.is_caught_up(|node| node == THIRD));
    tell(&mut exchange, Event::LinkDown(THIRD));
    assert!(!exchange.is_caught_up(|node| node == THIRD), "it may have anything");
    assert!(exchange.is_caught_up(|_| false), "what the dead had is lost");
    assert!(!newcomer().is_caught_up(|_| false));
}

#[test]
fn a_newcomer_is_stranded_when_nobody_is_left_who_has_anything() {
    let mut exchange = newcomer();
    assert!(!exchange.is_stranded(|_| true));
    assert!(!exchange.is_stranded(|_| false), "there are links");
    tell(&mut exchange, Event::LinkDown(PEER));
    tell(&mut exchange, Event::LinkDown(THIRD));
    assert!(!exchange.is_stranded(|node| node == THIRD));
    assert!(exchange.is_stranded(|_| false));
    tell(&mut exchange, Event::LinkUp(THIRD));
    receive(&mut exchange, THIRD, Message::Word(Word::Newcomer));
    assert!(exchange.is_stranded(|node| node == THIRD), "neither can help the other");
    assert!(!node(LIMITS).is_stranded(|_| false), "it has something itself");
}

#[test]
fn nothing_is_sent_to_a_newcomer_before_it_has_a_snapshot() {
    let mut exchange = node(LIMITS);
    let new = NodeId(4);
    tell(&mut exchange, Event::Joined(new));
    tell(&mut exchange, Event::LinkUp(new));
    receive(&mut exchange, new, Message::Word(Word::Newcomer));
    let mut effects = tell(&mut exchange, Event::Local(simple(1, 1)));
    for tick in 0..3 * LIMITS.reset_ticks {
        effects.extend(tell(&mut exchange, Event::Tick));
        if tick % LIMITS.mark_ticks == 0 && tick < LIMITS.reset_ticks {
            receive(&mut exchange, new, Message::Word(Word::Newcomer));
        }
        let silent = tick >= 40 + LIMITS.reset_ticks;
        assert_eq!(
            effects.contains(&Effect::Reset(new)),
            silent,
            "it was heard at tick 40 of {tick}"
        );
    }
    assert!(sent_to(&effects, new).is_empty());
    tell(&mut exchange, Event::LinkUp(new));
    receive(&mut exchange, new, Message::Word(Word::Newcomer));
    let effects = receive(&mut exchange.clone(), new, Message::Word(Word::Ask));
    assert!(effects.contains(&Effect::Giving(new)));
    let effects = receive(&mut exchange, new, has(&[]));
    assert_eq!(sent_to(&effects, new), [simple(1, 1)], "it has one");
}

#[test]
fn with_a_mark_comes_whom_the_marker_knows_and_what_they_may_need_is_kept() {
    let mut exchange = node(Limits {
        mark_ticks: 1,
        ..LIMITS
    });
    let (unheard, left) = (NodeId(8), NodeId(9));
    tell(&mut exchange, Event::Left(left));
    tell(&mut exchange, Event::Local(simple(1, 1)));
    let mut frontier = Frontier::default();
    frontier.raise(OriginId(1), 1);
    for (peer, members) in [(PEER, vec![ME, THIRD, unheard, left]), (THIRD, vec![ME, PEER])] {
        let mark = Word::Mark {
            number: 1,
            frontier: frontier.clone(),
            members,
        };
        receive(&mut exchange, peer, Message::Word(mark));
    }
    let effects = tell(&mut exchange, Event::Tick);
    let members = words_to(&effects, PEER).into_iter().find_map(|word| match word {
        Word::Mark { members, .. } => Some(members),
        _ => None,
    });
    assert_eq!(members, Some(vec![THIRD, unheard]));
    for peer in [PEER, THIRD] {
        let marked = Word::Marked {
            number: 1,
            except: Vec::new(),
        };
        receive(&mut exchange, peer, Message::Word(marked));
    }
    assert!(exchange.log_bytes() > 0);
    tell(&mut exchange, Event::Left(unheard));
    assert_eq!(exchange.log_bytes(), 0);
}
