use std::sync::Arc;

use protocol::batch::Batch;
use protocol::changes::{apply_to_counts, word};
use protocol::data::DataSpec;
use protocol::frontier::Frontier;
use protocol::job::JobDraft;
use protocol::lattice::count_of;
use protocol::model::{Layout, initial_counts};

use super::*;
use crate::backend::cpu::CpuTrainer;
use crate::fake_trainer::FakeTrainer;
use crate::ops::Threads;
use crate::training_thread::{FromTraining, ToTraining, start};

const WEIGHTS: usize = 50;

/// Two clouds of points that a line tells apart.
fn points(samples: usize) -> (tempfile::TempDir, Dataset) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("points.csv");
    let rows: Vec<String> = (0..samples)
        .map(|i| {
            let side = i % 2;
            let spread = |factor: usize| (i * factor % 101) as f64 / 50.0 - 1.0;
            format!(
                "{},{},side{side}",
                spread(37) + 3.0 * side as f64,
                spread(53) - 2.0 * side as f64
            )
        })
        .collect();
    std::fs::write(&file, rows.join("\n")).unwrap();
    let spec: DataSpec = format!("csv:{}", file.display()).parse().unwrap();
    let dataset = Dataset::open(&spec, 1, None).unwrap();
    (folder, dataset)
}

fn job(change: impl FnOnce(&mut JobDraft)) -> Job {
    let mut draft = JobDraft {
        model: Some("dense 8, relu, dense 2".into()),
        epochs: Some(2),
        minibatch: Some(16),
        ..JobDraft::default()
    };
    change(&mut draft);
    draft.resolve().unwrap()
}

fn fake(job: &Job, dataset: &Dataset) -> Training<FakeTrainer> {
    Training::new(FakeTrainer::new(&[0; WEIGHTS]), job, dataset, Identity::alone(7)).unwrap()
}

fn real(job: &Job, dataset: &Dataset) -> Training<CpuTrainer> {
    let layout = Layout::new(&job.model, dataset.input, 2).unwrap();
    let counts = initial_counts(&layout, job.seed);
    let rule = job.optimiser.rule;
    let trainer = CpuTrainer::new(Arc::new(dataset.clone()), &layout, &counts, rule, 1, Threads(1)).unwrap();
    Training::new(trainer, job, dataset, Identity::alone(7)).unwrap()
}

/// Makes a step that is not held back.
fn emitted<T: Trainer>(training: &mut Training<T>, frame: &mut Vec<u8>) -> Step {
    match training.step(false, frame).unwrap() {
        Next::Emitted(step) => step,
        other => panic!("{other:?}"),
    }
}

/// A batch of another worker's.
fn foreign(words: &[u32], tau: Tau, samples: u32, seen: u64) -> Batch {
    let header = Header {
        run: protocol::ids::RunId(7),
        origin: OriginId(99),
        sequence: 1,
        seen,
        tau,
        digest: Digest::of_changes(words, tau),
        cursors: Vec::new(),
        samples,
        loss: 0.0,
        flags: Flags::default(),
    };
    Batch {
        header,
        words: words.to_vec(),
    }
}

/// Steps until nothing is left; all batches, the closing one last.
fn batches<T: Trainer>(training: &mut Training<T>) -> Vec<Batch> {
    let weights = training.trainer().weights();
    let mut found = Vec::new();
    loop {
        let mut frame = Vec::new();
        let more = match training.step(false, &mut frame).unwrap() {
            Next::Emitted(_) => true,
            Next::Done => false,
            other => panic!("{other:?}"),
        };
        if !more {
            training.close(&mut frame).unwrap();
        }
        found.push(Batch::decode(&frame, weights).unwrap());
        if !more {
            return found;
        }
    }
}

