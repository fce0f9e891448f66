//! How a run's model lies on its participants: all of it on each, or in stages on the nodes of pipelines. Follows from the
//! plan's job and participants; nothing of it is sent.
//!
//! Where the answer to a question depends on that, the question has a name here, and is answered for both cases.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ops::Range;

use super::flow::{PipelineAssignment, StageAddress};
use super::run_plan::{Participant, RunPlan, StageTakeover};
use crate::ids::NodeId;
use crate::job::model::{Layout, Partition, PipelineStage};
use crate::job::{PipelineSpec, Trainers};

/// Slots that guests' are drawn from.
const GUEST_SLOTS: u64 = 1 << 16;

/// How a run's model lies on its participants.
#[derive(Clone, Copy, Debug)]
pub enum Topology<'a> {
    /// Each participant holds the whole model, and each of its workers trains it.
    Replicated(&'a RunPlan),
    /// The participants of a pipeline hold the model together, one stage each, and train as one worker.
    Pipelined(Pipelines<'a>),
}

/// The pipelines of a run: rows of participants, with guests in the places of those that were given up.
#[derive(Clone, Copy, Debug)]
pub struct Pipelines<'a> {
    plan: &'a RunPlan,
    spec: &'a PipelineSpec,
    stages: usize,
}

impl<'a> Topology<'a> {
    pub(super) fn of(plan: &'a RunPlan) -> Self {
        let spec = plan.job.exchange.pipelines();
        match spec.and_then(|spec| Some((spec, spec.stages()?))) {
            Some((spec, stages)) => Self::Pipelined(Pipelines { plan, spec, stages }),
            None => Self::Replicated(plan),
        }
    }

    fn plan(&self) -> &'a RunPlan {
        match self {
            Self::Replicated(plan) => plan,
            Self::Pipelined(pipelines) => pipelines.plan,
        }
    }

    fn pipelines(&self) -> Option<&Pipelines<'a>> {
        match self {
            Self::Replicated(_) => None,
            Self::Pipelined(pipelines) => Some(pipelines),
        }
    }
}

/// Stages, workers and slots.
impl Topology<'_> {
    /// The number of stages that the model is cut into: one if nodes hold all of it.
    #[must_use]
    pub fn stages(&self) -> usize {
        self.pipelines().map_or(1, |pipelines| pipelines.stages)
    }

    /// The number of workers that the founders have. A pipeline is one worker.
    #[must_use]
    pub fn workers(&self) -> usize {
        let founders = self.plan().founders();
        match self {
            Self::Replicated(_) => founders.iter().map(|participant| participant.workers).sum(),
            Self::Pipelined(pipelines) => founders.len() / pipelines.stages,
        }
    }

    /// The slots of a node's workers. Those of guests come after all others, and far apart: a slot decides what its worker
    /// claims first, and guests live on claims. Should two be the same, they claim the same now and then. All nodes of a
    /// pipeline have its one slot.
    #[must_use]
    pub fn slots_of(&self, node: NodeId) -> Range<usize> {
        match self {
            Self::Replicated(plan) => {
                let Some(own) = plan.participant(node) else {
                    return 0..0;
                };
                let first = if own.guest {
                    plan.slots().max(self.workers()) + (own.node.0 % GUEST_SLOTS) as usize
                } else {
                    let before = plan.participants.iter().take_while(|one| one.node != node);
                    before.map(|participant| participant.workers).sum()
                };
                first..first + own.workers
            }
            Self::Pipelined(pipelines) => pipelines.place(node).map_or(0..0, |place| {
                let pipeline = place.pipeline as usize;
                pipeline..pipeline + 1
            }),
        }
    }

    /// The slots that have no worker while these nodes are away. A pipeline trains while the holders of all its stages are
    /// heard, whichever other nodes of it are away.
    #[must_use]
    pub fn slots_without(
        &self,
        is_away: impl Fn(NodeId) -> bool,
        is_silent: impl Fn(NodeId) -> bool,
    ) -> BTreeSet<usize> {
        let away = self.plan().participants.iter().filter(|one| is_away(one.node));
        let slots = away.flat_map(|one| self.slots_of(one.node));
        match self {
            Self::Replicated(_) => slots.collect(),
            Self::Pipelined(pipelines) => slots.filter(|&slot| !pipelines.is_whole(slot, &is_silent)).collect(),
        }
    }
}

