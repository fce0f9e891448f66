//! `tau seed` and `tau join`: run a node.

use std::ffi::OsString;
use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use communicator::Timing;
use communicator::log_context::NEWS;
use communicator::node::{DataReader, Node, NodeConfig, NodeError, WorkerCommand};
use protocol::job::data::{DataInfo, DataSpec};
use protocol::sentence::sentence;
use serde::Serialize;
use worker::backend::device::Device;
use worker::dataset::Dataset;

use super::access;
use crate::args::{ComputeFlags, PORT, Seed};
use crate::failure::Failure;
use crate::http::{self, Secret, Server};
use crate::local::{cluster, compute, interpreter};
use crate::node::{dead_sockets, journal, metrics};
use crate::output::{self, notice};
use crate::run::interrupt;
use crate::runtime;
use crate::version::version;
use crate::views::page::{self, Flags, Model, Page};
use crate::views::watching::{Source, Watch};

/// Default folder for a node's socket, models and checkpoints.
const DIR: &str = "tau-node";
/// Seed for the test split of data that is only inspected. Any value will do, but all nodes must use the same one,
/// because their descriptions of the data are compared.
const DATA_SEED: u64 = 1;

#[derive(Serialize)]
struct Listening<'a> {
    event: &'static str,
    address: String,
    node: &'a str,
    worker_socket: String,
}

/// Runs a node, which joins a cluster if `seeds` names any nodes.
pub(crate) fn run(arguments: &Seed, seeds: &[String]) -> Result<(), Failure> {
    let device = compute::check_compute(&arguments.node.compute)?;
    check_python(arguments)?;
    let dir = arguments.node.dir.clone().unwrap_or_else(|| DIR.into());
    let workers = worker_command(&arguments.node.compute, &device, &dir)?;
    let threads = compute::threads(arguments.node.compute.threads, workers.count)?;
    // The process that starts tied nodes gives this note once for all of them.
    if let Some(crowded) = compute::crowded(workers.count, threads.0, &device).filter(|_| !arguments.tied) {
        notice::say(&format!("note: {crowded}"));
    }
    let root = compute::data_root(arguments.node.compute.data_root.as_deref())?;
    let grace = Duration::from_secs(arguments.node.grace.into());
    if arguments.tied {
        interrupt::ignore()?;
    }
    runtime::run_async(async {
        let (addresses, security) = access::access(seeds, &arguments.node.security).await?;
        let advertise = match &arguments.node.advertise {
            Some(text) => Some(http::own_address("--advertise", text).await?),
            None => None,
        };
        let config = NodeConfig {
            name: arguments.node.name.clone(),
            listen: http::own_address("--listen", &listen(arguments)).await?,
            advertise,
            security,
            dir,
            // The process that starts tied nodes removes their folders itself.
            keeps_runs: !arguments.tied,
            workers,
            data: DataReader::new(move |data| read_data(data, Some(&root))),
            version: version(),
            timing: Timing::DEFAULT,
        };
        // Resolving names may take long: until here a signal ends the program at once.
        if !arguments.tied {
            // After a signal the node has this time to leave its run, say good-bye and end its workers.
            interrupt::watch_within(grace + Timing::DEFAULT.stop_limit())?;
        }
        dead_sockets::remove(&config.dir);
        let dir = config.dir.clone();
        let mut node = Node::start(config).await.map_err(failure)?;
        announce(&node, arguments.json);
        let _shown = show(&node, arguments, &dir).await?;
        if !arguments.tied {
            let runs_max = arguments.node.keep_runs.into();
            tokio::spawn(journal::keep(node.inquiry(), node.info.name.clone(), dir, runs_max));
        }
        let worked = tokio::select! {
            worked = serve(&mut node, &addresses) => worked,
            () = interrupt::wait() => {
                node.leave(grace).await;
                Ok(())
            }
            () = end_of_input(), if arguments.tied => Ok(()),
        };
        node.stop().await;
        worked
    })
}

/// Checks the interpreter that a node is to run Python code with. Members of the cluster choose which files are run, so
/// the user must name the folder that holds them.
fn check_python(arguments: &Seed) -> Result<(), Failure> {
    let flags = &arguments.node.compute;
    match &flags.python {
        // The process that starts tied nodes has checked it for all of them.
        Some(_) if arguments.tied => Ok(()),
        Some(_) if flags.data_root.is_none() => Err(Failure::input(
            "--python lets members of the cluster run the models in the folder of the data: name that folder with \
             --data-root",
        )),
        Some(python) => interpreter::find(Some(python)).map(|_| ()),
        None => Ok(()),
    }
}

#[derive(Serialize)]
struct Collected<'a> {
    event: &'static str,
    address: String,
    token: &'a str,
}

/// Returns the address that a node listens on: that of `--listen`, else the default port, on the loopback interface
/// only with `--insecure`.
fn listen(arguments: &Seed) -> String {
    match &arguments.listen {
        Some(listen) => listen.clone(),
        None if arguments.node.security.insecure => format!("127.0.0.1:{PORT}"),
        None => format!(":{PORT}"),
    }
}

