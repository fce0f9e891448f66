//! Reasons for which a node did not start, or had to stop.

use protocol::reasons::Unwelcome;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

use crate::control::{NoKey, StartError};
use crate::timing::TimingError;
use crate::transport::{DialError, NotLoopback};

/// Maximum length in bytes of the path of a Unix socket on Linux.
pub(super) const SOCKET_PATH_MAX: usize = 107;

/// Reason for which a node did not start, or had to stop.
#[derive(Debug, Error)]
pub enum NodeError {
    /// The times in the node's settings contradict each other.
    #[error(transparent)]
    Timing(#[from] TimingError),
    /// The node was to speak plain text with addresses outside of this machine.
    #[error(transparent)]
    NotLoopback(#[from] NotLoopback),
    /// The node cannot listen on the address that it was given.
    #[error("{address} cannot be listened on: give another address or port with --listen")]
    Listen {
        address: SocketAddr,
        source: std::io::Error,
    },
    /// No address of this machine was found at which other nodes could reach it.
    #[error(
        "the node listens on {0}, and no address of this machine was found that other nodes can dial: give one with \
         --advertise"
    )]
    NoAddress(SocketAddr),
    /// The node's folder cannot be used.
    #[error("{dir} cannot be used as the node's folder: give another one with --dir")]
    Dir { dir: PathBuf, source: std::io::Error },
    /// The path of the socket for workers is too long.
    #[error(
        "the socket path {path} is longer than {SOCKET_PATH_MAX} bytes: choose a shorter --dir, or a shorter TMPDIR for \
         'tau train'"
    )]
    SocketPath { path: PathBuf },
    /// The control plane did not start.
    #[error(transparent)]
    Sessions(#[from] StartError),
    /// The key pair that gives the node its id could not be generated.
    #[error(transparent)]
    NoKey(#[from] NoKey),
    /// An actor of the node did not start.
    #[error("the node could not be started: {0}")]
    Actor(#[from] ractor::SpawnErr),
    /// The only address given for joining a cluster is the node's own.
    #[error("{0} is this node itself: name another node of the cluster, or start the first one with 'tau seed'")]
    Oneself(SocketAddr),
    /// No node at the addresses given for joining a cluster was reached in time.
    #[error("no seed node was reached within {limit:?}; the last error was: {answer}")]
    NoSeed {
        /// Time for which the node tried to reach a cluster.
        limit: Duration,
        /// Sentence about the last failed attempt to reach a cluster.
        answer: String,
    },
    /// All addresses given for joining refuse the connection: no member of the same cluster is there.
    #[error(transparent)]
    Refused(DialError),
    /// The cluster does not accept this node as a member.
    #[error("{0}")]
    Unwelcome(Unwelcome),
    /// The node stops because one of its actors failed.
    #[error("a part of the node failed: {0}; this is a fault in Tau, please report it")]
    Failed(String),
}
