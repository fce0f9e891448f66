//! Recognition of members: by credentials or, on one machine only, not at all.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};

use super::credentials::Credentials;

/// Protection of a node's connections: TLS with credentials, or none within one machine.
#[derive(Clone, Debug)]
pub enum Security {
    /// TLS 1.3, with both sides proving that they hold these credentials.
    Credentials(Arc<Credentials>),
    /// Plain text, between addresses of this machine.
    Insecure,
}

/// Plain text was requested for this address, which is not on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{0} is not a loopback address: without credentials Tau uses only 127.0.0.1 and [::1]")]
pub struct NotLoopback(pub SocketAddr);

impl Security {
    /// Checks that these settings allow a connection with this address: plain text is refused over a network.
    pub fn check(&self, address: SocketAddr) -> Result<(), NotLoopback> {
        match self {
            Self::Insecure if !address.ip().is_loopback() => Err(NotLoopback(address)),
            _ => Ok(()),
        }
    }
}

/// A connection: bytes in both directions.
pub trait Connection: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Connection for T {}

/// Connection whose other side has proved to hold the cluster's credentials or, without TLS, is on this machine.
pub type Stream = Box<dyn Connection>;

impl fmt::Debug for dyn Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connection")
    }
}
