//! A run on a local cluster of its own: nodes on this machine that start for the run and end after it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use communicator::usage::{Workers, check_memory};
use protocol::job::Job;
use protocol::job::data::DataSpec;
use protocol::job::model::initial_counts;
use protocol::stats::Finished;
use worker::dataset::Dataset;
use worker::model_file::first_weights;
use worker::module::CodeFolders;
use worker::task::job_layout;

use super::cluster::LocalCluster;
use super::{compute, interpreter, rescue};
use crate::args::{ComputeFlags, RunPage};
use crate::failure::Failure;
use crate::output::{Audience, quantity};
use crate::progress::{View, reading};
use crate::run::follow;
use crate::run::out_folder::OutFolder;
use crate::run::starting::{self, What};
use crate::views::page;

/// Maximum number of nodes of a local cluster; more would only wait for each other on one machine.
const NODES_MAX: usize = 64;
/// Maximum number of ordered pairs of local nodes per core. Every node sends its state to every other one, so the cost
/// grows with the pairs: on 16 cores 32 nodes train, but 64 never begin to.
const PAIRS_PER_CORE: usize = 64;

/// A local run that is ready to begin: users' mistakes have been checked for.
pub(crate) struct LocalRun {
    job: Job,
    flags: ComputeFlags,
    nodes: usize,
    /// Description of the run's training, for people.
    pub(crate) said: String,
    /// Warning that more threads train than the machine has cores.
    pub(crate) crowded: Option<String>,
}

/// Treatment of the weights of a run that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnFailure {
    /// The weights of a failed run are saved where its model would have been.
    Rescue,
    /// The weights of a failed run are discarded with its nodes.
    Drop,
}

impl LocalRun {
    /// Checks a run before anything is started. Nodes would find the same mistakes, but later and each by itself.
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
        // Only this user's own code is run here, so the user need not say more than that the model is code.
        let python = match job.model.module() {
            Some(_) => Some(interpreter::find(flags.python.as_deref())?),
            None => None,
        };
        let flags = &ComputeFlags {
            python,
            ..flags.clone()
        };
        let device = compute::check_compute(flags)?;
        let workers = nodes * flags.workers;
        let threads = compute::threads(flags.threads, workers)?.0;
        let crowded = compute::crowded(workers, threads, &device);
        // A relative folder means the same to the nodes, which run in this process's working directory.
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

    /// Starts the nodes, trains and saves the model. The nodes end when the returned cluster is dropped: callers print
    /// the result before that, because ending takes time, in which a signal may end the program.
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
                // The nodes end with this process, so the files they have are saved first.
                Err(rescue::rescue(failure, &contact, &mut cluster.scratch, out).await)
            }
            ended => {
                // The nodes' files have been saved or are not wanted.
                cluster.kill_at_exit(None);
                ended.map(|finished| (finished, cluster))
            }
        }
    }
}

/// Lets the nodes open the files that the user named, wherever they are, because nodes and files belong to the same
/// user. A `--data-root` that the user gave stays in force.
fn open_own_files(job: &mut Job, flags: &mut ComputeFlags) -> Result<(), Failure> {
    if flags.data_root.is_some() {
        return Ok(());
    }
    // The nodes run in this process's working directory, whose files they may open anyway.
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

/// Returns the paths of the files that a job names: its data, the model file that gives the first weights, and the code
/// of its model.
fn named_files(job: &mut Job) -> Vec<&mut PathBuf> {
    let paths = job.data.paths_mut().into_iter().chain(&mut job.from);
    paths.chain(job.model.module_mut()).collect()
}

/// Checks before a local run that the data can be read, that the model fits the data and that the memory is sufficient.
/// Returns a description of the training for people.
fn check(job: &Job, flags: &ComputeFlags, nodes: usize) -> Result<String, Failure> {
    let computes = format!(
        "{} with {} of {} each",
        quantity::of(nodes, "node"),
        quantity::of(flags.workers, "worker"),
        quantity::of(flags.threads.unwrap_or(1), "thread")
    );
    if let (DataSpec::Module, Some(file)) = (&job.data, job.model.module()) {
        code_folders(flags).read_model(file).map_err(Failure::bad)?;
        return Ok(format!("model and data are the code in {}; {computes}", file.display()));
    }
    let dataset = reading::open(&job.data, job.seed, flags.data_root.as_deref()).map_err(Failure::bad)?;
    let (dataset, tested) = dataset
        .with_validation(job.validation_share(), job.seed)
        .map_err(Failure::bad)?;
    let job = &job.for_data(dataset.input);
    let model = match job.model.module() {
        Some(file) => {
            job_layout::check(job, &dataset).map_err(Failure::bad)?;
            code_folders(flags).read_model(file).map_err(Failure::bad)?;
            format!("the model is the code in {}", file.display())
        }
        None => check_model(job, &dataset, flags, nodes)?,
    };
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
    let said = format!("{}: {parts}; {model}; {computes}", job.data);
    let lines = [said].into_iter().chain(dataset.remarks);
    Ok(lines.collect::<Vec<_>>().join("\n"))
}

/// Returns the folders that code may lie in, for a user's own process.
fn code_folders(flags: &ComputeFlags) -> CodeFolders<'_> {
    CodeFolders {
        root: flags.data_root.as_deref(),
        own: None,
    }
}

/// Checks before a local run that a model of layers fits the data, and that the memory is sufficient. Returns a
/// description of the model for people.
fn check_model(job: &Job, dataset: &Dataset, flags: &ComputeFlags, nodes: usize) -> Result<String, Failure> {
    let layout = job_layout::layout_for(job, dataset).map_err(Failure::bad)?;
    let initial = || initial_counts(&layout, job.seed);
    let first = first_weights::open(job, &layout, initial, flags.data_root.as_deref()).map_err(Failure::bad)?;
    let workers = Workers::here(job.exchange.copies(nodes, flags.workers), None);
    check_memory(job, &layout, workers).map_err(|error| {
        Failure::input(format!(
            "{error}: use fewer --nodes, a smaller model or a smaller --minibatch"
        ))
    })?;
    let begins = first.map_or_else(String::new, |first| begins_with(job, &first.afresh));
    Ok(format!("{} weights{begins}", layout.weights))
}

/// Describes for people the model file from which the run's weights are initialised; `afresh` are the names of the
/// tensors that start from random values instead.
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
