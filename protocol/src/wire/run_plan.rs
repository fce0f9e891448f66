//! The plan with which a run begins: the job, the data and the participants.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::bounded::{BoundedVec, Name};
use crate::ids::{NodeId, RunId};
use crate::job::Job;
use crate::job::data::DataInfo;
use crate::reasons::AllLeftOut;
use crate::weights::digest::Digest;
use crate::wire::flow::StageAddress;
use crate::wire::topology::Topology;

/// Maximum length of a run plan's list of the settings that the job left to be decided ([`RunPlan::chosen`]); a job has
/// fewer settings.
pub const CHOSEN_MAX: usize = 64;

/// The plan of a run: job, data, and the participants.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunPlan {
    #[serde(with = "crate::job::as_text")]
    pub job: Box<Job>,
    /// Properties of the dataset that all participants must agree on, because they train on copies of the same data.
    pub data: DataInfo,
    /// Digest (checksum) of the weights that the run begins with. If the run continues from a checkpoint of a model whose
    /// first weights nodes draw by themselves, that of the weights with which the checkpoint's batches begin.
    pub first: Digest,
    /// Number of the model's weights.
    pub weights: u64,
    /// The participants: first those that began the run, in the order of their slots (workers' numbers), then its
    /// guests, which joined later.
    pub participants: Vec<Participant>,
    /// The checkpoints that the run continues: none, one, or one of each pipeline stage if the network is spread over
    /// nodes.
    pub resumed: Vec<Resumed>,
    /// Nodes that could not take part and were left out, as the client allowed.
    pub left_out: AllLeftOut,
    /// Names of the settings that the job left to be decided, and that were decided for this run.
    pub chosen: BoundedVec<Name, CHOSEN_MAX>,
    /// The diverged run whose job this run trains again.
    pub succeeds: Option<RunId>,
}

/// A node that takes part in a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Participant {
    pub node: NodeId,
    /// The node's name for people.
    pub name: String,
    /// Address at which other nodes reach the node.
    pub address: SocketAddr,
    /// Number of the node's slots. A slot is the number of a worker in the run, by which samples are dealt to it.
    pub workers: usize,
    /// True if the node joined after the run had begun. Samples were dealt out without it, so its workers only claim
    /// shards of samples that others have not begun.
    pub guest: bool,
    /// True if the node began the run but drew other first weights than the run's (a PyTorch module draws its own, and
    /// random numbers differ between releases of PyTorch): it takes a snapshot before its workers begin. False for
    /// guests, which do so anyway, and in runs that continue from a checkpoint.
    pub lacks_first_weights: bool,
    /// The stage of a pipeline that the node has taken over from one that was given up.
    pub takes: Option<StageTakeover>,
    /// Number of earlier participants of this run with the same name, which this process replaces: the node was
    /// restarted this many times.
    pub life: u32,
}

/// The takeover of a stage of a pipeline by a node, from one that was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageTakeover {
    pub place: StageAddress,
    /// Number of the takeover among all those of the stage, from 1. The node with the highest number holds the stage.
    pub turn: u32,
}

