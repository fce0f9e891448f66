//! The path of a round's parts through its members: towards one member while values are added, and back to all with the
//! complete sum.
//!
//! All functions are pure: they depend on the number of members, a member's index and a part's index.

use protocol::ids::NodeId;
use protocol::rng::splitmix64;

/// Approximate maximum of weights in one part of a round's sum: small enough that adding, sending and forwarding
/// overlap.
const PART_WEIGHTS: usize = 128 << 10;

/// The path along which the members of a round add up its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReductionPath {
    /// All members send to the first member, which sends the sum to all.
    Star,
    /// A partial sum goes from each member to the next; the first member comes last, completes the sum and sends it to
    /// all.
    RingReduce,
    /// Each part of the round's sum begins at another member, goes once round the ring of members while it is added up,
    /// and once more as the complete sum.
    Ring,
}

/// A member's task for one part of a round's sum: from which members it gets values, and to which it sends them on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PartRoute {
    /// The members from which partial sums of this part come.
    pub(super) from: Vec<usize>,
    /// The member to which the partial sum goes next; `None` where the sum is complete.
    pub(super) to: Option<usize>,
    /// The members to which the complete sum is forwarded.
    pub(super) hands_to: Vec<usize>,
}

impl ReductionPath {
    /// Number of parts into which a round of this many weights is cut, so that its members can add up and send several
    /// parts at the same time.
    pub(super) fn parts(self, members: usize, weights: usize) -> usize {
        let parts = weights.div_ceil(PART_WEIGHTS).max(1);
        match self {
            Self::Star | Self::RingReduce => parts,
            // A multiple of the number of members, so that each begins and ends as many parts as any other.
            Self::Ring => parts.next_multiple_of(members.max(1)),
        }
    }

    /// Returns the task of member `me` for one part of a round's sum: from which members it gets values, and to which
    /// it sends them on. `members` is the number of the round's members.
    pub(super) fn route(self, members: usize, me: usize, part: usize) -> PartRoute {
        let others = || (0..members).filter(|&other| other != me).collect();
        match self {
            Self::Star if me == 0 => PartRoute {
                from: others(),
                to: None,
                hands_to: others(),
            },
            Self::Star => PartRoute {
                from: Vec::new(),
                to: Some(0),
                hands_to: Vec::new(),
            },
            // Each part begins at the second member and ends at the first.
            Self::RingReduce => PartRoute {
                from: (me != 1).then_some((me + members - 1) % members).into_iter().collect(),
                to: (me != 0).then_some((me + 1) % members),
                hands_to: if me == 0 { others() } else { Vec::new() },
            },
            Self::Ring => {
                let next = (me + 1) % members;
                let hops = (me + members - part % members) % members;
                let before_last = hops + 2 == members;
                PartRoute {
                    from: (hops > 0).then_some((me + members - 1) % members).into_iter().collect(),
                    to: (hops + 1 < members).then_some(next),
                    // The member before the last one to add is the last to get the complete sum, and does not forward
                    // it.
                    hands_to: (!before_last).then_some(next).into_iter().collect(),
                }
            }
        }
    }

    /// The member from which `me` gets a complete part; `None` if `me` completes it itself.
    pub(super) fn giver(self, members: usize, me: usize, part: usize) -> Option<usize> {
        (0..members).find(|&other| other != me && self.route(members, other, part).hands_to.contains(&me))
    }

    /// Returns a hash of this reduction path and of a round's members in their order, by which nodes check that they
    /// mean the same round.
    pub(super) fn fingerprint(self, members: &[NodeId]) -> u64 {
        members.iter().fold(splitmix64(self as u64), |sum, node| {
            splitmix64(sum ^ splitmix64(node.0))
        })
    }
}

