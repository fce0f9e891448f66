//! Tests of a worker that continues from another's saved state.

use super::*;

/// Returns the identity of one of `slots` workers.
fn identity(slots: usize) -> Identity {
    Identity {
        slots,
        founders: slots,
        ..Identity::alone(7)
    }
}

/// Makes this many batches, with a throttled step now and then. Returns the encoded batches.
fn encoded_batches<T: Trainer>(training: &mut Training<T>, batches: usize) -> Vec<Vec<u8>> {
    let batch = |at: usize| {
        let mut encoded = Vec::new();
        if at % 3 == 1 {
            let kept = training.step(true, &mut encoded).unwrap();
            assert!(matches!(kept, Next::Kept(_)), "{kept:?}");
        }
        emitted(training, &mut encoded);
        encoded
    };
    (0..batches).map(batch).collect()
}

/// Brings a fresh training to the progress of another one as a node would: by its ledger's totals and the saved state.
fn resume_after<T: Trainer>(training: &mut Training<T>, encoded_batches: &[Vec<u8>]) {
    let weights = training.trainer().weights();
    let (mut cursors, mut samples) = (Cursors::default(), 0);
    for encoded in encoded_batches {
        let header = Batch::decode(encoded, weights).unwrap().header;
        cursors.extend(header.cursors);
        samples += u64::from(header.samples);
    }
    training.resume(&cursors, encoded_batches.len() as u64, samples);
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
        ("muon:0.02,block=1,every=2", 1),
        ("muon:0.02,block=1,every=2,weight_decay=0.01", 3),
        ("rmsprop:0.01", 3),
    ] {
        let job = job(|draft| {
            draft.model = Some("dense 8, relu, dropout 0.2, dense 2".into());
            draft.optimiser = Some(optimiser.into());
            draft.density = Some("0.2".into());
        });
        let layout = Layout::new(&job.model, dataset.input, 2).unwrap();
        let first = initial_counts(&layout, job.seed);
        let mut training = real_from(&first, &job, &dataset, identity(slots));
        let before = encoded_batches(&mut training, 20);
        let state = training.learner.state().unwrap().unwrap();
        assert_eq!((state.origin, state.sequence, state.steps), (OriginId(7), 20, 27));
        crate::training::state_file::save(&path, &state).unwrap();
        let state = crate::training::state_file::load(&path, layout.weights).unwrap();
        let again = || {
            let mut again = real_from(&counts(&training), &job, &dataset, identity(slots));
            resume_after(&mut again, &before);
            again
        };
        let (mut restored, mut without) = (again(), again());
        restored.restore(state).unwrap();
        assert_eq!(restored.learner.state().unwrap(), training.learner.state().unwrap());
        without.learner.counters.sequence = 20;
        let expected = encoded_batches(&mut training, 20);
        assert!(
            encoded_batches(&mut restored, 20) == expected,
            "{optimiser} among {slots} workers"
        );
        let lost = encoded_batches(&mut without, 20)
            .iter()
            .zip(&expected)
            .filter(|(a, b)| a != b)
            .count();
        assert!(lost > 10, "only {lost} batches differ without the saved state");
        restored.learner.audit().unwrap();
    }
}

#[test]
fn a_state_has_no_steps_that_no_batch_counts() {
    let (_folder, dataset) = points(400);
    let mut training = fake(&job(|_| {}), &dataset);
    assert_eq!(training.learner.state().unwrap().unwrap().sequence, 0);
    emitted(&mut training, &mut Vec::new());
    let state = training.learner.state().unwrap().unwrap();
    assert_eq!((state.sequence, state.steps), (1, 1));
    assert_eq!(state.trainer.arrays, [training.trainer().times.clone()]);
    training.step(true, &mut Vec::new()).unwrap();
    assert_eq!(training.learner.state().unwrap(), None);
    emitted(&mut training, &mut Vec::new());
    let state = training.learner.state().unwrap().unwrap();
    assert_eq!((state.sequence, state.steps), (2, 3));
}

#[test]
fn a_fake_worker_goes_on_and_a_new_origin_counts_from_one() {
    let (_folder, dataset) = points(1000);
    let job = job(|_| {});
    let mut training = fake(&job, &dataset);
    let before = encoded_batches(&mut training, 10);
    let state = training.learner.state().unwrap().unwrap();
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
    let expected = encoded_batches(&mut training, 10);
    assert_eq!(encoded_batches(&mut same, 10), expected);
    assert_eq!(same.trainer().times, training.trainer().times);
    let decode = |encoded: &Vec<u8>| Batch::decode(encoded, WEIGHTS).unwrap();
    for (at, (found, expected)) in encoded_batches(&mut other, 10).iter().zip(&expected).enumerate() {
        let (found, expected) = (decode(found), decode(expected));
        assert_eq!(found.header.sequence, at as u64 + 1);
        assert_eq!(found.payload, expected.payload);
    }
}

#[test]
fn a_state_that_does_not_fit_has_no_effect() {
    let (_folder, dataset) = points(400);
    let momentum = job(|draft| draft.optimiser = Some("sgd:0.05,momentum=0.9".into()));
    let mut training = real(&momentum, &dataset);
    encoded_batches(&mut training, 5);
    let state = training.learner.state().unwrap().unwrap();
    let weights = training.trainer().weights();
    let mut fresh = real(&momentum, &dataset);
    let before = fresh.learner.state().unwrap();
    let mut refuse = |change: fn(&mut Vec<Vec<f32>>)| {
        let mut state = state.clone();
        change(&mut state.trainer.arrays);
        let error = fresh.restore(state).unwrap_err();
        assert_eq!(fresh.learner.state().unwrap(), before);
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
