//! A client's connections to a cluster: sessions with its nodes, and questions.

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

/// How long a client waits for what: it trusts that nodes have the usual times.
const TIMES: ControlTimes = Timing::DEFAULT.control;

/// Why there is no connection, or no model.
#[derive(Debug, Error)]
pub enum ConnectionError {
    /// The node was not reached.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The control plane did not start.
    #[error(transparent)]
    Sessions(#[from] StartError),
    /// This process has no name.
    #[error(transparent)]
    NoKey(#[from] NoKey),
    /// The node made no session of it.
    #[error("{0} accepted the connection but opened no session: check that a Tau node of the same release runs there")]
    NoSession(SocketAddr),
    /// The node speaks TLS, and this client has no credentials.
    #[error("{0} asks for the cluster's credentials: give them with --credentials FILE in place of --insecure")]
    NeedsCredentials(SocketAddr),
    /// A model did not come.
    #[error("the model could not be fetched")]
    Fetch(#[source] LinkError),
    /// The node has no such model.
    #[error("node {0} does not have the model of run {1}: see the node's log for the reason")]
    NoModel(SocketAddr, RunId),
    /// The model could not be written.
    #[error("the model could not be written")]
    Write(#[source] std::io::Error),
}

impl ConnectionError {
    /// Whether nobody listens there: a process that did is gone, and all that it was asked with it.
    #[must_use]
    pub fn nobody_there(&self) -> bool {
        matches!(self, Self::Dial(error) if error.is_refused())
    }

    /// Whether trying again can be of no use: what is wrong is wrong on this side.
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

/// A client's end of the control plane, from which it calls nodes. There is one in a process.
pub struct Caller {
    security: Security,
    sessions: Sessions,
}

impl Caller {
    /// Gets ready to call.
    pub async fn start(security: Security) -> Result<Self, ConnectionError> {
        // Sessions are looked for by their connections; nobody has to be told of them.
        let (events, _) = mpsc::unbounded_channel();
        let sessions = Sessions::start(Identity::draw(Role::Client)?, &Timing::DEFAULT, events).await?;
        Ok(Self { security, sessions })
    }

    /// Connects to a node.
    pub async fn call(&self, address: SocketAddr) -> Result<Connection, ConnectionError> {
        let stream = dial(address, Plane::Control, &self.security, TIMES.call).await?;
        let opened = self.sessions.open(stream, address, None).await;
        // An earlier call to the same node may have been given up, and come through after all: it is no part of this.
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

    /// Why a node that took the connection has made no session of it.
    async fn no_session(&self, address: SocketAddr) -> ConnectionError {
        if matches!(self.security, Security::Insecure) && speaks_tls(address, TIMES.call).await {
            ConnectionError::NeedsCredentials(address)
        } else {
            ConnectionError::NoSession(address)
        }
    }

    /// Fetches the file of a run's model from a node, over the data plane.
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

/// A connection to one node.
pub struct Connection {
    address: SocketAddr,
    session: u64,
    sessions: Sessions,
    endpoint: Endpoint,
}

impl Connection {
    /// Asks the node something.
    pub async fn ask(&self, request: Request, limit: Duration) -> Result<Reply, CallError> {
        self.endpoint.ask(request, limit).await
    }

    /// Where the node was called.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Two sessions with one node are taken for one: this one must not stand in the next one's way.
        self.sessions.close(self.session);
    }
}
