//! Settings with which a node is started.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::data_inspection::DataReader;
use super::workers::WorkerCommand;
use crate::timing::Timing;
use crate::transport::Security;

/// Settings with which a node is started.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Name of the node; by default it follows from the host name and the node's id.
    pub name: Option<String>,
    /// Address on which the node listens; port 0 takes any free port.
    pub listen: SocketAddr,
    /// Address at which other nodes reach this one, if it is not the one on which the node listens.
    pub advertise: Option<SocketAddr>,
    /// Protection of the node's connections: TLS, or plain text within one machine.
    pub security: Security,
    /// Folder of the node's socket for workers and of the files of its runs.
    pub dir: PathBuf,
    /// True to keep the final weights of a run in a checkpoint, so that the run can be continued later.
    pub keeps_runs: bool,
    /// Command that starts the node's workers.
    pub workers: WorkerCommand,
    /// Function that reads the data that clients ask about.
    pub data: DataReader,
    /// Tau release that the node reports to others.
    pub version: String,
    /// Intervals and time limits of the node.
    pub timing: Timing,
}
