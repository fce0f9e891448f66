//! A run on a cluster of its own: nodes on this machine that are there for it, and gone after it.

use std::sync::Arc;

use protocol::data::DataSpec;
use protocol::job::Job;
use protocol::model::Layout;
use protocol::stats::Finished;
use worker::dataset::Dataset;

use crate::args::ComputeFlags;
use crate::commands;
use crate::commands::start::{self, What};
use crate::failure::Failure;
use crate::local_cluster::LocalCluster;
use crate::out_folder::OutFolder;
use crate::output::Audience;
use crate::view::View;
use crate::{follow, quantity, rescue};

/// More would only wait for each other on one machine.
const NODES_MAX: usize = 64;

/// A run that can begin: everything that a user can get wrong is checked.
pub(crate) struct LocalRun {
    job: Job,
    flags: ComputeFlags,
    nodes: usize,
    /// What will be trained, for people.
    pub(crate) said: String,
}

/// What becomes of the weights of a run that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnFailure {
    /// They are saved where the model would have been.
    Rescue,
    /// They go with the nodes.
    Drop,
}

impl LocalRun {
    /// Checks a run before anything is changed: nodes would find the same mistakes, but each for itself and later.
    pub(crate) fn check(mut job: Job, flags: &ComputeFlags, nodes: usize) -> Result<Self, Failure> {
        if !(1..=NODES_MAX).contains(&nodes) {
            return Err(Failure::input(format!(
                "--nodes must be from 1 to {NODES_MAX}, not {nodes}"
            )));
        }
        let mut flags = compute_flags(flags, nodes)?;
        if job.checkpoint_every.is_some() {
            return Err(Failure::input(
                "--checkpoint-every needs nodes that stay: start them with 'tau seed' and 'tau join', and the run with 'tau start'",
            ));
        }
        let said = check(&job, &flags, nodes)?;
        open_own_files(&mut job, &mut flags)?;
        Ok(Self {
            job,
            flags,
            nodes,
            said,
        })
    }

    /// Starts the nodes, trains, saves the model and ends the nodes.
    pub(crate) async fn run(
        self,
        out: &OutFolder,
        audience: Audience,
        on_failure: OnFailure,
    ) -> Result<Finished, Failure> {
        let view = View::new(0, audience);
        view.busy("starting the nodes");
        let mut cluster = LocalCluster::start(self.nodes, &self.flags)?;
        let contact = Arc::new(cluster.contact(self.flags.workers).await?);
        view.clear();
        let run = async {
            let run = start::begin(&contact, What::Job(Box::new(self.job)), false, audience).await?;
            follow::follow(&contact, run, out, audience).await
        };
        match run.await {
            Err(failure) if on_failure == OnFailure::Rescue => {
                // The nodes end with this process: what they have is saved before.
                Err(rescue::rescue(failure, &contact, &mut cluster.scratch, out).await)
            }
            ended => ended,
        }
    }
}

/// What every node is started with.
fn compute_flags(flags: &ComputeFlags, nodes: usize) -> Result<ComputeFlags, Failure> {
    commands::check_compute(flags)?;
    let threads = commands::threads(flags.threads, nodes * flags.workers)?;
    // A relative folder means the same to the nodes, which run where this process does.
    Ok(ComputeFlags {
        threads: Some(threads.0),
        ..flags.clone()
    })
}

/// Lets the nodes open what the user named, wherever it lies: they are the user's own, and so are the files. Only who gives
/// a root wants to be kept to it.
fn open_own_files(job: &mut Job, flags: &mut ComputeFlags) -> Result<(), Failure> {
    let path = match &mut job.data {
        DataSpec::Idx { directory: path } | DataSpec::Csv { file: path, .. } if flags.data_root.is_none() => path,
        _ => return Ok(()),
    };
    let inside = path
        .canonicalize()
        .map_err(Failure::work)?
        .starts_with(commands::data_root(None)?);
    // The nodes run where this process does, and open what is there without being told.
    if !inside {
        *path = std::path::absolute(&*path).map_err(Failure::work)?;
        flags.data_root = Some("/".into());
    }
    Ok(())
}

/// Opens the data and lays the model out, and says what will be trained.
fn check(job: &Job, flags: &ComputeFlags, nodes: usize) -> Result<String, Failure> {
    let dataset = Dataset::open(&job.data, job.seed, flags.data_root.as_deref()).map_err(Failure::bad)?;
    let layout = Layout::new(&job.model, dataset.input, dataset.classes.len()).map_err(Failure::bad)?;
    communicator::usage::check_memory(job, &layout, nodes * flags.workers).map_err(|error| {
        Failure::input(format!(
            "{error}: use fewer --nodes, a smaller model or a smaller --minibatch"
        ))
    })?;
    Ok(format!(
        "{}: {} training and {} held-out samples; {} weights; {} with {} of {} each",
        job.data,
        dataset.train.len(),
        dataset.test.len(),
        layout.weights,
        quantity::of(nodes, "node"),
        quantity::of(flags.workers, "worker"),
        quantity::of(flags.threads.unwrap_or(1), "thread")
    ))
}