#[test]
fn every_sample_is_trained_once_an_epoch_and_counted() {
    let (_folder, dataset) = points(200);
    let mut training = fake(&job(|_| {}), &dataset);
    let found = batches(&mut training);
    let mut trained = training.trainer().trained.clone();
    trained.sort_unstable();
    let expected: Vec<u32> = (0..160).flat_map(|sample| [sample, sample]).collect();
    assert_eq!(trained, expected);
    assert_eq!(found.iter().map(|batch| batch.header.samples).sum::<u32>(), 320);
    let mut cursors = protocol::cursor::Cursors::default();
    cursors.extend(found.iter().flat_map(|batch| batch.header.cursors.clone()));
    assert_eq!(cursors.samples_done(), 320);
    assert_eq!(training.progress(), 1.0);
}

#[test]
fn batches_are_numbered_and_the_last_closes_the_origin() {
    let (_folder, dataset) = points(100);
    let found = batches(&mut fake(&job(|_| {}), &dataset));
    let mut frontier = Frontier::default();
    for batch in &found {
        frontier.advance(batch.header.origin, batch.header.sequence).unwrap();
    }
    let (last, before) = found.split_last().unwrap();
    assert_eq!(
        last.header.flags,
        Flags {
            last: true,
            stop: false
        }
    );
    assert!(last.words.is_empty());
    assert!(before.iter().all(|batch| batch.header.flags == Flags::default()));
}

#[test]
fn the_first_step_finds_its_tau() {
    let (_folder, dataset) = points(400);
    let found = batches(&mut real(&job(|draft| draft.density = Some(0.2)), &dataset));
    // Of 42 weights a fifth, some of them more than once: the first batch already has the right size.
    let mut weights = found[0].words.clone();
    weights.dedup();
    assert!((7..=10).contains(&weights.len()), "{} weights changed", weights.len());
    let fixed = batches(&mut fake(&job(|draft| draft.tau = Some(0.125)), &dataset));
    assert!(!fixed[0].words.is_empty());
    assert_eq!(fixed[0].header.tau.value(), 0.125);
}

#[test]
fn a_stop_ends_it_after_the_step() {
    let (_folder, dataset) = points(100);
    let mut training = fake(&job(|_| {}), &dataset);
    let mut frame = Vec::new();
    emitted(&mut training, &mut frame);
    training.stop();
    assert_eq!(training.step(false, &mut frame).unwrap(), Next::Done);
    let mut last = Vec::new();
    training.close(&mut last).unwrap();
    let last = Batch::decode(&last, WEIGHTS).unwrap();
    assert_eq!(
        (last.header.sequence, last.header.flags),
        (2, Flags { last: true, stop: true })
    );
}

#[test]
fn others_changes_and_samples_count() {
    let (_folder, dataset) = points(100);
    let mut training = fake(&job(|_| {}), &dataset);
    let before = training.trainer().digest().unwrap().unwrap();
    let words = [word(3, true), word(9, false)];
    let tau = Tau::from_steps(5).unwrap();
    training.apply(&foreign(&words, tau, 80, 0)).unwrap();
    let expected = before + Digest::of_changes(&words, tau);
    assert_eq!(training.trainer().digest().unwrap(), Some(expected));
    assert_eq!(training.progress(), 0.5);
}

