//! A client's connection to a cluster: a session with one of its nodes, and questions.

use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

use protocol::control::{Reply, Request};
use protocol::frame::Kind;
use protocol::ids::RunId;
use thiserror::Error;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::{CallError, Gate, Identity, NoKey, Role, SessionEvent, Sessions, StartError};
use crate::link::{Hello, LinkError, read_frame, write_hello};
use crate::transport::{DialError, Plane, Security, dial};

/// How long a node may take to answer the call.
const LIMIT: Duration = Duration::from_secs(5);
/// How often the node's gate is looked for.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

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
    #[error("{0} took the connection but made no session of it: is it a node of the same release?")]
    NoSession(SocketAddr),
    /// A model did not come.
    #[error("the model could not be fetched")]
    Fetch(#[source] LinkError),
    /// The node has no such model.
    #[error("{0} does not have the model of run {1}: its log says why")]
    NoModel(SocketAddr, RunId),
    /// The model could not be written.
    #[error("the model could not be written")]
    Write(#[source] std::io::Error),
}

/// A connection to a cluster.
pub struct Connection {
    address: SocketAddr,
    security: Security,
    sessions: Sessions,
    gate: Gate,
}

impl Connection {
    /// Connects to a node.
    pub async fn open(address: SocketAddr, security: Security) -> Result<Self, ConnectionError> {
        let (events, mut session_events) = mpsc::unbounded_channel();
        let stream = dial(address, Plane::Control, &security, LIMIT).await?;
        let sessions = Sessions::start(Identity::draw(Role::Client)?, events).await?;
        let opened = sessions.open(stream, address, None).await;
        opened.map_err(|_| ConnectionError::NoSession(address))?;
        let ready = async {
            let session = match session_events.recv().await {
                Some(SessionEvent::Ready { session, .. }) => session,
                Some(SessionEvent::Closed { .. }) | None => return None,
            };
            loop {
                if let Some(gate) = sessions.gate(session) {
                    return Some(gate);
                }
                sleep(LOOK_AGAIN).await;
            }
        };
        let gate = timeout(LIMIT, ready).await.ok().flatten();
        Ok(Self {
            gate: gate.ok_or(ConnectionError::NoSession(address))?,
            address,
            security,
            sessions,
        })
    }

    /// Asks the node something.
    pub async fn ask(&self, request: Request, limit: Duration) -> Result<Reply, CallError> {
        self.gate.ask(request, limit).await
    }

    /// The node at the other end.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Fetches the file of a run's model from a node of the cluster, over the data plane.
    pub async fn fetch_model(
        &self,
        address: SocketAddr,
        run: RunId,
        file: &mut impl Write,
    ) -> Result<(), ConnectionError> {
        let mut stream = dial(address, Plane::Data, &self.security, LIMIT).await?;
        let fetch = ConnectionError::Fetch;
        write_hello(&mut stream, &Hello::Model { run }).await.map_err(fetch)?;
        let mut some = false;
        loop {
            match timeout(LIMIT, read_frame(&mut stream)).await {
                Ok(Ok(Some((Kind::Piece, piece)))) if piece.is_empty() => return Ok(()),
                Ok(Ok(Some((Kind::Piece, piece)))) => file.write_all(&piece).map_err(ConnectionError::Write)?,
                Ok(Ok(Some(_))) => return Err(fetch(LinkError::OutOfPlace)),
                Ok(Ok(None)) if !some => return Err(ConnectionError::NoModel(address, run)),
                Ok(Ok(None)) => return Err(fetch(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into())),
                Ok(Err(error)) => return Err(fetch(error)),
                Err(_) => return Err(fetch(std::io::Error::from(std::io::ErrorKind::TimedOut).into())),
            }
            some = true;
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.sessions.stop();
    }
}
