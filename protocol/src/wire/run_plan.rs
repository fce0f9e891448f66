//! A run that begins: what is trained on which data, and by whom.

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

impl RunPlan {
    /// How the model lies on the participants.
    #[must_use]
    pub fn topology(&self) -> Topology<'_> {
        Topology::of(self)
    }

    /// The number of worker slots that samples were shared out to.
    #[must_use]
    pub fn slots(&self) -> usize {
        let resumed = self.resumed.first().map(|resumed| resumed.slots);
        resumed.unwrap_or_else(|| self.job.trainers.among(self.topology().workers()))
    }

    /// Those that began it.
    #[must_use]
    pub fn founders(&self) -> &[Participant] {
        let count = self.participants.iter().take_while(|one| !one.guest).count();
        &self.participants[..count]
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

    /// The checkpoint that a node goes on from.
    #[must_use]
    pub fn resumed_by(&self, node: NodeId) -> Option<&Resumed> {
        self.resumed.get(usize::from(self.topology().stage(node)))
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

    /// Samples between two evaluations.
    #[must_use]
    pub fn evaluation_interval(&self) -> u64 {
        (self.data.train / u64::from(self.job.evaluations_per_epoch())).max(1)
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
}