#[test]
fn batches_say_what_they_have_seen_and_staleness_slows_the_step() {
    let (_folder, dataset) = points(1000);
    let fixed = |clip: &str| {
        job(|draft| {
            draft.lr_schedule = Some("constant".into());
            draft.clip = Some(clip.into());
        })
    };
    let three = Identity {
        slots: 3,
        ..Identity::alone(7)
    };
    let training = |job: &Job| Training::new(FakeTrainer::new(&[0; WEIGHTS]), job, &dataset, three).unwrap();
    let step = |training: &mut Training<FakeTrainer>| {
        let mut frame = Vec::new();
        let step = emitted(training, &mut frame);
        (Batch::decode(&frame, WEIGHTS).unwrap().header.seen, step.staleness)
    };
    for (clip, slows_rate) in [("auto", false), ("2", false), ("none", true)] {
        let job = fixed(clip);
        let mut training = training(&job);
        assert_eq!(step(&mut training), (0, 0.0));
        let before = training.trainer().last.unwrap();
        assert_eq!(step(&mut training), (1, 0.0));
        for seen in 0..400 {
            // Twelve batches have come in between: four rounds of three workers.
            let seen = (seen + 2u64).saturating_sub(12);
            training.apply(&foreign(&[], Tau::ONE_STEP, 0, seen)).unwrap();
        }
        let (seen, staleness) = step(&mut training);
        assert_eq!(seen, 402);
        assert!((staleness - 4.0).abs() < 0.01, "{staleness}");
        assert_eq!(training.staleness(), staleness);
        let after = training.trainer().last.unwrap();
        let factor = training.guard.factor();
        assert!(factor < 0.6);
        let slower = |yes: bool| if yes { factor } else { 1.0 };
        assert_eq!(after.learning_rate, before.learning_rate * slower(slows_rate));
        assert_eq!(after.clip, before.clip.map(|norm| norm * slower(!slows_rate)));
    }
}

#[test]
fn the_trainers_weights_are_the_sum_of_its_batches_and_it_learns() {
    let (_folder, dataset) = points(1000);
    for optimiser in [
        "sgd:0.1",
        "sgd:0.05,momentum=0.9",
        "adam:0.01",
        "rmsprop:0.01",
        "adagrad:0.1",
    ] {
        let job = job(|draft| {
            draft.optimiser = Some(optimiser.into());
            draft.density = Some(0.2);
            draft.clip = Some("5".into());
            draft.epochs = Some(6);
        });
        let layout = Layout::new(&job.model, dataset.input, 2).unwrap();
        let mut counts = initial_counts(&layout, job.seed);
        let mut training = real(&job, &dataset);
        let mut digest = Digest::of_counts(&counts);
        let found = batches(&mut training);
        for batch in &found {
            apply_to_counts(&batch.words, batch.header.tau, &mut counts).unwrap();
            digest += batch.header.digest;
        }
        assert_eq!(Digest::of_counts(&counts), digest);
        assert_eq!(training.trainer().digest().unwrap(), Some(digest));
        assert!(training.trainer().residual_norm().unwrap() > 0.0);
        let loss = |part: &[Batch]| part.iter().map(|b| b.header.loss).sum::<f32>() / part.len() as f32;
        let (first, last) = (loss(&found[..10]), loss(&found[found.len() - 11..found.len() - 1]));
        assert!(
            last < 0.2 && last < first / 2.0,
            "{optimiser}: loss {first} became {last}"
        );
        let changes: usize = found.iter().map(|batch| batch.words.len()).sum();
        let density = changes as f64 / (layout.weights * found.len()) as f64;
        assert!(
            (0.1..0.4).contains(&density),
            "{optimiser}: density {density} instead of 0.2"
        );
    }
}

#[test]
fn a_diverging_run_says_so() {
    let (_folder, dataset) = points(200);
    let job = job(|draft| {
        draft.optimiser = Some("sgd:1000000".into());
        draft.lr_schedule = Some("constant".into());
        draft.density = Some(1.0);
        draft.epochs = Some(50);
    });
    let mut training = real(&job, &dataset);
    let error = loop {
        match training.step(false, &mut Vec::new()) {
            Ok(Next::Emitted(_)) => {}
            Ok(other) => panic!("it did not diverge: {other:?}"),
            Err(error) => break error.to_string(),
        }
    };
    assert!(
        error.contains("diverged") && error.contains("lower learning rate"),
        "{error}"
    );
}

