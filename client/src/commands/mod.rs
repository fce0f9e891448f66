//! One file for each command.

pub(crate) mod checkpoint;
pub(crate) mod credentials;
pub(crate) mod evaluate;
pub(crate) mod node;
pub(crate) mod nodes;
pub(crate) mod start;
pub(crate) mod stats;
pub(crate) mod stop;
pub(crate) mod train;
pub(crate) mod worker;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ::worker::device::Device;
use ::worker::ops::Threads;
use communicator::control::Connection;
use communicator::transport::{Credentials, Security};
use protocol::control::{Reply, Request};

use crate::args::{Cluster, ComputeFlags, SecurityFlags};
use crate::failure::Failure;

/// How long a node may take to answer a simple question.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// More are a slip of the hand, and would only wait for each other.
const THREADS_MAX: usize = 1024;
const WORKERS_MAX: usize = 256;

/// The threads asked for, or all cores, shared out among so many.
fn threads(asked: Option<usize>, among: usize) -> Result<Threads, Failure> {
    match asked {
        None => {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            Ok(Threads((cores / among.max(1)).max(1)))
        }
        Some(threads) if (1..=THREADS_MAX).contains(&threads) => Ok(Threads(threads)),
        Some(threads) => Err(Failure::input(format!(
            "--threads must be from 1 to {THREADS_MAX}, not {threads}"
        ))),
    }
}

/// Refuses flags of a node that nothing can come of, and finds the device that they mean.
fn check_compute(flags: &ComputeFlags) -> Result<Device, Failure> {
    if !(1..=WORKERS_MAX).contains(&flags.workers) {
        return Err(Failure::input(format!(
            "--workers must be from 1 to {WORKERS_MAX}, not {}",
            flags.workers
        )));
    }
    device(&flags.device, flags.precision.as_deref())
}

/// The device that flags mean.
fn device(device: &str, precision: Option<&str>) -> Result<Device, Failure> {
    let choice = device.parse().map_err(Failure::input)?;
    let precision = precision.map(str::parse).transpose().map_err(Failure::input)?;
    Device::find(choice, precision).map_err(Failure::bad)
}

/// How the cluster's members know each other.
fn security(flags: &SecurityFlags) -> Result<Security, Failure> {
    match &flags.credentials {
        Some(file) => {
            let credentials = Credentials::read(file).map_err(Failure::bad)?;
            Ok(Security::Credentials(Arc::new(credentials)))
        }
        None if flags.insecure => Ok(Security::Insecure),
        None => Err(Failure::input(
            "give the cluster's credentials with --credentials FILE ('tau credentials new FILE' makes some), or --insecure within one machine",
        )),
    }
}

/// The address that a text names, with a host's name or a number.
async fn resolve(text: &str) -> Result<SocketAddr, Failure> {
    let found = tokio::net::lookup_host(text).await;
    found.ok().and_then(|mut found| found.next()).ok_or_else(|| {
        Failure::input(format!(
            "'{text}' is no address: give HOST:PORT, for example 192.168.1.10:7700"
        ))
    })
}

/// Runs something that waits a lot.
fn run_async<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        // A node's work is spread over few actors; more threads would only wake each other.
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(Failure::work)?
        .block_on(work)
}

/// Connects to a cluster.
async fn connect(cluster: &Cluster) -> Result<Connection, Failure> {
    let security = security(&cluster.security)?;
    let address = resolve(&cluster.cluster).await?;
    Connection::open(address, security).await.map_err(Failure::work)
}

/// Asks a simple question.
pub(crate) async fn ask(connection: &Connection, request: Request) -> Result<Reply, Failure> {
    connection.ask(request, ANSWER_LIMIT).await.map_err(Failure::work)
}

/// What a reply means that was not expected.
pub(crate) fn unexpected(reply: Reply) -> Failure {
    match reply {
        Reply::Refused(reasons) => Failure::Refused(reasons),
        _ => Failure::Failed("the node gave an answer to another question: bring it to the same release".into()),
    }
}
