//! Tests of members that are behind: ranges, marks, snapshots, and the log that is kept for them.

use super::*;

/// Makes a node whose worker has made twenty batches. The third node got three and acknowledged none before its link
/// broke.
pub(super) fn node_with_a_merged_log() -> Exchange {
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
    assert!(start == 0 && end > 3, "the merged log has no point at sequence 3");

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
    receive(&mut exchange, THIRD, Message::Note(Note::Got(total)));
    for sequence in end + 1..=20 {
        receive(&mut third, ME, Message::Batch(simple(1, sequence)));
    }
    assert_eq!(third.ledger().counts(), exchange.ledger().counts());
    assert_eq!(third.ledger().frontier(), exchange.ledger().frontier());
    let jumped = effects.iter().find_map(|effect| match effect {
        Effect::Jump(jump) => Some(jump.order.batches),
        _ => None,
    });
    assert_eq!(jumped, Some(end - 3), "workers get only the batches after sequence 3");
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
    let effects = receive(&mut exchange, THIRD, Message::Note(Note::Cannot(range)));
    assert_eq!(effects, [Effect::Reset(THIRD)]);
    tell(&mut exchange, Event::LinkUp(THIRD));
    let effects = receive(&mut exchange, THIRD, has(&[(1, 5)]));
    assert_eq!(notes_to(&effects, THIRD), [Note::TooFar]);
    assert!(
        notes_to(&tell(&mut exchange, Event::Local(simple(1, 21))), THIRD).is_empty(),
        "a peer is told only once that it is too far behind"
    );
    let effects = receive(&mut exchange, THIRD, Message::Note(Note::Ask));
    assert!(effects.contains(&Effect::Giving(THIRD)));
    let (kind, bytes) = parcel_to(&mut exchange, THIRD, effects);
    assert_eq!(kind, ParcelKind::Snapshot);
    let snapshot = protocol::wire::snapshot::decode(&bytes, WEIGHTS).unwrap();
    assert_eq!(snapshot.counts, exchange.ledger().counts());
    // Messages of the peer are still taken, and once it has caught up it gets batches again.
    receive(&mut exchange, THIRD, Message::Note(Note::Got(bytes.len() as u64)));
    receive(&mut exchange, THIRD, has(&[(1, 21)]));
    let effects = tell(&mut exchange, Event::Local(simple(1, 22)));
    assert_eq!(sent_to(&effects, THIRD), [simple(1, 22)]);
}

#[test]
fn a_snapshot_waits_for_what_only_the_taker_has() {
    let mut exchange = node_with_a_merged_log();
    receive(&mut exchange, THIRD, has(&[(1, 5), (3, 2)]));
    let effects = receive(&mut exchange, THIRD, Message::Note(Note::Ask));
    assert!(
        !effects.contains(&Effect::Giving(THIRD)),
        "with this snapshot the taker would lose its own batches"
    );
    receive(&mut exchange, THIRD, Message::Batch(simple(3, 1)));
    receive(&mut exchange, THIRD, Message::Batch(simple(3, 2)));
    receive(&mut exchange, THIRD, Message::Note(Note::Got(u64::MAX)));
    let range = SequenceRange {
        origin: OriginId(1),
        from: 0,
        to: 20,
    };
    receive(&mut exchange, THIRD, Message::Note(Note::Cannot(range)));
    tell(&mut exchange, Event::LinkUp(THIRD));
    receive(&mut exchange, THIRD, has(&[(1, 5), (3, 2)]));
    let effects = receive(&mut exchange, THIRD, Message::Note(Note::Ask));
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
        "all peers have the batch, but no peer has set a mark after it"
    );
    tell(&mut exchange, Event::Tick);
    let effects = tell(&mut exchange, Event::Tick);
    let mut frontier = Frontier::default();
    frontier.raise(OriginId(1), 1);
    for peer in [PEER, THIRD] {
        let number = 1;
        let mark = Note::Mark {
            number,
            frontier: frontier.clone(),
            members: vec![if peer == PEER { THIRD } else { PEER }],
        };
        let marked = Note::Marked {
            number,
            except: Vec::new(),
        };
        assert_eq!(notes_to(&effects, peer), std::slice::from_ref(&mark));
        let effects = receive(&mut exchange, peer, Message::Note(mark));
        assert_eq!(notes_to(&effects, peer), std::slice::from_ref(&marked));
        receive(&mut exchange, peer, Message::Note(marked));
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
        let mark = Note::Mark {
            number: 1,
            frontier: frontier.clone(),
            members,
        };
        receive(&mut exchange, peer, Message::Note(mark));
    }
    let effects = tell(&mut exchange, Event::Tick);
    let members = notes_to(&effects, PEER).into_iter().find_map(|note| match note {
        Note::Mark { members, .. } => Some(members),
        _ => None,
    });
    assert_eq!(members, Some(vec![THIRD, unheard]));
    for peer in [PEER, THIRD] {
        let marked = Note::Marked {
            number: 1,
            except: Vec::new(),
        };
        receive(&mut exchange, peer, Message::Note(marked));
    }
    assert!(exchange.log_bytes() > 0);
    tell(&mut exchange, Event::Left(unheard));
    assert_eq!(exchange.log_bytes(), 0);
}
