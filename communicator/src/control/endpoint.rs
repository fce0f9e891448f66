//! The endpoint: the one actor of a node that other processes can reach. It identifies the sender of each message,
//! checks the message, and passes it to the actor that it is for.

use protocol::reasons::Refusal;
use std::time::Duration;

use protocol::ids::NodeId;
use protocol::wire::bounds::OutOfBounds;
use protocol::wire::control::{ControlMessage, Reply, Request};
use ractor::concurrency::{OneshotReceiver, oneshot};
use ractor::rpc::CallResult;
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort, pg};
use ractor_cluster::RactorClusterMessage;

use super::connections::{Sender, SessionPath};
use super::envelope::{CONTENT_BYTES_MAX, Envelope};
use super::payload::{Payload, encoded_length};
use super::sessions::Sessions;

/// Process group of all endpoints. The name is part of the wire protocol: `ractor_cluster` tells it to other processes.
const ENDPOINTS: &str = "tau-gates";
/// Maximum number of bytes in flight to a node. Beyond that, further messages to it are dropped, because late ones are
/// of no use.
const BYTES_UNDER_WAY_MAX: u64 = 1 << 20;

/// Message to a node's endpoint, the one actor that other processes can reach.
#[derive(RactorClusterMessage, Debug)]
pub enum EndpointMessage {
    /// A message from another node.
    Tell(Envelope<ControlMessage>),
    /// A request from another process, with the port for the reply.
    #[rpc]
    Ask(Envelope<Request>, RpcReplyPort<Payload<Reply>>),
}

/// The endpoint of another process (the one actor there that takes messages), and the connection that leads to it.
#[derive(Clone, Debug)]
pub struct Endpoint {
    actor: ActorRef<EndpointMessage>,
    path: SessionPath,
}

impl Endpoint {
    #[must_use]
    pub fn actor(&self) -> &ActorRef<EndpointMessage> {
        &self.actor
    }

    /// Wraps a message to this endpoint in an envelope, whose token shows the receiver who sent it.
    #[must_use]
    pub fn envelope<T>(&self, content: T) -> Envelope<T> {
        Envelope::new(self.path.token, content)
    }

    /// Sends a message to the node. A message that cannot be sent is lost, as if the connection had broken; a broken
    /// connection is reported elsewhere.
    pub fn tell(&self, message: ControlMessage) {
        if let Err(breach) = message.check() {
            // The receiver would count this as a protocol violation of this node.
            tracing::error!(
                event = "outgoing_message_invalid", %breach,
                "this node refused to send an invalid message; this is a fault in Tau, please report it"
            );
            return;
        }
        let length = encoded_length(&message);
        if self.path.session_stream.under_way() < BYTES_UNDER_WAY_MAX && length <= CONTENT_BYTES_MAX {
            self.path.session_stream.send(length);
            let _ = self.actor.cast(EndpointMessage::Tell(self.envelope(message)));
        }
    }

    /// Sends a request to the node and waits for the reply.
    pub async fn ask(&self, request: Request, limit: Duration) -> Result<Reply, CallError> {
        let length = encoded_length(&request);
        if length > CONTENT_BYTES_MAX {
            return Err(CallError::TooLong(length));
        }
        let envelope = self.envelope(request);
        let asked = self
            .actor
            .call(|reply| EndpointMessage::Ask(envelope, reply), Some(limit));
        match asked.await {
            Ok(CallResult::Success(reply)) => Ok(reply.0?),
            Ok(CallResult::Timeout) => Err(CallError::TimedOut(limit)),
            Ok(CallResult::SenderError) | Err(_) => Err(CallError::Gone),
        }
    }
}

impl Sessions {
    /// Returns the endpoint at the other end of a session; `None` until it is known, which is when the session is ready
    /// or a moment later.
    #[must_use]
    pub fn endpoint(&self, session: u64) -> Option<Endpoint> {
        let members = pg::get_members(&ENDPOINTS.to_string());
        let found = members
            .into_iter()
            .find(|member| !member.get_id().is_local() && member.get_id().node() == session)?;
        Some(Endpoint {
            actor: found.into(),
            path: self.path(session)?,
        })
    }
}

/// The actors of this node to which its endpoint passes incoming messages and requests on.
pub trait Routes: Send + Sync + 'static {
    /// Takes a message from another node, which has proven its name.
    fn message(&self, from: NodeId, message: ControlMessage);
    /// Takes a request, with the port for its reply.
    fn request(&self, request: Request, reply: RpcReplyPort<Payload<Reply>>);
}

/// The actor behind a node's endpoint: it takes the messages and requests of other processes, checks their senders and
/// limits, and passes them on to the node's other actors.
pub struct EndpointActor<R> {
    /// Receivers of the messages and requests that reach the endpoint.
    pub routes: R,
    /// The sessions of this process, by which the endpoint recognises the senders of messages.
    pub sessions: Sessions,
}

