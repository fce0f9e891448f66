//! A node's part in pipelines (a network cut into stages that several nodes hold and train together): it forwards
//! messages between the workers of a pipeline, notices that a pipeline is broken, and knows which slots and origins
//! have no worker. A pure state machine: events in, effects out. The plan is an argument, because the exchange's actor
//! owns it and tells when it has grown.
//!
//! Slots and origins matter to every run. Where each node holds the whole model, there are no messages of pipelines.
//!
//! ```text
//!  worker's message ─▶ ┌──────────────┐ ─▶ Send(peer), HangUp(worker)
//!  peer's message ───▶ │              │ ─▶ Deliver
//!  link up, down ────▶ │ PipelineNode │ ─▶ Broken
//!  liveness, guests ─▶ │              │ ─▶ Slot, Origin
//!  worker lost ──────▶ └──────────────┘ ─▶ Send(Reset to each)
//! ```

mod event;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use protocol::ids::{NodeId, OriginId};
use protocol::job::Trainers;
use protocol::wire::flow::{Flow, FlowBody, FlowHead, StageAddress};
use protocol::wire::link::OriginInfo;
use protocol::wire::run_plan::{Participant, RunPlan};

pub(crate) use self::event::{PipelineEffect, PipelineEvent};
use crate::planted::{Bug, planted};
use crate::run::{Liveness, WorkerKey};

/// A node's part in the run's pipelines: it forwards messages between the workers of a pipeline, and tells workers
/// which others are gone.
#[derive(Debug)]
pub(crate) struct PipelineNode {
    me: NodeId,
    liveness: Liveness,
    /// Peers that this node has a link to.
    linked: BTreeSet<NodeId>,
    /// Slots (workers' numbers, to which samples are dealt) whose samples this node's workers may train, as if the
    /// slots had no workers.
    taken_over: BTreeSet<usize>,
    /// Slots (workers' numbers, to which samples are dealt) without a worker, as last told to this node's workers.
    dead_slots: BTreeSet<usize>,
    /// Origins (workers' streams of batches) that have ended or are out of reach, as last told to this node's workers.
    dead_origins: BTreeSet<OriginId>,
}

impl PipelineNode {
    /// Makes the state for a run that begins: all participants count as live, and no link is up.
    pub(crate) fn new(me: NodeId, plan: &RunPlan) -> Self {
        let mut node = Self {
            me,
            liveness: Liveness {
                live: plan.participants.iter().map(|participant| participant.node).collect(),
                ..Liveness::default()
            },
            linked: BTreeSet::new(),
            taken_over: BTreeSet::new(),
            dead_slots: BTreeSet::new(),
            dead_origins: BTreeSet::new(),
        };
        node.dead_slots = node.slots_without_workers(plan);
        node
    }

    /// Handles an event that concerns pipelines (networks whose stages are spread over nodes), and appends the
    /// resulting effects.
    pub(crate) fn handle(&mut self, event: PipelineEvent, plan: &RunPlan, effects: &mut Vec<PipelineEffect>) {
        match event {
            PipelineEvent::FromWorker { worker, bytes } => effects.push(self.route(worker, bytes, plan)),
            PipelineEvent::FromPeer { from, bytes } => {
                if self.is_heard(from, &bytes, plan) {
                    effects.push(PipelineEffect::Deliver(bytes));
                }
            }
            // Earlier messages of the other side, even that there is no more work, could not be delivered here.
            PipelineEvent::LinkUp(node) => {
                if self.linked.insert(node) {
                    self.break_with(node, plan, effects);
                }
            }
            PipelineEvent::LinkDown(node) => {
                if self.linked.remove(&node) {
                    self.break_with(node, plan, effects);
                }
            }
            PipelineEvent::Liveness(liveness) => {
                let before = std::mem::replace(&mut self.liveness, liveness);
                self.tell_slots(plan, effects);
                for &node in self.liveness.silent.difference(&before.silent) {
                    self.break_with(node, plan, effects);
                }
            }
            PipelineEvent::Admitted => self.tell_slots(plan, effects),
            PipelineEvent::TakeOver(slots) => {
                self.taken_over.extend(slots);
                self.tell_slots(plan, effects);
            }
            PipelineEvent::WorkerLost => self.reset_all(plan, effects),
        }
    }

