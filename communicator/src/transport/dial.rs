//! Dialling another node.

use std::net::SocketAddr;
use std::time::Duration;

use thiserror::Error;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls;
use tokio_rustls::rustls::pki_types::ServerName;

use super::credentials::SUBJECT;
use super::{Credentials, Plane, tls};

/// Why another node was not reached.
#[derive(Debug, Error)]
pub enum DialError {
    /// Nobody listens there, or the way is closed.
    #[error("nobody answers at {address}: check the address, and that a node runs there")]
    Unreachable {
        /// Where.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// It took too long.
    #[error("{address} did not answer within {seconds} s: check the address, and that nothing blocks the way")]
    TimedOut {
        /// Where.
        address: SocketAddr,
        /// How long was waited.
        seconds: u64,
    },
    /// Who answered is no member of the same cluster.
    #[error("{address} does not hold the same credentials, or is no node of Tau's: give all nodes the same file")]
    Refused {
        /// Where.
        address: SocketAddr,
        /// What went wrong in the handshake.
        source: std::io::Error,
    },
    /// These credentials cannot be used.
    #[error("the credentials cannot be used: {0}")]
    Credentials(#[from] rustls::Error),
}

/// Connects to a node and proves membership to each other, all within `limit`.
///
/// The last word of a handshake is the other side's: a node that refuses these credentials ends the connection, which
/// shows at the first read from it.
pub async fn dial(
    address: SocketAddr,
    plane: Plane,
    credentials: &Credentials,
    limit: Duration,
) -> Result<TlsStream<TcpStream>, DialError> {
    let connector = TlsConnector::from(tls::client(credentials, plane)?);
    let connect = async {
        let stream = TcpStream::connect(address)
            .await
            .map_err(|source| DialError::Unreachable { address, source })?;
        // Batches are written whole: waiting for more to fill a packet would only make them stale.
        stream
            .set_nodelay(true)
            .map_err(|source| DialError::Unreachable { address, source })?;
        // The name is a constant of ours, and a valid one; nobody checks it.
        let name = ServerName::try_from(SUBJECT).map_err(|_| rustls::Error::UnsupportedNameType)?;
        connector
            .connect(name, stream)
            .await
            .map_err(|source| DialError::Refused { address, source })
    };
    let seconds = limit.as_secs();
    timeout(limit, connect)
        .await
        .unwrap_or(Err(DialError::TimedOut { address, seconds }))
}
