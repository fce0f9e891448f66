//! Tests of runs that diverge, and of replicas that are corrupted.

use super::*;

#[test]
fn a_diverging_run_says_so() {
    let (_folder, dataset) = points(200);
    let job = job(|draft| {
        draft.optimiser = Some("sgd:1000000".into());
        draft.lr_schedule = Some("constant".into());
        draft.density = Some("1.0".into());
        draft.epochs = Some(50);
    });
    let mut training = real(&job, &dataset);
    let error = loop {
        match training.step(false, &mut Vec::new()) {
            Ok(Next::Emitted(_)) => {}
            Ok(other) => panic!("the run did not diverge: {other:?}"),
            Err(error) => break error.to_string(),
        }
    };
    assert!(error.contains("diverged"), "{error}");
}

/// True if a test's training failed with the error that this replica is corrupted.
fn is_spoilt<E>(result: &Result<E, TrainingError>) -> bool {
    matches!(result, Err(TrainingError::Spoilt { .. }))
}

#[test]
fn an_audit_finds_nothing_wrong_with_own_and_others_batches() {
    let (_folder, dataset) = points(200);
    let mut training = real(&job(|_| {}), &dataset);
    for step in 0..10u64 {
        emitted(&mut training, &mut Vec::new());
        let changes = [change(1, step % 2 == 0), change(5, true)];
        training.apply(&foreign(&changes, Tau::nearest(0.01), 1, step)).unwrap();
        training.learner.audit().unwrap();
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
    training.learner.audit().unwrap();
    emitted(&mut training, &mut Vec::new());
    assert!(is_spoilt(&training.learner.audit()));
    // The failure looks like a run that diverges, but is this worker's fault alone.
    assert!(is_spoilt(&training.step(false, &mut Vec::new())));
}

#[test]
fn changes_of_others_that_leave_the_range_are_a_run_that_diverges() {
    let (_folder, dataset) = points(200);
    // This worker's own changes reach its weights before they reach the ledger, so a weight may leave the range here
    // only.
    let mut counts = [0; WEIGHTS];
    counts[1] = protocol::weights::lattice::RANGE_ERROR_STEPS - 1;
    let trainer = FakeTrainer::new(&counts);
    let mut training = Training::new(trainer, &job(|_| {}), &dataset, Identity::alone(7)).unwrap();
    let batch = foreign(&[change(1, true)], Tau::ONE_STEP, 1, 0);
    let diverged = training.apply(&batch);
    assert!(
        matches!(diverged, Err(TrainingError::Train(TrainError::Range(_)))),
        "{diverged:?}"
    );
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
    let edge = protocol::weights::lattice::RANGE_ERROR_STEPS - 6;
    // With its tenth bit flipped the weight is at the edge.
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

/// Tests the cause that is reported when numbers cannot leave: for a leaving worker's residual, and for a worker's
/// difference in a sequential averaging step.
#[test]
fn numbers_that_cannot_leave_are_the_runs_fault_unless_a_bit_had_flipped() {
    let (_folder, dataset) = points(200);
    let edge = protocol::weights::lattice::RANGE_ERROR_STEPS - 1;
    let leaving = |flips_at: Option<u64>, count: i32| {
        let mut counts = [0; WEIGHTS];
        counts[3] = count;
        let mut trainer = FakeTrainer::new(&counts);
        trainer.flips_at = flips_at;
        let mut training = Training::new(trainer, &job(|_| {}), &dataset, Identity::alone(7)).unwrap();
        while training.trainer().times[3] == 0.0 {
            training.step(true, &mut Vec::new()).unwrap();
        }
        training.learner.ending.leave();
        training.step(false, &mut Vec::new())
    };
    let averaging = |flips_at: Option<u64>, _: i32| {
        let mut trainer = FakeTrainer::new(&[0; WEIGHTS]);
        trainer.flips_at = flips_at;
        trainer.times[0] = f32::NAN;
        let job = job_by("stepwise:every=2", |_| {});
        let mut training = Training::new(trainer, &job, &dataset, Identity::alone(7)).unwrap();
        training.step(false, &mut Vec::new())?;
        training.step(false, &mut Vec::new())
    };
    for outcome in [&leaving as &dyn Fn(Option<u64>, i32) -> _, &averaging] {
        let diverged = outcome(None, edge);
        assert!(matches!(diverged, Err(TrainingError::Train(_))), "{diverged:?}");
        // With its tenth bit flipped the weight is at the edge.
        let spoilt = outcome(Some(1), edge ^ (1 << 9));
        assert!(is_spoilt(&spoilt), "{spoilt:?}");
    }
}