#[test]
fn a_thread_trains_applies_and_stops() {
    let (_folder, dataset) = points(4000);
    let job = job(|draft| draft.epochs = Some(100_000));
    let thread = start(Threads(1), move || {
        Training::new(FakeTrainer::new(&[0; WEIGHTS]), &job, &dataset, Identity::alone(7))
    })
    .unwrap();
    let other = foreign(&[word(3, true)], Tau::ONE_STEP, 4, 0);
    thread.inbound.send(ToTraining::Apply(Arc::new(other.clone()))).unwrap();
    let mut counts = vec![0; WEIGHTS];
    counts[3] += 1;
    let mut take = |frame: &[u8]| {
        let batch = Batch::decode(frame, WEIGHTS).unwrap();
        apply_to_counts(&batch.words, batch.header.tau, &mut counts).unwrap();
        batch.header.sequence
    };
    loop {
        match thread.outbound.recv().unwrap() {
            FromTraining::Step { frame: Some(frame), .. } => {
                if take(&frame) == 20 {
                    thread.inbound.send(ToTraining::Stop).unwrap();
                }
            }
            FromTraining::Closed(closing) => {
                take(&closing.frame);
                break;
            }
            FromTraining::Step { .. } | FromTraining::ResidualNorm(_) => {}
            other => panic!("{other:?}"),
        }
    }
    // Its origin is closed, but others' batches are still applied.
    thread.inbound.send(ToTraining::Apply(Arc::new(other))).unwrap();
    counts[3] += 1;
    thread.inbound.send(ToTraining::Finish(None)).unwrap();
    match thread.outbound.recv() {
        Some(FromTraining::Finished { digest, save: None }) => assert_eq!(digest, Some(Digest::of_counts(&counts))),
        other => panic!("{other:?}"),
    }
    drop(thread.inbound);
    thread.thread.join().unwrap();
}

#[test]
fn a_worker_that_is_paused_holds_back_and_then_waits() {
    let (_folder, dataset) = points(4000);
    let job = job(|draft| draft.epochs = Some(100_000));
    let thread = start(Threads(1), move || {
        Training::new(FakeTrainer::new(&[0; WEIGHTS]), &job, &dataset, Identity::alone(7))
    })
    .unwrap();
    let (mut held_back, mut samples, mut counted) = (0, 0, 0);
    let mut next = || match thread.outbound.recv().unwrap() {
        FromTraining::Step { frame, step, .. } => {
            samples += step.samples;
            let batch = frame.map(|frame| Batch::decode(&frame, WEIGHTS).unwrap());
            counted += batch.as_ref().map_or(0, |batch| batch.header.samples as usize);
            Some((batch.is_some(), samples, counted))
        }
        FromTraining::ResidualNorm(_) => None,
        other => panic!("{other:?}"),
    };
    assert!(matches!(next(), Some((true, ..))));
    thread.inbound.send(ToTraining::Pause(true)).unwrap();
    while held_back < 16 {
        held_back += usize::from(matches!(next(), Some((false, ..))));
    }
    thread.inbound.send(ToTraining::Pause(false)).unwrap();
    let (samples, counted) = loop {
        if let Some((true, samples, counted)) = next() {
            break (samples, counted);
        }
    };
    assert_eq!(samples, counted, "the next batch counts what was held back");
    drop(thread.inbound);
    thread.thread.join().unwrap();
}

#[test]
fn a_thread_that_fails_says_why() {
    let (_folder, dataset) = points(100);
    let job = job(|_| {});
    let thread = start(Threads(2), move || {
        let mut trainer = FakeTrainer::new(&[0; WEIGHTS]);
        trainer.fails_at = Some(3);
        Training::new(trainer, &job, &dataset, Identity::alone(7))
    })
    .unwrap();
    let messages: Vec<_> = std::iter::from_fn(|| thread.outbound.recv()).collect();
    assert_eq!(messages.len(), 3);
    assert!(matches!(messages[2], FromTraining::Failed(_)));
}

/// Whether a training's error convicts this replica.
fn is_spoilt<E>(result: &Result<E, TrainingError>) -> bool {
    matches!(result, Err(TrainingError::Spoilt { .. }))
}

#[test]
fn an_audit_finds_nothing_wrong_with_own_and_others_batches() {
    let (_folder, dataset) = points(200);
    let mut training = real(&job(|_| {}), &dataset);
    for step in 0..10u64 {
        emitted(&mut training, &mut Vec::new());
        let words = [word(1, step % 2 == 0), word(5, true)];
        training.apply(&foreign(&words, Tau::nearest(0.01), 1, step)).unwrap();
        training.audit().unwrap();
    }
}

