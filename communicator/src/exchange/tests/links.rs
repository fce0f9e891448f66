//! Tests of links that are silent, slow, early or hanging.

use super::*;

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
fn nobody_waits_for_a_peer_that_hangs_and_its_link_is_given_up_in_the_end() {
    let mut exchange = node(LIMITS);
    tell(&mut exchange, Event::Left(THIRD));
    for sequence in 1..=2 * LIMITS.window {
        tell(&mut exchange, Event::Local(simple(1, sequence)));
    }
    assert!(
        exchange.should_pause(),
        "workers pause while a peer that fell behind may only be slow"
    );
    let mut effects = Vec::new();
    for tick in 1..=4 * LIMITS.reset_ticks {
        assert_eq!(exchange.should_pause(), tick <= LIMITS.reset_ticks, "at tick {tick}");
        assert!(!effects.contains(&Effect::Reset(PEER)), "at tick {tick}");
        // Small messages still leave: they do not even fill the kernel's buffer.
        tell(&mut exchange, Event::Progress(PEER));
        effects.extend(tell(&mut exchange, Event::Tick));
    }
    assert!(effects.contains(&Effect::Reset(PEER)));
}
