//! Tests that a peer that has stopped answering costs the nodes linked to it nothing.

use super::*;

/// Makes a state in which nodes 1 and 2 train and node 3 has stopped answering: a window of each origin's batches is in
/// flight to it.
fn with_a_mute_peer() -> Exchange {
    let mut exchange = node(Limits {
        window: 3,
        range_worth_bytes: 2 * simple(1, 1).len(),
        ..LIMITS
    });
    for sequence in 1..=40 {
        train(&mut exchange, sequence);
    }
    exchange
}

/// Makes one batch on each training node, and a tick in which bytes leave on all links. Returns the number of batches
/// sent to node 3.
fn train(exchange: &mut Exchange, sequence: u64) -> usize {
    let mut effects = tell(exchange, Event::Local(simple(1, sequence)));
    effects.extend(receive(exchange, PEER, Message::Batch(simple(2, sequence))));
    effects.extend(receive(exchange, PEER, has(&[(1, sequence), (2, sequence)])));
    tell(exchange, Event::Progress(THIRD));
    effects.extend(tell(exchange, Event::Tick));
    sent_to(&effects, THIRD).len()
}

#[test]
fn nobody_merges_batches_for_a_peer_that_does_not_answer() {
    let exchange = with_a_mute_peer();
    assert_eq!(exchange.replica().log().merged_bytes(), 0);
}

#[test]
fn nobody_helps_a_peer_that_does_not_answer() {
    let exchange = with_a_mute_peer();
    let of_others = exchange
        .replica()
        .log()
        .kept()
        .filter(|range| range.origin == origin(2).origin);
    assert_eq!(of_others.count(), 1, "the batch of the other origin is kept");
    assert_eq!(exchange.peers().get(THIRD).unwrap().sent(origin(2).origin), Some(0));
}

#[test]
fn who_answers_again_gets_ranges_and_help() {
    let mut exchange = with_a_mute_peer();
    receive(&mut exchange, THIRD, has(&[(1, 3)]));
    tell(&mut exchange, Event::Tick);
    assert!(exchange.replica().log().merged_bytes() > 0);
    let limits = *exchange.limits();
    // Node 3 answers again, but gets no batch of node 2 over any link.
    for sequence in 41..42 + u64::from(limits.patience_ticks) {
        train(&mut exchange, sequence);
        receive(&mut exchange, THIRD, has(&[(1, 3)]));
    }
    assert!(exchange.peers().get(THIRD).unwrap().is_helped(origin(2).origin));
}
