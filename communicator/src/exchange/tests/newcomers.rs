//! Tests of newcomers, which take nothing before they have a snapshot.

use super::*;

/// Makes a node that joins late, and has heard that nodes 2 and 3 have some batches of origin 2.
pub(super) fn newcomer() -> Exchange {
    let mut exchange = Exchange::new(ME, Ledger::new(RUN, vec![0; WEIGHTS]), LIMITS);
    for node in [PEER, THIRD] {
        tell(&mut exchange, Event::Joined(node));
        let hello = tell(&mut exchange, Event::LinkUp(node));
        let message = Message::Note(Note::Newcomer);
        assert_eq!(hello, [Effect::Send { to: node, message }]);
    }
    receive(&mut exchange, PEER, Message::Origin(origin(2)));
    let effects = receive(&mut exchange, PEER, has(&[(2, 20)]));
    assert_eq!(notes_to(&effects, PEER), [Note::Ask]);
    let effects = receive(&mut exchange, THIRD, has(&[(2, 20)]));
    assert_eq!(effects, [], "a newcomer asks one peer at a time for a snapshot");
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
    let effects = receive(&mut giver, THIRD, Message::Note(Note::Ask));
    let (kind, bytes) = parcel_to(&mut giver, THIRD, effects);
    let effects = receive(&mut exchange, PEER, whole(kind, bytes));
    for to in [PEER, THIRD] {
        let message = has(&[(2, 1)]);
        assert!(
            effects.contains(&Effect::Send { to, message }),
            "the newcomer tells all peers its frontier"
        );
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
    assert_eq!(notes_to(&effects, PEER), [Note::Newcomer, Note::Newcomer]);
    assert_eq!(notes_to(&effects, THIRD), [Note::Newcomer, Note::Newcomer, Note::Ask]);
    assert_eq!(
        effects.len(),
        5,
        "no link is reset while a newcomer waits for a snapshot"
    );
}

#[test]
fn a_giver_is_asked_again_when_its_link_is_replaced() {
    let mut exchange = newcomer();
    tell(&mut exchange, Event::LinkDown(PEER));
    tell(&mut exchange, Event::LinkUp(PEER));
    let effects = receive(&mut exchange, PEER, has(&[(2, 20)]));
    assert_eq!(notes_to(&effects, PEER), [Note::Ask]);
    assert_eq!(
        receive(&mut exchange, PEER, has(&[(2, 21)])),
        [],
        "a peer is asked once per link"
    );
}

#[test]
fn the_only_holder_of_any_batch_has_caught_up() {
    let mut exchange = node(LIMITS);
    receive(&mut exchange, PEER, has(&[(2, 1000)]));
    assert!(
        !exchange.is_caught_up(|_| true),
        "the peer has 1000 batches that this node lacks"
    );
    assert!(exchange.is_caught_up(|node| node == THIRD));
    tell(&mut exchange, Event::LinkDown(THIRD));
    assert!(
        !exchange.is_caught_up(|node| node == THIRD),
        "a peer without a link may have any batches"
    );
    assert!(
        exchange.is_caught_up(|_| false),
        "batches that only dead peers had are lost and not waited for"
    );
    assert!(!newcomer().is_caught_up(|_| false));
}

#[test]
fn a_newcomer_is_stranded_when_nobody_is_left_who_has_anything() {
    let mut exchange = newcomer();
    assert!(!exchange.is_stranded(|_| true));
    assert!(
        !exchange.is_stranded(|_| false),
        "a newcomer with open links is not stranded"
    );
    tell(&mut exchange, Event::LinkDown(PEER));
    tell(&mut exchange, Event::LinkDown(THIRD));
    assert!(!exchange.is_stranded(|node| node == THIRD));
    assert!(exchange.is_stranded(|_| false));
    tell(&mut exchange, Event::LinkUp(THIRD));
    receive(&mut exchange, THIRD, Message::Note(Note::Newcomer));
    assert!(
        exchange.is_stranded(|node| node == THIRD),
        "two newcomers cannot give each other a snapshot"
    );
    assert!(
        !node(LIMITS).is_stranded(|_| false),
        "a node that is no newcomer is never stranded"
    );
}

#[test]
fn nothing_is_sent_to_a_newcomer_before_it_has_a_snapshot() {
    let mut exchange = node(LIMITS);
    let new = NodeId(4);
    tell(&mut exchange, Event::Joined(new));
    tell(&mut exchange, Event::LinkUp(new));
    receive(&mut exchange, new, Message::Note(Note::Newcomer));
    let mut effects = tell(&mut exchange, Event::Local(simple(1, 1)));
    for tick in 0..3 * LIMITS.reset_ticks {
        effects.extend(tell(&mut exchange, Event::Tick));
        if tick % LIMITS.mark_ticks == 0 && tick < LIMITS.reset_ticks {
            receive(&mut exchange, new, Message::Note(Note::Newcomer));
        }
        let silent = tick >= 40 + LIMITS.reset_ticks;
        assert_eq!(
            effects.contains(&Effect::Reset(new)),
            silent,
            "the newcomer was last heard at tick 40; now is tick {tick}"
        );
    }
    assert!(sent_to(&effects, new).is_empty());
    tell(&mut exchange, Event::LinkUp(new));
    receive(&mut exchange, new, Message::Note(Note::Newcomer));
    let effects = receive(&mut exchange.clone(), new, Message::Note(Note::Ask));
    assert!(effects.contains(&Effect::Giving(new)));
    let effects = receive(&mut exchange, new, has(&[]));
    assert_eq!(
        sent_to(&effects, new),
        [simple(1, 1)],
        "a newcomer that tells its frontier has a snapshot and gets batches"
    );
}