impl<R: Routes> Actor for EndpointActor<R> {
    type Msg = EndpointMessage;
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, myself: ActorRef<EndpointMessage>, (): ()) -> Result<(), ActorProcessingErr> {
        pg::join(ENDPOINTS.into(), vec![myself.get_cell()]);
        Ok(())
    }

    async fn handle(
        &self,
        _myself: ActorRef<EndpointMessage>,
        message: EndpointMessage,
        (): &mut (),
    ) -> Result<(), ActorProcessingErr> {
        match message {
            EndpointMessage::Tell(envelope) => self.told(envelope),
            EndpointMessage::Ask(envelope, reply) => self.asked(envelope, reply),
        }
        Ok(())
    }
}

impl<R: Routes> EndpointActor<R> {
    fn told(&self, envelope: Envelope<ControlMessage>) {
        // A sender without the token of an open connection is unknown: it may have been banned a moment ago.
        let Some(sender) = self.sessions.sender(envelope.token) else {
            return;
        };
        match judged(&sender, envelope.content) {
            Ok((from, message)) => match self.sessions.is_named_rightly(&sender, &message) {
                Some(true) => {
                    self.sessions.heard(&sender);
                    self.routes.message(from, message);
                }
                Some(false) => self.sessions.violated(&sender, &ProtocolViolation::Name),
                // The node's first beat is still on the way, on another connection.
                None => {}
            },
            Err(violation) => self.sessions.violated(&sender, &violation),
        }
    }

    fn asked(&self, envelope: Envelope<Request>, reply: RpcReplyPort<Payload<Reply>>) {
        let Some(sender) = self.sessions.sender(envelope.token) else {
            return;
        };
        if !self.sessions.asked(&sender) {
            return;
        }
        let (inner, answer) = oneshot();
        match envelope.content.map_err(|error| error.to_string()).and_then(|request| {
            let checked = request.check().map_err(|breach| breach.to_string());
            checked.map(|()| request)
        }) {
            Ok(request) => self.routes.request(request, inner.into()),
            // The task that waits for the reply is spawned below.
            Err(refusal) => drop(inner.send(Reply::from(Refusal::Invalid(refusal.into())).into())),
        }
        tokio::spawn(pass_on(self.sessions.clone(), sender, answer, reply));
    }
}

/// Passes a reply on to the process that asked, unless too many bytes of replies are already on their way.
async fn pass_on(
    sessions: Sessions,
    sender: Sender,
    answer: OneshotReceiver<Payload<Reply>>,
    reply: RpcReplyPort<Payload<Reply>>,
) {
    // A request that its actor drops belongs to a node that stops.
    let answer = answer.await.ok();
    let length = answer.as_ref().map_or(0, |answer| match &answer.0 {
        Ok(answer) => encoded_length(answer),
        Err(_) => 0,
    });
    if sessions.answered(&sender, length)
        && let Some(answer) = answer
    {
        // The process that asked may be gone.
        let _ = reply.send(answer);
    }
}

/// A message that no honest node sends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum ProtocolViolation {
    /// The message cannot be decoded.
    #[error(transparent)]
    Unreadable(#[from] super::payload::Unreadable),
    /// The message exceeds a limit.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
    /// The message is in the name of another node than its sender.
    #[error("the peer sent a message in the name of another node")]
    Name,
    /// A client sent a message, but clients may only send requests.
    #[error("a client sent a message that only nodes may send")]
    Client,
}

/// Checks that a node sent a message, that the message is within its limits, and that it is in its sender's own name.
/// Returns it with the sender's id.
fn judged(
    sender: &Sender,
    content: Result<ControlMessage, super::payload::Unreadable>,
) -> Result<(NodeId, ControlMessage), ProtocolViolation> {
    let from = sender.peer.node().ok_or(ProtocolViolation::Client)?;
    let message = content?;
    message.check()?;
    if message.is_from(from) {
        Ok((from, message))
    } else {
        Err(ProtocolViolation::Name)
    }
}

/// Reason for which a request got no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The session with the node ended before the reply came.
    #[error("the connection to the node broke: check that it still runs, and try again")]
    Gone,
    /// The node did not reply in time.
    #[error("the node did not answer within {0:?}: check that it still runs, and try again")]
    TimedOut(Duration),
    /// The request is longer than any node accepts.
    #[error("the request has {0} bytes, but a node accepts at most {CONTENT_BYTES_MAX} bytes: shorten the job")]
    TooLong(usize),
    /// The reply could not be decoded.
    #[error(transparent)]
    Unreadable(#[from] super::payload::Unreadable),
}
