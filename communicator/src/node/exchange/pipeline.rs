//! What passes between the workers of a pipeline, from one's socket over a link to another's.

use std::collections::BTreeSet;
use std::sync::Arc;

use protocol::ids::NodeId;
use protocol::job::Trainers;
use protocol::wire::attach::ToWorker;
use protocol::wire::flow::{Flow, FlowBody, FlowHead, StageAddress};
use protocol::wire::link::Message;

use super::ExchangeState;
use crate::node::link::LinkMessage;
use crate::run::{Liveness, WorkerKey};

impl ExchangeState {
    /// One of this node's workers has something for another of its pipeline. What cannot be brought there breaks the
    /// pipeline: nobody would answer.
    pub(super) fn pass_on(&self, key: WorkerKey, bytes: Arc<[u8]>) {
        let Some((_, worker)) = self.workers.get(&key) else {
            return;
        };
        let addressed = Flow::addressed(&bytes).ok();
        let own = self.plan.place(self.me);
        let to = addressed
            .filter(|(pipeline, _)| own.is_some_and(|own| own.pipeline == *pipeline))
            .and_then(|(pipeline, stage)| self.plan.holder(StageAddress { pipeline, stage }));
        let Some(peer) = to.and_then(|to| self.peers.get(&to.node)) else {
            tracing::error!(
                event = "stage_message_rejected",
                "a worker addressed a message to a stage that its pipeline does not have; the worker is disconnected"
            );
            return worker.hang_up();
        };
        match &peer.outbox {
            Some((_, outbox)) if outbox.try_send(Message::Flow(bytes)).is_ok() => {}
            Some(_) => {
                let _ = peer.link.cast(LinkMessage::Cut);
            }
            None => worker.tell(ToWorker::PipelineBroken),
        }
    }

    /// A worker of this node is gone: the others of its pipeline may wait for it, and are told.
    pub(super) fn lose_pipeline(&self) {
        let Some(own) = self.plan.place(self.me) else {
            return;
        };
        for (&node, peer) in &self.peers {
            let (Some(place), true) = (self.plan.place(node), self.plan.are_in_one_pipeline(self.me, node)) else {
                continue;
            };
            let head = FlowHead {
                pipeline: place.pipeline,
                to: place.stage,
                from: own.stage,
                generation: 0,
                body: FlowBody::Reset,
            };
            if let (Some((_, outbox)), Ok(contents)) = (&peer.outbox, Flow::without_numbers(head).encode())
                && outbox.try_send(Message::Flow(contents.into())).is_err()
            {
                // Whose link is cut hears of it so.
                let _ = peer.link.cast(LinkMessage::Cut);
            }
        }
    }

    /// Something has come for this node's worker from another of its pipeline. What was sent to anybody else is nobody's, and
    /// who was replaced is not listened to.
    pub(super) fn hand_in(&self, from: NodeId, bytes: &Arc<[u8]>) {
        let own = self.plan.place(self.me).map(|own| (own.pipeline, own.stage));
        if !self.plan.is_replaced(from)
            && self.plan.are_in_one_pipeline(self.me, from)
            && Flow::addressed(bytes).ok() == own
        {
            self.workers.values().for_each(|(_, worker)| worker.deliver_flow(bytes));
        }
    }

    /// Somebody of a pipeline cannot be reached: its workers give up what is under way, and begin again when they can.
    pub(super) fn break_pipeline_with(&self, node: NodeId) {
        if self.plan.are_in_one_pipeline(self.me, node) {
            self.tell(&ToWorker::PipelineBroken);
        }
    }

    fn is_whole(&self, pipeline: usize) -> bool {
        let is_there = |place| {
            let holder = self.plan.holder(place);
            holder.is_some_and(|one| !self.liveness.silent.contains(&one.node))
        };
        self.plan.places(pipeline).all(is_there)
    }

    /// The slots that have nobody to train them. A pipeline trains if all of it is there.
    pub(super) fn dead_slots(&self) -> BTreeSet<usize> {
        // A run that is gone on with may have fewer workers than samples were shared out to.
        let unmanned = self.plan.workers()..self.plan.slots();
        let silent = self.plan.participants.iter();
        // Workers in reserve would train what a trainer does that is only slow, and the run would depend on the machine's load.
        let has_reserve = matches!(self.plan.job.trainers, Trainers::AtMost(_));
        let is_away = |node: &NodeId| {
            let Liveness { live, silent, .. } = &self.liveness;
            silent.contains(node) && !(has_reserve && live.contains(node))
        };
        let silent = silent.filter(|one| is_away(&one.node));
        let of_silent = silent.flat_map(|one| self.plan.slots_of(one.node));
        let in_pipelines = self.plan.stages().is_some();
        let is_dead = |slot: &usize| !in_pipelines || !self.is_whole(*slot);
        let taken_over = self.taken_over.iter().copied();
        unmanned.chain(of_silent.filter(is_dead)).chain(taken_over).collect()
    }

    /// Somebody falls silent, speaks again, or takes another's place: workers are told which slots have nobody any more, or
    /// somebody again.
    pub(super) fn tell_slots(&mut self) {
        let dead = self.dead_slots();
        for &slot in dead.symmetric_difference(&self.dead_slots) {
            let alive = !dead.contains(&slot);
            self.tell(&ToWorker::Slot { slot, alive });
        }
        self.dead_slots = dead;
    }

    /// Who of this node's pipeline has fallen silent breaks it.
    pub(super) fn break_pipeline_with_the_silent(&self, before: &Liveness) {
        for &node in self.liveness.silent.difference(&before.silent) {
            self.break_pipeline_with(node);
        }
    }
}
