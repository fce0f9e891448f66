//! Tests of a return to measured weights by one more batch.

use protocol::wire::attach::GoOn;

use super::*;

fn digest_of(weights: &[f32]) -> Digest {
    let counts: Vec<i32> = weights.iter().map(|&weight| count_of(weight).unwrap()).collect();
    Digest::of_counts(&counts)
}

#[test]
fn a_worker_that_stands_by_moves_nothing_until_it_goes_back_to_what_was_measured() {
    let (_folder, dataset) = points(400);
    for exchange in ["strom", "mesh:every=3,async"] {
        let job = job_by(exchange, |_| {});
        let mut training = real(&job, &dataset);
        let mut counts = initial_counts(&layout(&job, &dataset), job.seed);
        let weights = training.trainer().weights();
        let mut made = Vec::new();
        let mut step = |training: &mut Training<CpuTrainer>| {
            let mut encoded = Vec::new();
            let next = training.step(false, &mut encoded).unwrap();
            if let Next::Emitted(_) = next {
                made.push(Batch::decode(&encoded, weights).unwrap());
            }
            next
        };
        for _ in 0..6 {
            step(&mut training);
        }
        let measured = training.trainer().copy_weights().unwrap();
        for _ in 0..5 {
            step(&mut training);
        }
        assert_ne!(training.trainer().copy_weights().unwrap(), measured);
        training.learner.ending.stand_by();
        assert_eq!(step(&mut training), Next::Waiting);
        // Late batches of others are applied, and taken back, too.
        let late = foreign(&[change(1, true), change(9, false)], Tau::nearest(0.01), 16, 3);
        training.apply(&late).unwrap();
        assert_eq!(step(&mut training), Next::Waiting);
        training.learner.ending.go_back(measured.clone());
        // A plain stop comes too late.
        training.learner.ending.stop();
        while matches!(step(&mut training), Next::Emitted(_)) {}
        assert_eq!(training.trainer().copy_weights().unwrap(), measured);
        let encoded = training.close().unwrap().encoded;
        made.push(Batch::decode(&encoded, weights).unwrap());
        assert!(made.last().unwrap().header.status.stop);
        training.learner.audit().unwrap();
        for batch in made.iter().chain([&late]) {
            batch.payload.apply_to_counts(&mut counts).unwrap();
        }
        assert_eq!(Digest::of_counts(&counts), digest_of(&measured));
        // The batches count steps that no batch had counted before the return.
        let samples: u32 = made.iter().map(|batch| batch.header.samples).sum();
        assert_eq!(samples, 11 * 16);
    }
}

#[test]
fn who_was_told_to_stop_does_not_go_back() {
    let (_folder, dataset) = points(400);
    let job = job(|_| {});
    let mut training = real(&job, &dataset);
    let first = training.trainer().copy_weights().unwrap();
    emitted(&mut training, &mut Vec::new());
    training.learner.ending.stop();
    training.learner.ending.stand_by();
    training.learner.ending.go_back(first.clone());
    assert_eq!(training.step(false, &mut Vec::new()).unwrap(), Next::Done);
    assert_ne!(training.trainer().copy_weights().unwrap(), first);
    // A worker that stands by can still be told to stop.
    let mut training = real(&job, &dataset);
    training.learner.ending.stand_by();
    training.learner.ending.stop();
    assert_eq!(training.step(false, &mut Vec::new()).unwrap(), Next::Done);
}

#[test]
fn a_worker_that_waits_for_a_round_can_stand_by_and_go_back() {
    let (_folder, dataset) = points(400);
    let job = job_by("mesh:every=1", |_| {});
    let mut training = real(&job, &dataset);
    emitted(&mut training, &mut Vec::new());
    let measured = training.trainer().copy_weights().unwrap();
    let order = GoOn {
        round: 1,
        contribution: None,
        newest: 1,
        workers: 1,
    };
    training.go_on(order).unwrap();
    emitted(&mut training, &mut Vec::new());
    assert_eq!(training.step(false, &mut Vec::new()).unwrap(), Next::Waiting);
    training.learner.ending.stand_by();
    assert_eq!(training.step(false, &mut Vec::new()).unwrap(), Next::Waiting);
    training.learner.ending.go_back(measured.clone());
    while matches!(training.step(false, &mut Vec::new()).unwrap(), Next::Emitted(_)) {}
    assert_eq!(training.trainer().copy_weights().unwrap(), measured);
    training.close().unwrap();
    training.learner.audit().unwrap();
}

#[test]
fn a_worker_that_leaves_lets_out_all_that_it_has_learned_and_stops_nobody() {
    let (_folder, dataset) = points(400);
    for exchange in ["strom", "mesh:every=3,async"] {
        let job = job_by(exchange, |_| {});
        let mut training = real(&job, &dataset);
        let weights = training.trainer().weights();
        let mut encoded = Vec::new();
        for step in 0..7 {
            training.step(step > 4, &mut encoded).unwrap();
        }
        assert!(training.trainer().residual_norm().unwrap() > 0.0);
        let trained = training.learner.counters.steps;
        training.learner.ending.leave();
        let mut made = Vec::new();
        loop {
            encoded.clear();
            let next = training.step(false, &mut encoded).unwrap();
            if next == Next::Done {
                break;
            }
            assert!(matches!(next, Next::Emitted(_)), "{next:?}");
            made.push(Batch::decode(&encoded, weights).unwrap());
        }
        assert_eq!(
            training.learner.counters.steps, trained,
            "a leaving worker must train no further step"
        );
        assert!(!made.is_empty());
        // The remaining residual is too small for steps of the lattice.
        let left = training.trainer().residual_norm().unwrap();
        assert!(
            left < 1e-6 * (weights as f64).sqrt(),
            "{exchange} leaves a residual of {left}"
        );
        let encoded = training.close().unwrap().encoded;
        made.push(Batch::decode(&encoded, weights).unwrap());
        let status = made.last().unwrap().header.status;
        assert!(
            status.last && !status.stop,
            "the run must go on without the leaving worker"
        );
        training.learner.audit().unwrap();
    }
}
