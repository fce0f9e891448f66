//! A run on a cluster of its own: nodes on this machine that are there for it, and gone after it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use communicator::usage::{Workers, check_memory};
use protocol::job::Job;
use protocol::stats::Finished;
use worker::model_file::first_weights;
use worker::task::job_layout;

use super::cluster::LocalCluster;
use super::{compute, rescue};
use crate::args::{ComputeFlags, RunPage};
use crate::failure::Failure;
use crate::output::{Audience, quantity};
use crate::progress::{View, reading};
use crate::run::follow;
use crate::run::out_folder::OutFolder;
use crate::run::starting::{self, What};
use crate::views::page;

/// More would only wait for each other on one machine.
const NODES_MAX: usize = 64;
/// Ordered pairs of nodes for each core of a machine. Every node tells every other one how far it is, so the cost of that grows
/// with the pairs: 32 nodes train on 16 cores, and 64 never begin to.
const PAIRS_PER_CORE: usize = 64;

/// A run that can begin: everything that a user can get wrong is checked.
pub(crate) struct LocalRun {
    job: Job,
    flags: ComputeFlags,
    nodes: usize,
    /// What will be trained, for people.
    pub(crate) said: String,
    /// What is to be known of a machine that has fewer cores than threads train.
    pub(crate) crowded: Option<String>,
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
        let cores = compute::cores();
        let most = (cores * PAIRS_PER_CORE).isqrt();
        if nodes > most {
            return Err(Failure::input(format!(
                "{nodes} nodes are too many for the {} of this machine: give --nodes {most} at most",
                quantity::of(cores, "core")
            )));
        }
        let device = compute::check_compute(flags)?;
        let workers = nodes * flags.workers;
        let threads = compute::threads(flags.threads, workers)?.0;
        let crowded = compute::crowded(workers, threads, &device);
        // A relative folder means the same to the nodes, which run where this process does.
        let mut flags = ComputeFlags {
            threads: Some(threads),
            ..flags.clone()
        };
        if job.checkpoint_every.is_some() {
            return Err(Failure::input(
                "--checkpoint-every needs nodes that keep running: start nodes with 'tau seed' and 'tau join', and \
                 the run with 'tau start'",
            ));
        }
        let said = check(&job, &flags, nodes)?;
        open_own_files(&mut job, &mut flags)?;
        Ok(Self {
            job,
            flags,
            nodes,
            said,
            crowded,
        })
    }

    /// Starts the nodes, trains and saves the model. The nodes end with the cluster that is returned: the result is told
    /// before that, because a signal may end the program meanwhile.
    pub(crate) async fn run(
        self,
        out: &OutFolder,
        audience: Audience,
        on_failure: OnFailure,
        page: &RunPage,
    ) -> Result<(Finished, LocalCluster), Failure> {
        let view = View::new(0, audience);
        view.busy("starting the nodes");
        let mut cluster = LocalCluster::start(self.nodes, &self.flags)?;
        if on_failure == OnFailure::Rescue {
            cluster.kill_at_exit(Some(out));
        }
        let contact = Arc::new(cluster.contact(self.flags.workers).await?);
        view.clear();
        let page = page::of_run(page.page.as_deref(), &contact, audience).await?;
        let run = async {
            let run = starting::begin(&contact, What::Job(Box::new(self.job)), false, audience).await?;
            let ended = follow::follow(&contact, run, out, audience).await;
            if let Some(page) = &page {
                page.last_look(&ended).await;
            }
            ended
        };
        match run.await {
            Err(failure) if on_failure == OnFailure::Rescue => {
                // The nodes end with this process: what they have is saved before.
                Err(rescue::rescue(failure, &contact, &mut cluster.scratch, out).await)
            }
            ended => {
                // What the nodes have is saved, or not wanted.
                cluster.kill_at_exit(None);
                ended.map(|finished| (finished, cluster))
            }
        }
    }
}

/// Lets the nodes open what the user named, wherever it lies: they are the user's own, and so are the files. Only who gives
/// a root wants to be kept to it.
fn open_own_files(job: &mut Job, flags: &mut ComputeFlags) -> Result<(), Failure> {
    if flags.data_root.is_some() {
        return Ok(());
    }
    // The nodes run where this process does, and open what is there without being told.
    let root = compute::data_root(None)?;
    let mut files = named_files(job);
    let mut is_outside = false;
    for file in &files {
        is_outside |= !file.canonicalize().map_err(Failure::work)?.starts_with(&root);
    }
    if is_outside {
        for file in &mut files {
            **file = std::path::absolute(&**file).map_err(Failure::work)?;
        }
        flags.data_root = Some("/".into());
    }
    Ok(())
}

/// The files that a job names.
fn named_files(job: &mut Job) -> Vec<&mut PathBuf> {
    job.data.paths_mut().into_iter().chain(&mut job.from).collect()
}

/// Opens the data and lays the model out, and says what will be trained.
fn check(job: &Job, flags: &ComputeFlags, nodes: usize) -> Result<String, Failure> {
    let dataset = reading::open(&job.data, job.seed, flags.data_root.as_deref()).map_err(Failure::bad)?;
    let (dataset, tested) = dataset
        .with_validation(job.validation_share(), job.seed)
        .map_err(Failure::bad)?;
    let job = &job.for_data(dataset.input);
    let layout = job_layout::layout_for(job, &dataset).map_err(Failure::bad)?;
    let first = first_weights::open(job, &layout, flags.data_root.as_deref()).map_err(Failure::bad)?;
    let workers = Workers::here(job.exchange.copies(nodes, flags.workers), None);
    check_memory(job, &layout, workers).map_err(|error| {
        Failure::input(format!(
            "{error}: use fewer --nodes, a smaller model or a smaller --minibatch"
        ))
    })?;
    let begins = first.map_or_else(String::new, |first| begins_with(job, &first.afresh));
    let parts = match &tested {
        None => format!(
            "{} training and {} test samples",
            dataset.train.len(),
            dataset.test.len()
        ),
        Some(tested) => format!(
            "{} training, {} validation and {} test samples",
            dataset.train.len(),
            dataset.test.len(),
            tested.test.len()
        ),
    };
    let said = format!(
        "{}: {parts}; {} weights{begins}; {} with {} of {} each",
        job.data,
        layout.weights,
        quantity::of(nodes, "node"),
        quantity::of(flags.workers, "worker"),
        quantity::of(flags.threads.unwrap_or(1), "thread")
    );
    let lines = [said].into_iter().chain(dataset.remarks);
    Ok(lines.collect::<Vec<_>>().join("\n"))
}

/// What weights begin with, for people.
fn begins_with(job: &Job, afresh: &[String]) -> String {
    let file = job.from.as_deref().unwrap_or(Path::new("")).display();
    match afresh {
        [] => format!(", initialised from {file}"),
        afresh => format!(
            ", initialised from {file} except {}, which start from random values",
            afresh.join(", ")
        ),
    }
}
