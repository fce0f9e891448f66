//! Trains with many workers in one thread, round by round: what accuracy do how many of them reach, at what delay?
//!
//! `staleness WORKERS DELAY [KEY=VALUE]...`, the keys being those of a job file. In every round every worker makes one
//! step. It has its own changes at once, and those of the others DELAY rounds later; 1 is before the next round, as
//! on a quick network, and 0 is before the next worker's step of the same round. Everything else is what real workers
//! do, so this is an experiment about the algorithm, without the noise of a network and of a busy machine.

use std::collections::VecDeque;
use std::sync::Arc;

use protocol::batch::Batch;
use protocol::changes::apply_to_counts;
use protocol::ids::{OriginId, RunId};
use protocol::job::{Job, JobDraft};
use protocol::lattice::weight_of;
use protocol::model::{Layout, initial_counts};
use protocol::rng::splitmix64;
use worker::backend::cpu::CpuTrainer;
use worker::dataset::Dataset;
use worker::evaluate::evaluate;
use worker::ops::Threads;
use worker::training::{Identity, Training};

const RUN: RunId = RunId(1);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    worker::memory::keep_freed_blocks();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [workers, delay, settings @ ..] = &arguments[..] else {
        return Err("usage: staleness WORKERS DELAY [KEY=VALUE]...".into());
    };
    let (workers, delay): (usize, usize) = (workers.parse()?, delay.parse()?);
    let job: Job = JobDraft::from_toml(&settings.iter().map(|s| as_toml(s)).collect::<String>())?.resolve()?;
    let dataset = Arc::new(Dataset::open(&job.data, job.seed, None)?);
    let layout = Layout::new(&job.model, dataset.input, dataset.classes.len())?;
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
        };
        cluster.push(Training::new(trainer, &job, &dataset, identity)?);
    }

    let mut tally = Tally::default();
    // The rounds that are under way, the oldest first; each holds its senders and their batches.
    let mut under_way: VecDeque<Vec<(usize, Batch)>> = VecDeque::new();
    loop {
        let mut round = Vec::new();
        for sender in 0..workers {
            let mut frame = Vec::new();
            let Some(step) = cluster[sender].step(&mut frame)? else {
                continue;
            };
            let batch = Batch::decode(&frame, layout.weights)?;
            apply_to_counts(&batch.words, batch.header.tau, &mut counts)?;
            tally.batches += 1;
            tally.changes += step.changes;
            tally.bytes += frame.len();
            tally.staleness += step.staleness;
            round.push((sender, batch));
            if delay == 0 {
                deliver(&mut cluster, round.drain(..))?;
            }
        }
        let over = round.is_empty() && delay > 0 || delay == 0 && cluster.iter().all(|w| w.progress() >= 1.0);
        under_way.push_back(round);
        while under_way.len() >= delay.max(1) || over && !under_way.is_empty() {
            let arrived = under_way.pop_front().unwrap_or_default();
            deliver(&mut cluster, arrived)?;
        }
        if over {
            break;
        }
    }
    let weights = counts.into_iter().map(weight_of).collect();
    let result = evaluate(&layout, weights, &dataset.test, Threads(1), |_| {})?;
    let batches = tally.batches as f64;
    println!(
        "accuracy {:.2} loss {:.4} density {:.5} compression {:.0} staleness {:.2}",
        100.0 * result.accuracy,
        result.loss,
        tally.changes as f64 / batches / layout.weights as f64,
        batches * (layout.weights * size_of::<f32>()) as f64 / tally.bytes as f64,
        tally.staleness / batches,
    );
    Ok(())
}

/// Sums over all batches.
#[derive(Default)]
struct Tally {
    batches: usize,
    changes: usize,
    bytes: usize,
    staleness: f64,
}

/// Applies batches at everyone but their senders.
fn deliver(
    cluster: &mut [Training<CpuTrainer>],
    batches: impl IntoIterator<Item = (usize, Batch)>,
) -> Result<(), Box<dyn std::error::Error>> {
    for (sender, Batch { header, words }) in batches {
        for (receiver, training) in cluster.iter_mut().enumerate() {
            if receiver != sender {
                training.apply(&words, header.tau, u64::from(header.samples), header.seen)?;
            }
        }
    }
    Ok(())
}

/// A line of a job file: what is neither a number nor a truth value is text, and needs no quotes here.
fn as_toml(setting: &str) -> String {
    let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
    if value.parse::<f64>().is_ok() || value.parse::<bool>().is_ok() {
        format!("{key} = {value}\n")
    } else {
        format!("{key} = \"{value}\"\n")
    }
}