#[test]
fn a_bit_that_flips_convicts_its_replica() {
    let (_folder, dataset) = points(200);
    let mut trainer = FakeTrainer::new(&[0; WEIGHTS]);
    trainer.flips_at = Some(2);
    trainer.fails_at = Some(3);
    let mut training = Training::new(trainer, &job(|_| {}), &dataset, Identity::alone(7)).unwrap();
    emitted(&mut training, &mut Vec::new());
    training.audit().unwrap();
    emitted(&mut training, &mut Vec::new());
    assert!(is_spoilt(&training.audit()));
    // What looks like a run that diverges is this worker's fault alone.
    assert!(is_spoilt(&training.step(false, &mut Vec::new())));
}

#[test]
fn a_thread_audits_its_weights_before_it_closes() {
    let (_folder, dataset) = points(100);
    let job = job(|_| {});
    let thread = start(Threads(1), move || {
        let mut trainer = FakeTrainer::new(&[0; WEIGHTS]);
        trainer.flips_at = Some(4);
        Training::new(trainer, &job, &dataset, Identity::alone(7))
    })
    .unwrap();
    let messages: Vec<_> = std::iter::from_fn(|| thread.outbound.recv()).collect();
    assert!(matches!(
        messages.last(),
        Some(FromTraining::Failed(TrainingError::Spoilt { .. }))
    ));
}

#[test]
fn a_thread_nobody_listens_to_ends() {
    let (_folder, dataset) = points(100);
    let job = job(|draft| draft.epochs = Some(100_000));
    let thread = start(Threads(1), move || {
        Training::new(FakeTrainer::new(&[0; WEIGHTS]), &job, &dataset, Identity::alone(7))
    })
    .unwrap();
    drop(thread.outbound);
    thread.thread.join().unwrap();
}

#[test]
fn what_others_do_is_not_done_again_and_what_they_leave_is_taken_over() {
    let (_folder, dataset) = points(200);
    let job = job(|draft| draft.epochs = Some(1));
    let identity = |slot| Identity {
        slot,
        slots: 2,
        origin: OriginId(slot as u64),
        ..Identity::alone(7)
    };
    let make = |slot| Training::new(FakeTrainer::new(&[0; WEIGHTS]), &job, &dataset, identity(slot)).unwrap();
    let (mut one, mut other) = (make(0), make(1));
    let mut frame = Vec::new();
    emitted(&mut other, &mut frame);
    one.apply(&Batch::decode(&frame, WEIGHTS).unwrap()).unwrap();
    while let Next::Emitted(_) = one.step(false, &mut Vec::new()).unwrap() {}
    assert_eq!(
        one.step(false, &mut Vec::new()).unwrap(),
        Next::Waiting,
        "the other has begun a shard"
    );
    one.origin(OriginId(1), false);
    one.slot(1, false);
    while let Next::Emitted(_) = one.step(false, &mut Vec::new()).unwrap() {}
    assert_eq!(one.step(false, &mut Vec::new()).unwrap(), Next::Done);
    let mut trained = [one.trainer().trained.clone(), other.trainer().trained.clone()].concat();
    trained.sort_unstable();
    assert_eq!(trained, (0..160).collect::<Vec<u32>>());
}

/// A worker in the middle of a run, of three slots or alone.
fn identity(slots: usize) -> Identity {
    Identity {
        slots,
        ..Identity::alone(7)
    }
}

fn real_from(counts: &[i32], job: &Job, dataset: &Dataset, identity: Identity) -> Training<CpuTrainer> {
    let layout = Layout::new(&job.model, dataset.input, 2).unwrap();
    let rule = job.optimiser.rule;
    let trainer = CpuTrainer::new(Arc::new(dataset.clone()), &layout, counts, rule, 1, Threads(1)).unwrap();
    Training::new(trainer, job, dataset, identity).unwrap()
}

