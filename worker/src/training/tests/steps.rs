//! Tests of steps, their samples, and the batches that leave.

use super::*;

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
    let mut cursors = protocol::log::cursor::Cursors::default();
    cursors.extend(found.iter().flat_map(|batch| batch.header.cursors.clone()));
    assert_eq!(cursors.samples_done(), 320);
    assert_eq!(training.learner.applied.progress(), 1.0);
}

#[test]
fn batches_are_numbered_and_the_last_closes_the_origin() {
    let (_folder, dataset) = points(100);
    let found = batches(&mut fake(&job(|_| {}), &dataset));
    let mut frontier = Frontier::default();
    for batch in &found {
        let (origin, sequence) = (batch.header.origin, batch.header.sequence);
        assert_eq!(frontier.position(origin, sequence), Position::Next);
        frontier.raise(origin, sequence);
    }
    let (last, before) = found.split_last().unwrap();
    assert_eq!(
        last.header.status,
        OriginStatus {
            last: true,
            ..OriginStatus::default()
        }
    );
    assert!(last.payload.is_empty());
    assert!(
        before
            .iter()
            .all(|batch| batch.header.status == OriginStatus::default())
    );
}

#[test]
fn the_first_step_finds_its_tau() {
    let (_folder, dataset) = points(400);
    let found = batches(&mut real(&job(|draft| draft.density = Some("0.2".into())), &dataset));
    // A fifth of 42 weights changes, some more than once: the first batch already has the right size.
    let (_, mut weights) = steps(&found[0]);
    weights.dedup();
    assert!((7..=10).contains(&weights.len()), "{} weights changed", weights.len());
    let fixed = batches(&mut fake(&job(|draft| draft.tau = Some(0.125)), &dataset));
    let (tau, changes) = steps(&fixed[0]);
    assert!(!changes.is_empty());
    assert_eq!(tau.value(), 0.125);
}

#[test]
fn a_stop_ends_it_after_the_step() {
    let (_folder, dataset) = points(100);
    let mut training = fake(&job(|_| {}), &dataset);
    let mut encoded = Vec::new();
    emitted(&mut training, &mut encoded);
    training.learner.ending.stop();
    assert_eq!(training.step(false, &mut encoded).unwrap(), Next::Done);
    let last = training.close().unwrap().encoded;
    let last = Batch::decode(&last, WEIGHTS).unwrap();
    assert_eq!(
        (last.header.sequence, last.header.status),
        (
            2,
            OriginStatus {
                last: true,
                stop: true,
                ..OriginStatus::default()
            }
        )
    );
}

#[test]
fn others_changes_and_samples_count() {
    let (_folder, dataset) = points(100);
    let mut training = fake(&job(|_| {}), &dataset);
    let before = training.trainer().digest().unwrap().unwrap();
    let changes = [change(3, true), change(9, false)];
    let tau = Tau::from_steps(5).unwrap();
    training.apply(&foreign(&changes, tau, 80, 0)).unwrap();
    let expected = before + Digest::of_changes(&changes, tau);
    assert_eq!(training.trainer().digest().unwrap(), Some(expected));
    assert_eq!(training.learner.applied.progress(), 0.5);
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
        founders: 3,
        ..Identity::alone(7)
    };
    let training = |job: &Job| Training::new(FakeTrainer::new(&[0; WEIGHTS]), job, &dataset, three).unwrap();
    let step = |training: &mut Training<FakeTrainer>| {
        let mut encoded = Vec::new();
        let step = emitted(training, &mut encoded);
        (Batch::decode(&encoded, WEIGHTS).unwrap().header.seen, step.staleness)
    };
    for (clip, slows_rate) in [("auto", false), ("2", false), ("none", true)] {
        let job = fixed(clip);
        let mut training = training(&job);
        assert_eq!(step(&mut training), (0, 0.0));
        let before = training.trainer().last.unwrap();
        assert_eq!(step(&mut training), (1, 0.0));
        for seen in 0..400 {
            // Twelve batches came in between: four rounds of three workers.
            let seen = (seen + 2u64).saturating_sub(12);
            training.apply(&foreign(&[], Tau::ONE_STEP, 0, seen)).unwrap();
        }
        let (seen, staleness) = step(&mut training);
        assert_eq!(seen, 402);
        assert!((staleness - 4.0).abs() < 0.01, "{staleness}");
        assert_eq!(training.staleness(), staleness);
        let after = training.trainer().last.unwrap();
        let factor = training.learner.applied.guard_factor();
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
            draft.density = Some("0.2".into());
            draft.clip = Some("5".into());
            draft.epochs = Some(6);
        });
        let layout = Layout::new(&job.model, dataset.input, 2).unwrap();
        let mut counts = initial_counts(&layout, job.seed);
        let mut training = real(&job, &dataset);
        let mut digest = Digest::of_counts(&counts);
        let found = batches(&mut training);
        for batch in &found {
            batch.payload.apply_to_counts(&mut counts).unwrap();
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
        let changes: usize = found.iter().map(|batch| batch.payload.len()).sum();
        let density = changes as f64 / (layout.weights * found.len()) as f64;
        assert!(
            (0.1..0.4).contains(&density),
            "{optimiser}: density {density} instead of 0.2"
        );
    }
}

