//! Tests of rounds: the mean of all workers' differences counts, and each worker waits for the others.

use protocol::job::optimiser::Optimiser;
use protocol::log::batch::RoundPhase;
use protocol::wire::attach::GoOn;

use super::*;
use crate::trainer::StepControl;
use protocol::weights::contribution::Contribution;

pub(super) fn one_of(slots: usize, slot: usize) -> Identity {
    Identity {
        origin: OriginId(7 + slot as u64),
        slot,
        slots,
        founders: slots,
        ..Identity::alone(7)
    }
}

fn in_rounds(every: u32) -> Job {
    job_by(&format!("mesh:every={every}"), |draft| {
        draft.model = Some("dense 8, tanh, dense 2".into());
    })
}

pub(super) fn go_on(round: u64, workers: u32) -> GoOn {
    GoOn {
        round,
        contribution: None,
        newest: round,
        workers,
    }
}

/// Makes steps until a batch leaves; `None` if there is nothing to train.
pub(super) fn until_it_leaves(training: &mut Training<CpuTrainer>) -> Option<Batch> {
    loop {
        let mut encoded = Vec::new();
        match training.step(false, &mut encoded).unwrap() {
            Next::Emitted(_) => return Some(Batch::decode(&encoded, training.trainer().weights()).unwrap()),
            Next::Kept(_) => {}
            Next::Waiting | Next::Passed(_) => panic!("the worker waits although it was told to go on"),
            Next::Done => return None,
        }
    }
}

#[test]
fn workers_wait_for_each_others_rounds_and_end_at_the_same_weights() {
    let (_folder, dataset) = points(300);
    let job = in_rounds(2);
    let counts = initial_counts(&layout(&job, &dataset), job.seed);
    let mut workers: Vec<_> = (0..3)
        .map(|slot| real_from(&counts, &job, &dataset, one_of(3, slot)))
        .collect();
    let mut losses = Vec::new();
    for round in 1.. {
        let made: Vec<Option<Batch>> = workers.iter_mut().map(until_it_leaves).collect();
        if made.iter().all(Option::is_none) {
            break;
        }
        for (at, batch) in made.iter().enumerate() {
            let Some(batch) = batch else { continue };
            losses.push(batch.header.loss);
            for (other, worker) in workers.iter_mut().enumerate().filter(|(other, _)| *other != at) {
                if made[other].as_ref().is_some_and(|own| own.header.status.round == round) {
                    assert_eq!(worker.step(false, &mut Vec::new()).unwrap(), Next::Waiting);
                }
                worker.apply(batch).unwrap();
            }
        }
        for worker in &mut workers {
            // An order of another round has no effect.
            worker.go_on(go_on(round + 1, 3)).unwrap();
            worker.go_on(go_on(round, 3)).unwrap();
            // Only rounding errors are left, a few lattice steps for each weight.
            assert!(worker.trainer().residual_norm().unwrap() < 3.0 * 2e-6 * (WEIGHTS as f64).sqrt());
        }
    }
    let digests: Vec<_> = workers
        .iter()
        .map(|worker| worker.trainer().digest().unwrap())
        .collect();
    assert!(digests[0].is_some() && digests.iter().all(|digest| *digest == digests[0]));
    let mean = |part: &[f32]| part.iter().sum::<f32>() / part.len() as f32;
    assert!(
        mean(&losses[losses.len() - 6..]) < mean(&losses[..6]) / 2.0,
        "{losses:?}"
    );
}

#[test]
fn who_has_missed_rounds_goes_on_with_the_newest() {
    let (_folder, dataset) = points(300);
    let job = in_rounds(1);
    let mut training = real(&job, &dataset);
    training.join_rounds(40, 5);
    assert_eq!(until_it_leaves(&mut training).unwrap().header.status.round, 40);
    training
        .go_on(GoOn {
            newest: 43,
            ..go_on(40, 5)
        })
        .unwrap();
    assert_eq!(until_it_leaves(&mut training).unwrap().header.status.round, 43);
    training.go_on(go_on(43, 5)).unwrap();
    assert_eq!(until_it_leaves(&mut training).unwrap().header.status.round, 44);
    // A worker that is told to end does not wait for others.
    assert_eq!(training.step(false, &mut Vec::new()).unwrap(), Next::Waiting);
    training.learner.ending.stop();
    while until_it_leaves(&mut training).is_some() {}
}

