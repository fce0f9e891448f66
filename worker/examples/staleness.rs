//! Trains with many workers in one thread, round by round, to measure the accuracy for a number of workers and a delay.
//!
//! `staleness WORKERS DELAY [KEY=VALUE]...`, where the keys are those of a job file. A worker has its own changes at
//! once, and those of the others after DELAY. A delay of `2` is lock-step: in every round every worker makes one step,
//! and the others have it two rounds later (1: before the next round). A delay of `~1.5` is staggered: workers take
//! turns, and a batch arrives after one and a half times as many steps as there are workers; `~1` is a cluster of
//! equally fast workers, each of which steps while all others do. All else is the same as in real workers, so this is
//! an experiment about the algorithm, without the noise of a network and of a busy machine.

use std::collections::VecDeque;
use std::sync::Arc;

use protocol::ids::{OriginId, RunId};
use protocol::job::model::{Layout, initial_counts};
use protocol::job::{Job, JobDraft};
use protocol::log::batch::Batch;
use protocol::rng::splitmix64;
use protocol::weights::lattice::weight_of;
use worker::backend::cpu::CpuTrainer;
use worker::dataset::Dataset;
use worker::evaluate::evaluate;
use worker::machine::parallel::Threads;
use worker::task::objective::Objective;
use worker::training::{Identity, Next, Training, TrainingError};

const RUN: RunId = RunId(1);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    worker::machine::memory::keep_freed_blocks();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [workers, delay, settings @ ..] = &arguments[..] else {
        return Err("usage: staleness WORKERS DELAY [KEY=VALUE]...".into());
    };
    let (workers, delay): (usize, Delay) = (workers.parse()?, Delay::parse(delay)?);
    let job: Job = JobDraft::from_toml(&settings.iter().map(|s| as_toml(s)).collect::<String>())?.resolve()?;
    let dataset = Arc::new(Dataset::open(&job.data, job.seed, None)?);
    let layout = Layout::new(&job.model, dataset.input, dataset.target.outputs())?;
    let mut counts = initial_counts(&layout, job.seed);
    let mut cluster = Vec::new();
    for slot in 0..workers {
        let dropout_seed = splitmix64(job.seed ^ splitmix64(slot as u64));
        let rule = job.optimiser.rule;
        let data = Arc::clone(&dataset);
        let trainer = CpuTrainer::new(data, &layout, &counts, rule, dropout_seed, Threads(1))?;
        let identity = Identity {
            run: RUN,
            origin: OriginId(slot as u64 + 1),
            slot,
            slots: workers,
            founders: workers,
        };
        cluster.push(Training::new(trainer, &job, &dataset, identity)?);
    }

    let mut tally = Tally::default();
    // Batches on their way: the step before which each arrives, its sender, and the batch.
    let mut under_way: VecDeque<(usize, usize, Batch)> = VecDeque::new();
    let mut idle = 0;
    for step in 0.. {
        while under_way.front().is_some_and(|(due, ..)| *due <= step) {
            let Some((_, sender, batch)) = under_way.pop_front() else {
                break;
            };
            deliver(&mut cluster, sender, &batch)?;
        }
        let sender = step % workers;
        let mut encoded = Vec::new();
        let Next::Emitted(made) = cluster[sender].step(false, &mut encoded)? else {
            idle += 1;
            if idle == workers {
                break;
            }
            continue;
        };
        idle = 0;
        let batch = Batch::decode(&encoded, layout.weights)?;
        batch.payload.apply_to_counts(&mut counts)?;
        tally.batches += 1;
        tally.changes += made.changes;
        tally.bytes += encoded.len();
        tally.staleness += made.staleness;
        under_way.push_back((delay.due(step, workers), sender, batch));
    }
    let weights = counts.into_iter().map(weight_of).collect();
    let result = evaluate(
        &layout,
        weights,
        Vec::new(),
        &dataset.test,
        &Objective::of(&dataset.target),
        Threads(1),
        |_| true,
    )?;
    let batches = tally.batches as f64;
    println!(
        "accuracy {:.2} loss {:.4} density {:.5} compression {:.0} staleness {:.2}",
        100.0 * result.accuracy.unwrap_or(f64::NAN),
        result.loss,
        tally.changes as f64 / batches / layout.weights as f64,
        batches * (layout.weights * size_of::<f32>()) as f64 / tally.bytes as f64,
        tally.staleness / batches,
    );
    Ok(())
}

/// Totals over all batches that the simulated workers have emitted.
#[derive(Default)]
struct Tally {
    batches: usize,
    changes: usize,
    bytes: usize,
    staleness: f64,
}

/// Delay from a worker's step until the other workers get its batch, in rounds of all workers.
#[derive(Clone, Copy)]
enum Delay {
    Rounds(usize),
    Staggered(f64),
}

impl Delay {
    fn parse(text: &str) -> Result<Self, Box<dyn std::error::Error>> {
        Ok(match text.strip_prefix('~') {
            Some(rounds) => Self::Staggered(rounds.parse()?),
            None => Self::Rounds(text.parse()?),
        })
    }

    /// Returns the number of the step before which the batch of step `step` arrives at the other workers. The steps of
    /// all workers are counted together.
    fn due(self, step: usize, workers: usize) -> usize {
        match self {
            Self::Rounds(rounds) => (step / workers + rounds) * workers,
            Self::Staggered(rounds) => step + ((rounds * workers as f64).round() as usize).max(1),
        }
    }
}

/// Applies a batch at every worker but its sender.
fn deliver(cluster: &mut [Training<CpuTrainer>], sender: usize, batch: &Batch) -> Result<(), TrainingError> {
    for (receiver, training) in cluster.iter_mut().enumerate() {
        if receiver != sender {
            training.apply(batch)?;
        }
    }
    Ok(())
}

/// Converts a setting `key=value` to a line of a job file. A value that is neither a number nor a truth value is put in
/// quotes.
fn as_toml(setting: &str) -> String {
    let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
    if value.parse::<f64>().is_ok() || value.parse::<bool>().is_ok() {
        format!("{key} = {value}\n")
    } else {
        format!("{key} = \"{value}\"\n")
    }
}