/// The stages that nodes hold.
impl<'a> Topology<'a> {
    /// A node's place in a pipeline; none if it holds the whole model.
    #[must_use]
    pub fn place(&self, node: NodeId) -> Option<StageAddress> {
        self.pipelines()?.place(node)
    }

    /// The number of the stage that a node holds. The whole model is stage 0.
    #[must_use]
    pub fn stage(&self, node: NodeId) -> u8 {
        self.place(node).map_or(0, |place| place.stage)
    }

    /// The place of a node's worker, among how many; none if the worker has the whole model.
    #[must_use]
    pub fn assignment(&self, node: NodeId) -> Option<PipelineAssignment> {
        let pipelines = self.pipelines()?;
        Some(PipelineAssignment {
            place: pipelines.place(node)?,
            cut: pipelines.spec.cut,
            pipelines: self.workers() as u32,
        })
    }

    /// The part of the model that a node holds; none if it holds the whole model.
    #[must_use]
    pub fn held_stage(&self, node: NodeId) -> Option<PipelineStage> {
        let pipelines = self.pipelines()?;
        let place = pipelines.place(node)?;
        let partition = Partition::new(pipelines.layout()?, pipelines.spec).ok()?;
        Some(partition.stage(usize::from(place.stage)))
    }

    /// The number of weights of the model, of which this node holds this many.
    #[must_use]
    pub fn weights(&self, held: u64) -> u64 {
        let layout = self.pipelines().and_then(Pipelines::layout);
        layout.map_or(held, |layout| layout.weights as u64)
    }

    /// The node that has a place: the last that has taken it over, or the one that began with it. A node that was given up
    /// does not get its place back. Of two that have taken it at a time, the one with the lower id has it.
    #[must_use]
    pub fn holder(&self, place: StageAddress) -> Option<&'a Participant> {
        self.pipelines()?.holder(place)
    }

    /// Whether another node has taken a node's place over.
    #[must_use]
    pub fn is_replaced(&self, node: NodeId) -> bool {
        let holder = self.place(node).and_then(|place| self.holder(place));
        holder.is_some_and(|holder| holder.node != node)
    }

    /// Whether two nodes hold the same weights, and so exchange what they learn.
    #[must_use]
    pub fn same_slice(&self, one: NodeId, other: NodeId) -> bool {
        let stage = |node| self.place(node).map(|place| place.stage);
        stage(one) == stage(other)
    }

    /// Whether two nodes are in one pipeline, and so pass on to each other what they compute.
    #[must_use]
    pub fn are_in_one_pipeline(&self, one: NodeId, other: NodeId) -> bool {
        let pipeline = |node| self.place(node).map(|place| place.pipeline);
        pipeline(one).is_some() && pipeline(one) == pipeline(other)
    }

    /// Whether two nodes have something to say to each other, and so a link.
    #[must_use]
    pub fn are_linked(&self, one: NodeId, other: NodeId) -> bool {
        self.same_slice(one, other) || self.are_in_one_pipeline(one, other)
    }
}

