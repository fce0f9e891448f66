//! Tests of batches in flight: to all nodes, in order, within windows, and over relays.

use super::*;

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
        "the other workers of this node need the batch too"
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
    assert_eq!(
        sent_to(&effects, PEER),
        [simple(1, 2)],
        "the stream resumes at the peer's frontier"
    );
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
    // Both peers are more than a window behind; it is enough if one of the two catches up.
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
        "a link is reset only once"
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
    assert_eq!(
        sent,
        [simple(3, 1)],
        "a batch of a lost node is sent once, after a wait"
    );
}

#[test]
fn a_diverging_batch_still_reaches_everybody() {
    let mut exchange = node(LIMITS);
    let far = |sequence| batch(OriginId(1), sequence, &[change(0, true)], Tau::MAX);
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
    assert!(
        tell(&mut exchange, Event::Local(far(3))).is_empty(),
        "no batch is taken after the run has diverged"
    );
    assert!(receive(&mut exchange, PEER, Message::Batch(simple(2, 1))).is_empty());
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
    // Only this node itself can announce its own origins.
    let forged = OriginInfo { node: ME, ..origin(45) };
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
fn who_is_frozen_takes_no_further_batch_and_stands_where_it_stood() {
    let mut exchange = node(LIMITS);
    tell(&mut exchange, Event::Local(simple(1, 1)));
    receive(&mut exchange, PEER, Message::Batch(simple(2, 1)));
    let fingerprint = exchange.fingerprint();
    tell(&mut exchange, Event::Freeze(true));
    receive(&mut exchange, PEER, Message::Batch(simple(2, 2)));
    assert_eq!(exchange.fingerprint(), fingerprint);
    // A peer whose batches were dropped must resend: otherwise it would wait for an acknowledgement.
    let effects = tell(&mut exchange, Event::Freeze(false));
    assert_eq!(effects, [Effect::Reset(PEER)]);
    tell(&mut exchange, Event::LinkUp(PEER));
    receive(&mut exchange, PEER, has(&[]));
    receive(&mut exchange, PEER, Message::Batch(simple(2, 2)));
    assert_ne!(exchange.fingerprint(), fingerprint);
    tell(&mut exchange, Event::Freeze(true));
    assert_eq!(tell(&mut exchange, Event::Freeze(false)), []);
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
    let links = |nodes: &[NodeId]| Message::Note(Note::Links(nodes.to_vec()));
    receive(&mut exchange, PEER, links(&[NodeId(1), THIRD]));
    let effects = receive(&mut exchange, PEER, Message::Batch(simple(2, 1)));
    assert_eq!(
        to_third(&effects),
        0,
        "the origin's node has a link and sends the batch itself"
    );
    let effects = receive(&mut exchange, PEER, links(&[NodeId(1)]));
    assert_eq!(
        to_third(&effects),
        1,
        "the origin's node has lost its link, so this node relays the batch"
    );
    let effects = receive(&mut exchange, PEER, Message::Batch(simple(2, 2)));
    assert_eq!(to_third(&effects), 1);
    receive(&mut exchange, PEER, links(&[NodeId(1), THIRD]));
    let effects = receive(&mut exchange, PEER, Message::Batch(simple(2, 3)));
    assert_eq!(
        to_third(&effects),
        0,
        "the origin's node has its link again and sends the batch itself"
    );
}
