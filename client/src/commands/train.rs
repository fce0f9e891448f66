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
            finished.accuracy,
            finished.loss,
            finished.samples,
            finished.seconds,
            finished.samples_per_second
        );
        eprintln!(
            "{} bytes of changes instead of {} ({:.0} times less); density {:.1e}; exchange share {:.3}",
            finished.bytes_sent,
            finished.bytes_dense,
            finished.compression,
            finished.density,
            finished.exchange_share
        );
        let agree = if finished.replicas_agree {
            "replicas agree"
        } else {
            "REPLICAS DISAGREE"
        };
        eprintln!(
            "{agree}, digest {}; model saved as {}",
            finished.digest, finished.model
        );
    }
    if finished.replicas_agree {
        Ok(())
    } else {
        Err(Failure::failed(
            "the worker's weights are not the sum of its batches: this is a fault in Tau or in this machine's memory",
        ))
    }
}

/// Checks everything that a user can get wrong, before anything is changed.
fn prepare(arguments: Train) -> Result<Solo, Failure> {
    if arguments.nodes != 1 {
        let nodes = arguments.nodes;
        return Err(Failure::because(format!(
            "--nodes {nodes} is not possible yet: this release trains on one node, --nodes 1"
        )));
    }
    match arguments.node.device.as_str() {
        "auto" | "cpu" => {}
        unknown => {
            return Err(Failure::because(format!(
                "there is no device '{unknown}' in this build; use --device cpu"
            )));
        }
    }
    let threads = commands::threads(arguments.node.threads)?;
    let job = read_job(arguments.job, arguments.file.as_deref())?;
    let dataset = Dataset::open(&job.data, job.seed, arguments.node.data_root.as_deref())
        .map_err(Failure::input)?;
    let layout =
        Layout::new(&job.model, dataset.input, dataset.classes.len()).map_err(Failure::input)?;
    let out = OutFolder::open(&arguments.out)?;
    Ok(Solo {
        job,
        dataset: Arc::new(dataset),
        layout,
        threads,
        out,
    })
}

/// Flags over file over defaults.
fn read_job(flags: JobDraft, file: Option<&Path>) -> Result<Job, Failure> {
    let from_file = match file {
        None => JobDraft::default(),
        Some(path) => {
            let name = path.display();
            let text = std::fs::read_to_string(path).map_err(|error| {
                Failure::because(format!(
                    "{name} could not be read: {error}; give the path of a TOML file"
                ))
            })?;
            JobDraft::from_toml(&text).map_err(|error| {
                let message = error.to_string().trim().replace('\n', " ");
                Failure::because(format!("{name} is not a valid job: {message}"))
            })?
        }
    };
    flags.or(from_file).resolve().map_err(|JobErrors(errors)| {
        // A flag has the key's name with dashes.
        let sentence = |error: &protocol::job::JobError| {
            format!("--{}: {}", error.key.replace('_', "-"), error.message)
        };
        Failure::BadInput(errors.iter().map(sentence).collect())
    })
}
