//! Dialling another node: a TCP connection on which both sides prove membership.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls;
use tokio_rustls::rustls::pki_types::ServerName;

use super::credentials::{Credentials, SUBJECT};
use super::security::{NotLoopback, Security, Stream};
use super::tls::{self, Plane};
use super::wire::CountedStream;

/// Reason for which a node was not reached.
#[derive(Debug, Error)]
pub enum DialError {
    /// No process listens at the address, or the network does not lead there.
    #[error("cannot connect to {address}: check the address, and that a node runs there")]
    Unreachable {
        address: SocketAddr,
        source: std::io::Error,
    },
    /// The process at the address did not answer in time.
    #[error("{address} did not answer within {limit:?}: check the address, and that no firewall blocks the connection")]
    TimedOut {
        address: SocketAddr,
        /// Time limit of the attempt to connect.
        limit: Duration,
    },
    /// The process that answered is no member of the same cluster.
    #[error(
        "{address} does not have the same credentials, or is not a Tau node: give all nodes the same credentials file"
    )]
    Refused {
        address: SocketAddr,
        /// Error in the TLS handshake.
        source: std::io::Error,
    },
    /// The other side ended the connection during the handshake.
    #[error("{address} closed the connection: the node may be busy, about to stop, or run with --insecure; try again")]
    Ended {
        address: SocketAddr,
        source: std::io::Error,
    },
    /// A connection in plain text was requested to an address outside of this machine.
    #[error(transparent)]
    NotLoopback(#[from] NotLoopback),
    /// The credentials of this process cannot be used.
    #[error("the credentials cannot be used: {0}")]
    Credentials(#[from] rustls::Error),
}

impl DialError {
    /// Returns true if the other machine refused the connection: no process listens there, or a firewall rejects it.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        let refused = std::io::ErrorKind::ConnectionRefused;
        matches!(self, Self::Unreachable { source, .. } if source.kind() == refused)
    }
}

/// Connects to a node; both sides prove membership to each other, all within `limit`.
///
/// The last message of a handshake is the other side's: a node that refuses these credentials ends the connection,
/// which shows at the first read from the stream.
pub async fn dial(
    address: SocketAddr,
    plane: Plane,
    security: &Security,
    limit: Duration,
) -> Result<Stream, DialError> {
    security.check(address)?;
    let connect = async {
        let unreachable = |source| DialError::Unreachable { address, source };
        let stream = TcpStream::connect(address).await.map_err(unreachable)?;
        // Waiting for more bytes to fill a packet would only make batches stale.
        stream.set_nodelay(true).map_err(unreachable)?;
        let mut stream = CountedStream(stream);
        match security {
            Security::Credentials(credentials) => shake_hands(stream, address, plane, credentials).await,
            Security::Insecure => {
                stream
                    .write_u8(plane.byte())
                    .await
                    .map_err(|source| DialError::Ended { address, source })?;
                Ok(Box::new(stream) as Stream)
            }
        }
    };
    timeout(limit, connect)
        .await
        .unwrap_or(Err(DialError::TimedOut { address, limit }))
}

/// Returns true if the process at an address shows a certificate, as nodes with credentials do.
pub(crate) async fn speaks_tls(address: SocketAddr, limit: Duration) -> bool {
    let Ok(nobodys) = Credentials::unknown() else {
        return false;
    };
    let security = Security::Credentials(Arc::new(nobodys));
    match dial(address, Plane::Control, &security, limit).await {
        Err(DialError::Refused { source, .. }) => {
            let refused = source.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
            matches!(refused, Some(rustls::Error::InvalidCertificate(_)))
        }
        _ => false,
    }
}

async fn shake_hands(
    stream: CountedStream,
    address: SocketAddr,
    plane: Plane,
    credentials: &Credentials,
) -> Result<Stream, DialError> {
    let connector = TlsConnector::from(tls::client(credentials, plane)?);
    // The name is a valid constant of Tau's, which the other side does not check.
    let name = ServerName::try_from(SUBJECT).map_err(|_| rustls::Error::UnsupportedNameType)?;
    let stream = connector.connect(name, stream).await.map_err(|source| {
        // rustls wraps its own refusals; every other error comes from the network.
        let refused = source.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        if refused.is_some() {
            DialError::Refused { address, source }
        } else {
            DialError::Ended { address, source }
        }
    })?;
    if Plane::of_protocol(stream.get_ref().1.alpn_protocol()) == Some(plane) {
        Ok(Box::new(stream))
    } else {
        let source = std::io::Error::other("the node does not serve the requested plane (control or data)");
        Err(DialError::Refused { address, source })
    }
}
