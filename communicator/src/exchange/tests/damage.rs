//! Tests of bits that flip in flight, in the log and in the ledger.

use protocol::wire::snapshot::EntryKind;

use super::catching_up::node_with_a_merged_log;
use super::*;

#[test]
fn a_damaged_batch_is_damage_and_not_a_lie_unless_there_is_nothing_else() {
    let mut exchange = node(LIMITS);
    let mut bytes = simple(2, 1).to_vec();
    bytes[9] ^= 4;
    let damaged: Arc<[u8]> = bytes.into();
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
    exchange.replica_mut().spoil(OriginId(1), 2);
    tell(&mut exchange, Event::LinkDown(PEER));
    tell(&mut exchange, Event::LinkUp(PEER));
    let effects = receive(&mut exchange, PEER, has(&[(1, 1)]));
    assert!(effects.contains(&Effect::Spoilt), "{effects:?}");
    let effects = tell(&mut exchange, Event::Tick);
    let too_far = Effect::Send {
        to: PEER,
        message: Message::Note(Note::TooFar),
    };
    assert!(
        effects.contains(&too_far),
        "the peer is not told to take a snapshot instead: {effects:?}"
    );
}

#[test]
fn a_range_that_was_spoilt_while_it_was_kept_is_not_sent() {
    let mut exchange = node_with_a_merged_log();
    let whole = exchange.replica().log().entries(OriginId(1)).next().unwrap().clone();
    assert!(whole.kind == EntryKind::Range && whole.from == 0);
    exchange.replica_mut().spoil(OriginId(1), whole.to);
    let effects = receive(&mut exchange, THIRD, has(&[]));
    assert!(effects.contains(&Effect::Spoilt), "{effects:?}");
    assert_eq!(notes_to(&tell(&mut exchange, Event::Tick), THIRD), [Note::TooFar]);
}

#[test]
fn a_damaged_range_is_damage_and_not_a_lie_unless_there_is_nothing_else() {
    let mut sender = node_with_a_merged_log();
    let effects = receive(&mut sender, THIRD, has(&[]));
    let (kind, bytes) = parcel_to(&mut sender, THIRD, effects);
    assert_eq!(kind, ParcelKind::Range);
    for position in [0, 9] {
        let mut damaged = bytes.clone();
        damaged[position] ^= 4;
        let mut exchange = Exchange::new(THIRD, Ledger::new(RUN, vec![0; WEIGHTS]), LIMITS);
        tell(&mut exchange, Event::Founder(THIRD));
        tell(&mut exchange, Event::Founder(ME));
        tell(&mut exchange, Event::Origin(origin(1)));
        tell(&mut exchange, Event::LinkUp(ME));
        for _ in 0..8 {
            let effects = receive(&mut exchange, ME, self::whole(kind, damaged.clone()));
            assert!(effects.contains(&Effect::Reset(ME)), "{effects:?}");
            tell(&mut exchange, Event::LinkUp(ME));
        }
        let effects = receive(&mut exchange, ME, self::whole(kind, damaged));
        assert!(effects.iter().any(|effect| matches!(effect, Effect::Quarantine { .. })));
    }
}

#[test]
fn a_flipped_bit_is_mended_alone_and_more_with_a_peers_help() {
    let mut exchange = node(LIMITS);
    tell(&mut exchange, Event::Local(simple(1, 1)));
    exchange.replica_mut().flip(5, 20);
    // A peer does not get a damaged ledger, which it would take for a lie.
    receive(&mut exchange, PEER, has(&[(1, 1)]));
    let effects = receive(&mut exchange, PEER, Message::Note(Note::Ask));
    assert!(effects.contains(&Effect::Mended(5)) && effects.contains(&Effect::Giving(PEER)));
    assert!(!exchange.is_damaged() && exchange.ledger().audit().is_ok());

    exchange.replica_mut().flip(5, 20);
    exchange.replica_mut().flip(6, 2);
    receive(&mut exchange, THIRD, has(&[(1, 1)]));
    let effects = receive(&mut exchange, THIRD, Message::Note(Note::Ask));
    assert!(exchange.is_damaged() && !effects.contains(&Effect::Giving(THIRD)));
    assert!(matches!(effects[0], Effect::Damaged(_)));
    assert_eq!(notes_to(&effects, PEER), [Note::Ask]);
}

#[test]
fn a_weight_that_left_the_range_by_a_flipped_bit_ends_no_run() {
    let mut exchange = node(LIMITS);
    exchange.replica_mut().flip(1, 28);
    let effects = tell(&mut exchange, Event::Local(simple(1, 1)));
    assert!(effects.contains(&Effect::Mended(1)), "{effects:?}");
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Diverged(_))));
    assert_eq!(tell(&mut exchange, Event::Local(simple(1, 2))).len(), 3);
}
