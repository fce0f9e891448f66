//! Tests of contributions that depend on losses, and of rounds of an epoch.

use protocol::log::batch::RoundPhase;
use protocol::weights::contribution::Contribution;
use protocol::weights::lattice::{LATTICE_STEP, count_of, weight_of};
use protocol::wire::attach::GoOn;

use super::rounds::{one_of, until_it_leaves};
use super::*;

const WORKERS: usize = 3;

fn workers(exchange: &str) -> (tempfile::TempDir, Vec<Training<CpuTrainer>>) {
    let (folder, dataset) = points(300);
    let job = job_by(exchange, |draft| {
        draft.model = Some("dense 8, tanh, dense 2".into());
        draft.epochs = Some(4);
        // The last minibatch of an epoch is not full.
        draft.minibatch = Some(24);
        draft.optimiser = Some("sgd:0.1,momentum=0.9".into());
    });
    let counts = initial_counts(&layout(&job, &dataset), job.seed);
    let worker = |slot| real_from(&counts, &job, &dataset, one_of(WORKERS, slot));
    (folder, (0..WORKERS).map(worker).collect())
}

/// Lets each worker emit a batch, and applies it at all others. Returns the batches.
fn exchange(workers: &mut [Training<CpuTrainer>]) -> Vec<Batch> {
    let made: Vec<Batch> = workers.iter_mut().filter_map(until_it_leaves).collect();
    for (at, batch) in made.iter().enumerate() {
        for (_, worker) in workers.iter_mut().enumerate().filter(|(other, _)| *other != at) {
            worker.apply(batch).unwrap();
        }
    }
    made
}

fn go_on(workers: &mut [Training<CpuTrainer>], round: u64, contribution: impl Fn(usize) -> Option<Contribution>) {
    for (at, worker) in workers.iter_mut().enumerate() {
        let order = GoOn {
            round,
            contribution: contribution(at),
            newest: round,
            workers: WORKERS as u32,
        };
        worker.go_on(order).unwrap();
    }
}

fn weights(workers: &[Training<CpuTrainer>]) -> Vec<Vec<f32>> {
    workers
        .iter()
        .map(|worker| worker.trainer().copy_weights().unwrap())
        .collect()
}

fn residual(worker: &Training<CpuTrainer>) -> Vec<f32> {
    worker.trainer().state().unwrap().arrays.swap_remove(0)
}

#[test]
fn equal_shares_by_loss_are_the_mean_to_the_bit() {
    let (_folder, mut by_loss) = workers("mesh:every=2,weighted");
    let (_other, mut mean) = workers("mesh:every=2");
    for round in 1..6 {
        for announcement in exchange(&mut by_loss) {
            assert_eq!(announcement.header.status.round_phase, RoundPhase::Announces);
            assert!(
                announcement.payload.is_empty() && announcement.header.samples == 0 && announcement.header.loss > 0.0
            );
        }
        // A worker that waits for the others' losses does nothing else.
        assert_eq!(by_loss[0].step(false, &mut Vec::new()).unwrap(), Next::Waiting);
        go_on(&mut by_loss, round, |_| Some(Contribution::of_one_in(3)));
        for (delivered, other) in exchange(&mut by_loss).iter().zip(exchange(&mut mean)) {
            assert_eq!(delivered.payload, other.payload);
            assert_eq!(delivered.header.cursors, other.header.cursors);
            assert_eq!(delivered.header.samples, other.header.samples);
        }
        go_on(&mut by_loss, round, |_| None);
        go_on(&mut mean, round, |_| None);
        assert_eq!(weights(&by_loss), weights(&mean));
    }
}

#[test]
fn only_the_best_counts_and_all_go_on_from_there() {
    let (_folder, mut workers) = workers("mesh:every=2,best");
    for round in 1..6 {
        let announces = exchange(&mut workers);
        let losses: Vec<f32> = announces.iter().map(|batch| batch.header.loss).collect();
        let best = (0..WORKERS).min_by(|a, b| losses[*a].total_cmp(&losses[*b])).unwrap();
        let moved = residual(&workers[best]);
        let before = &weights(&workers)[best];
        let expected: Vec<f32> = before
            .iter()
            .zip(&moved)
            .map(|(shared, residual)| {
                let steps = (f64::from(*residual) / f64::from(LATTICE_STEP)).round_ties_even() as i32;
                weight_of(count_of(*shared).unwrap() + steps)
            })
            .collect();
        go_on(&mut workers, round, |at| {
            Some(if at == best {
                Contribution::ALL
            } else {
                Contribution::NOTHING
            })
        });
        for (at, batch) in exchange(&mut workers).iter().enumerate() {
            assert_eq!(batch.payload.is_empty(), at != best);
            assert!(batch.header.samples > 0);
        }
        // Until the best worker's weights have come, the others keep their differences, but these must not be saved.
        let other = (best + 1) % WORKERS;
        assert!(residual(&workers[other]).iter().any(|one| *one != 0.0));
        for (at, is_saved) in [(other, false), (best, true)] {
            workers[at].hear(ToTraining::Save("state".into())).unwrap();
            assert_eq!(workers[at].answer_save(false).unwrap().is_some(), is_saved);
        }
        go_on(&mut workers, round, |_| None);
        assert_eq!(weights(&workers), vec![expected; WORKERS]);
        for (at, worker) in workers.iter().enumerate() {
            let arrays = worker.trainer().state().unwrap().arrays;
            let is_zero = |array: &[f32]| array.iter().all(|number| *number == 0.0);
            assert_eq!(is_zero(&arrays[0]) && is_zero(&arrays[1]), at != best);
            assert!(!is_zero(&arrays[2]), "the optimiser's state must be kept");
        }
    }
    // All workers compare their losses on the same samples: with equal weights they are equally good.
    assert!(
        workers
            .windows(2)
            .all(|pair| pair[0].round.probe() == pair[1].round.probe() && !pair[0].round.probe().is_empty())
    );
}

#[test]
fn a_round_of_an_epoch_is_all_samples_of_a_worker() {
    let (_folder, mut workers) = workers("mesh:every=epoch");
    for round in 1..=4 {
        let made = exchange(&mut workers);
        let epochs = made
            .iter()
            .flat_map(|batch| &batch.header.cursors)
            .map(|one| one.shard.epoch);
        assert!(epochs.into_iter().all(|epoch| u64::from(epoch) + 1 == round));
        assert_eq!(made.iter().map(|batch| batch.header.samples).sum::<u32>(), 240);
        assert!(made.iter().all(|batch| batch.header.status.round == round));
        go_on(&mut workers, round, |_| None);
    }
    assert!(workers.iter_mut().all(|worker| until_it_leaves(worker).is_none()));
}

#[test]
fn who_is_told_to_stop_while_its_share_is_due_lets_it_out() {
    for exchange_text in ["mesh:every=2,weighted", "mesh:every=2,best"] {
        let (_folder, mut workers) = self::workers(exchange_text);
        exchange(&mut workers);
        go_on(&mut workers, 1, |_| Some(Contribution::of_one_in(2)));
        workers[0].learner.ending.stop();
        let left = until_it_leaves(&mut workers[0]).unwrap();
        assert!(!left.payload.is_empty() && left.header.samples > 0);
        assert!(until_it_leaves(&mut workers[0]).is_none());
        // A worker that has not heard of the others' losses emits its contribution to the mean.
        let (_other, mut waiting) = self::workers(exchange_text);
        exchange(&mut waiting);
        waiting[0].learner.ending.stop();
        assert!(!until_it_leaves(&mut waiting[0]).unwrap().payload.is_empty());
    }
}
