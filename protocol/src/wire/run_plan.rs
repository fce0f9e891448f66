//! A run that begins: what is trained on which data, and by whom.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::bounded::{BoundedVec, Name};
use crate::digest::Digest;
use crate::ids::{NodeId, RunId};
use crate::job::{Job, PipelineSpec, Trainers};
use crate::reasons::AllLeftOut;
use crate::wire::attach::DataInfo;
use crate::wire::flow::{PipelineAssignment, StageAddress};

/// Settings that a plan can name as chosen: more than a job has.
pub const CHOSEN_MAX: usize = 64;

/// A run with its participants.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunPlan {
    /// What is trained.
    #[serde(with = "crate::job::as_text")]
    pub job: Box<Job>,
    /// On what.
    pub data: DataInfo,
    /// The digest of the first weights.
    pub first: Digest,
    /// By whom: those that began it, in the order of their slots, and then those that came later, its guests.
    pub participants: Vec<Participant>,
    /// What it goes on from; at the beginning if nothing. Where the network is spread over nodes, a checkpoint of each stage.
    pub resumed: Vec<Resumed>,
    /// Who could not take part and was left out, as the client allowed.
    pub left_out: AllLeftOut,
    /// The job's settings that were left open and decided for this run, by name.
    pub chosen: BoundedVec<Name, CHOSEN_MAX>,
    /// The run that diverged and that this one trains once more.
    pub succeeds: Option<RunId>,
}

/// A node that takes part in a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Participant {
    /// Which.
    pub node: NodeId,
    /// Its name for people.
    pub name: String,
    /// Where it is reached.
    pub address: SocketAddr,
    /// How many worker slots it has.
    pub workers: usize,
    /// It came when the run had begun. Samples were shared out without it: it takes from others what they have not
    /// begun.
    pub guest: bool,
    /// The place that it has taken over, where the network is spread over nodes: who had it was given up.
    pub takes: Option<StageTakeover>,
    /// The number of earlier participants of this run with the same name, whose place this process has taken: it was started
    /// again this many times.
    pub life: u32,
}

/// A place that somebody has taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageTakeover {
    /// Which.
    pub place: StageAddress,
    /// How often it was taken over, with this time. So all know who was the last.
    pub turn: u32,
}

/// Slots that guests' are drawn from.
const GUEST_SLOTS: u64 = 1 << 16;

