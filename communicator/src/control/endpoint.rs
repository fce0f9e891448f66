//! The endpoint: the one actor of a node that others can reach. It asks who speaks, whether that can be so, and hands what
//! comes in to the actors that it is for.

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

/// The process group that all endpoints are in. It is part of the wire: `ractor_cluster` tells other processes this name.
const ENDPOINTS: &str = "tau-gates";
/// Bytes that may be on their way to a node before it is told nothing more: messages that come too late are of no use.
const BYTES_UNDER_WAY_MAX: u64 = 1 << 20;

/// What can be sent to a node.
#[derive(RactorClusterMessage, Debug)]
pub enum EndpointMessage {
    /// A message from another node.
    Tell(Envelope<ControlMessage>),
    /// A question, from a client or a node that joins.
    #[rpc]
    Ask(Envelope<Request>, RpcReplyPort<Payload<Reply>>),
}

/// The endpoint of another process, and the connection that leads there.
#[derive(Clone, Debug)]
pub struct Endpoint {
    actor: ActorRef<EndpointMessage>,
    path: SessionPath,
}

impl Endpoint {
    /// The actor at the other end.
    #[must_use]
    pub fn actor(&self) -> &ActorRef<EndpointMessage> {
        &self.actor
    }

    /// What a message to it comes in.
    #[must_use]
    pub fn envelope<T>(&self, content: T) -> Envelope<T> {
        Envelope::new(self.path.token, content)
    }

    /// Tells a node something. What cannot be sent is lost, as if the connection had broken: that is told otherwise.
    pub fn tell(&self, message: ControlMessage) {
        if let Err(breach) = message.check() {
            // Whoever said it would be taken for a liar.
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

    /// Asks a node something.
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
    /// The endpoint at the other end of a session; it shows when the session is ready, or a moment later.
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

/// Where an endpoint hands things on to.
pub trait Routes: Send + Sync + 'static {
    /// A message from another node, which has proven its name.
    fn message(&self, from: NodeId, message: ControlMessage);
    /// A question with the place for its answer.
    fn request(&self, request: Request, reply: RpcReplyPort<Payload<Reply>>);
}

/// The endpoint's actor.
pub struct EndpointActor<R> {
    /// Where things are handed on to.
    pub routes: R,
    /// Who is connected.
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
        // Whoever shows no token of an open connection is nobody: it may have been sent away a moment ago.
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
                // Its beat is still on the way, on another connection.
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
            // Whoever waits for the answer is spawned below.
            Err(refusal) => drop(inner.send(Reply::from(Refusal::Invalid(refusal.into())).into())),
        }
        tokio::spawn(pass_on(self.sessions.clone(), sender, answer, reply));
    }
}

/// Hands an answer to who asked, if it has room for it.
async fn pass_on(
    sessions: Sessions,
    sender: Sender,
    answer: OneshotReceiver<Payload<Reply>>,
    reply: RpcReplyPort<Payload<Reply>>,
) {
    // An actor that drops a question belongs to a node that stops.
    let answer = answer.await.ok();
    let length = answer.as_ref().map_or(0, |answer| match &answer.0 {
        Ok(answer) => encoded_length(answer),
        Err(_) => 0,
    });
    if sessions.answered(&sender, length)
        && let Some(answer) = answer
    {
        // Who asked may be gone.
        let _ = reply.send(answer);
    }
}

/// Something that no honest node says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum ProtocolViolation {
    /// It cannot be read.
    #[error(transparent)]
    Unreadable(#[from] super::payload::Unreadable),
    /// It is beyond all measure.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
    /// It is said in another's name.
    #[error("the peer sent a message in the name of another node")]
    Name,
    /// Clients ask; they have nothing to tell.
    #[error("a client sent a message that only nodes may send")]
    Client,
}

/// Checks a message as far as that can be done without knowing anything else. Returns it with its sender.
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

/// Why a question was not answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The session is gone.
    #[error("the connection to the node broke: check that it still runs, and try again")]
    Gone,
    /// It took too long.
    #[error("the node did not answer within {0:?}: check that it still runs, and try again")]
    TimedOut(Duration),
    /// The question is longer than any node reads.
    #[error("the request has {0} bytes, but a node accepts at most {CONTENT_BYTES_MAX} bytes: shorten the job")]
    TooLong(usize),
    /// The answer could not be read.
    #[error(transparent)]
    Unreadable(#[from] super::payload::Unreadable),
}