/// The servers of a node's page and metrics, which end when this value is dropped.
#[derive(Default)]
struct NodeViews {
    page: Option<Page>,
    metrics: Option<Server>,
}

/// Starts the servers of the page and the metrics that flags ask for.
async fn show(node: &Node, arguments: &Seed, dir: &Path) -> Result<NodeViews, Failure> {
    let flags = &arguments.node;
    let mut shown = NodeViews::default();
    if flags.page.is_none() && flags.metrics.is_none() {
        return Ok(shown);
    }
    let secret = Secret::kept_in(dir)?;
    let watch = Watch::start(Source::Oneself(node.inquiry()));
    if let Some(text) = &flags.page {
        let flags = Flags {
            address: http::own_address("--page", text).await?,
            own: Some(node.info.address.ip()),
            secret: secret.clone(),
            may_stop: flags.page_stop,
            model: Model::OfNode,
        };
        let page = Page::live(flags, Arc::clone(&watch)).await?;
        page::announce(&page, arguments.json);
        shown.page = Some(page);
    }
    if let Some(text) = &flags.metrics {
        let address = http::own_address("--metrics", text).await?;
        let metrics = metrics::serve(address, secret.clone(), watch, &node.info).await?;
        let address = metrics.address;
        if arguments.json {
            output::line(&Collected {
                event: "metrics",
                address: address.to_string(),
                token: secret.letters(),
            });
        } else {
            notice::say(&format!(
                "metrics are served at http://{address}/metrics; the token is {}",
                secret.letters()
            ));
        }
        shown.metrics = Some(metrics);
    }
    Ok(shown)
}

/// Joins the cluster if `seeds` names any nodes, then waits until the node fails.
async fn serve(node: &mut Node, seeds: &[SocketAddr]) -> Result<(), Failure> {
    if !seeds.is_empty() {
        let mut said = String::new();
        node.join(seeds, |why| {
            if why != said {
                notice::say(&format!("{why}; retrying"));
                said = why.into();
            }
        })
        .await
        .map_err(failure)?;
        tracing::info!(target: NEWS, event = "cluster_joined", "this node has joined the cluster");
    }
    Err(failure(node.failure().await))
}

fn failure(error: NodeError) -> Failure {
    match error {
        NodeError::NotLoopback(_)
        | NodeError::NoAddress(_)
        | NodeError::Oneself(_)
        | NodeError::Listen { .. }
        | NodeError::SocketPath { .. }
        | NodeError::Dir { .. } => Failure::bad(error),
        _ => Failure::work(error),
    }
}

fn announce(node: &Node, json: bool) {
    let address = node.info.address;
    let socket = node.socket.display();
    if json {
        output::line(&Listening {
            event: "listening",
            address: address.to_string(),
            node: &node.info.name,
            worker_socket: socket.to_string(),
        });
    } else {
        notice::say(&format!(
            "{} listens on {address}; workers attach to {socket}",
            node.info.name
        ));
    }
}

/// Reads data on this machine and returns its description. If `root` is given, nothing outside of it is read.
pub(crate) fn read_data(data: &DataSpec, root: Option<&Path>) -> Result<DataInfo, String> {
    let dataset = Dataset::open(data, DATA_SEED, root).map_err(|error| sentence(&error))?;
    Ok(dataset.info())
}

/// Returns the command that starts workers, with its flags: this program or, with `--python`, an interpreter, which
/// runs no code from the node's own folder `dir`.
fn worker_command(flags: &ComputeFlags, device: &Device, dir: &Path) -> Result<WorkerCommand, Failure> {
    let threads = compute::threads(flags.threads, flags.workers)?;
    let mut arguments: Vec<OsString> = vec![
        "worker".into(),
        "--tied".into(),
        "--threads".into(),
        threads.0.to_string().into(),
    ];
    arguments.extend(["--device".into(), device.choice().to_string().into()]);
    if let Some(precision) = flags.precision.as_ref().filter(|_| *device != Device::Cpu) {
        arguments.extend(["--precision".into(), precision.into()]);
    }
    let root = compute::data_root(flags.data_root.as_deref())?;
    arguments.extend(["--data-root".into(), root.into()]);
    let program = match &flags.python {
        None => cluster::program()?,
        Some(python) => {
            arguments.splice(..1, ["-I", "-m", "tau.worker"].map(OsString::from));
            arguments.extend(["--own-folder".into(), dir.into()]);
            python.clone()
        }
    };
    Ok(WorkerCommand {
        program,
        arguments,
        environment: worker::machine::memory::large_pages().into_iter().collect(),
        count: flags.workers,
    })
}

/// Waits for the end of standard input, which means that the process that started this node (with `--tied`) is gone.
async fn end_of_input() {
    // A thread outside of the runtime, which would wait for the blocking read when it ends.
    let (ended, wait) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let mut rest = [0; 64];
        while std::io::stdin().read(&mut rest).is_ok_and(|read| read > 0) {}
        let _ = ended.send(());
    });
    let _ = wait.await;
}
