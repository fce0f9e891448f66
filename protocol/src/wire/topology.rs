//! Distribution of a run's model over its participants: the whole model on each, or stages on the nodes of pipelines.
//! It follows from the plan's job and participants and is never sent.
//!
//! Every question whose answer depends on the distribution has a method here, which answers it for both cases.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ops::Range;

use super::flow::{PipelineAssignment, StageAddress};
use super::run_plan::{Participant, RunPlan, StageTakeover};
use crate::ids::NodeId;
use crate::job::model::{Layout, Partition, PipelineStage};
use crate::job::{PipelineSpec, Trainers};

/// Number of slots from which guests (nodes that joined during the run) get theirs by their ids. A slot decides which
/// samples its worker takes first.
const GUEST_SLOTS: u64 = 1 << 16;

/// Distribution of a run's model over its participants.
#[derive(Clone, Copy, Debug)]
pub enum Topology<'a> {
    /// Each participant holds the whole model, and each of its workers trains it.
    Replicated(&'a RunPlan),
    /// The participants of a pipeline hold the model together, one stage each, and train as one worker.
    Pipelined(Pipelines<'a>),
}

/// The pipelines of a run: rows of participants, one for each stage, in which guests replace participants that were
/// given up.
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

/// Methods for the number of stages and workers, and for the slots (numbers of workers) of nodes.
impl Topology<'_> {
    /// Returns the number of stages that the model is cut into; 1 if nodes hold the whole model.
    #[must_use]
    pub fn stages(&self) -> usize {
        self.pipelines().map_or(1, |pipelines| pipelines.stages)
    }

    /// Returns the number of workers of the participants that began the run. A pipeline counts as one worker.
    #[must_use]
    pub fn workers(&self) -> usize {
        let founders = self.plan().founders();
        match self {
            Self::Replicated(_) => founders.iter().map(|participant| participant.workers).sum(),
            Self::Pipelined(pipelines) => founders.len() / pipelines.stages,
        }
    }

    /// Returns the slots of a node's workers, by which samples are dealt. Slots of guests (nodes that joined later)
    /// come after all others and are far apart, because a slot decides which shards of samples its worker claims first,
    /// and guests train only claimed shards. Two guests with the same slot sometimes claim the same shards. All nodes
    /// of a pipeline share one slot.
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

    /// Returns the slots (workers' numbers) that have no worker while these nodes are away. A pipeline trains as long
    /// as the current holders of all its stages are heard, even if earlier nodes of it are away.
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

/// Methods for the stages that nodes hold.
impl<'a> Topology<'a> {
    /// Returns the pipeline and stage of a node; none if it holds the whole model.
    #[must_use]
    pub fn place(&self, node: NodeId) -> Option<StageAddress> {
        self.pipelines()?.place(node)
    }

    /// Returns the number of the stage that a node holds; 0 if it holds the whole model.
    #[must_use]
    pub fn stage(&self, node: NodeId) -> u8 {
        self.place(node).map_or(0, |place| place.stage)
    }

    /// Returns the pipeline and stage of a node's worker, and the division into stages; none if the worker has the
    /// whole model.
    #[must_use]
    pub fn assignment(&self, node: NodeId) -> Option<PipelineAssignment> {
        let pipelines = self.pipelines()?;
        Some(PipelineAssignment {
            place: pipelines.place(node)?,
            cut: pipelines.spec.cut,
            pipelines: self.workers() as u32,
        })
    }

    /// Returns the part of the model that a node holds; none if it holds the whole model.
    #[must_use]
    pub fn held_stage(&self, node: NodeId) -> Option<PipelineStage> {
        let pipelines = self.pipelines()?;
        let place = pipelines.place(node)?;
        let partition = Partition::new(pipelines.layout()?, pipelines.spec).ok()?;
        Some(partition.stage(usize::from(place.stage)))
    }

    /// Returns the number of weights of the whole model, given the number that a node holds.
    #[must_use]
    pub fn weights(&self, held: u64) -> u64 {
        let layout = self.pipelines().and_then(Pipelines::layout);
        layout.map_or(held, |layout| layout.weights as u64)
    }

    /// Returns the node that holds a stage of a pipeline: the last one that took it over, else the one that began with
    /// it. A node that was given up does not get its stage back. Of two that took a stage over at the same time, the
    /// one with the lower id holds it.
    #[must_use]
    pub fn holder(&self, place: StageAddress) -> Option<&'a Participant> {
        self.pipelines()?.holder(place)
    }

    /// Returns true if another node has taken over the stage of a pipeline that `node` had.
    #[must_use]
    pub fn is_replaced(&self, node: NodeId) -> bool {
        let holder = self.place(node).and_then(|place| self.holder(place));
        holder.is_some_and(|holder| holder.node != node)
    }

    /// Returns true if two nodes hold the same weights, and so exchange batches.
    #[must_use]
    pub fn same_slice(&self, one: NodeId, other: NodeId) -> bool {
        let stage = |node| self.place(node).map(|place| place.stage);
        stage(one) == stage(other)
    }

    /// Returns true if two nodes are in the same pipeline, and so exchange activations and gradients.
    #[must_use]
    pub fn are_in_one_pipeline(&self, one: NodeId, other: NodeId) -> bool {
        let pipeline = |node| self.place(node).map(|place| place.pipeline);
        pipeline(one).is_some() && pipeline(one) == pipeline(other)
    }

    /// Returns true if two nodes have anything to exchange, and so need a link.
    #[must_use]
    pub fn are_linked(&self, one: NodeId, other: NodeId) -> bool {
        self.same_slice(one, other) || self.are_in_one_pipeline(one, other)
    }
}

