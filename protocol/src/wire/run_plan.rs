//! A run that begins: what is trained on which data, and by whom.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::ids::{NodeId, RunId};
use crate::job::{Job, Lanes};
use crate::wire::attach::DataInfo;
use crate::wire::flow::{Place, Post};

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
    /// What it goes on from; at the beginning if nothing. Where the network is spread over nodes, a checkpoint of each portion.
    pub resumed: Vec<Resumed>,
    /// Who could not take part and was left out, as the client allowed: a sentence for each, or for the first of them.
    pub left_out: Vec<String>,
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
}

/// Slots that guests' are drawn from.
const GUEST_SLOTS: u64 = 1 << 16;

impl RunPlan {
    /// The number of worker slots that samples were shared out to.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.resumed
            .first()
            .map_or_else(|| self.workers(), |resumed| resumed.slots)
    }

    /// The workers of those that began it.
    #[must_use]
    pub fn workers(&self) -> usize {
        if let Some(portions) = self.portions() {
            return self.participants.len() / portions;
        }
        let first = self.participants.iter().filter(|participant| !participant.guest);
        first.map(|participant| participant.workers).sum()
    }

    /// The slots of a node's workers. Those of guests come after all others, and far apart: a slot decides what its worker
    /// claims first, and guests live on claims. Should two be the same, they claim the same now and then.
    #[must_use]
    pub fn slots_of(&self, node: NodeId) -> std::ops::Range<usize> {
        let Some(own) = self.participant(node) else {
            return 0..0;
        };
        // A lane is one worker, whose parts lie on several nodes.
        if let Some(place) = self.place(node) {
            let lane = place.lane as usize;
            return lane..lane + 1;
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

    /// How many portions there are, where the network is spread over nodes.
    #[must_use]
    pub fn portions(&self) -> Option<usize> {
        self.job.exchange.lanes().and_then(Lanes::portions)
    }

    /// A node's place among those that hold the network together, where it is spread over nodes: they stand in rows.
    #[must_use]
    pub fn place(&self, node: NodeId) -> Option<Place> {
        let portions = self.portions()?;
        let index = self.participants.iter().position(|one| one.node == node)?;
        Some(Place {
            lane: (index / portions) as u32,
            portion: (index % portions) as u8,
        })
    }

    /// The same, and among how many.
    #[must_use]
    pub fn post(&self, node: NodeId) -> Option<Post> {
        Some(Post {
            place: self.place(node)?,
            groups: self.job.exchange.lanes()?.cut.groups()? as u8,
            lanes: self.workers() as u32,
        })
    }

    /// The checkpoint that a node goes on from.
    #[must_use]
    pub fn resumed_by(&self, node: NodeId) -> Option<&Resumed> {
        let portion = self.place(node).map_or(0, |place| usize::from(place.portion));
        self.resumed.get(portion)
    }

    /// Who has a place.
    #[must_use]
    pub fn at(&self, place: Place) -> Option<&Participant> {
        let index = place.lane as usize * self.portions()? + usize::from(place.portion);
        self.participants.get(index)
    }

    /// Whether two nodes hold the same weights, and so exchange what they learn.
    #[must_use]
    pub fn hold_the_same(&self, one: NodeId, other: NodeId) -> bool {
        let portion = |node| self.place(node).map(|place| place.portion);
        portion(one) == portion(other)
    }

    /// Whether two nodes are in one lane, and so pass on to each other what they compute.
    #[must_use]
    pub fn are_in_one_lane(&self, one: NodeId, other: NodeId) -> bool {
        let lane = |node| self.place(node).map(|place| place.lane);
        lane(one).is_some() && lane(one) == lane(other)
    }

    /// The lanes of which none of these nodes is a part.
    pub fn lanes_without(&self, missing: impl Fn(NodeId) -> bool) -> impl Iterator<Item = &[Participant]> {
        let rows = self.participants.chunks(self.portions().unwrap_or(usize::MAX));
        rows.filter(move |lane| !lane.iter().any(|one| missing(one.node)))
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
        };
        let mut plan = RunPlan {
            job: Box::new(JobDraft::default().resolve().unwrap()),
            data: DataInfo::example(),
            first: Digest::default(),
            participants: vec![participant(9, 2), participant(3, 1), participant(5, 3)],
            resumed: Vec::new(),
            left_out: Vec::new(),
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
    fn lanes_are_rows_of_participants() {
        let participant = |id| Participant {
            node: NodeId(id),
            name: format!("n{id}"),
            address: "127.0.0.1:1".parse().unwrap(),
            workers: 1,
            guest: false,
        };
        let draft = JobDraft {
            exchange: Some("layers:groups=3".into()),
            ..JobDraft::default()
        };
        let plan = RunPlan {
            job: Box::new(draft.resolve().unwrap()),
            data: DataInfo::example(),
            first: Digest::default(),
            participants: [9, 3, 5, 4, 7, 1].map(participant).into(),
            resumed: Vec::new(),
            left_out: Vec::new(),
        };
        assert_eq!((plan.slots(), plan.workers(), plan.portions()), (2, 2, Some(3)));
        assert_eq!(plan.place(NodeId(7)), Some(Place { lane: 1, portion: 1 }));
        assert_eq!(plan.at(Place { lane: 1, portion: 1 }).unwrap().node, NodeId(7));
        assert_eq!(plan.slots_of(NodeId(1)), 1..2);
        assert!(plan.hold_the_same(NodeId(3), NodeId(7)) && !plan.hold_the_same(NodeId(3), NodeId(5)));
        assert!(plan.are_in_one_lane(NodeId(9), NodeId(5)) && !plan.are_in_one_lane(NodeId(9), NodeId(4)));
        let whole: Vec<_> = plan
            .lanes_without(|node| node == NodeId(5))
            .map(|lane| lane[0].node)
            .collect();
        assert_eq!(whole, [NodeId(4)]);
    }
}