/// Range of a round's weights that belongs to a part, if all of them are cut into this many parts.
pub(super) fn place(part: usize, parts: usize, weights: usize) -> std::ops::Range<usize> {
    weights * part / parts..weights * (part + 1) / parts
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, VecDeque};

    use super::*;

    const WAYS: [ReductionPath; 3] = [ReductionPath::Star, ReductionPath::RingReduce, ReductionPath::Ring];

    /// Simulates the path of a part. Returns the number of times that each member sends it, and for each member the one
    /// that it gets the complete sum from.
    fn walk(path: ReductionPath, members: usize, part: usize) -> (Vec<usize>, Vec<Option<usize>>) {
        let turns: Vec<PartRoute> = (0..members).map(|me| path.route(members, me, part)).collect();
        let mut has: Vec<BTreeSet<usize>> = (0..members).map(|me| BTreeSet::from([me])).collect();
        let mut waits: Vec<BTreeSet<usize>> = turns.iter().map(|route| route.from.iter().copied().collect()).collect();
        let mut sends = vec![0; members];
        let mut ready: VecDeque<usize> = (0..members).filter(|&me| waits[me].is_empty()).collect();
        let mut whole = Vec::new();
        while let Some(me) = ready.pop_front() {
            match turns[me].to {
                Some(to) => {
                    sends[me] += 1;
                    let sum = has[me].clone();
                    assert!(has[to].is_disjoint(&sum), "{path:?}: a member's values are added twice");
                    has[to].extend(sum);
                    assert!(
                        waits[to].remove(&me),
                        "{path:?}: member {to} does not expect the part from member {me}"
                    );
                    if waits[to].is_empty() {
                        ready.push_back(to);
                    }
                }
                None => whole.push(me),
            }
        }
        assert_eq!(whole.len(), 1, "{path:?}: exactly one member completes the sum");
        assert_eq!(
            has[whole[0]].len(),
            members,
            "{path:?}: the completed sum lacks a member's values"
        );
        let mut came = vec![None; members];
        while let Some(me) = whole.pop() {
            for &to in &turns[me].hands_to {
                sends[me] += 1;
                assert_eq!(came[to], None, "{path:?}: member {to} gets the sum twice");
                came[to] = Some(me);
                whole.push(to);
            }
        }
        (sends, came)
    }

    #[test]
    fn every_way_adds_up_all_once_and_reaches_all() {
        for path in WAYS {
            for members in 2..=9 {
                for part in 0..2 * members {
                    let (_, came) = walk(path, members, part);
                    let givers: Vec<Option<usize>> = (0..members).map(|me| path.giver(members, me, part)).collect();
                    assert_eq!(came, givers, "{path:?} with {members} members, part {part}");
                    assert_eq!(came.iter().filter(|giver| giver.is_none()).count(), 1);
                }
            }
        }
    }

    #[test]
    fn in_a_ring_all_send_the_same() {
        for members in 2..=9 {
            let parts = ReductionPath::Ring.parts(members, 1_000_000);
            assert_eq!(parts % members, 0);
            let mut sends = vec![0; members];
            for part in 0..parts {
                let of_part = walk(ReductionPath::Ring, members, part).0;
                sends.iter_mut().zip(of_part).for_each(|(sum, sent)| *sum += sent);
            }
            let share = 2 * (members - 1) * parts / members;
            assert_eq!(sends, vec![share; members]);
        }
    }

    #[test]
    fn parts_cover_all_weights_once() {
        for (weights, parts) in [(10, 3), (3, 9), (0, 4), (1_000_003, 8)] {
            let mut next = 0;
            for part in 0..parts {
                let place = place(part, parts, weights);
                assert_eq!(place.start, next);
                next = place.end;
            }
            assert_eq!(next, weights);
        }
    }

    #[test]
    fn other_members_or_another_way_have_another_fingerprint() {
        let members = |ids: &[u64]| ids.iter().map(|&id| NodeId(id)).collect::<Vec<_>>();
        let orders = [
            members(&[1, 2, 3]),
            members(&[2, 1, 3]),
            members(&[1, 2]),
            members(&[1, 2, 4]),
        ];
        let seen: BTreeSet<u64> = WAYS
            .iter()
            .flat_map(|path| orders.iter().map(|order| path.fingerprint(order)))
            .collect();
        assert_eq!(seen.len(), WAYS.len() * orders.len());
    }
}