impl RunPlan {
    /// The number of worker slots that samples were shared out to.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.resumed
            .first()
            .map_or_else(|| self.job.trainers.among(self.workers()), |resumed| resumed.slots)
    }

    /// The workers of those that began it.
    #[must_use]
    pub fn workers(&self) -> usize {
        let founders = self.founders();
        match self.stages() {
            Some(stages) => founders.len() / stages,
            None => founders.iter().map(|participant| participant.workers).sum(),
        }
    }

    /// Those that began it.
    #[must_use]
    pub fn founders(&self) -> &[Participant] {
        let count = self.participants.iter().take_while(|one| !one.guest).count();
        &self.participants[..count]
    }

    /// The slots of a node's workers. Those of guests come after all others, and far apart: a slot decides what its worker
    /// claims first, and guests live on claims. Should two be the same, they claim the same now and then.
    #[must_use]
    pub fn slots_of(&self, node: NodeId) -> std::ops::Range<usize> {
        let Some(own) = self.participant(node) else {
            return 0..0;
        };
        // A pipeline is one worker, whose parts lie on several nodes.
        if let Some(place) = self.place(node) {
            let pipeline = place.pipeline as usize;
            return pipeline..pipeline + 1;
        }
        let first = if own.guest {
            self.slots().max(self.workers()) + (own.node.0 % GUEST_SLOTS) as usize
        } else {
            let before = self.participants.iter().take_while(|one| one.node != node);
            before.map(|participant| participant.workers).sum()
        };
        first..first + own.workers
    }

    /// Adds a guest, unless it takes part already; whether that is news. All nodes end up with the same list.
    pub fn admit(&mut self, guest: Participant) -> bool {
        if self.participant(guest.node).is_some() {
            return false;
        }
        let guest = Participant { guest: true, ..guest };
        let after = |one: &Participant| !one.guest || one.node < guest.node;
        let place = self.participants.partition_point(after);
        self.participants.insert(place, guest);
        true
    }

    /// The participant with this name.
    #[must_use]
    pub fn participant(&self, node: NodeId) -> Option<&Participant> {
        self.participants.iter().find(|participant| participant.node == node)
    }

    /// How many stages there are, where the network is spread over nodes.
    #[must_use]
    pub fn stages(&self) -> Option<usize> {
        self.job.exchange.pipelines().and_then(PipelineSpec::stages)
    }

    /// A node's place among those that hold the network together, where it is spread over nodes: they stand in rows, and who
    /// comes later takes over the place of one that was given up.
    #[must_use]
    pub fn place(&self, node: NodeId) -> Option<StageAddress> {
        let stages = self.stages()?;
        let index = self.participants.iter().position(|one| one.node == node)?;
        let own = StageAddress {
            pipeline: (index / stages) as u32,
            stage: (index % stages) as u8,
        };
        if self.participants[index].guest {
            self.participants[index].takes.map(|taken| taken.place)
        } else {
            Some(own)
        }
    }

    /// The same, and among how many.
    #[must_use]
    pub fn pipeline_assignment(&self, node: NodeId) -> Option<PipelineAssignment> {
        Some(PipelineAssignment {
            place: self.place(node)?,
            cut: self.job.exchange.pipelines()?.cut,
            pipelines: self.workers() as u32,
        })
    }

    /// The checkpoint that a node goes on from.
    #[must_use]
    pub fn resumed_by(&self, node: NodeId) -> Option<&Resumed> {
        let stage = self.place(node).map_or(0, |place| usize::from(place.stage));
        self.resumed.get(stage)
    }

    /// Who has a place: the last that has taken it over, or who began with it. Who was given up once does not get it back. Of
    /// two that have taken it at a time, the one with the lower id.
    #[must_use]
    pub fn holder(&self, place: StageAddress) -> Option<&Participant> {
        let takers = self.participants.iter();
        let takers = takers.filter_map(|one| Some((one, one.takes.filter(|taken| taken.place == place)?.turn)));
        let last = takers.max_by_key(|(one, turn)| (*turn, std::cmp::Reverse(one.node)));
        if let Some((last, _)) = last {
            return Some(last);
        }
        let index = place.pipeline as usize * self.stages()? + usize::from(place.stage);
        self.founders().get(index)
    }

    /// A place, to be taken over.
    #[must_use]
    pub fn take_over(&self, place: StageAddress) -> StageTakeover {
        let before = self
            .holder(place)
            .and_then(|one| one.takes)
            .map_or(0, |taken| taken.turn);
        StageTakeover {
            place,
            turn: before.saturating_add(1),
        }
    }

    /// The places of a pipeline, in order.
    pub fn places(&self, pipeline: usize) -> impl Iterator<Item = StageAddress> + use<> {
        let stages = self.stages().unwrap_or(0) as u8;
        (0..stages).map(move |stage| StageAddress {
            pipeline: pipeline as u32,
            stage,
        })
    }

    /// Whether another has taken a node's place over.
    #[must_use]
    pub fn is_replaced(&self, node: NodeId) -> bool {
        let holder = self.place(node).and_then(|place| self.holder(place));
        holder.is_some_and(|holder| holder.node != node)
    }

    /// The life of a further participant with this name.
    #[must_use]
    pub fn next_life(&self, name: &str) -> u32 {
        let lives = self.participants.iter().filter(|one| one.name == name);
        lives.map(|one| one.life.saturating_add(1)).max().unwrap_or(0)
    }

    /// Whether a participant was started again: a later process of the same name takes part.
    #[must_use]
    pub fn is_succeeded(&self, node: NodeId) -> bool {
        let succeeds = |one: &Participant, former: &Participant| one.name == former.name && one.life > former.life;
        let former = self.participant(node);
        former.is_some_and(|former| self.participants.iter().any(|one| succeeds(one, former)))
    }

    /// The places whose holders are missing.
    pub fn vacancies(&self, is_missing: impl Fn(NodeId) -> bool) -> Vec<StageAddress> {
        let places = (0..self.workers()).flat_map(|pipeline| self.places(pipeline));
        let is_vacant = |place: &StageAddress| self.holder(*place).is_some_and(|one| is_missing(one.node));
        places.filter(is_vacant).collect()
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

    /// The pipelines in which nobody is missing.
    pub fn whole_pipelines(&self, is_missing: impl Fn(NodeId) -> bool) -> Vec<usize> {
        let vacant = self.vacancies(is_missing);
        let is_whole = |&pipeline: &usize| vacant.iter().all(|place| place.pipeline as usize != pipeline);
        (0..self.workers()).filter(is_whole).collect()
    }

    /// Samples between two evaluations.
    #[must_use]
    pub fn evaluation_interval(&self) -> u64 {
        (self.data.train / u64::from(self.job.evaluations_per_epoch())).max(1)
    }

    /// Whether the worker that trains also measures, between two of its steps: it alone knows when an epoch is over.
    #[must_use]
    pub fn evaluates_by_itself(&self) -> bool {
        self.job.trainers == Trainers::AtMost(1) && self.stages().is_none()
    }

    /// Whether a node came when the run was under way.
    #[must_use]
    pub fn is_guest(&self, node: NodeId) -> bool {
        self.participant(node).is_some_and(|participant| participant.guest)
    }
}

