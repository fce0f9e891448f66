//! Times whole training steps on request, so that a script can alternate between this and another framework.
//!
//! `step_timer LAYERS MINIBATCH OPTIMISER CLIP THREADS`; every line read from standard input is a number of steps to
//! make, every line written the milliseconds that each of them took. A step gathers a minibatch of MNIST, computes
//! the gradient, updates, quantises, applies, encodes the batch and decodes it again: all that a worker does for one.

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::Instant;

use protocol::data::DataSpec;
use protocol::job::{Job, JobDraft};
use protocol::model::{Layout, initial_counts};
use worker::backend::cpu::CpuTrainer;
use worker::dataset::Dataset;
use worker::ops::Threads;
use worker::training::{Identity, Training};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    worker::memory::keep_freed_blocks();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [layers, minibatch, optimiser, clip, threads] = &arguments[..] else {
        return Err("usage: step_timer LAYERS MINIBATCH OPTIMISER CLIP THREADS".into());
    };
    let draft = JobDraft {
        model: Some(layers.clone()),
        minibatch: Some(minibatch.parse()?),
        optimiser: Some(optimiser.clone()),
        clip: Some(clip.clone()),
        epochs: Some(1000),
        lr_schedule: Some("constant".into()),
        ..JobDraft::default()
    };
    let job: Job = draft.resolve()?;
    let threads = Threads(threads.parse()?);
    let dataset = Arc::new(Dataset::open(&DataSpec::BuiltinMnist, job.seed, None)?);
    let layout = Layout::new(&job.model, dataset.input, dataset.classes.len())?;
    let counts = initial_counts(&layout, job.seed);
    let trainer = CpuTrainer::new(Arc::clone(&dataset), &layout, &counts, job.optimiser.rule, 1, threads)?;
    let mut training = Training::new(trainer, &job, &dataset, Identity::alone(1))?;
    let mut frame = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let steps: usize = line?.trim().parse()?;
        let mut times = Vec::with_capacity(steps);
        for _ in 0..steps {
            let start = Instant::now();
            frame.clear();
            training.step(false, &mut frame)?;
            protocol::batch::Batch::decode(&frame, layout.weights)?;
            times.push((start.elapsed().as_secs_f64() * 1e3).to_string());
        }
        println!("{}", times.join(" "));
        std::io::stdout().flush()?;
    }
    Ok(())
}
