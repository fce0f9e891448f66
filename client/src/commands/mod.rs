//! One file for each command.

pub(crate) mod checkpoint;
pub(crate) mod credentials;
pub(crate) mod doctor;
pub(crate) mod down;
pub(crate) mod evaluate;
pub(crate) mod export;
pub(crate) mod manual;
pub(crate) mod node;
pub(crate) mod nodes;
pub(crate) mod page;
pub(crate) mod predict;
pub(crate) mod report;
pub(crate) mod show;
pub(crate) mod start;
pub(crate) mod stats;
pub(crate) mod stop;
pub(crate) mod study;
pub(crate) mod token;
pub(crate) mod train;
pub(crate) mod up;
pub(crate) mod worker;

use protocol::reasons::texts;
use std::net::{Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::worker::device::Device;
use ::worker::ops::Threads;
use communicator::transport::{Credentials, Security};
use protocol::wire::control::Reply;

use crate::args::{CREDENTIALS_VARIABLE, Cluster, ComputeFlags, SecurityFlags};
use crate::config_file::ConfigFile;
use crate::contact::Contact;
use crate::failure::Failure;
use crate::quantity;
use crate::token::Token;

/// More are a slip of the hand, and would only wait for each other.
const THREADS_MAX: usize = 1024;
const WORKERS_MAX: usize = 256;
/// The port that nodes listen on unless they are told.
pub(crate) const PORT: u16 = 7700;

/// The threads asked for, or all cores, shared out among so many.
pub(crate) fn threads(asked: Option<usize>, among: usize) -> Result<Threads, Failure> {
    match asked {
        None => {
            let cores = cores();
            Ok(Threads((cores / among.max(1)).max(1)))
        }
        Some(threads) if (1..=THREADS_MAX).contains(&threads) => Ok(Threads(threads)),
        Some(threads) => Err(Failure::input(format!(
            "--threads must be from 1 to {THREADS_MAX}, not {threads}"
        ))),
    }
}

/// The cores of this machine that the process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// What people have to know who have more threads train on this machine's CPU than it has cores.
pub(crate) fn crowded(workers: usize, threads: usize, device: &Device) -> Option<String> {
    let cores = cores();
    let all = workers.saturating_mul(threads);
    (matches!(device, Device::Cpu) && all > cores).then(|| {
        format!(
            "{} with {} each share {} and slow each other down: lower --nodes, --workers or --threads, training is \
             as fast",
            quantity::of(workers, "worker"),
            quantity::of(threads, "thread"),
            quantity::of(cores, "core")
        )
    })
}

/// Refuses flags of a node that nothing can come of, and finds the device that they mean.
pub(crate) fn check_compute(flags: &ComputeFlags) -> Result<Device, Failure> {
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

/// The folder that jobs may have data opened under: this process's own, unless another is given.
pub(crate) fn data_root(given: Option<&Path>) -> Result<PathBuf, Failure> {
    let root = given.unwrap_or(Path::new("."));
    let is_folder = root.canonicalize().ok().filter(|root| root.is_dir());
    is_folder.ok_or_else(|| {
        Failure::input(format!(
            "{} is not an existing folder: give the folder of the data with --data-root",
            root.display()
        ))
    })
}

/// How the cluster's members know each other.
fn security(flags: &SecurityFlags) -> Result<Security, Failure> {
    if flags.insecure {
        let by_flag = |file: &PathBuf| std::env::var_os(CREDENTIALS_VARIABLE).is_none_or(|said| said != **file);
        return if flags.credentials.as_ref().is_some_and(by_flag) {
            Err(Failure::input("give either --credentials or --insecure, not both"))
        } else {
            Ok(Security::Insecure)
        };
    }
    let file = credentials(flags.credentials.as_deref())?.ok_or_else(|| {
        Failure::input(
            "give the cluster's credentials with --credentials FILE ('tau credentials new FILE' creates them), or \
             --insecure if all nodes run on this machine",
        )
    })?;
    let credentials = Credentials::read(&file).map_err(Failure::bad)?;
    Ok(Security::Credentials(Arc::new(credentials)))
}

/// The file that holds the credentials: as given, or as the user's configuration has it.
pub(crate) fn credentials(given: Option<&Path>) -> Result<Option<PathBuf>, Failure> {
    match given {
        Some(file) => Ok(Some(file.to_owned())),
        None => Ok(ConfigFile::read()?.credentials),
    }
}

/// Addresses of the cluster's nodes: as given, or as the user's configuration has them.
fn cluster_nodes(given: &[String]) -> Result<Vec<String>, Failure> {
    let nodes = match given {
        [] => ConfigFile::read()?.cluster,
        given => given.to_vec(),
    };
    if nodes.is_empty() {
        return Err(Failure::input(
            "give the address of a node with --cluster HOST:PORT, in TAU_CLUSTER or in your config.toml",
        ));
    }
    Ok(nodes)
}

/// The addresses that texts name, with hosts' names or numbers. A name may stand for several: a node may listen on any.
async fn resolve(texts: &[String]) -> Result<Vec<SocketAddr>, Failure> {
    let mut addresses = Vec::new();
    for text in texts {
        let text = with_port(text).ok_or_else(|| {
            Failure::input(format!(
                "'{text}' is no address: give HOST:PORT, for example 192.168.1.10:{PORT}"
            ))
        })?;
        let found: Vec<SocketAddr> = tokio::net::lookup_host(&text).await.into_iter().flatten().collect();
        if found.is_empty() {
            let host = text.rsplit_once(':').map_or(&*text, |(host, _)| host);
            return Err(Failure::input(format!(
                "the host name '{host}' cannot be resolved: correct it, or give the host's IP address"
            )));
        }
        addresses.extend(found);
    }
    Ok(addresses)
}

/// An address with a port: the usual one, where none is given. None if it is no address.
fn with_port(text: &str) -> Option<String> {
    if text.parse::<Ipv6Addr>().is_ok() {
        return Some(format!("[{text}]:{PORT}"));
    }
    // Colons within the brackets of a number are none of a port.
    let end = text.rfind(']').map_or(0, |end| end + 1);
    let (host, port) = match text[end..].split_once(':') {
        Some((name, port)) => (&text[..end + name.len()], port.parse().ok()?),
        None => (text, PORT),
    };
    let is_host = !host.is_empty() && !host.contains(char::is_whitespace) && !host.contains('/');
    is_host.then(|| format!("{host}:{port}"))
}

/// An address of this machine, by a host's name or in numbers; `:7700` is that port of all its addresses. Of several that a
/// name stands for the first one counts.
pub(crate) async fn own_address(flag: &str, text: &str) -> Result<SocketAddr, Failure> {
    let anywhere = if text.starts_with(':') { "0.0.0.0" } else { "" };
    let found = tokio::net::lookup_host(format!("{anywhere}{text}")).await;
    let address = found.ok().and_then(|mut found| found.next());
    address.ok_or_else(|| {
        Failure::input(format!(
            "{flag} {text} is no valid address: give HOST:PORT, for example 192.168.1.10:7700, or :7700"
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

/// Where nodes of a cluster are, and how its members know each other: by flags, or by a token that says both.
async fn access(nodes: &[String], flags: &SecurityFlags) -> Result<(Vec<SocketAddr>, Security), Failure> {
    let token = nodes.iter().find_map(|text| Token::of(text));
    match token.transpose().map_err(Failure::input)? {
        Some(_) if flags.insecure || nodes.len() > 1 => Err(Failure::input(
            "a token already holds the cluster's addresses and credentials: give it without other addresses and \
             without --insecure",
        )),
        Some(token) => {
            let addresses = resolve(&token.addresses).await?;
            Ok((addresses, Security::Credentials(Arc::new(token.credentials))))
        }
        None => {
            let security = security(flags)?;
            Ok((resolve(nodes).await?, security))
        }
    }
}

/// Gets in contact with a cluster.
async fn contact(cluster: &Cluster) -> Result<Contact, Failure> {
    let (addresses, security) = access(&cluster_nodes(&cluster.cluster)?, &cluster.security).await?;
    Contact::new(addresses, security).await
}

/// What a reply means that was not expected.
pub(crate) fn unexpected(reply: Reply) -> Failure {
    match reply {
        Reply::Refused(reasons) => Failure::Refused(texts(&reasons)),
        Reply::Failed(reason) => Failure::Refused(vec![reason.to_string()]),
        _ => Failure::Failed(
            "the node sent a reply of the wrong kind: update the node to the same release of Tau \
                              as this program"
                .into(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_a_port_has_the_usual_one() {
        for (text, expected) in [
            ("node-1", "node-1:7700"),
            ("node-1:80", "node-1:80"),
            ("192.0.2.1", "192.0.2.1:7700"),
            ("::1", "[::1]:7700"),
            ("[::1]", "[::1]:7700"),
            ("[::1]:80", "[::1]:80"),
        ] {
            assert_eq!(with_port(text).as_deref(), Some(expected), "{text}");
        }
        for text in [
            "",
            ":7700",
            "node-1:",
            "node-1:http",
            "node-1:70000",
            "a:b:c",
            "two words",
            "./file",
        ] {
            assert_eq!(with_port(text), None, "{text}");
        }
    }
}
