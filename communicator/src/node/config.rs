//! What a node is started with.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::data_inspection::DataReader;
use super::workers::WorkerCommand;
use crate::timing::Timing;
use crate::transport::Security;

/// What a node is started with.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// What it is called; without that, after the machine and its id.
    pub name: Option<String>,
    /// Where it listens; port 0 takes any.
    pub listen: SocketAddr,
    /// Where others reach it, if that is another address.
    pub advertise: Option<SocketAddr>,
    /// How it knows its own.
    pub security: Security,
    /// Where it keeps its socket and saves models.
    pub dir: PathBuf,
    /// Whether it keeps what a run has come to in a checkpoint, so that the run can be gone on with.
    pub keeps_runs: bool,
    /// How workers are started.
    pub workers: WorkerCommand,
    /// How it reads data when it is asked what lies here.
    pub data: DataReader,
    /// The release that it says it is.
    pub version: String,
    /// How long it waits for what.
    pub timing: Timing,
}
