//! What a node is started with.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::workers::WorkerCommand;
use crate::timing::Timing;
use crate::transport::Security;

/// What a node is started with.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Where it listens; port 0 takes any.
    pub listen: SocketAddr,
    /// Where others reach it, if that is another address.
    pub advertise: Option<SocketAddr>,
    /// How it knows its own.
    pub security: Security,
    /// Where it keeps its socket and saves models.
    pub dir: PathBuf,
    /// How workers are started.
    pub workers: WorkerCommand,
    /// The release that it says it is.
    pub version: String,
    /// How long it waits for what.
    pub timing: Timing,
}
