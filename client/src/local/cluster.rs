//! A cluster of nodes on this machine: processes on the loopback interface, with real sockets and TLS and temporary
//! credentials. However it ends, it leaves nothing behind.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use communicator::Timing;
use communicator::transport::{Credentials, Security};
use protocol::wire::control::{Reply, Request, SILENT};

use super::rescue;
use super::scratch::{self, CREDENTIALS, Scratch};
use crate::args::ComputeFlags;
use crate::contact::Contact;
use crate::failure::Failure;
use crate::run::interrupt;
use crate::run::out_folder::OutFolder;

/// Time that all nodes of a local cluster may take to find each other and start their workers.
const READY_LIMIT: Duration = Duration::from_mins(1);
/// Time that a node of a local cluster may take to end by itself before it is killed.
const END_LIMIT: Duration = Timing::DEFAULT.stop_limit();
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A running cluster of nodes on this machine, which end when this value is dropped.
pub(crate) struct LocalCluster {
    nodes: Vec<Child>,
    address: SocketAddr,
    security: Security,
    /// Temporary folder of a local cluster, for its credentials, sockets and the nodes' own models.
    pub(crate) scratch: Scratch,
}

impl LocalCluster {
    /// Starts a cluster of this many nodes on this machine, without waiting until they are ready.
    pub(crate) fn start(nodes: usize, flags: &ComputeFlags) -> Result<Self, Failure> {
        let io = |what: &str| {
            let what = what.to_string();
            move |error: std::io::Error| Failure::Failed(format!("{what}: {error}"))
        };
        let scratch = Scratch::new().map_err(io("cannot create a temporary folder for the nodes"))?;
        let folder = scratch.path().to_path_buf();
        let credentials = folder.join(CREDENTIALS);
        let security = Security::Credentials(Arc::new(Credentials::create(&credentials).map_err(Failure::work)?));
        let mut cluster = Self {
            nodes: Vec::new(),
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            security,
            scratch,
        };
        for number in 0..nodes {
            let seed = (number > 0).then_some(cluster.address);
            let mut node = node_command(number, seed, &credentials, &folder, flags)?
                .spawn()
                .map_err(io("cannot start a node process"))?;
            let stdout = node.stdout.take();
            cluster.nodes.push(node);
            cluster.kill_at_exit(None);
            // Only the first node's address is waited for: the other nodes join by it.
            if number == 0 {
                cluster.address = listening(stdout)?;
            }
        }
        Ok(cluster)
    }

    /// Returns a client's access to the local cluster, once all its nodes and workers are ready.
    pub(crate) async fn contact(&mut self, workers: usize) -> Result<Contact, Failure> {
        let contact = Contact::new(vec![self.address], self.security.clone()).await?;
        let started = Instant::now();
        let wanted = self.nodes.len();
        while started.elapsed() < READY_LIMIT && !interrupt::asked() {
            if let Reply::Nodes(nodes) = contact.ask(Request::Nodes).await? {
                let ready = nodes
                    .iter()
                    .filter(|node| node.state != SILENT && node.workers >= workers);
                if ready.count() == wanted {
                    return Ok(contact);
                }
            }
            self.check()?;
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        if interrupt::asked() {
            return Err(Failure::Failed("interrupted before training began".into()));
        }
        Err(Failure::Failed(format!(
            "the nodes and their workers were not ready within {READY_LIMIT:?}: is this machine overloaded?"
        )))
    }

    /// Fails if a node of the local cluster has ended, which has printed the reason on standard error itself.
    fn check(&mut self) -> Result<(), Failure> {
        for node in &mut self.nodes {
            if let Ok(Some(status)) = node.try_wait() {
                return Err(Failure::Failed(format!(
                    "a node ended before training began ({status}); its error is printed above"
                )));
            }
        }
        Ok(())
    }

    /// Registers that the nodes are killed if this process exits at once. If `out` is given, their saved files are
    /// copied there first.
    pub(crate) fn kill_at_exit(&self, out: Option<&OutFolder>) {
        let processes: Vec<String> = self.nodes.iter().map(|node| node.id().to_string()).collect();
        let (folder, out) = (self.scratch.path().to_path_buf(), out.cloned());
        interrupt::at_exit(move |said| {
            if out.is_some() {
                rescue::keep_until_salvaged(&folder, said);
            }
            // Workers end when the sockets to their nodes close. An already ended node is no error, and output to a
            // terminal that is stopped must not block the kill.
            let mut kill = Command::new("kill");
            kill.arg("-KILL").args(processes);
            let _ = kill.stdout(Stdio::null()).stderr(Stdio::null()).status();
            match out {
                Some(out) => rescue::salvage(&folder, &out, said),
                None => scratch::remove(&folder),
            }
        });
    }
}

impl Drop for LocalCluster {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            // Nodes stop when their standard input ends.
            drop(node.stdin.take());
        }
        let started = Instant::now();
        for node in &mut self.nodes {
            while started.elapsed() < END_LIMIT && matches!(node.try_wait(), Ok(None)) {
                std::thread::sleep(LOOK_AGAIN);
            }
            let _ = node.kill();
            let _ = node.wait();
        }
        interrupt::forget_at_exit();
    }
}

/// Returns the path of this program's executable.
pub(crate) fn program() -> Result<PathBuf, Failure> {
    std::env::current_exe()
        .map_err(|error| Failure::Failed(format!("cannot find the path of this program's executable: {error}")))
}

fn node_command(
    number: usize,
    seed: Option<SocketAddr>,
    credentials: &Path,
    folder: &Path,
    flags: &ComputeFlags,
) -> Result<Command, Failure> {
    let mut command = Command::new(program()?);
    match seed {
        None => command.arg("seed"),
        Some(seed) => command.args(["join", &seed.to_string()]),
    };
    command
        .args(["--listen", "127.0.0.1:0", "--json", "--tied"])
        .arg("--credentials")
        .arg(credentials)
        .arg("--dir")
        .arg(folder.join(number.to_string()))
        .args(["--device", &flags.device])
        .args(["--workers", &flags.workers.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    if let Some(threads) = flags.threads {
        command.args(["--threads", &threads.to_string()]);
    }
    if let Some(precision) = &flags.precision {
        command.args(["--precision", precision]);
    }
    if let Some(root) = &flags.data_root {
        command.arg("--data-root").arg(root);
    }
    if let Some(python) = &flags.python {
        command.arg("--python").arg(python);
    }
    // Ctrl-C in a terminal is for this process, which then ends its nodes in good order.
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    Ok(command)
}

/// Returns the address in the first line that a starting node prints.
fn listening(stdout: Option<std::process::ChildStdout>) -> Result<SocketAddr, Failure> {
    let mut line = String::new();
    if let Some(stdout) = stdout {
        let _ = BufReader::new(stdout).read_line(&mut line);
    }
    let address = serde_json::from_str::<serde_json::Value>(&line)
        .ok()
        .and_then(|line| line["address"].as_str()?.parse().ok());
    address.ok_or_else(|| Failure::Failed("the first node did not start; its error is printed above".into()))
}
