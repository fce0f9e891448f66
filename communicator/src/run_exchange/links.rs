//! The links to the other participants, and the messages that come over them.

use std::collections::BTreeSet;

use protocol::ids::NodeId;
use protocol::wire::link::Message;
use protocol::wire::run_plan::Participant;

use super::{RunExchange, RunExchangeEffect};
use crate::exchange::Event;
use crate::pipeline::PipelineEvent;
use crate::run::RunEvent;

impl RunExchange {
    /// Sets up a link to a participant with which this node has anything to exchange: batches of the same layers, or
    /// messages of a pipeline.
    pub(super) fn join(&mut self, participant: Participant) {
        let node = participant.node;
        // An earlier process of a node that was started again cannot be reached, so the exchange does not learn of it.
        let is_linked = self.plan.topology().are_linked(self.me, node);
        if node == self.me || !is_linked || self.plan.is_succeeded(node) {
            return;
        }
        // Founders have all batches since the first. If either side takes a snapshot first, the peer counts as joined:
        // the log keeps all that the peer may need until it tells which batches it has.
        let is_founder = !self.plan.is_newcomer(self.me) && !participant.is_newcomer();
        self.effects.push(RunExchangeEffect::Connect(participant));
        // Nodes that hold other layers do not get these batches.
        if self.holds_the_same(node) {
            self.exchange_event(if is_founder {
                Event::Founder(node)
            } else {
                Event::Joined(node)
            });
        }
    }

    pub(super) fn link_up(&mut self, node: NodeId) {
        self.link_down(node);
        self.linked.insert(node);
        self.tell_linked(node, true);
        if self.holds_the_same(node) {
            self.exchange_event(Event::LinkUp(node));
        }
        self.tell_progress();
    }

    pub(super) fn link_down(&mut self, node: NodeId) {
        if self.drop_link(node) && self.holds_the_same(node) {
            self.exchange_event(Event::LinkDown(node));
        }
    }

    /// Records that a link is down, and tells the run's core and the pipeline. The exchange is not told: it knows
    /// already, or need not know. Returns true if the link was up.
    pub(super) fn drop_link(&mut self, node: NodeId) -> bool {
        let was_linked = self.linked.remove(&node);
        if was_linked {
            self.tell_linked(node, false);
        }
        was_linked
    }

    /// Tells the run's core and the pipeline that a link is up or down.
    fn tell_linked(&mut self, node: NodeId, up: bool) {
        let run = self.run;
        self.tell_run(RunEvent::Linked { run, node, up });
        self.pipeline_event(if up {
            PipelineEvent::LinkUp(node)
        } else {
            PipelineEvent::LinkDown(node)
        });
    }

    pub(super) fn receive(&mut self, from: NodeId, message: Message) {
        if !self.linked.contains(&from) {
            return;
        }
        match message {
            Message::Flow(bytes) => self.pipeline_event(PipelineEvent::FromPeer { from, bytes }),
            message if self.holds_the_same(from) => self.exchange_event(Event::Received { from, message }),
            _ => {}
        }
    }

    /// Ends the links to earlier processes of nodes that were started again, once these processes are gone.
    pub(super) fn unlink_the_succeeded(&mut self) {
        let gone = self.pipeline.liveness().gone.iter().copied();
        let former: Vec<NodeId> = gone.filter(|&node| self.plan.is_succeeded(node)).collect();
        for node in former {
            self.effects.push(RunExchangeEffect::Disconnect(node));
            self.link_down(node);
        }
    }

    /// Tells the links which peers have become silent or speak again: the link to a silent node is down because of the
    /// node, not because of a fault of its own.
    pub(super) fn tell_links(&mut self, before: &BTreeSet<NodeId>) {
        let absent = self.pipeline.liveness().absent();
        let changed = absent.symmetric_difference(before);
        self.effects.extend(changed.map(|&peer| RunExchangeEffect::Absent {
            peer,
            absent: absent.contains(&peer),
        }));
    }
}
