//! The accept loop: strangers cost little, and for a short time.
//!
//! Until a connection has proven membership it is *half-open*. Only so many are kept; when one more comes, another goes:
//! the oldest of those that have said nothing, from where most of them come. So connections that say nothing displace each
//! other, while a member's handshake gets through, even when it has a long way.

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

/// What strangers are allowed to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcceptLimits {
    /// Half-open connections at a time. Each takes a task and TLS's buffers, some tens of kilobytes.
    pub half_open_max: usize,
    /// How long a handshake may take.
    pub handshake: Duration,
}

impl AcceptLimits {
    /// For a process that may have so many descriptors: strangers take no more than a quarter of them.
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
    /// What it is for.
    pub plane: Plane,
    /// Where it comes from.
    pub address: SocketAddr,
}

/// Waits for other nodes on one port.
pub struct Acceptor {
    listener: TcpListener,
    /// None where plain text is spoken.
    tls: Option<TlsAcceptor>,
    limits: AcceptLimits,
}

/// How long to wait after the system has refused to accept, so that it is no busy loop.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// Whether this process, or the whole system, has as many files and sockets open as it may.
fn out_of_descriptors(error: &std::io::Error) -> bool {
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    matches!(error.raw_os_error(), Some(ENFILE | EMFILE))
}

impl Acceptor {
    /// An acceptor on a bound port.
    pub fn new(listener: TcpListener, security: &Security, limits: AcceptLimits) -> Result<Self, rustls::Error> {
        Ok(Self {
            listener,
            tls: tls::acceptor(security)?,
            limits,
        })
    }

    /// Accepts until nobody takes the connections any more. Dropping the future ends everything that is half-open.
    pub async fn run(self, accepted: mpsc::Sender<Accepted>) {
        let Self { listener, tls, limits } = self;
        let mut handshakes = JoinSet::new();
        let mut half_open: HalfOpen<AbortHandle> = HalfOpen::new(limits.half_open_max);
        let refusals = LogThrottle::default();
        loop {
            let connection = tokio::select! {
                // What is finished makes room before anything new is taken.
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
                    // Somebody makes room, as when the table is full. There is room once its task is gone.
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

/// Passes a member's connection on. Nobody waits here: a node too busy to take it drops it, and the member dials again.
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
