//! Times whole training steps on request, so that a script can alternate between this program and another framework.
//!
//! `step_timer LAYERS MINIBATCH OPTIMISER CLIP THREADS [DEVICE] [DATA] [DENSITY] [OTHERS]`; every line read from
//! standard input is a number of steps to make, every line written the milliseconds that each of them took. A step
//! gathers a minibatch, computes the gradient, updates, quantises, applies, encodes the batch and decodes it again: all
//! that a worker does for one. DEVICE is `cpu`, or with the feature `cuda` `f32` or `tf32` for the first GPU in that
//! precision. There a step also applies the batches of OTHERS other workers (one, unless said otherwise), each as large
//! as its own, and nothing is decoded, since another thread does that. All steps of a line are timed together, because
//! they overlap on the device, and the line has their mean.

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::Instant;

use protocol::ids::OriginId;
use protocol::job::data::DataSpec;
use protocol::job::model::{Layout, initial_counts};
use protocol::job::{Job, JobDraft};
use protocol::log::batch::{Batch, Payload};
use worker::backend::cpu::CpuTrainer;
use worker::dataset::Dataset;
use worker::machine::parallel::Threads;
use worker::trainer::Trainer;
use worker::training::{Identity, Training};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    worker::machine::memory::keep_freed_blocks();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [layers, minibatch, optimiser, clip, threads, more @ ..] = &arguments[..] else {
        return Err(
            "usage: step_timer LAYERS MINIBATCH OPTIMISER CLIP THREADS [DEVICE] [DATA] [DENSITY] [OTHERS]".into(),
        );
    };
    let density = more.get(2).map(|density| density.parse()).transpose()?;
    let draft = JobDraft {
        model: Some(layers.clone()),
        minibatch: Some(minibatch.parse()?),
        optimiser: Some(optimiser.clone()),
        clip: Some(clip.clone()),
        epochs: Some(1000),
        lr_schedule: Some("constant".into()),
        density,
        ..JobDraft::default()
    };
    let job: Job = draft.resolve()?;
    let threads = Threads(threads.parse()?);
    let data: DataSpec = more.get(1).map_or("builtin:mnist", String::as_str).parse()?;
    let dataset = Arc::new(Dataset::open(&data, job.seed, None)?);
    let layout = Layout::new(&job.model, dataset.input, dataset.target.outputs())?;
    let counts = initial_counts(&layout, job.seed);
    let rule = job.optimiser.rule;
    match more.first().map_or("cpu", String::as_str) {
        "cpu" => {
            let trainer = CpuTrainer::new(Arc::clone(&dataset), &layout, &counts, rule, 1, threads)?;
            time(trainer, &job, &dataset, None)
        }
        #[cfg(feature = "cuda")]
        device => {
            use worker::backend::cuda::{CudaTrainer, Gpu};
            use worker::backend::device::Precision;
            let precision = match device {
                "f32" => Precision::F32,
                "tf32" => Precision::Tf32,
                _ => return Err(format!("unknown device '{device}': use cpu, f32 or tf32").into()),
            };
            let gpu = Gpu::open(0, precision)?;
            let minibatch = job.minibatch as usize;
            let trainer = CudaTrainer::new(gpu, Arc::clone(&dataset), &layout, &counts, rule, minibatch, 1)?;
            let others = more.get(3).map_or(Ok(1), |others| others.parse())?;
            time(trainer, &job, &dataset, Some(others))
        }
        #[cfg(not(feature = "cuda"))]
        device => Err(format!("this build has no device '{device}': use cpu, or build with --features cuda").into()),
    }
}

/// Returns batches of other workers, made from one of this worker's batches: every second one undoes it, the others
/// repeat it. With `turned` all have the opposite signs, so that in two steps together they move nothing.
fn batches_of_others(batch: &Batch, others: usize, turned: bool) -> Vec<Batch> {
    let of_other = |other: usize| {
        let mut batch = batch.clone();
        batch.header.origin = OriginId(2 + other as u64);
        if let Payload::Steps { changes, .. } = &mut batch.payload
            && other.is_multiple_of(2) != turned
        {
            for word in changes {
                *word ^= 1;
            }
        }
        batch.header.digest = batch.payload.digest();
        batch
    };
    (0..others).map(of_other).collect()
}

fn time(trainer: impl Trainer, job: &Job, dataset: &Dataset, others: Option<usize>) -> Outcome<()> {
    let mut training = Training::new(trainer, job, dataset, Identity::alone(1))?;
    let weights = training.trainer().weights();
    let mut encoded = Vec::new();
    let mut waiting = [Vec::new(), Vec::new()];
    for line in std::io::stdin().lock().lines() {
        let steps: usize = line?.trim().parse()?;
        let mut times = Vec::with_capacity(steps);
        let round = Instant::now();
        for step in 0..steps {
            let start = Instant::now();
            for batch in &waiting[step % 2] {
                training.apply(batch)?;
            }
            encoded.clear();
            training.step(false, &mut encoded)?;
            if others.is_none() {
                Batch::decode(&encoded, weights)?;
                times.push((start.elapsed().as_secs_f64() * 1e3).to_string());
            }
        }
        if let Some(others) = others {
            times.push((round.elapsed().as_secs_f64() * 1e3 / steps as f64).to_string());
            let batch = Batch::decode(&encoded, weights)?;
            waiting = [false, true].map(|turned| batches_of_others(&batch, others, turned));
        }
        println!("{}", times.join(" "));
        std::io::stdout().flush()?;
    }
    Ok(())
}