/// Makes so many batches, with a step held back now and then; the frames.
fn frames<T: Trainer>(training: &mut Training<T>, batches: usize) -> Vec<Vec<u8>> {
    let batch = |at: usize| {
        let mut frame = Vec::new();
        if at % 3 == 1 {
            let held = training.step(true, &mut frame).unwrap();
            assert!(matches!(held, Next::HeldBack(_)), "{held:?}");
        }
        emitted(training, &mut frame);
        frame
    };
    (0..batches).map(batch).collect()
}

/// Brings a fresh training to where another stands, as a node would: by its ledger, and what the worker had alone.
fn resume_after<T: Trainer>(training: &mut Training<T>, frames: &[Vec<u8>]) {
    let weights = training.trainer().weights();
    let (mut cursors, mut samples) = (Cursors::default(), 0);
    for frame in frames {
        let header = Batch::decode(frame, weights).unwrap().header;
        cursors.extend(header.cursors);
        samples += u64::from(header.samples);
    }
    training.resume(&cursors, frames.len() as u64, samples);
}

fn counts<T: Trainer>(training: &Training<T>) -> Vec<i32> {
    let weights = training.trainer().copy_weights().unwrap();
    weights.iter().map(|&weight| count_of(weight).unwrap()).collect()
}

#[test]
fn a_worker_goes_on_to_the_bit_from_what_it_had_alone() {
    let (folder, dataset) = points(4000);
    let path = folder.path().join("state");
    for (optimiser, slots) in [
        ("sgd:0.05,momentum=0.9", 1),
        ("sgd:0.05,momentum=0.9", 3),
        ("sgd:0.1", 3),
        ("adam:0.01", 1),
        ("rmsprop:0.01", 3),
    ] {
        let job = job(|draft| {
            draft.model = Some("dense 8, relu, dropout 0.2, dense 2".into());
            draft.optimiser = Some(optimiser.into());
            draft.density = Some(0.2);
        });
        let layout = Layout::new(&job.model, dataset.input, 2).unwrap();
        let first = initial_counts(&layout, job.seed);
        let mut training = real_from(&first, &job, &dataset, identity(slots));
        let before = frames(&mut training, 20);
        let state = training.state().unwrap().unwrap();
        assert_eq!((state.origin, state.sequence, state.steps), (OriginId(7), 20, 27));
        crate::state_file::save(&path, &state).unwrap();
        let state = crate::state_file::load(&path, layout.weights).unwrap();
        let again = || {
            let mut again = real_from(&counts(&training), &job, &dataset, identity(slots));
            resume_after(&mut again, &before);
            again
        };
        let (mut restored, mut without) = (again(), again());
        restored.restore(state).unwrap();
        assert_eq!(restored.state().unwrap(), training.state().unwrap());
        without.sequence = 20;
        let expected = frames(&mut training, 20);
        assert!(frames(&mut restored, 20) == expected, "{optimiser} among {slots}");
        let lost = frames(&mut without, 20)
            .iter()
            .zip(&expected)
            .filter(|(a, b)| a != b)
            .count();
        assert!(lost > 10, "only {lost} batches need what was saved");
        restored.audit().unwrap();
    }
}

#[test]
fn a_state_has_no_steps_that_no_batch_counts() {
    let (_folder, dataset) = points(400);
    let mut training = fake(&job(|_| {}), &dataset);
    assert_eq!(training.state().unwrap().unwrap().sequence, 0);
    emitted(&mut training, &mut Vec::new());
    let state = training.state().unwrap().unwrap();
    assert_eq!((state.sequence, state.steps), (1, 1));
    assert_eq!(state.trainer.arrays, [training.trainer().times.clone()]);
    training.step(true, &mut Vec::new()).unwrap();
    assert_eq!(training.state().unwrap(), None);
    emitted(&mut training, &mut Vec::new());
    let state = training.state().unwrap().unwrap();
    assert_eq!((state.sequence, state.steps), (2, 3));
}

