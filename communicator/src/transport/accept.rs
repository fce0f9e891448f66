//! The accept loop, which serves strangers at little cost and for a short time.
//!
//! Until a connection has proven membership it is *half-open*. The number of half-open connections is limited; when one
//! more comes, another is displaced: the oldest silent one of the address that has most. So silent connections displace
//! each other, while a member's handshake gets through, even over a slow network.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;
use tokio_rustls::rustls::server::Acceptor as ClientHello;
use tokio_rustls::{LazyConfigAcceptor, TlsAcceptor, rustls};

use super::half_open::{HalfOpen, HelloReceived};
use super::security::{Security, Stream};
use super::tls::{self, Plane};
use super::wire::CountedStream;
use crate::log_throttle::LogThrottle;
use crate::timing::Timing;

/// Limits for connections that have not proven membership yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcceptLimits {
    /// Maximum number of connections that have not proven membership yet. Each takes a task and TLS's buffers, some
    /// tens of kilobytes.
    pub half_open_max: usize,
    /// Time limit of a handshake.
    pub handshake: Duration,
}

impl AcceptLimits {
    /// Returns the limits for a process that may have this many files and sockets open: connections that have not
    /// proven membership take no more than a quarter of them.
    #[must_use]
    pub fn within(descriptors: usize) -> Self {
        let usual = Self::default();
        Self {
            half_open_max: usual.half_open_max.min(descriptors / 4).max(1),
            ..usual
        }
    }
}

impl Default for AcceptLimits {
    fn default() -> Self {
        Self {
            half_open_max: 256,
            handshake: Timing::DEFAULT.calls.handshake,
        }
    }
}

/// A connection whose other side has proven that it holds the credentials.
#[derive(Debug)]
pub struct Accepted {
    pub stream: Stream,
    /// Plane (control or data) that the connection is for.
    pub plane: Plane,
    /// Address of the other side of the connection.
    pub address: SocketAddr,
}

/// Accepts connections on one port, and has their other sides prove membership.
pub struct Acceptor {
    listener: TcpListener,
    /// TLS acceptor; `None` if plain text is spoken.
    tls: Option<TlsAcceptor>,
    limits: AcceptLimits,
}

/// Pause after the system has failed to accept a connection, so that the loop does not spin.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// Returns true if accepting failed because this process, or the whole system, has as many files and sockets open as it
/// may.
fn out_of_descriptors(error: &std::io::Error) -> bool {
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    matches!(error.raw_os_error(), Some(ENFILE | EMFILE))
}

impl Acceptor {
    /// Creates an acceptor of connections for a port that is already bound.
    pub fn new(listener: TcpListener, security: &Security, limits: AcceptLimits) -> Result<Self, rustls::Error> {
        Ok(Self {
            listener,
            tls: tls::acceptor(security)?,
            limits,
        })
    }

    /// Accepts connections and passes those of members to `accepted`, until its receiver is gone. Dropping the future
    /// ends all connections that have not yet proven membership.
    pub async fn run(self, accepted: mpsc::Sender<Accepted>) {
        let Self { listener, tls, limits } = self;
        let mut handshakes = JoinSet::new();
        let mut half_open: HalfOpen<AbortHandle> = HalfOpen::new(limits.half_open_max);
        let refusals = LogThrottle::default();
        loop {
            let connection = tokio::select! {
                // Finished handshakes make room before a new connection is taken.
                biased;
                () = accepted.closed() => return,
                Some(finished) = handshakes.join_next() => {
                    half_open.retain(|handshake| !handshake.is_finished());
                    hand_over(finished.ok().flatten(), &accepted);
                    continue;
                }
                connection = listener.accept() => connection,
            };
            let (stream, address) = match connection {
                Ok(connection) => connection,
                Err(error) => {
                    if refusals.is_due(Instant::now()) {
                        tracing::warn!(
                            event = "accept_failed",
                            %error,
                            "cannot accept connections; retrying: if too many files are open, raise 'ulimit -n'"
                        );
                    }
                    // A half-open connection is displaced, as when the table is full. The room is free once its task
                    // has ended.
                    if out_of_descriptors(&error)
                        && let Some(displaced) = half_open.displace()
                    {
                        displaced.abort();
                        let finished = handshakes.join_next().await.and_then(Result::ok);
                        hand_over(finished.flatten(), &accepted);
                    } else {
                        tokio::time::sleep(REFUSED_PAUSE).await;
                    }
                    continue;
                }
            };
            let hello_received = HelloReceived::default();
            let handshake = shake_hands(tls.clone(), stream, address, limits.handshake, hello_received.clone());
            let handle = handshakes.spawn(handshake);
            if let Some(displaced) = half_open.add(address.ip(), hello_received, handle) {
                displaced.abort();
            }
        }
    }
}

/// Passes a member's connection on without waiting: a node that is too busy to take it drops it, and the member dials
/// again.
fn hand_over(connection: Option<Accepted>, accepted: &mpsc::Sender<Accepted>) {
    if let Some(connection) = connection
        && let Err(error) = accepted.try_send(connection)
    {
        tracing::warn!(
            event = "connection_dropped", %error,
            "this node is too busy to take a cluster member's connection; the member dials again"
        );
    }
}

async fn shake_hands(
    tls: Option<TlsAcceptor>,
    stream: TcpStream,
    address: SocketAddr,
    limit: Duration,
    hello_received: HelloReceived,
) -> Option<Accepted> {
    let shaken = timeout(limit, async {
        stream.set_nodelay(true)?;
        let mut stream = CountedStream(stream);
        let (plane, stream): (_, Stream) = match tls {
            Some(tls) => {
                let hello = LazyConfigAcceptor::new(ClientHello::default(), stream).await?;
                hello_received.store(true, Ordering::Relaxed);
                let stream = hello.into_stream(tls.config().clone()).await?;
                (Plane::of_protocol(stream.get_ref().1.alpn_protocol()), Box::new(stream))
            }
            None => (Plane::of_byte(stream.read_u8().await?), Box::new(stream)),
        };
        plane
            .map(|plane| Accepted { stream, plane, address })
            .ok_or_else(|| std::io::Error::other("the connection names neither the control plane nor the data plane"))
    });
    match shaken.await {
        Ok(Ok(connection)) => return Some(connection),
        Ok(Err(error)) => tracing::debug!(
            event = "handshake_failed", %address, %error,
            "the handshake of an incoming connection failed"
        ),
        Err(_) => tracing::debug!(
            event = "handshake_timed_out", %address,
            "the handshake of an incoming connection timed out"
        ),
    }
    None
}