/// A checkpoint that a run goes on from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resumed {
    /// The run that it is of.
    pub run: RunId,
    /// The digest of its weights.
    pub digest: Digest,
    /// The fingerprint of its frontier: two nodes may have come to the same weights with different batches, say with
    /// batches that changed nothing, and could not go on together.
    pub frontier: u64,
    /// The samples in its batches.
    pub samples: u64,
    /// The worker slots that samples were shared out to.
    pub slots: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobDraft;

    #[test]
    fn slots_follow_the_participants() {
        let participant = |id, workers| Participant {
            node: NodeId(id),
            name: format!("n{id}"),
            address: "127.0.0.1:1".parse().unwrap(),
            workers,
            guest: false,
            takes: None,
            life: 0,
        };
        let mut plan = RunPlan {
            job: Box::new(JobDraft::default().resolve().unwrap()),
            data: DataInfo::example(),
            first: Digest::default(),
            participants: vec![participant(9, 2), participant(3, 1), participant(5, 3)],
            resumed: Vec::new(),
            left_out: AllLeftOut::default(),
            chosen: BoundedVec::default(),
            succeeds: None,
        };
        assert_eq!(plan.slots(), 6);
        assert_eq!(plan.slots_of(NodeId(9)), 0..2);
        assert_eq!(plan.slots_of(NodeId(3)), 2..3);
        assert_eq!(plan.slots_of(NodeId(5)), 3..6);
        assert!(plan.slots_of(NodeId(4)).is_empty());
        assert!(plan.admit(participant(7, 2)) && plan.admit(participant(4, 1)));
        assert!(!plan.admit(participant(7, 1)) && !plan.admit(participant(9, 1)));
        let order: Vec<u64> = plan.participants.iter().map(|one| one.node.0).collect();
        assert_eq!((order, plan.slots()), (vec![9, 3, 5, 4, 7], 6));
        assert_eq!((plan.slots_of(NodeId(7)), plan.slots_of(NodeId(4))), (13..15, 10..11));
        assert_eq!(plan.slots_of(NodeId(5)), 3..6);
        let bytes = postcard::to_stdvec(&plan).unwrap();
        assert_eq!(postcard::from_bytes::<RunPlan>(&bytes).unwrap(), plan);
    }

    #[test]
    fn a_later_process_of_a_name_succeeds_all_before_it() {
        let named = |id, name: &str, life| Participant {
            node: NodeId(id),
            name: name.into(),
            address: "127.0.0.1:1".parse().unwrap(),
            workers: 1,
            guest: false,
            takes: None,
            life,
        };
        let mut plan = RunPlan {
            job: Box::new(JobDraft::default().resolve().unwrap()),
            data: DataInfo::example(),
            first: Digest::default(),
            participants: vec![named(4, "desk", 0), named(9, "lab", 0)],
            resumed: Vec::new(),
            left_out: AllLeftOut::default(),
            chosen: BoundedVec::default(),
            succeeds: None,
        };
        let succeeded = |plan: &RunPlan| [4, 9, 8, 2].map(|id| plan.is_succeeded(NodeId(id)));
        assert_eq!(succeeded(&plan), [false; 4]);
        assert_eq!((plan.next_life("shed"), plan.next_life("desk")), (0, 1));
        assert!(plan.admit(named(8, "desk", 1)));
        assert_eq!(succeeded(&plan), [true, false, false, false]);
        // Guests are ordered by their ids, whichever came first.
        assert!(plan.admit(named(2, "desk", plan.next_life("desk"))));
        assert_eq!(succeeded(&plan), [true, false, true, false]);
    }

    #[test]
    fn pipelines_are_rows_of_participants() {
        let participant = |id| Participant {
            node: NodeId(id),
            name: format!("n{id}"),
            address: "127.0.0.1:1".parse().unwrap(),
            workers: 1,
            guest: false,
            takes: None,
            life: 0,
        };
        let draft = JobDraft {
            exchange: Some("layers:groups=3".into()),
            ..JobDraft::default()
        };
        let mut plan = RunPlan {
            job: Box::new(draft.resolve().unwrap()),
            data: DataInfo::example(),
            first: Digest::default(),
            participants: [9, 3, 5, 4, 7, 1].map(participant).into(),
            resumed: Vec::new(),
            left_out: AllLeftOut::default(),
            chosen: BoundedVec::default(),
            succeeds: None,
        };
        assert_eq!((plan.slots(), plan.workers(), plan.stages()), (2, 2, Some(3)));
        assert_eq!(plan.place(NodeId(7)), Some(StageAddress { pipeline: 1, stage: 1 }));
        let place = StageAddress { pipeline: 1, stage: 1 };
        let at = |plan: &RunPlan| plan.holder(place).map(|one| one.node.0);
        assert_eq!(at(&plan), Some(7));
        assert_eq!(plan.slots_of(NodeId(1)), 1..2);
        assert!(plan.same_slice(NodeId(3), NodeId(7)) && !plan.same_slice(NodeId(3), NodeId(5)));
        assert!(plan.are_in_one_pipeline(NodeId(9), NodeId(5)) && !plan.are_in_one_pipeline(NodeId(9), NodeId(4)));
        assert_eq!(plan.whole_pipelines(|node| node == NodeId(5)), [1]);
        let lost = |node| node == NodeId(7);
        assert_eq!(
            (plan.vacancies(lost), plan.whole_pipelines(lost)),
            (vec![place], vec![0])
        );

        // Two nodes take the place over at a time, and another one when those are lost.
        let taker = |id, turn| Participant {
            takes: Some(StageTakeover { place, turn }),
            ..participant(id)
        };
        assert_eq!(plan.take_over(place), StageTakeover { place, turn: 1 });
        assert!(plan.admit(taker(8, 1)) && !plan.admit(taker(8, 1)) && plan.admit(taker(10, 1)));
        assert_eq!((plan.place(NodeId(8)), plan.slots_of(NodeId(8))), (Some(place), 1..2));
        assert_eq!(
            (plan.workers(), plan.slots()),
            (2, 2),
            "the number of pipelines must not change"
        );
        assert!(plan.same_slice(NodeId(3), NodeId(8)) && plan.are_in_one_pipeline(NodeId(1), NodeId(8)));
        assert_eq!(at(&plan), Some(8));
        let replaced = |plan: &RunPlan| [7, 8, 10, 12, 1].map(|id| plan.is_replaced(NodeId(id)));
        assert_eq!(replaced(&plan), [true, false, true, false, false]);
        assert_eq!((plan.vacancies(lost), plan.whole_pipelines(lost)), (vec![], vec![0, 1]));
        let next = plan.take_over(place);
        assert!(plan.admit(taker(12, next.turn)));
        assert_eq!(
            at(&plan),
            Some(12),
            "a node that was given up must not get its stage back"
        );
        assert_eq!(replaced(&plan), [true, true, true, false, false]);
    }
}