#[test]
fn a_fake_worker_goes_on_and_a_new_origin_counts_from_one() {
    let (_folder, dataset) = points(1000);
    let job = job(|_| {});
    let mut training = fake(&job, &dataset);
    let before = frames(&mut training, 10);
    let state = training.state().unwrap().unwrap();
    let again = |origin| {
        let identity = Identity {
            origin: OriginId(origin),
            ..Identity::alone(7)
        };
        let mut again = Training::new(FakeTrainer::new(&counts(&training)), &job, &dataset, identity).unwrap();
        resume_after(&mut again, &before);
        again.restore(state.clone()).unwrap();
        again
    };
    let (mut same, mut other) = (again(7), again(8));
    let expected = frames(&mut training, 10);
    assert_eq!(frames(&mut same, 10), expected);
    assert_eq!(same.trainer().times, training.trainer().times);
    let decode = |frame: &Vec<u8>| Batch::decode(frame, WEIGHTS).unwrap();
    for (at, (found, expected)) in frames(&mut other, 10).iter().zip(&expected).enumerate() {
        let (found, expected) = (decode(found), decode(expected));
        assert_eq!(found.header.sequence, at as u64 + 1);
        assert_eq!((found.words, found.header.tau), (expected.words, expected.header.tau));
    }
}

#[test]
fn a_state_that_does_not_fit_has_no_effect() {
    let (_folder, dataset) = points(400);
    let momentum = job(|draft| draft.optimiser = Some("sgd:0.05,momentum=0.9".into()));
    let mut training = real(&momentum, &dataset);
    frames(&mut training, 5);
    let state = training.state().unwrap().unwrap();
    let weights = training.trainer().weights();
    let mut fresh = real(&momentum, &dataset);
    let before = fresh.state().unwrap();
    let mut refuse = |change: fn(&mut Vec<Vec<f32>>)| {
        let mut state = state.clone();
        change(&mut state.trainer.arrays);
        let error = fresh.restore(state).unwrap_err();
        assert_eq!(fresh.state().unwrap(), before);
        error
    };
    let (found, needed) = (2, 3);
    assert_eq!(
        refuse(|arrays| drop(arrays.pop())),
        StateError::Arrays { found, needed }
    );
    refuse(|arrays| arrays.push(arrays[0].clone()));
    refuse(Vec::clear);
    assert_eq!(
        refuse(|arrays| arrays[2].truncate(1)),
        StateError::Weights {
            found: 1,
            needed: weights
        }
    );
    refuse(|arrays| arrays[0].push(0.0));
    assert_eq!(refuse(|arrays| arrays[1][0] = f32::INFINITY), StateError::NotFinite);
    let mut adam = real(&job(|draft| draft.optimiser = Some("adam:0.01".into())), &dataset);
    assert!(adam.restore(state).is_err());
    let mut small = FakeTrainer::new(&[0; WEIGHTS]);
    let other = FakeTrainer::new(&[0; WEIGHTS + 1]).state().unwrap();
    assert!(small.restore(other).is_err());
    assert_eq!(small.times, [0.0; WEIGHTS]);
}

/// What a thread tells, batches and states by their numbers.
#[derive(Debug, PartialEq)]
enum Heard {
    Batch(u64),
    HeldBack,
    State(Option<u64>),
    Closed,
}