/// Methods for missing nodes, and for guests: nodes that join later.
impl Topology<'_> {
    /// Returns the stages of pipelines whose holders are missing.
    #[must_use]
    pub fn vacancies(&self, is_missing: impl Fn(NodeId) -> bool) -> Vec<StageAddress> {
        let Some(pipelines) = self.pipelines() else {
            return Vec::new();
        };
        let places = (0..self.workers()).flat_map(|pipeline| pipelines.places(pipeline));
        let is_vacant = |place: &StageAddress| pipelines.holder(*place).is_some_and(|one| is_missing(one.node));
        places.filter(is_vacant).collect()
    }

    /// Returns true if the run can go on without the missing nodes: at least one pipeline is complete. If each node
    /// holds the whole model, any node can go on.
    #[must_use]
    pub fn can_go_on_without(&self, is_missing: impl Fn(NodeId) -> bool) -> bool {
        self.pipelines()
            .is_none_or(|pipelines| pipelines.first_whole(is_missing).is_some())
    }

    /// Returns true if a further node would have something to do in the run. Pipelines take a node only in place of a
    /// missing one.
    #[must_use]
    pub fn has_room(&self, is_missing: impl Fn(NodeId) -> bool) -> bool {
        match self {
            Self::Replicated(_) => true,
            Self::Pipelined(_) => !self.vacancies(is_missing).is_empty(),
        }
    }

    /// Returns a node as a guest (a participant that joins later), with the stage of a pipeline that it takes over;
    /// none if there is no room. Guests that come at the same time are spread over the vacant stages.
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

    /// Returns true if a participant can be a guest (a node that joins later): in pipelines it must have taken over one
    /// of their stages, else none.
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

/// Methods for the tasks of nodes in a run, such as leading a pipeline and measuring or saving the model.
impl Topology<'_> {
    /// Returns true if a node's workers choose the minibatches that they train, as in a pipeline only the first stage's
    /// does.
    #[must_use]
    pub fn leads(&self, node: NodeId) -> bool {
        self.pipelines()
            .is_none_or(|pipelines| pipelines.place(node).is_some_and(|place| place.stage == 0))
    }

    /// Returns true if a node's workers train minibatches that another node chooses. The training of such a node ends
    /// when the leaders have ended, whatever its own ledger (replica) says: samples done there may not be done at the
    /// leader, and missing samples are not made any more.
    #[must_use]
    pub fn is_led(&self, node: NodeId) -> bool {
        self.place(node).is_some_and(|place| place.stage > 0)
    }

    /// Returns true if a node leads a pipeline, and none of the pipeline's nodes is missing.
    #[must_use]
    pub fn leads_whole_pipeline(&self, node: NodeId, is_there: impl Fn(NodeId) -> bool) -> bool {
        self.pipelines().is_some_and(|pipelines| {
            let place = pipelines.place(node).filter(|place| place.stage == 0);
            place.is_some_and(|place| pipelines.is_whole(place.pipeline as usize, |node| !is_there(node)))
        })
    }

    /// Returns the node whose worker measures the model's quality during training: the first node that is there, or the
    /// leader of the first complete pipeline.
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

    /// Returns true if the worker that trains also measures the model's quality, between two of its steps, because it
    /// alone knows when an epoch is over.
    #[must_use]
    pub fn evaluates_by_itself(&self) -> bool {
        match self {
            Self::Replicated(plan) => plan.job.trainers == Trainers::AtMost(1),
            Self::Pipelined(_) => false,
        }
    }

    /// Returns true if the run's number of samples may be taken from the ledger (replica) of `node` when `teller`
    /// reports it. In pipelines that is a leader's ledger, because the ledger of a stage that lost a node may have one
    /// minibatch less.
    #[must_use]
    pub fn counts_samples_for(&self, teller: NodeId, node: NodeId) -> bool {
        match self {
            Self::Replicated(_) => node == teller,
            Self::Pipelined(_) => self.leads(node),
        }
    }

    /// Returns true if each node saves the stage that it holds, instead of one node saving the whole model. The nodes
    /// of each stage agree on their end separately; files are saved once all stages have agreed, because the result is
    /// that of all stages.
    #[must_use]
    pub fn saves_stages(&self) -> bool {
        matches!(self, Self::Pipelined(_))
    }

    /// Returns true if every worker that takes part must stay until the end, even if few samples are left, because all
    /// workers of a pipeline are needed to measure the model's quality.
    #[must_use]
    pub fn needs_all_workers(&self) -> bool {
        matches!(self, Self::Pipelined(_))
    }

    /// Returns true if the workers of a node that leaves first send their residuals (changes not sent yet). A pipeline
    /// that loses a node repeats the minibatch in flight instead, so its workers are simply lost.
    #[must_use]
    pub fn hands_over(&self) -> bool {
        matches!(self, Self::Replicated(_))
    }

    /// Returns true if a run can stall because workers hold back samples that others wait for.
    #[must_use]
    pub fn can_stall(&self) -> bool {
        matches!(self, Self::Replicated(_))
    }

    /// Returns true if a run that has diverged can be trained again automatically.
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

    /// Returns the takeover of a stage of a pipeline by a further node, numbered after the last takeover of the stage.
    fn take_over(&self, place: StageAddress) -> StageTakeover {
        let before = self.holder(place).and_then(|one| one.takes);
        StageTakeover {
            place,
            turn: before.map_or(0, |taken| taken.turn).saturating_add(1),
        }
    }

    /// Returns the addresses of a pipeline's stages, from the first stage to the last.
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

    /// Returns the first pipeline of which no node is missing.
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