#[test]
fn what_others_do_is_not_done_again_and_what_they_leave_is_taken_over() {
    let (_folder, dataset) = points(200);
    let job = job(|draft| draft.epochs = Some(1));
    let identity = |slot| Identity {
        slot,
        slots: 2,
        founders: 2,
        origin: OriginId(slot as u64),
        ..Identity::alone(7)
    };
    let make = |slot| Training::new(FakeTrainer::new(&[0; WEIGHTS]), &job, &dataset, identity(slot)).unwrap();
    let (mut one, mut other) = (make(0), make(1));
    let mut encoded = Vec::new();
    emitted(&mut other, &mut encoded);
    one.apply(&Batch::decode(&encoded, WEIGHTS).unwrap()).unwrap();
    while let Next::Emitted(_) = one.step(false, &mut Vec::new()).unwrap() {}
    assert_eq!(
        one.step(false, &mut Vec::new()).unwrap(),
        Next::Waiting,
        "the worker must wait for the shard that the other worker has begun"
    );
    one.learner.plan.set_origin_alive(OriginId(1), false);
    one.learner.plan.set_slot_alive(1, false);
    while let Next::Emitted(_) = one.step(false, &mut Vec::new()).unwrap() {}
    assert_eq!(one.step(false, &mut Vec::new()).unwrap(), Next::Done);
    let mut trained = [one.trainer().trained.clone(), other.trainer().trained.clone()].concat();
    trained.sort_unstable();
    assert_eq!(trained, (0..160).collect::<Vec<u32>>());
}

#[test]
fn what_came_other_than_as_batches_moves_weights_and_progress() {
    let (_folder, dataset) = points(200);
    let mut training = real(&job(|_| {}), &dataset);
    emitted(&mut training, &mut Vec::new());
    let before = training.trainer().copy_weights().unwrap();
    let residual = training.trainer().residual_norm().unwrap();
    let sums = Sums::checked(vec![(1, 500), (5, -70_000)], before.len()).unwrap();
    let order = JumpOrder {
        origin: Some(OriginId(99)),
        batches: 40,
        samples: 20,
        cursors: Cursors::default(),
    };
    let progress = training.learner.applied.progress();
    training.learner.jump(&sums, &order).unwrap();
    let after = training.trainer().copy_weights().unwrap();
    assert_eq!(after[1] - before[1], protocol::weights::lattice::weight_of(500));
    assert_eq!(after[5] - before[5], protocol::weights::lattice::weight_of(-70_000));
    assert!(
        (training.trainer().residual_norm().unwrap() - residual).abs() < 1e-5,
        "the residual must not change"
    );
    assert!(training.learner.applied.progress() > progress);
    training.learner.audit().unwrap();
}

#[test]
fn minibatches_that_are_added_up_are_one_larger_minibatch() {
    let (_folder, dataset) = points(200);
    let weights = |minibatch: u32, accumulate: u32| {
        let job = job(|draft| {
            draft.minibatch = Some(minibatch);
            draft.accumulate = Some(accumulate);
        });
        let (layout, rule) = (layout(&job, &dataset), job.optimiser.rule);
        let counts = initial_counts(&layout, job.seed);
        let data = Arc::new(dataset.clone());
        let trainer = CpuTrainer::new(data, &layout, &counts, rule, 1, Threads(1)).unwrap();
        let trainer = trainer.in_minibatches_of(job.minibatch as usize);
        let mut training = Training::new(trainer, &job, &dataset, Identity::alone(7)).unwrap();
        let (mut encoded, mut samples) = (Vec::new(), Vec::new());
        while let Next::Emitted(step) | Next::Kept(step) = training.step(false, &mut encoded).unwrap() {
            samples.push(step.samples);
        }
        let TrainerState { arrays, .. } = training.trainer().state().unwrap();
        let shared = training.trainer().copy_weights().unwrap();
        // The own weights: everything learned, emitted or not.
        let own: Vec<f32> = shared
            .iter()
            .zip(&arrays[0])
            .map(|(shared, residual)| shared + residual)
            .collect();
        (samples, own)
    };
    let (steps, whole) = weights(48, 1);
    for (minibatch, accumulate) in [(16, 3), (24, 2), (48, 1)] {
        let (parts_steps, parts) = weights(minibatch, accumulate);
        assert_eq!(
            parts_steps, steps,
            "a step must have as many samples as without accumulation"
        );
        let furthest = whole
            .iter()
            .zip(&parts)
            .map(|(one, other)| (one - other).abs())
            .fold(0.0, f32::max);
        assert!(furthest < 1e-4, "{accumulate} times {minibatch}: {furthest}");
    }
    let (_, other) = weights(16, 1);
    assert!(
        whole.iter().zip(&other).any(|(one, other)| (one - other).abs() > 1e-2),
        "a smaller minibatch must give other weights"
    );
}
