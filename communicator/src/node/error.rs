//! Why a node did not start, or had to stop.

use protocol::reasons::Unwelcome;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

use crate::control::{NoKey, StartError};
use crate::timing::TimingError;
use crate::transport::{DialError, NotLoopback};

/// The longest path that a socket can have on Linux.
pub(super) const SOCKET_PATH_MAX: usize = 107;

/// Why a node did not start, or had to stop.
#[derive(Debug, Error)]
pub enum NodeError {
    /// The times that it was given contradict each other.
    #[error(transparent)]
    Timing(#[from] TimingError),
    /// Plain text was asked for over a network.
    #[error(transparent)]
    NotLoopback(#[from] NotLoopback),
    /// The address cannot be listened on.
    #[error("{address} cannot be listened on: give another address or port with --listen")]
    Listen {
        address: SocketAddr,
        source: std::io::Error,
    },
    /// Nobody knows under which address others reach this node.
    #[error(
        "the node listens on {0}, and no address of this machine was found that other nodes can dial: give one with \
         --advertise"
    )]
    NoAddress(SocketAddr),
    /// The folder cannot be used.
    #[error("{dir} cannot be used as the node's folder: give another one with --dir")]
    Dir { dir: PathBuf, source: std::io::Error },
    /// The socket for workers would have too long a path.
    #[error(
        "the socket path {path} is longer than {SOCKET_PATH_MAX} bytes: choose a shorter --dir, or a shorter TMPDIR for \
         'tau train'"
    )]
    SocketPath { path: PathBuf },
    /// The control plane did not start.
    #[error(transparent)]
    Sessions(#[from] StartError),
    /// The node has no name.
    #[error(transparent)]
    NoKey(#[from] NoKey),
    /// An actor did not start.
    #[error("the node could not be started: {0}")]
    Actor(#[from] ractor::SpawnErr),
    /// The only seed is the node itself.
    #[error("{0} is this node itself: name another node of the cluster, or start the first one with 'tau seed'")]
    Oneself(SocketAddr),
    /// Seeds were tried in vain.
    #[error("no seed node was reached within {limit:?}; the last error was: {answer}")]
    NoSeed {
        /// For how long they were tried.
        limit: Duration,
        /// What was heard last.
        answer: String,
    },
    /// A seed is no member of the same cluster.
    #[error(transparent)]
    Refused(DialError),
    /// The cluster does not want this node.
    #[error("{0}")]
    Unwelcome(Unwelcome),
    /// A part of the node failed.
    #[error("a part of the node failed: {0}; this is a fault in Tau, please report it")]
    Failed(String),
}
