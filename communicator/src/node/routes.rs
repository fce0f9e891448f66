//! Routes from the endpoint: the actor that each message or request is for.

use protocol::ids::NodeId;
use protocol::wire::control::{ControlMessage, Reply, Request};
use ractor::{ActorRef, RpcReplyPort};

use super::data_inspection::DataInspector;
use super::membership::MembershipMessage;
use super::run::RunMessage;
use super::stats::StatsMessage;
use crate::control::{Payload, Routes};
use crate::run::RunEvent;

/// The actors to which messages of other nodes and requests of clients are passed.
#[derive(Clone)]
pub(super) struct RouteTargets {
    pub(super) stats: ActorRef<StatsMessage>,
    pub(super) run: ActorRef<RunMessage>,
    pub(super) membership: ActorRef<MembershipMessage>,
    pub(super) inspector: DataInspector,
}

impl Routes for RouteTargets {
    fn message(&self, from: NodeId, message: ControlMessage) {
        // The endpoint has compared the names in messages with the name that the session has proven. An actor that is
        // gone belongs to a node that stops.
        match message {
            ControlMessage::Beat(beat) => drop(self.membership.cast(MembershipMessage::Beat(beat))),
            ControlMessage::Echo { from, number } => {
                drop(self.membership.cast(MembershipMessage::Echo { from, number }));
            }
            ControlMessage::Leaving(node) => drop(self.membership.cast(MembershipMessage::Leaving(node))),
            ControlMessage::Unwelcome(reason) => drop(self.membership.cast(MembershipMessage::Unwelcome(reason))),
            ControlMessage::Stats(record) => drop(self.stats.cast(StatsMessage::Told(from, record))),
            ControlMessage::Prepare { .. }
            | ControlMessage::Answer { .. }
            | ControlMessage::Abort { .. }
            | ControlMessage::Find { .. }
            | ControlMessage::FoundCheckpoint { .. }
            | ControlMessage::Order { .. } => {
                let event = RunEvent::ControlMessage { from, message };
                drop(self.run.cast(RunMessage::Event(event)));
            }
        }
    }

    fn request(&self, request: Request, reply: RpcReplyPort<Payload<Reply>>) {
        match request {
            Request::Nodes => drop(self.membership.cast(MembershipMessage::Nodes(reply))),
            Request::StartTraining { .. } | Request::Resume { .. } | Request::Order(_) => {
                drop(self.run.cast(RunMessage::Request { request, reply }));
            }
            Request::Status => drop(self.run.cast(RunMessage::Status(reply))),
            Request::InspectData(data) => self.inspector.answer(data, reply),
            Request::Stats { after } => drop(self.stats.cast(StatsMessage::Read { after, reply })),
        }
    }
}
