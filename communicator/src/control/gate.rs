//! The gate: the one actor of a node that others can reach. It hands what comes in to the actors that it is for.

use std::time::Duration;

use protocol::control::{Reply, Request, Word};
use ractor::rpc::CallResult;
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort, pg};
use ractor_cluster::RactorClusterMessage;

use super::Payload;

/// The process group that all gates are in.
const GATES: &str = "tau-gates";

/// What can be sent to a node.
#[derive(RactorClusterMessage, Debug)]
pub enum GateMessage {
    /// A word from another node.
    Tell(Payload<Word>),
    /// A question, from a client or a node that joins.
    #[rpc]
    Ask(Payload<Request>, RpcReplyPort<Payload<Reply>>),
}

/// A gate, here or on another machine.
pub type Gate = ActorRef<GateMessage>;

/// Where a gate hands things on to.
pub trait Routes: Send + Sync + 'static {
    /// A word from another node.
    fn word(&self, word: Word);
    /// A question with the place for its answer.
    fn request(&self, request: Request, reply: RpcReplyPort<Payload<Reply>>);
}

/// The gate's actor.
pub struct GateActor<R>(pub R);

impl<R: Routes> Actor for GateActor<R> {
    type Msg = GateMessage;
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, myself: ActorRef<GateMessage>, (): ()) -> Result<(), ActorProcessingErr> {
        pg::join(GATES.into(), vec![myself.get_cell()]);
        Ok(())
    }

    async fn handle(
        &self,
        _myself: ActorRef<GateMessage>,
        message: GateMessage,
        (): &mut (),
    ) -> Result<(), ActorProcessingErr> {
        match message {
            GateMessage::Tell(Payload(Ok(word))) => self.0.word(word),
            GateMessage::Tell(Payload(Err(error))) => tracing::warn!(%error, "a node's word is dropped"),
            GateMessage::Ask(Payload(Ok(request)), reply) => self.0.request(request, reply),
            GateMessage::Ask(Payload(Err(error)), reply) => {
                // Who asked may be gone.
                let _ = reply.send(Reply::Refused(vec![error.to_string()]).into());
            }
        }
        Ok(())
    }
}

/// The gate at the other end of a session; it shows when the session is ready, or a moment later.
#[must_use]
pub fn gate_of(session: u64) -> Option<Gate> {
    let members = pg::get_members(&GATES.to_string());
    let found = members
        .into_iter()
        .find(|member| !member.get_id().is_local() && member.get_id().node() == session);
    found.map(Gate::from)
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
    /// The answer could not be read.
    #[error(transparent)]
    Unreadable(#[from] super::payload::Unreadable),
}

/// Asks a node something.
pub async fn call(gate: &Gate, request: Request, limit: Duration) -> Result<Reply, CallError> {
    let asked = gate.call(|reply| GateMessage::Ask(request.into(), reply), Some(limit));
    match asked.await {
        Ok(CallResult::Success(reply)) => Ok(reply.0?),
        Ok(CallResult::Timeout) => Err(CallError::TimedOut(limit)),
        Ok(CallResult::SenderError) | Err(_) => Err(CallError::Gone),
    }
}
