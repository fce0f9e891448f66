//! Tests of a dense emission: the whole difference leaves after a fixed number of steps.

use protocol::weights::lattice::RANGE_ALARM_STEPS;

use super::*;

fn dense(every: u32) -> Job {
    job_by(&format!("mesh:every={every},async"), |_| {})
}

#[test]
fn a_batch_leaves_every_so_many_steps_and_the_rest_at_the_end() {
    let (_folder, dataset) = points(400);
    let job = dense(3);
    let mut training = real(&job, &dataset);
    let mut found = Vec::new();
    let mut kept = 0;
    loop {
        let mut encoded = Vec::new();
        match training.step(false, &mut encoded).unwrap() {
            Next::Emitted(step) => {
                assert_eq!(step.tau, None);
                found.push(Batch::decode(&encoded, training.trainer().weights()).unwrap());
            }
            Next::Kept(step) => {
                assert!(!step.throttled);
                kept += 1;
            }
            Next::Done => break,
            Next::Waiting | Next::Passed(_) => panic!("a worker without others must not wait"),
        }
    }
    let samples: u32 = found.iter().map(|batch| batch.header.samples).sum();
    assert_eq!(samples as usize, dataset.train.labels().len() * job.epochs as usize);
    // Two steps of three are kept; at the end the shared weights contain the whole difference, up to rounding.
    assert!(
        kept >= found.len(),
        "{kept} steps kept, {} batches emitted",
        found.len()
    );
    assert!(training.trainer().residual_norm().unwrap() < 1e-4);
    let mut counts = initial_counts(&layout(&job, &dataset), job.seed);
    for batch in &found {
        assert!(matches!(batch.payload, Payload::Dense(_)));
        batch.payload.apply_to_counts(&mut counts).unwrap();
    }
    assert_eq!(training.trainer().digest().unwrap(), Some(Digest::of_counts(&counts)));
    let loss = |batch: &Batch| batch.header.loss;
    assert!(loss(&found[found.len() - 2]) < loss(&found[0]) / 2.0);
}

#[test]
fn two_workers_agree_whatever_the_order() {
    let (_folder, dataset) = points(200);
    let mut workers: Vec<_> = [7, 8]
        .map(|origin| {
            let identity = Identity {
                origin: OriginId(origin),
                slot: origin as usize - 7,
                slots: 2,
                founders: 2,
                ..Identity::alone(7)
            };
            let job = dense(2);
            let counts = initial_counts(&layout(&job, &dataset), job.seed);
            real_from(&counts, &job, &dataset, identity)
        })
        .into();
    let mut under_way: [Vec<Batch>; 2] = [Vec::new(), Vec::new()];
    for round in 0..40 {
        for at in 0..2 {
            let mut encoded = Vec::new();
            if let Next::Emitted(_) = workers[at].step(false, &mut encoded).unwrap() {
                under_way[1 - at].push(Batch::decode(&encoded, workers[at].trainer().weights()).unwrap());
            }
            // The second worker hears of the first only now and then.
            if at == 0 || round % 5 == 4 {
                for batch in under_way[at].drain(..) {
                    workers[at].apply(&batch).unwrap();
                }
            }
        }
    }
    for (worker, batches) in workers.iter_mut().zip(&under_way) {
        for batch in batches {
            worker.apply(batch).unwrap();
        }
        worker.learner.audit().unwrap();
    }
    let digest = |at: usize| workers[at].trainer().digest().unwrap();
    assert_eq!(digest(0), digest(1));
}

#[test]
fn what_is_held_back_leaves_as_soon_as_it_may() {
    let (_folder, dataset) = points(400);
    let mut training = fake(&dense(2), &dataset);
    for _ in 0..5 {
        let next = training.step(true, &mut Vec::new()).unwrap();
        assert!(matches!(next, Next::Kept(step) if step.throttled), "{next:?}");
    }
    let mut encoded = Vec::new();
    let samples = dense(2).minibatch * 6;
    emitted(&mut training, &mut encoded);
    let batch = Batch::decode(&encoded, WEIGHTS).unwrap();
    assert_eq!(batch.header.samples, samples);
}

#[test]
fn a_weight_on_its_way_out_is_told() {
    let (_folder, dataset) = points(400);
    let trainer = FakeTrainer::new(&[RANGE_ALARM_STEPS; WEIGHTS]);
    let mut training = Training::new(trainer, &dense(2), &dataset, Identity::alone(7)).unwrap();
    let kept = training.step(false, &mut Vec::new()).unwrap();
    assert!(
        matches!(kept, Next::Kept(step) if step.range == Range::Safe),
        "{kept:?}"
    );
    assert_eq!(emitted(&mut training, &mut Vec::new()).range, Range::Alarm);
}
