//! `tau seed` and `tau join`: a node.

use std::ffi::OsString;
use std::io::Read;
use std::net::SocketAddr;
use std::path::PathBuf;

use communicator::Timing;
use communicator::log_context::NEWS;
use communicator::node::{Node, NodeConfig, NodeError, WorkerCommand};
use serde::Serialize;
use worker::device::Device;

use crate::args::{ComputeFlags, Join, Seed};
use crate::failure::Failure;
use crate::version::version;
use crate::{commands, dead_sockets, interrupt, output};

/// Where a node keeps its things unless it is told.
const DIR: &str = "tau-node";

#[derive(Serialize)]
struct Listening<'a> {
    event: &'static str,
    address: String,
    node: &'a str,
    worker_socket: String,
}

pub(crate) fn seed(arguments: &Seed) -> Result<(), Failure> {
    run(arguments, &[])
}

pub(crate) fn join(arguments: &Join) -> Result<(), Failure> {
    run(&arguments.seed, &arguments.seeds)
}

fn run(arguments: &Seed, seeds: &[String]) -> Result<(), Failure> {
    let device = commands::check_compute(&arguments.node.compute)?;
    let dir = arguments.node.dir.clone().unwrap_or_else(|| DIR.into());
    let workers = worker_command(&arguments.node.compute, &device)?;
    interrupt::watch()?;
    commands::run_async(async {
        let (addresses, security) = commands::access(seeds, &arguments.node.security).await?;
        let advertise = match &arguments.node.advertise {
            Some(text) => Some(own_address("--advertise", text).await?),
            None => None,
        };
        let config = NodeConfig {
            listen: own_address("--listen", &anywhere(&arguments.listen)).await?,
            advertise,
            security,
            dir,
            workers,
            version: version(),
            timing: Timing::DEFAULT,
        };
        dead_sockets::remove(&config.dir);
        let mut node = Node::start(config).await.map_err(failure)?;
        announce(&node, arguments.json);
        let worked = tokio::select! {
            worked = serve(&mut node, &addresses) => worked,
            () = interrupt::wait() => Ok(()),
            () = end_of_input(), if arguments.tied => Ok(()),
        };
        node.stop().await;
        worked
    })
}

/// `:7700` is that port of every address of this machine.
fn anywhere(text: &str) -> String {
    if text.starts_with(':') {
        format!("0.0.0.0{text}")
    } else {
        text.to_owned()
    }
}

/// An address of this machine, by a host's name or in numbers. Of several that a name stands for the first one counts.
async fn own_address(flag: &str, text: &str) -> Result<SocketAddr, Failure> {
    let found = tokio::net::lookup_host(text).await;
    let address = found.ok().and_then(|mut found| found.next());
    address.ok_or_else(|| {
        Failure::input(format!(
            "{flag} {text} is no address of this machine: give HOST:PORT, for example 192.168.1.10:7700, or :7700"
        ))
    })
}

/// Joins, and then does its work until it fails.
async fn serve(node: &mut Node, seeds: &[SocketAddr]) -> Result<(), Failure> {
    if !seeds.is_empty() {
        let mut said = String::new();
        node.join(seeds, |why| {
            if why != said {
                eprintln!("{why}; trying again");
                said = why.into();
            }
        })
        .await
        .map_err(failure)?;
        tracing::info!(target: NEWS, "joined the cluster");
    }
    Err(failure(node.failure().await))
}

fn failure(error: NodeError) -> Failure {
    match error {
        NodeError::NotLoopback(_)
        | NodeError::NoAddress(_)
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
        eprintln!("{} listens on {address}; workers attach to {socket}", node.info.name);
    }
}

/// Workers are this program again.
fn worker_command(flags: &ComputeFlags, device: &Device) -> Result<WorkerCommand, Failure> {
    let threads = commands::threads(flags.threads, flags.workers)?;
    let mut arguments: Vec<OsString> = vec!["worker".into(), "--threads".into(), threads.0.to_string().into()];
    arguments.extend(["--device".into(), device.choice().to_string().into()]);
    if let Some(precision) = flags.precision.as_ref().filter(|_| *device != Device::Cpu) {
        arguments.extend(["--precision".into(), precision.into()]);
    }
    let root = commands::data_root(flags.data_root.as_deref())?;
    arguments.extend(["--data-root".into(), root.into()]);
    Ok(WorkerCommand {
        program: program()?,
        arguments,
        environment: worker::memory::large_pages().into_iter().collect(),
        count: flags.workers,
    })
}

/// This program's own file.
pub(crate) fn program() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|error| Failure::Failed(format!("this program does not find itself: {error}")))
}

/// Waits for standard input to end: whoever started this node and tied it to itself is gone.
async fn end_of_input() {
    // A thread of its own, not one of the runtime's: that would wait for it when it ends.
    let (ended, wait) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let mut rest = [0; 64];
        while std::io::stdin().read(&mut rest).is_ok_and(|read| read > 0) {}
        let _ = ended.send(());
    });
    let _ = wait.await;
}
