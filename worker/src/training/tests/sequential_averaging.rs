//! Tests of sequential averaging: the prefix of each worker in a pass, and the mean from which it goes on.

use protocol::weights::dense::Dense;
use protocol::weights::encoding;
use protocol::weights::lattice::LATTICE_STEP;
use protocol::wire::prefix::Prefix;

use super::rounds::{go_on, one_of};
use super::*;
use crate::trainer::Trainer;

fn stepwise() -> Job {
    job_by("stepwise:every=2", |draft| {
        draft.model = Some("dense 8, tanh, dense 2".into());
        draft.epochs = Some(2);
    })
}

/// Returns the difference between a worker's own and shared weights.
fn residual(training: &Training<CpuTrainer>) -> Vec<f32> {
    let arrays = training.trainer().state().unwrap().arrays;
    arrays[0].iter().zip(&arrays[1]).map(|(one, rest)| one + rest).collect()
}

/// Makes training steps until a sequential averaging step. Returns the difference that the worker then sends, or the
/// batch at the end of its epoch.
fn until_it_passes(training: &mut Training<CpuTrainer>) -> Result<Prefix, Option<Box<Batch>>> {
    loop {
        let mut encoded = Vec::new();
        match training.step(false, &mut encoded).unwrap() {
            Next::Passed(step) => {
                assert!(step.samples > 0);
                assert_eq!(training.step(false, &mut Vec::new()).unwrap(), Next::Waiting);
                return Ok(Prefix::decode(&encoded).unwrap());
            }
            Next::Kept(_) => {}
            Next::Emitted(_) => {
                let batch = Batch::decode(&encoded, training.trainer().weights()).unwrap();
                return Err(Some(Box::new(batch)));
            }
            Next::Done => return Err(None),
            Next::Waiting => panic!("the worker waits although it was told to go on"),
        }
    }
}

#[test]
fn each_goes_on_from_the_mean_of_the_first_of_a_pass_and_an_epoch_ends_with_the_mean_of_all() {
    let (_folder, dataset) = points(300);
    let job = stepwise();
    let counts = initial_counts(&layout(&job, &dataset), job.seed);
    let mut workers: Vec<_> = (0..3)
        .map(|slot| real_from(&counts, &job, &dataset, one_of(3, slot)))
        .collect();
    let weights = workers[0].trainer().weights();
    let (mut passes, mut rounds) = (0, 0);
    loop {
        let came: Vec<_> = workers.iter_mut().map(until_it_passes).collect();
        let prefixes: Vec<Prefix> = came.iter().filter_map(|came| came.as_ref().ok().cloned()).collect();
        if prefixes.len() == 3 {
            // Computes the same plainly, in floats. The chain begins at another worker in every pass.
            let before: Vec<Vec<f32>> = workers.iter().map(residual).collect();
            let shared = workers[0].trainer().digest().unwrap();
            let chain: Vec<usize> = (0..3).map(|at| (at + passes) % 3).collect();
            let mut sum = vec![0; weights];
            for (at, &worker) in chain.iter().enumerate() {
                let own = encoding::read_dense(&prefixes[worker].steps, weights).unwrap();
                sum.iter_mut().zip(own.steps()).for_each(|(sum, steps)| *sum += steps);
                let told = (at > 0).then(|| (Dense::checked(0, sum.clone(), weights).unwrap(), at as u32 + 1));
                workers[worker].go_on_passing(told.as_ref()).unwrap();
                let after = residual(&workers[worker]);
                for weight in 0..weights {
                    let first = chain[..=at].iter().map(|&worker| before[worker][weight]);
                    let mean = first.sum::<f32>() / (at + 1) as f32;
                    assert!(
                        (after[weight] - mean).abs() < 2.0 * LATTICE_STEP,
                        "{} instead of {mean}",
                        after[weight]
                    );
                }
                assert_eq!(
                    workers[worker].trainer().digest().unwrap(),
                    shared,
                    "the shared weights must not change"
                );
            }
            passes += 1;
            continue;
        }
        assert!(
            prefixes.is_empty(),
            "all workers must reach the end of an epoch together"
        );
        let batches: Vec<Box<Batch>> = came.into_iter().filter_map(|came| came.unwrap_err()).collect();
        if batches.is_empty() {
            break;
        }
        rounds += 1;
        for (at, worker) in workers.iter_mut().enumerate() {
            for (_, batch) in batches.iter().enumerate().filter(|(of, _)| *of != at) {
                worker.apply(batch).unwrap();
            }
            worker.go_on(go_on(rounds, 3)).unwrap();
        }
        let digest = workers[0].trainer().digest().unwrap();
        assert!(
            workers
                .iter()
                .all(|worker| worker.trainer().digest().unwrap() == digest)
        );
        passes = 0;
    }
    assert!(rounds >= 2, "{rounds}");
    assert!(workers.iter().all(|worker| worker.learner.applied.progress() == 1.0));
}
