//! `tau train`: train on this machine, save the model, say what came out.

use std::path::Path;
use std::sync::Arc;

use protocol::job::{Job, JobDraft, JobErrors};
use protocol::model::Layout;
use worker::dataset::Dataset;

use crate::args::Train;
use crate::failure::Failure;
use crate::out_folder::OutFolder;
use crate::solo::{self, Solo};
use crate::{commands, interrupt, output};

pub(crate) fn run(arguments: Train) -> Result<(), Failure> {
    let json = arguments.json;
    let solo = prepare(arguments)?;
    interrupt::watch()?;
    let finished = solo::train(&solo, json)?;
    if json {
        output::line(&finished);
    } else {
        eprintln!(
            "accuracy {:.4}, loss {:.4} on held-out samples; {} samples in {:.1} s ({:.0} samples/s)",
            finished.accuracy, finished.loss, finished.samples, finished.seconds, finished.samples_per_second
        );
        eprintln!(
            "{} bytes of changes instead of {} ({:.0} times less); density {:.1e}; exchange share {:.3}",
            finished.bytes_sent, finished.bytes_dense, finished.compression, finished.density, finished.exchange_share
        );
        let agree = if finished.replicas_agree {
            "replicas agree"
        } else {
            "REPLICAS DISAGREE"
        };
        eprintln!("{agree}, digest {}; model saved as {}", finished.digest, finished.model);
    }
    if finished.replicas_agree {
        Ok(())
    } else {
        Err(Failure::Disagreed)
    }
}

/// Checks everything that a user can get wrong, before anything is changed.
fn prepare(arguments: Train) -> Result<Solo, Failure> {
    if arguments.nodes != 1 {
        let nodes = arguments.nodes;
        return Err(Failure::input(format!(
            "--nodes {nodes} is not possible yet: this release trains on one node, --nodes 1"
        )));
    }
    match arguments.node.device.as_str() {
        "auto" | "cpu" => {}
        unknown => {
            return Err(Failure::input(format!(
                "there is no device '{unknown}' in this build; use --device cpu"
            )));
        }
    }
    if arguments.job.checkpoint_every.is_some() {
        return Err(Failure::input(
            "--checkpoint-every is not possible yet: this release saves the model at the end only",
        ));
    }
    let threads = commands::threads(arguments.node.threads)?;
    let job = read_job(arguments.job, arguments.file.as_deref())?;
    let dataset = Dataset::open(&job.data, job.seed, arguments.node.data_root.as_deref()).map_err(Failure::bad)?;
    let layout = Layout::new(&job.model, dataset.input, dataset.classes.len()).map_err(Failure::bad)?;
    check_memory(&job, &layout)?;
    let out = OutFolder::check(&arguments.out)?;
    Ok(Solo {
        job,
        dataset: Arc::new(dataset),
        layout,
        threads,
        out,
    })
}

/// Refuses a job that this machine cannot hold, before the system's memory is gone.
fn check_memory(job: &Job, layout: &Layout) -> Result<(), Failure> {
    const GIGABYTE: f64 = 1e9;
    let needed = layout.training_bytes(job.minibatch as usize, job.optimiser.rule.state_arrays());
    match communicator::usage::memory_total_bytes() {
        Some(there) if needed > there => Err(Failure::input(format!(
            "the job needs about {:.1} GB of memory, but this machine has {:.1} GB: use a smaller model or --minibatch",
            needed as f64 / GIGABYTE,
            there as f64 / GIGABYTE
        ))),
        _ => Ok(()),
    }
}

/// Flags over file over defaults.
fn read_job(flags: JobDraft, file: Option<&Path>) -> Result<Job, Failure> {
    let from_file = match file {
        None => JobDraft::default(),
        Some(path) => {
            let name = path.display();
            let text = std::fs::read_to_string(path).map_err(|error| {
                Failure::input(format!(
                    "{name} could not be read: {error}; give the path of a TOML file"
                ))
            })?;
            JobDraft::from_toml(&text).map_err(|error| {
                let before = error.span().map_or("", |span| &text[..span.start]);
                let line = before.matches('\n').count() + 1;
                let message = error.message().trim().replace('\n', "; ");
                Failure::input(format!("{name} is not a valid job: line {line}: {message}"))
            })?
        }
    };
    flags.or(from_file).resolve().map_err(|JobErrors(errors)| {
        // A flag has the key's name with dashes.
        let sentence =
            |error: &protocol::job::JobError| format!("--{}: {}", error.key.replace('_', "-"), error.message);
        Failure::BadInput(errors.iter().map(sentence).collect())
    })
}