#[test]
fn a_thread_hands_out_its_state_between_batches() {
    let (_folder, dataset) = points(4000);
    let job = job(|draft| draft.epochs = Some(100_000));
    let thread = start(Threads(1), move || {
        Training::new(FakeTrainer::new(&[0; WEIGHTS]), &job, &dataset, Identity::alone(7))
    })
    .unwrap();
    let next = || loop {
        match thread.outbound.recv().unwrap() {
            FromTraining::Step { frame: None, .. } => break Heard::HeldBack,
            FromTraining::Step { frame: Some(frame), .. } => {
                break Heard::Batch(Batch::decode(&frame, WEIGHTS).unwrap().header.sequence);
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
            Heard::HeldBack => {}
            Heard::Closed => panic!("nobody said so"),
        }
    };
    for _ in 0..3 {
        save();
        until_state();
    }
    // While something is held back, there is no state; the next batch brings one.
    thread.inbound.send(ToTraining::Pause(true)).unwrap();
    let mut held_back = 0;
    while held_back < 16 {
        held_back = if next() == Heard::HeldBack { held_back + 1 } else { 0 };
    }
    save();
    thread.inbound.send(ToTraining::Pause(false)).unwrap();
    let mut counted = None;
    loop {
        match next() {
            Heard::Batch(sequence) => counted = Some(sequence),
            Heard::State(sequence) => break assert_eq!(sequence, counted),
            Heard::HeldBack => {}
            Heard::Closed => panic!("nobody said so"),
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

#[test]
fn a_weight_that_only_this_replica_has_out_of_range_convicts_it() {
    let (_folder, dataset) = points(200);
    // The ledger's weight is small; a flipped bit has made this one large, and the next change drives it out.
    let mut counts = [0; WEIGHTS];
    counts[1] = protocol::lattice::RANGE_ERROR_STEPS - 1;
    let trainer = FakeTrainer::new(&counts);
    let mut training = Training::new(trainer, &job(|_| {}), &dataset, Identity::alone(7)).unwrap();
    let batch = foreign(&[word(1, true)], Tau::ONE_STEP, 1, 0);
    assert!(is_spoilt(&training.apply(&batch)));
}

#[test]
fn what_came_other_than_as_batches_moves_weights_and_progress() {
    let (_folder, dataset) = points(200);
    let mut training = real(&job(|_| {}), &dataset);
    emitted(&mut training, &mut Vec::new());
    let before = training.trainer().copy_weights().unwrap();
    let residual = training.trainer().residual_norm().unwrap();
    let sums = Sums::checked(vec![(1, 500), (5, -70_000)], before.len()).unwrap();
    let order = ShiftOrder {
        origin: Some(OriginId(99)),
        batches: 40,
        samples: 20,
        cursors: Cursors::default(),
    };
    let progress = training.progress();
    training.shift(&sums, &order).unwrap();
    let after = training.trainer().copy_weights().unwrap();
    assert_eq!(after[1] - before[1], protocol::lattice::weight_of(500));
    assert_eq!(after[5] - before[5], protocol::lattice::weight_of(-70_000));
    assert!(
        (training.trainer().residual_norm().unwrap() - residual).abs() < 1e-5,
        "the residual is its own"
    );
    assert!(training.progress() > progress);
    training.audit().unwrap();
}

#[test]
fn a_step_that_leaves_the_range_is_the_runs_fault_unless_a_bit_had_flipped() {
    let (_folder, dataset) = points(200);
    let outcome = |flips_at: Option<u64>, count: i32| {
        let mut counts = [0; WEIGHTS];
        counts[3] = count;
        let mut trainer = FakeTrainer::new(&counts);
        trainer.flips_at = flips_at;
        // An odd number of steps: beyond the range such a sum is rounded, and cannot be taken back.
        let job = job(|draft| draft.tau = Some(1001.0 / 1_048_576.0));
        let mut training = Training::new(trainer, &job, &dataset, Identity::alone(7)).unwrap();
        loop {
            match training.step(false, &mut Vec::new()) {
                Ok(Next::Done) => return Ok(()),
                Ok(_) => {}
                Err(error) => return Err(error),
            }
        }
    };
    let edge = protocol::lattice::RANGE_ERROR_STEPS - 6;
    // With its tenth bit flipped it is at the edge.
    let far = edge ^ (1 << 9);
    assert!(far < edge);
    assert!(outcome(None, 0).is_ok());
    let diverged = outcome(None, edge);
    assert!(
        matches!(diverged, Err(TrainingError::Train(TrainError::Range(_)))),
        "{diverged:?}"
    );
    assert!(is_spoilt(&outcome(Some(2), far)));
}