/// Nodes that are missing, and guests.
impl Topology<'_> {
    /// The places whose holders are missing.
    #[must_use]
    pub fn vacancies(&self, is_missing: impl Fn(NodeId) -> bool) -> Vec<StageAddress> {
        let Some(pipelines) = self.pipelines() else {
            return Vec::new();
        };
        let places = (0..self.workers()).flat_map(|pipeline| pipelines.places(pipeline));
        let is_vacant = |place: &StageAddress| pipelines.holder(*place).is_some_and(|one| is_missing(one.node));
        places.filter(is_vacant).collect()
    }

    /// Whether the run can go on without the nodes that are missing: one pipeline at least is whole. Where each node holds
    /// the whole model, any of them can.
    #[must_use]
    pub fn can_go_on_without(&self, is_missing: impl Fn(NodeId) -> bool) -> bool {
        self.pipelines()
            .is_none_or(|pipelines| pipelines.first_whole(is_missing).is_some())
    }

    /// Whether a further node has something to do: pipelines take one only in the place of another.
    #[must_use]
    pub fn has_room(&self, is_missing: impl Fn(NodeId) -> bool) -> bool {
        match self {
            Self::Replicated(_) => true,
            Self::Pipelined(_) => !self.vacancies(is_missing).is_empty(),
        }
    }

    /// A node as a guest, with the place that it takes in a pipeline, if there is one. Several that come at a time do not all
    /// take the same.
    #[must_use]
    pub fn placed(&self, guest: Participant, is_missing: impl Fn(NodeId) -> bool) -> Option<Participant> {
        let Self::Pipelined(pipelines) = self else {
            return Some(guest);
        };
        let vacant = self.vacancies(is_missing);
        let place = vacant.get((guest.node.0 % vacant.len().max(1) as u64) as usize)?;
        Some(Participant {
            workers: 1,
            takes: Some(pipelines.take_over(*place)),
            ..guest
        })
    }

    /// Whether a guest can have come so: to pipelines in one of their places.
    #[must_use]
    pub fn admits(&self, guest: &Participant) -> bool {
        match self {
            Self::Replicated(_) => guest.takes.is_none(),
            Self::Pipelined(pipelines) => guest.takes.is_some_and(|StageTakeover { place, .. }| {
                (place.pipeline as usize) < self.workers() && usize::from(place.stage) < pipelines.stages
            }),
        }
    }
}

/// The parts that nodes have in a run.
impl Topology<'_> {
    /// Whether a node's workers choose the minibatches that they train.
    #[must_use]
    pub fn leads(&self, node: NodeId) -> bool {
        self.pipelines()
            .is_none_or(|pipelines| pipelines.place(node).is_some_and(|place| place.stage == 0))
    }

    /// Whether a node's workers train minibatches that others choose. What is done of them need not be done where it was
    /// chosen, and what is missing is not made any more once the leaders have ended.
    #[must_use]
    pub fn is_led(&self, node: NodeId) -> bool {
        self.place(node).is_some_and(|place| place.stage > 0)
    }

    /// Whether a node leads a pipeline of which all holders are there.
    #[must_use]
    pub fn leads_whole_pipeline(&self, node: NodeId, is_there: impl Fn(NodeId) -> bool) -> bool {
        self.pipelines().is_some_and(|pipelines| {
            let place = pipelines.place(node).filter(|place| place.stage == 0);
            place.is_some_and(|place| pipelines.is_whole(place.pipeline as usize, |node| !is_there(node)))
        })
    }

    /// The node whose worker measures the model while it is trained: the first that is there, of a pipeline that is whole.
    #[must_use]
    pub fn evaluator(&self, is_there: impl Fn(NodeId) -> bool) -> Option<NodeId> {
        let first = match self {
            Self::Replicated(plan) => plan.participants.iter().find(|one| is_there(one.node)),
            Self::Pipelined(pipelines) => {
                let pipeline = pipelines.first_whole(|node| !is_there(node));
                let lead = pipeline.and_then(|pipeline| pipelines.places(pipeline).next());
                lead.and_then(|place| pipelines.holder(place))
            }
        };
        first.map(|one| one.node)
    }

    /// Whether the worker that trains also measures, between two of its steps: it alone knows when an epoch is over.
    #[must_use]
    pub fn evaluates_by_itself(&self) -> bool {
        match self {
            Self::Replicated(plan) => plan.job.trainers == Trainers::AtMost(1),
            Self::Pipelined(_) => false,
        }
    }

    /// Whether the samples of a node's ledger are the run's, as another node tells them. In pipelines samples count where
    /// they were chosen: the ledger of a stage that lost a node may have one minibatch less.
    #[must_use]
    pub fn counts_samples_for(&self, teller: NodeId, node: NodeId) -> bool {
        match self {
            Self::Replicated(_) => node == teller,
            Self::Pipelined(_) => self.leads(node),
        }
    }

    /// Whether each node saves the stage that it holds, instead of one node the whole model. The nodes of each stage agree
    /// on their end by themselves; files are saved once those of all stages have, since the result is of all stages.
    #[must_use]
    pub fn saves_stages(&self) -> bool {
        matches!(self, Self::Pipelined(_))
    }

    /// Whether every seat needs its worker until the end, however little is left to train: a pipeline is measured by all its
    /// workers.
    #[must_use]
    pub fn needs_all_workers(&self) -> bool {
        matches!(self, Self::Pipelined(_))
    }

    /// Whether workers of a node that leaves let out what they have learned first. A pipeline that loses a node makes the
    /// minibatch under way again: its workers are simply lost.
    #[must_use]
    pub fn hands_over(&self) -> bool {
        matches!(self, Self::Replicated(_))
    }

    /// Whether a run can stall because workers hold samples back that others wait for.
    #[must_use]
    pub fn can_stall(&self) -> bool {
        matches!(self, Self::Replicated(_))
    }

    /// Whether a run that has diverged can be trained once more by itself.
    #[must_use]
    pub fn can_back_off(&self) -> bool {
        matches!(self, Self::Replicated(_))
    }
}

