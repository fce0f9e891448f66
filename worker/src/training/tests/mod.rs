//! Tests of the training loop, with a trainer that computes nothing and with the real one.

mod contributions;
mod cursors;
mod dense;
mod ending;
mod faults;
mod going_on;
mod pipelines;
mod rounds;
mod sequential_averaging;
mod steps;
mod storm;
mod threads;

use std::sync::Arc;

use protocol::job::JobDraft;
use protocol::job::data::DataSpec;
use protocol::job::model::{Layout, initial_counts};
use protocol::log::frontier::{Frontier, Position};
use protocol::weights::changes::change;
use protocol::weights::digest::Digest;
use protocol::weights::lattice::{Tau, count_of};

use protocol::log::batch::{Batch, Header};
use protocol::weights::lattice::Range;
use protocol::weights::sums::Sums;
use protocol::wire::attach::JumpOrder;

use super::*;
use crate::backend::cpu::CpuTrainer;
use crate::machine::parallel::Threads;
use crate::trainer::fake::FakeTrainer;
use crate::training::thread::start;

const WEIGHTS: usize = 50;

/// Writes a dataset of two clouds of points that a line can separate, and opens it.
fn points(samples: usize) -> (tempfile::TempDir, Dataset) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("points.csv");
    let rows: Vec<String> = (0..samples)
        .map(|i| {
            let side = i % 2;
            let spread = |factor: usize| (i * factor % 101) as f64 / 50.0 - 1.0;
            format!(
                "{},{},side{side}",
                spread(37) + 3.0 * side as f64,
                spread(53) - 2.0 * side as f64
            )
        })
        .collect();
    std::fs::write(&file, rows.join("\n")).unwrap();
    let spec: DataSpec = format!("csv:{}", file.display()).parse().unwrap();
    let dataset = Dataset::open(&spec, 1, None).unwrap();
    (folder, dataset)
}

fn job(change: impl FnOnce(&mut JobDraft)) -> Job {
    let mut draft = JobDraft {
        model: Some("dense 8, relu, dense 2".into()),
        epochs: Some(2),
        minibatch: Some(16),
        // This optimiser moves far in few steps.
        optimiser: Some("sgd:0.08,momentum=0.9".into()),
        ..JobDraft::default()
    };
    change(&mut draft);
    draft.resolve().unwrap()
}

/// Returns a test job with another exchange strategy, which has no density.
fn job_by(exchange: &str, change: impl FnOnce(&mut JobDraft)) -> Job {
    job(|draft| {
        draft.density = None;
        draft.exchange = Some(exchange.into());
        change(draft);
    })
}

fn fake(job: &Job, dataset: &Dataset) -> Training<FakeTrainer> {
    Training::new(FakeTrainer::new(&[0; WEIGHTS]), job, dataset, Identity::alone(7)).unwrap()
}

fn layout(job: &Job, dataset: &Dataset) -> Layout {
    Layout::new(&job.model, dataset.input, 2).unwrap()
}

fn real(job: &Job, dataset: &Dataset) -> Training<CpuTrainer> {
    let counts = initial_counts(&layout(job, dataset), job.seed);
    real_from(&counts, job, dataset, Identity::alone(7))
}

fn real_from(counts: &[i32], job: &Job, dataset: &Dataset, identity: Identity) -> Training<CpuTrainer> {
    let (layout, rule) = (layout(job, dataset), job.optimiser.rule);
    let trainer = CpuTrainer::new(Arc::new(dataset.clone()), &layout, counts, rule, 1, Threads(1)).unwrap();
    Training::new(trainer, job, dataset, identity).unwrap()
}

/// Makes a training step that is not throttled and must emit a batch. Returns its record.
fn emitted<T: Trainer>(training: &mut Training<T>, encoded: &mut Vec<u8>) -> Step {
    match training.step(false, encoded).unwrap() {
        Next::Emitted(step) => step,
        other => panic!("{other:?}"),
    }
}

/// Returns a batch as another worker would send it.
fn foreign(changes: &[u32], tau: Tau, samples: u32, seen: u64) -> Batch {
    let changes = changes.to_vec();
    let payload = Payload::Steps { tau, changes };
    let header = Header {
        run: protocol::ids::RunId(7),
        origin: OriginId(99),
        sequence: 1,
        seen,
        digest: payload.digest(),
        cursors: Vec::new(),
        samples,
        loss: 0.0,
        status: OriginStatus::default(),
    };
    Batch { header, payload }
}

/// Makes steps until nothing is left. Returns all batches, the closing one last.
fn batches<T: Trainer>(training: &mut Training<T>) -> Vec<Batch> {
    let weights = training.trainer().weights();
    let mut found = Vec::new();
    loop {
        let mut encoded = Vec::new();
        let more = match training.step(false, &mut encoded).unwrap() {
            Next::Emitted(_) => true,
            Next::Done => false,
            other => panic!("{other:?}"),
        };
        if !more {
            encoded = training.close().unwrap().encoded;
        }
        found.push(Batch::decode(&encoded, weights).unwrap());
        if !more {
            return found;
        }
    }
}

/// Message of the training thread as tests compare it; batches and states are represented by their sequence numbers.
#[derive(Debug, PartialEq)]
enum Heard {
    Batch(u64),
    Throttled,
    State(Option<u64>),
    Closed,
}

/// Returns τ and the ±τ changes of a batch.
fn steps(batch: &Batch) -> (Tau, Vec<u32>) {
    match &batch.payload {
        Payload::Steps { tau, changes } => (*tau, changes.clone()),
        other => panic!("{other:?}"),
    }
}