impl RunPlan {
    /// Returns the distribution of the model over the participants.
    #[must_use]
    pub fn topology(&self) -> Topology<'_> {
        Topology::of(self)
    }

    /// Returns the number of slots (numbers of workers) that samples were dealt to.
    #[must_use]
    pub fn slots(&self) -> usize {
        let resumed = self.resumed.first().map(|resumed| resumed.slots);
        resumed.unwrap_or_else(|| self.job.trainers.among(self.topology().workers()))
    }

    /// Returns the participants that began the run; guests came later.
    #[must_use]
    pub fn founders(&self) -> &[Participant] {
        let count = self.participants.iter().take_while(|one| !one.guest).count();
        &self.participants[..count]
    }

    /// Adds a guest (a node that joined later) to the participants, unless it is one already. Returns true if it was
    /// added. All nodes end up with the same list.
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

    #[must_use]
    pub fn participant(&self, node: NodeId) -> Option<&Participant> {
        self.participants.iter().find(|participant| participant.node == node)
    }

    /// Returns the checkpoint that a node continues from: the only one, or that of the node's pipeline stage. None if
    /// the run does not resume another one.
    #[must_use]
    pub fn resumed_by(&self, node: NodeId) -> Option<&Resumed> {
        self.resumed.get(usize::from(self.topology().stage(node)))
    }

    /// Returns the number of earlier participants with this name, for a new participant that replaces them.
    #[must_use]
    pub fn next_life(&self, name: &str) -> u32 {
        let lives = self.participants.iter().filter(|one| one.name == name);
        lives.map(|one| one.life.saturating_add(1)).max().unwrap_or(0)
    }

    /// Returns true if a participant was restarted: a later process of the same name takes part.
    #[must_use]
    pub fn is_succeeded(&self, node: NodeId) -> bool {
        let succeeds = |one: &Participant, former: &Participant| one.name == former.name && one.life > former.life;
        let former = self.participant(node);
        former.is_some_and(|former| self.participants.iter().any(|one| succeeds(one, former)))
    }

    /// Returns the number of samples between two evaluations.
    #[must_use]
    pub fn evaluation_interval(&self) -> u64 {
        (self.data.train / u64::from(self.job.evaluations_per_epoch())).max(1)
    }

    /// Returns true if the node begins without the run's weights and takes a snapshot first: it joined after the run had
    /// begun, or drew other first weights. In a run that continues from a checkpoint, nodes that lack the checkpoint do so,
    /// too, but the plan does not name them.
    #[must_use]
    pub fn is_newcomer(&self, node: NodeId) -> bool {
        self.participant(node).is_some_and(Participant::is_newcomer)
    }

    /// Returns true if the node joined after the run had begun.
    #[must_use]
    pub fn is_guest(&self, node: NodeId) -> bool {
        self.participant(node).is_some_and(|participant| participant.guest)
    }
}

impl Participant {
    /// Returns true if the node begins without the run's weights and takes a snapshot first.
    #[must_use]
    pub fn is_newcomer(&self) -> bool {
        self.guest || self.lacks_first_weights
    }
}

/// A checkpoint that a run continues from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resumed {
    /// The run that wrote the checkpoint.
    pub run: RunId,
    /// Digest of the checkpoint's weights.
    pub digest: Digest,
    /// Digest of the weights with which the checkpoint's batches begin: the first weights of the run that wrote it, or of
    /// the checkpoint's pipeline stage.
    pub first: Digest,
    /// Fingerprint of the batches in the checkpoint. Equal digests are not enough: two nodes may have the same weights
    /// after different batches, for example batches that changed nothing, and could not continue together.
    pub frontier: u64,
    /// Number of samples in the checkpoint's batches.
    pub samples: u64,
    /// Number of slots (numbers of workers) that samples were dealt to.
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
            lacks_first_weights: false,
            takes: None,
            life: 0,
        };
        let mut plan = RunPlan {
            job: Box::new(JobDraft::default().resolve().unwrap()),
            data: DataInfo::example(),
            first: Digest::default(),
            weights: 7,
            participants: vec![participant(9, 2), participant(3, 1), participant(5, 3)],
            resumed: Vec::new(),
            left_out: AllLeftOut::default(),
            chosen: BoundedVec::default(),
            succeeds: None,
        };
        assert_eq!(plan.slots(), 6);
        assert_eq!(plan.topology().slots_of(NodeId(9)), 0..2);
        assert_eq!(plan.topology().slots_of(NodeId(3)), 2..3);
        assert_eq!(plan.topology().slots_of(NodeId(5)), 3..6);
        assert!(plan.topology().slots_of(NodeId(4)).is_empty());
        assert!(plan.admit(participant(7, 2)) && plan.admit(participant(4, 1)));
        assert!(!plan.admit(participant(7, 1)) && !plan.admit(participant(9, 1)));
        let order: Vec<u64> = plan.participants.iter().map(|one| one.node.0).collect();
        assert_eq!((order, plan.slots()), (vec![9, 3, 5, 4, 7], 6));
        assert_eq!(
            (plan.topology().slots_of(NodeId(7)), plan.topology().slots_of(NodeId(4))),
            (13..15, 10..11)
        );
        assert_eq!(plan.topology().slots_of(NodeId(5)), 3..6);
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
            lacks_first_weights: false,
            takes: None,
            life,
        };
        let mut plan = RunPlan {
            job: Box::new(JobDraft::default().resolve().unwrap()),
            data: DataInfo::example(),
            first: Digest::default(),
            weights: 7,
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
}
