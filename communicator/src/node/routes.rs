//! Where the endpoint hands things on to: which actor a word or a question is for.

use protocol::ids::NodeId;
use protocol::wire::control::{Reply, Request, Word};
use ractor::{ActorRef, RpcReplyPort};

use super::looking::Looking;
use super::membership::MembershipMessage;
use super::run::RunMessage;
use super::stats::StatsMessage;
use crate::control::{Payload, Routes};
use crate::run::RunWord;

/// The actors that the endpoint leads to.
#[derive(Clone)]
pub(super) struct Parts {
    pub(super) stats: ActorRef<StatsMessage>,
    pub(super) run: ActorRef<RunMessage>,
    pub(super) membership: ActorRef<MembershipMessage>,
    pub(super) looking: Looking,
}

impl Routes for Parts {
    fn word(&self, from: NodeId, word: Word) {
        // The endpoint has compared the names in words with the name that the session has proven. Actors that are gone belong
        // to a node that stops.
        match word {
            Word::Beat(beat) => drop(self.membership.cast(MembershipMessage::Beat(beat))),
            Word::Echo { from, number } => drop(self.membership.cast(MembershipMessage::Echo { from, number })),
            Word::Leaving(node) => drop(self.membership.cast(MembershipMessage::Leaving(node))),
            Word::Unwelcome(reason) => drop(self.membership.cast(MembershipMessage::Unwelcome(reason))),
            Word::Stats(record) => drop(self.stats.cast(StatsMessage::Told(from, record))),
            word => {
                if let Some(word) = RunWord::of(word) {
                    let _ = self.run.cast(RunMessage::Word { from, word });
                }
            }
        }
    }

    fn request(&self, request: Request, reply: RpcReplyPort<Payload<Reply>>) {
        match request {
            Request::Nodes => drop(self.membership.cast(MembershipMessage::Nodes(reply))),
            Request::StartTraining { job, allow_partial } => drop(self.run.cast(RunMessage::StartTraining {
                job,
                allow_partial,
                reply,
            })),
            Request::Resume {
                run,
                changes,
                allow_partial,
            } => drop(self.run.cast(RunMessage::Resume {
                run,
                changes,
                allow_partial,
                reply,
            })),
            Request::Checkpoint => drop(self.run.cast(RunMessage::CheckpointAll(reply))),
            Request::Stop => drop(self.run.cast(RunMessage::Stop(reply))),
            Request::Status => drop(self.run.cast(RunMessage::Status(reply))),
            Request::Look(data) => self.looking.answer(data, reply),
            Request::Stats { after } => drop(self.stats.cast(StatsMessage::Read { after, reply })),
        }
    }
}