#[test]
fn who_has_nothing_to_train_says_so_once() {
    let (_folder, dataset) = points(300);
    let job = job_by("mesh:every=1", |draft| draft.epochs = Some(1));
    let counts = initial_counts(&layout(&job, &dataset), job.seed);
    let mut training = real_from(&counts, &job, &dataset, one_of(2, 0));
    // The other slot's samples stay its own while it lives, and some of its shards are begun.
    let mut other = real_from(&counts, &job, &dataset, one_of(2, 1));
    let begun = until_it_leaves(&mut other).unwrap();
    training.apply(&begun).unwrap();
    let mut said = 0;
    let mut round = 0;
    for _ in 0..100 {
        let mut encoded = Vec::new();
        match training.step(false, &mut encoded).unwrap() {
            Next::Emitted(_) => {
                let batch = Batch::decode(&encoded, training.trainer().weights()).unwrap();
                said += u32::from(batch.header.status.round_phase == RoundPhase::Idle);
                round = batch.header.status.round;
                training.go_on(go_on(round, 2)).unwrap();
            }
            Next::Kept(_) => {}
            Next::Waiting => break,
            Next::Done | Next::Passed(_) => panic!("the worker must wait for the other slot's samples"),
        }
    }
    assert_eq!(said, 1);
    assert!(round > 3);
}

/// With plain SGD, the mean of three workers equals one worker with a minibatch three times as large.
#[test]
fn the_mean_of_workers_is_one_worker_with_all_their_samples() {
    let (_folder, dataset) = points(400);
    for optimiser in ["sgd:0.1", "sgd:0.05,momentum=0.9"] {
        let job = in_rounds(1);
        let Optimiser {
            rule, learning_rate, ..
        } = optimiser.parse().unwrap();
        let layout = layout(&job, &dataset);
        let counts = initial_counts(&layout, job.seed);
        let data = Arc::new(dataset.clone());
        let new = || CpuTrainer::new(Arc::clone(&data), &layout, &counts, rule, 1, Threads(1)).unwrap();
        let (mut alone, mut workers) = (new(), [new(), new(), new()]);
        for step in 1..=50 {
            let samples: Vec<u32> = (0..24).map(|at| (step as u32 * 37 + at * 11) % 300).collect();
            let control = StepControl {
                rule,
                learning_rate,
                weight_decay: 0.0,
                clip: None,
                look_ahead: 0.0,
                turns: 1,
                step,
                compare: None,
            };
            alone.step(&samples, control, &mut Vec::new()).unwrap();
            let mut made = Vec::new();
            for (worker, samples) in workers.iter_mut().zip(samples.chunks(8)) {
                worker.step(samples, control, &mut Vec::new()).unwrap();
                made.push(worker.take(0..layout.weights, Contribution::of_one_in(3)).unwrap().0);
            }
            for (at, worker) in workers.iter_mut().enumerate() {
                for (_, dense) in made.iter().enumerate().filter(|(other, _)| *other != at) {
                    worker.shift(dense).unwrap();
                }
            }
        }
        alone.take(0..layout.weights, Contribution::ALL).unwrap();
        let expected = alone.copy_weights().unwrap();
        for worker in &workers {
            let found = worker.copy_weights().unwrap();
            let apart = found
                .iter()
                .zip(&expected)
                .map(|(a, b)| (a - b).abs())
                .fold(0.0, f32::max);
            assert!(apart < 1e-5, "{optimiser}: the weights differ by {apart}");
            assert_eq!(found, workers[0].copy_weights().unwrap());
        }
    }
}
