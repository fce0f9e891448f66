//! `tau seed` and `tau join`: a node.

use std::ffi::OsString;
use std::io::Read;
use std::path::PathBuf;

use communicator::Timing;
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
    let config = NodeConfig {
        listen: arguments.listen,
        advertise: arguments.node.advertise,
        security: commands::security(&arguments.node.security)?,
        dir: arguments.node.dir.clone().unwrap_or_else(|| DIR.into()),
        workers: worker_command(&arguments.node.compute, &device)?,
        version: version(),
        timing: Timing::DEFAULT,
    };
    dead_sockets::remove(&config.dir);
    interrupt::watch()?;
    commands::run_async(async {
        let addresses = commands::resolve(seeds).await?;
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

/// Joins, and then does its work until it fails.
async fn serve(node: &mut Node, seeds: &[std::net::SocketAddr]) -> Result<(), Failure> {
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
        tracing::info!("joined");
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
