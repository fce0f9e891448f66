//! Tests of the thread around the training loop.

use super::*;
use crate::training::thread::TrainingThread;

/// Starts a thread that trains on this many samples, with a trainer that computes nothing.
fn started(samples: usize, epochs: u32, change: impl FnOnce(&mut FakeTrainer) + Send + 'static) -> TrainingThread {
    let (_folder, dataset) = points(samples);
    let job = job(|draft| draft.epochs = Some(epochs));
    let make = move || {
        let mut trainer = FakeTrainer::new(&[0; WEIGHTS]);
        change(&mut trainer);
        Training::new(trainer, &job, &dataset, Identity::alone(7))
    };
    start(Threads(2), None, make).unwrap()
}

#[test]
fn a_thread_trains_applies_and_stops() {
    let thread = started(4000, 100_000, |_| {});
    let other = foreign(&[change(3, true)], Tau::ONE_STEP, 4, 0);
    thread.inbound.send(ToTraining::Apply(Arc::new(other.clone()))).unwrap();
    let mut counts = vec![0; WEIGHTS];
    counts[3] += 1;
    let mut take = |encoded: &[u8]| {
        let batch = Batch::decode(encoded, WEIGHTS).unwrap();
        batch.payload.apply_to_counts(&mut counts).unwrap();
        batch.header.sequence
    };
    loop {
        match thread.outbound.recv().unwrap() {
            FromTraining::Step {
                encoded: Some(encoded), ..
            } => {
                if take(&encoded) == 20 {
                    thread.inbound.send(ToTraining::Stop).unwrap();
                }
            }
            FromTraining::Closed(closing) => {
                take(&closing.encoded);
                break;
            }
            FromTraining::Step { .. } | FromTraining::ResidualNorm(_) => {}
            other => panic!("{other:?}"),
        }
    }
    // The origin is closed, but other workers' batches are still applied.
    thread.inbound.send(ToTraining::Apply(Arc::new(other))).unwrap();
    counts[3] += 1;
    thread.inbound.send(ToTraining::Finish(None)).unwrap();
    match thread.outbound.recv() {
        Some(FromTraining::Finished { digest, save: None, .. }) => assert_eq!(digest, Some(Digest::of_counts(&counts))),
        other => panic!("{other:?}"),
    }
    drop(thread.inbound);
    thread.thread.join().unwrap();
}

#[test]
fn a_worker_that_is_paused_holds_back_and_then_waits() {
    let thread = started(4000, 100_000, |_| {});
    let (mut throttled, mut samples, mut counted) = (0, 0, 0);
    let mut next = || match thread.outbound.recv().unwrap() {
        FromTraining::Step { encoded, step, .. } => {
            samples += step.samples;
            let batch = encoded.map(|encoded| Batch::decode(&encoded, WEIGHTS).unwrap());
            counted += batch.as_ref().map_or(0, |batch| batch.header.samples as usize);
            Some((batch.is_some(), samples, counted))
        }
        FromTraining::ResidualNorm(_) => None,
        other => panic!("{other:?}"),
    };
    assert!(matches!(next(), Some((true, ..))));
    thread.inbound.send(ToTraining::Pause(true)).unwrap();
    while throttled < 16 {
        throttled += usize::from(matches!(next(), Some((false, ..))));
    }
    thread.inbound.send(ToTraining::Pause(false)).unwrap();
    let (samples, counted) = loop {
        if let Some((true, samples, counted)) = next() {
            break (samples, counted);
        }
    };
    assert_eq!(
        samples, counted,
        "the next batch must count the samples of the throttled steps"
    );
    drop(thread.inbound);
    thread.thread.join().unwrap();
}

#[test]
fn a_thread_that_fails_says_why() {
    let thread = started(100, 2, |trainer| trainer.fails_at = Some(3));
    let messages: Vec<_> = std::iter::from_fn(|| thread.outbound.recv()).collect();
    assert_eq!(messages.len(), 3);
    assert!(matches!(messages[2], FromTraining::Failed(_)));
}

#[test]
fn a_thread_audits_its_weights_before_it_closes() {
    let thread = started(100, 2, |trainer| trainer.flips_at = Some(4));
    let messages: Vec<_> = std::iter::from_fn(|| thread.outbound.recv()).collect();
    assert!(matches!(
        messages.last(),
        Some(FromTraining::Failed(TrainingError::Spoilt { .. }))
    ));
}

#[test]
fn a_thread_nobody_listens_to_ends() {
    let thread = started(100, 100_000, |_| {});
    drop(thread.outbound);
    thread.thread.join().unwrap();
}

#[test]
fn a_thread_hands_out_its_state_between_batches() {
    let thread = started(4000, 100_000, |_| {});
    let next = || loop {
        match thread.outbound.recv().unwrap() {
            FromTraining::Step { encoded: None, .. } => break Heard::Throttled,
            FromTraining::Step {
                encoded: Some(encoded), ..
            } => {
                break Heard::Batch(Batch::decode(&encoded, WEIGHTS).unwrap().header.sequence);
            }
            FromTraining::State { path, state } => {
                assert_eq!(path, std::path::Path::new("state"));
                break Heard::State(state.map(|state| state.sequence));
            }
            FromTraining::Closed(_) => break Heard::Closed,
            FromTraining::ResidualNorm(_) => {}
            other => panic!("{other:?}"),
        }
    };
    let save = || thread.inbound.send(ToTraining::Save("state".into())).unwrap();
    let mut last = 0;
    let mut until_state = || loop {
        match next() {
            Heard::Batch(sequence) => {
                assert_eq!(sequence, last + 1);
                last = sequence;
            }
            Heard::State(sequence) => break assert_eq!(sequence, Some(last)),
            Heard::Throttled => {}
            Heard::Closed => panic!("the worker closed its origin without an order"),
        }
    };
    for _ in 0..3 {
        save();
        until_state();
    }
    // While no batch counts the throttled steps, there is no state; the next batch brings one.
    thread.inbound.send(ToTraining::Pause(true)).unwrap();
    let mut throttled = 0;
    while throttled < 16 {
        throttled = if next() == Heard::Throttled { throttled + 1 } else { 0 };
    }
    save();
    thread.inbound.send(ToTraining::Pause(false)).unwrap();
    let mut counted = None;
    loop {
        match next() {
            Heard::Batch(sequence) => counted = Some(sequence),
            Heard::State(sequence) => break assert_eq!(sequence, counted),
            Heard::Throttled => {}
            Heard::Closed => panic!("the worker closed its origin without an order"),
        }
    }
    assert!(counted.is_some());
    thread.inbound.send(ToTraining::Stop).unwrap();
    while next() != Heard::Closed {}
    save();
    assert_eq!(next(), Heard::State(None));
    drop(thread.inbound);
    thread.thread.join().unwrap();
}