impl<'a> Pipelines<'a> {
    fn place(&self, node: NodeId) -> Option<StageAddress> {
        let index = self.plan.participants.iter().position(|one| one.node == node)?;
        let one = &self.plan.participants[index];
        if one.guest {
            return one.takes.map(|taken| taken.place);
        }
        Some(StageAddress {
            pipeline: (index / self.stages) as u32,
            stage: (index % self.stages) as u8,
        })
    }

    fn holder(&self, place: StageAddress) -> Option<&'a Participant> {
        let takers = self.plan.participants.iter();
        let takers = takers.filter_map(|one| Some((one, one.takes.filter(|taken| taken.place == place)?.turn)));
        let last = takers.max_by_key(|(one, turn)| (*turn, Reverse(one.node)));
        if let Some((last, _)) = last {
            return Some(last);
        }
        let index = place.pipeline as usize * self.stages + usize::from(place.stage);
        self.plan.founders().get(index)
    }

    /// A place, to be taken over.
    fn take_over(&self, place: StageAddress) -> StageTakeover {
        let before = self.holder(place).and_then(|one| one.takes);
        StageTakeover {
            place,
            turn: before.map_or(0, |taken| taken.turn).saturating_add(1),
        }
    }

    /// The places of a pipeline, in order.
    fn places(&self, pipeline: usize) -> impl Iterator<Item = StageAddress> + use<> {
        let stages = self.stages as u8;
        (0..stages).map(move |stage| StageAddress {
            pipeline: pipeline as u32,
            stage,
        })
    }

    fn is_whole(&self, pipeline: usize, is_missing: impl Fn(NodeId) -> bool) -> bool {
        let is_there = |place| self.holder(place).is_some_and(|one| !is_missing(one.node));
        self.places(pipeline).all(is_there)
    }

    /// The first pipeline in which no holder is missing.
    fn first_whole(&self, is_missing: impl Fn(NodeId) -> bool) -> Option<usize> {
        let mut pipelines = 0..self.plan.founders().len() / self.stages;
        pipelines.find(|&pipeline| self.is_whole(pipeline, &is_missing))
    }

    fn layout(&self) -> Option<Layout> {
        let data = &self.plan.data;
        Layout::new(&self.plan.job.model, data.input, data.target.outputs()).ok()
    }
}

#[cfg(test)]
mod tests;
