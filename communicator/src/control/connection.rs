//! A client's connections to a cluster: sessions with its nodes, and requests over them.

use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

use protocol::ids::RunId;
use protocol::wire::control::{Reply, Request};
use protocol::wire::frame::Kind;
use protocol::wire::link::Hello;
use protocol::wire::link::MessageError;
use thiserror::Error;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::endpoint::{CallError, Endpoint};
use super::identity::{Identity, NoKey, Role};
use super::sessions::{Sessions, StartError};
use crate::link::{LinkError, read_frame, write_hello};
use crate::timing::{ControlTimes, Timing};
use crate::transport::{DialError, Plane, Security, dial, speaks_tls};

/// Time limits of a client, which assumes that nodes have the default ones.
const TIMES: ControlTimes = Timing::DEFAULT.control;

/// Reason for which a client has no connection to a node, or no model from it.
#[derive(Debug, Error)]
pub enum ConnectionError {
    /// The node could not be dialled.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The control plane (the connections for messages and requests) of this process did not start.
    #[error(transparent)]
    Sessions(#[from] StartError),
    /// This process could not draw the key pair that its name follows from.
    #[error(transparent)]
    NoKey(#[from] NoKey),
    /// The node accepted the connection and opened no session on it.
    #[error("{0} accepted the connection but opened no session: check that a Tau node of the same release runs there")]
    NoSession(SocketAddr),
    /// The node speaks TLS, and this client has no credentials.
    #[error("{0} asks for the cluster's credentials: give them with --credentials FILE in place of --insecure")]
    NeedsCredentials(SocketAddr),
    /// The transfer of a model from the node broke off.
    #[error("the model could not be fetched")]
    Fetch(#[source] LinkError),
    /// The node has no model of this run.
    #[error("node {0} does not have the model of run {1}: see the node's log for the reason")]
    NoModel(SocketAddr, RunId),
    /// The model could not be written to the client's file.
    #[error("the model could not be written")]
    Write(#[source] std::io::Error),
}

impl ConnectionError {
    /// Returns true if no process listens at the address: the node is gone, and with it all that it was asked to do.
    #[must_use]
    pub fn nobody_there(&self) -> bool {
        matches!(self, Self::Dial(error) if error.is_refused())
    }

    /// Returns true if trying again is of no use, because the error's cause is on this side.
    #[must_use]
    pub fn is_lasting(&self) -> bool {
        use DialError::{Credentials, NotLoopback, Refused};
        matches!(
            self,
            Self::Dial(Refused { .. } | NotLoopback(_) | Credentials(_))
                | Self::Sessions(_)
                | Self::NeedsCredentials(_)
        )
    }
}

/// A client's end of the control plane (the connections for messages and requests), from which it calls nodes. A
/// process has one.
pub struct Caller {
    security: Security,
    sessions: Sessions,
}

impl Caller {
    /// Starts a client's end of the control plane (the connections for messages and requests).
    pub async fn start(security: Security) -> Result<Self, ConnectionError> {
        // Sessions are looked up by their connections, so their events are not needed.
        let (events, _) = mpsc::unbounded_channel();
        let sessions = Sessions::start(Identity::draw(Role::Client)?, &Timing::DEFAULT, events).await?;
        Ok(Self { security, sessions })
    }

    /// Connects to a node and opens a session with it.
    pub async fn call(&self, address: SocketAddr) -> Result<Connection, ConnectionError> {
        let stream = dial(address, Plane::Control, &self.security, TIMES.call).await?;
        let opened = self.sessions.open(stream, address, None).await;
        // An earlier call to the same node may have been given up and come through after all: its session does not
        // count.
        let Ok(number) = opened else {
            return Err(self.no_session(address).await);
        };
        let ready = async {
            loop {
                if let Some(session) = self.sessions.session_on(number)
                    && let Some(endpoint) = self.sessions.endpoint(session)
                {
                    return (session, endpoint);
                }
                sleep(TIMES.look_again).await;
            }
        };
        let Ok((session, endpoint)) = timeout(TIMES.call, ready).await else {
            return Err(self.no_session(address).await);
        };
        Ok(Connection {
            address,
            session,
            sessions: self.sessions.clone(),
            endpoint,
        })
    }

    /// Finds out why a node that accepted the connection has opened no session on it: it may ask for credentials.
    async fn no_session(&self, address: SocketAddr) -> ConnectionError {
        if matches!(self.security, Security::Insecure) && speaks_tls(address, TIMES.call).await {
            ConnectionError::NeedsCredentials(address)
        } else {
            ConnectionError::NoSession(address)
        }
    }

    /// Fetches the model file of a run from a node, over the data plane.
    pub async fn fetch_model(
        &self,
        address: SocketAddr,
        run: RunId,
        file: &mut impl Write,
    ) -> Result<(), ConnectionError> {
        let mut stream = dial(address, Plane::Data, &self.security, TIMES.call).await?;
        let fetch = ConnectionError::Fetch;
        write_hello(&mut stream, &Hello::Model { run }).await.map_err(fetch)?;
        let mut some = false;
        loop {
            match timeout(TIMES.call, read_frame(&mut stream)).await {
                Ok(Ok(Some((Kind::Piece, piece)))) if piece.is_empty() => return Ok(()),
                Ok(Ok(Some((Kind::Piece, piece)))) => file.write_all(&piece).map_err(ConnectionError::Write)?,
                Ok(Ok(Some(_))) => return Err(fetch(MessageError::OutOfPlace.into())),
                Ok(Ok(None)) if !some => return Err(ConnectionError::NoModel(address, run)),
                Ok(Ok(None)) => return Err(fetch(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into())),
                Ok(Err(error)) => return Err(fetch(error)),
                Err(_) => return Err(fetch(std::io::Error::from(std::io::ErrorKind::TimedOut).into())),
            }
            some = true;
        }
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.sessions.stop();
    }
}

/// A client's connection to one node.
pub struct Connection {
    address: SocketAddr,
    session: u64,
    sessions: Sessions,
    endpoint: Endpoint,
}

impl Connection {
    /// Sends a request to the node and waits for the reply.
    pub async fn ask(&self, request: Request, limit: Duration) -> Result<Reply, CallError> {
        self.endpoint.ask(request, limit).await
    }

    /// Returns the address at which the node was called.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // `ractor_cluster` takes two sessions with one node for one: this session must not stand in the next one's way.
        self.sessions.close(self.session);
    }
}