    /// Tells the workers which origins (workers' streams of batches) emit no more batches, if that has changed. Those
    /// are origins that have ended, and origins of other nodes that are out of reach or whose samples this node's
    /// workers train instead.
    pub(crate) fn compare_origins<'a>(
        &mut self,
        origins: impl Iterator<Item = &'a OriginInfo>,
        effects: &mut Vec<PipelineEffect>,
    ) {
        let Liveness { silent, gone, .. } = &self.liveness;
        let is_dead = |info: &&OriginInfo| {
            let out_of_reach = silent.contains(&info.node) || gone.contains(&info.node);
            let is_taken_over = self.taken_over.contains(&(info.slot as usize));
            info.ended.is_some() || (out_of_reach || is_taken_over) && info.node != self.me
        };
        let dead: BTreeSet<OriginId> = origins.filter(is_dead).map(|info| info.origin).collect();
        let before = std::mem::replace(&mut self.dead_origins, dead);
        for &origin in self.dead_origins.symmetric_difference(&before) {
            let alive = before.contains(&origin);
            effects.push(PipelineEffect::Origin { origin, alive });
        }
    }

    /// The liveness of the participants: live, silent or gone.
    pub(crate) fn liveness(&self) -> &Liveness {
        &self.liveness
    }

    /// Slots (workers' numbers, to which samples are dealt) without a worker. A worker that begins is told these.
    pub(crate) fn dead_slots(&self) -> &BTreeSet<usize> {
        &self.dead_slots
    }

    /// Origins (workers' streams of batches) that have ended or are out of reach. A worker that begins is told these.
    pub(crate) fn dead_origins(&self) -> &BTreeSet<OriginId> {
        &self.dead_origins
    }

    /// Finds the receiver of a worker's message to another stage of its pipeline. If the receiver cannot be reached,
    /// the worker has to drop its minibatches in flight, because no answer would come.
    fn route(&self, worker: WorkerKey, bytes: Arc<[u8]>, plan: &RunPlan) -> PipelineEffect {
        let own = plan.topology().place(self.me);
        let to = Flow::addressed(&bytes)
            .ok()
            .filter(|(pipeline, _)| own.is_some_and(|own| own.pipeline == *pipeline))
            .and_then(|(pipeline, stage)| {
                let place = StageAddress { pipeline, stage };
                let first = |one: &&Participant| plan.topology().place(one.node) == Some(place);
                if planted(Bug::SendsToTheReplaced) {
                    return plan.participants.iter().find(first);
                }
                plan.topology().holder(place)
            })
            .filter(|holder| holder.node != self.me);
        match to.map(|holder| holder.node) {
            None => PipelineEffect::HangUp(worker),
            Some(to) if self.linked.contains(&to) => PipelineEffect::Send { to, bytes },
            Some(_) => PipelineEffect::Broken,
        }
    }

    /// Returns true if a peer's message is for this node's worker. Messages to another stage are misdirected, and those
    /// of a node whose stage another node has taken over are ignored.
    fn is_heard(&self, from: NodeId, bytes: &[u8], plan: &RunPlan) -> bool {
        let own = plan.topology().place(self.me).map(|own| (own.pipeline, own.stage));
        !plan.topology().is_replaced(from)
            && plan.topology().are_in_one_pipeline(self.me, from)
            && Flow::addressed(bytes).ok() == own
    }

    /// Tells the other workers of this node's pipeline that its worker is lost, because they may wait for it.
    fn reset_all(&self, plan: &RunPlan, effects: &mut Vec<PipelineEffect>) {
        let Some(own) = plan.topology().place(self.me) else {
            return;
        };
        let others = self
            .linked
            .iter()
            .filter_map(|&node| Some((node, plan.topology().place(node)?)));
        for (to, place) in others.filter(|(_, place)| place.pipeline == own.pipeline) {
            let head = FlowHead {
                pipeline: place.pipeline,
                to: place.stage,
                from: own.stage,
                generation: 0,
                body: FlowBody::Reset,
            };
            if let Ok(contents) = Flow::without_numbers(head).encode() {
                let bytes = contents.into();
                effects.push(PipelineEffect::Send { to, bytes });
            }
        }
    }

    /// Makes this node's worker drop its minibatches in flight if `node`, which can no longer be reached, belongs to
    /// the worker's pipeline.
    fn break_with(&self, node: NodeId, plan: &RunPlan, effects: &mut Vec<PipelineEffect>) {
        if plan.topology().are_in_one_pipeline(self.me, node) {
            effects.push(PipelineEffect::Broken);
        }
    }

    /// Tells workers which slots (workers' numbers, to which samples are dealt) have lost their worker, or have one
    /// again.
    fn tell_slots(&mut self, plan: &RunPlan, effects: &mut Vec<PipelineEffect>) {
        let dead = self.slots_without_workers(plan);
        for &slot in dead.symmetric_difference(&self.dead_slots) {
            let alive = !dead.contains(&slot);
            effects.push(PipelineEffect::Slot { slot, alive });
        }
        self.dead_slots = dead;
    }

    /// The slots (workers' numbers, to which samples are dealt) that have no worker.
    fn slots_without_workers(&self, plan: &RunPlan) -> BTreeSet<usize> {
        // A run that is continued may have fewer workers than slots.
        let topology = plan.topology();
        let unmanned = topology.workers()..plan.slots();
        // With workers in reserve, a silent trainer that is still live counts as present: otherwise they would train
        // what it does when it is only slow, and the run would depend on the machine's load.
        let has_reserve = matches!(plan.job.trainers, Trainers::AtMost(_));
        let is_away = |node: NodeId| {
            let Liveness { live, silent, .. } = &self.liveness;
            silent.contains(&node) && !(has_reserve && live.contains(&node))
        };
        let mut dead = topology.slots_without(is_away, |node| self.liveness.silent.contains(&node));
        dead.extend(unmanned.chain(self.taken_over.iter().copied()));
        dead
    }
}
