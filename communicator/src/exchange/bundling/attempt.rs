//! One attempt to add up a round: parts of the sum come from other members, this node's own steps are added, and they
//! go on.

use std::sync::Arc;

use protocol::ids::{NodeId, OriginId};
use protocol::log::batch::Header;
use protocol::log::bundle::Bundle;
use protocol::weights::dense::{Dense, Sign, add_up};
use protocol::weights::encoding::{self, DENSE_MAX};
use protocol::wire::part::{PartHead, RoundPart};

use super::reduction_path::{ReductionPath, place};

/// The batches with which this node's own workers contribute to a round.
#[derive(Clone, Debug, Default)]
pub(super) struct Own {
    pub(super) headers: Vec<Header>,
    /// The movements of weights that this node's batches of the round add up to; `None` if they move nothing.
    pub(super) dense: Option<Dense>,
}

/// The result of receiving a part of a round's sum (the sum over some of the weights) from another member.
#[derive(Debug, PartialEq)]
pub(super) enum PartOutcome {
    /// Other parts of the round's sum are still incomplete.
    Part,
    /// All parts of the round's sum are complete: a bundle (one sum with all headers) of the other nodes' batches.
    Whole(Bundle),
    /// The round's sum cannot be completed: what a member sent does not fit this round, as if it meant another round
    /// with the same number.
    Failed,
}

/// The state of a round that is being added up. The round's weights are cut into parts, each of which is added up by
/// itself.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    path: ReductionPath,
    pub(super) members: Arc<[NodeId]>,
    me: usize,
    fingerprint: u64,
    pub(super) round: u64,
    own: Own,
    parts: Vec<PartialSum>,
    /// Number of parts of the round's sum that are still incomplete.
    left: usize,
    /// The headers of the round's batches, from the first part that was complete.
    headers: Option<Vec<Header>>,
    /// The index of the first weight that the round covers, and the number of weights; `None` if this node adds nothing
    /// and does not know which weights the round covers.
    window: Option<(usize, usize)>,
    sums: Vec<i32>,
}

/// One part of the round's weights, while it is added up.
#[derive(Clone, Debug)]
struct PartialSum {
    /// Indices of the members whose values for the part have not come.
    waits: Vec<usize>,
    headers: Vec<Header>,
    /// The part's sum so far: this node's own values and those that have come; empty until the first have come.
    steps: Vec<i32>,
    whole: bool,
}

impl Attempt {
    /// Starts to add up a round of a model with this many weights. `me` is this node's index among the members. Parts
    /// that need no other member's values are sent at once.
    pub(super) fn begin(
        path: ReductionPath,
        (members, me): (Arc<[NodeId]>, usize),
        round: u64,
        own: Own,
        weights: usize,
        out: &mut Vec<(NodeId, RoundPart)>,
    ) -> (Self, PartOutcome) {
        let parts = path.parts(members.len(), weights.min(DENSE_MAX));
        let adding = |part| PartialSum {
            waits: path.route(members.len(), me, part).from,
            headers: own.headers.clone(),
            steps: Vec::new(),
            whole: false,
        };
        let adding = (0..parts).map(adding).collect();
        let mut attempt = Self {
            path,
            me,
            fingerprint: path.fingerprint(&members),
            members,
            round,
            parts: adding,
            left: parts,
            headers: None,
            window: None,
            sums: Vec::new(),
            own,
        };
        let own_window = attempt
            .own
            .dense
            .as_ref()
            .map(|dense| (dense.first() as usize, dense.steps().len()));
        // A round of a model with at most `DENSE_MAX` weights covers all weights. A larger model has them in turns, and
        // a node that adds nothing does not know which weights this round covers.
        if let Some(window) = own_window.or((weights <= DENSE_MAX).then_some((0, weights))) {
            attempt.window = Some(window);
            attempt.sums = vec![0; window.1];
        }
        for part in 0..parts {
            if attempt.parts[part].waits.is_empty() {
                let came = attempt.added(part, out);
                if came != PartOutcome::Part {
                    return (attempt, came);
                }
            }
        }
        (attempt, PartOutcome::Part)
    }

    /// Returns true if a received part belongs to this round, with the same members on the same path.
    pub(super) fn is_of(&self, head: &PartHead) -> bool {
        (head.round, head.members) == (self.round, self.fingerprint)
    }

    /// Takes a part of the round's sum from another member: a partial sum to add to, or a complete sum to forward.
    pub(super) fn take(
        &mut self,
        from: NodeId,
        part: RoundPart,
        weights: usize,
        out: &mut Vec<(NodeId, RoundPart)>,
    ) -> PartOutcome {
        let RoundPart { head, steps: bytes } = part;
        let piece = head.piece as usize;
        let sender = self.members.iter().position(|&member| member == from);
        let (Some(sender), true) = (sender, piece < self.parts.len()) else {
            return PartOutcome::Failed;
        };
        let is_due = if head.whole {
            !self.parts[piece].whole && self.path.giver(self.members.len(), self.me, piece) == Some(sender)
        } else {
            self.parts[piece].waits.contains(&sender)
        };
        if !is_due {
            // This part came before.
            return PartOutcome::Part;
        }
        let Ok(dense) = encoding::read_dense(&bytes, weights) else {
            return PartOutcome::Failed;
        };
        if !self.fits(piece, &dense) {
            return PartOutcome::Failed;
        }
        if head.whole {
            self.hand_on(piece, &head, &bytes, out);
            return self.whole(piece, head.headers, dense.steps());
        }
        let own = self.own.steps(self.place(piece));
        let adding = &mut self.parts[piece];
        adding.waits.retain(|&waited| waited != sender);
        adding.headers.extend(head.headers);
        let fits = if adding.steps.is_empty() {
            adding.steps = dense.into_steps();
            own.is_empty() || adding.steps.is_empty() || add_up(&mut adding.steps, own, Sign::Plus)
        } else {
            dense.steps().is_empty() || add_up(&mut adding.steps, dense.steps(), Sign::Plus)
        };
        if !fits {
            return PartOutcome::Failed;
        }
        if adding.waits.is_empty() {
            self.added(piece, out)
        } else {
            PartOutcome::Part
        }
    }

    /// Sends on a part to which all expected members have added their values: to the next member or, when it is
    /// complete, to all that get it from this node.
    fn added(&mut self, piece: usize, out: &mut Vec<(NodeId, RoundPart)>) -> PartOutcome {
        let route = self.path.route(self.members.len(), self.me, piece);
        let first = self.window.map_or(0, |(first, _)| first + self.place(piece).start);
        let own = self.own.steps(self.place(piece));
        let adding = &mut self.parts[piece];
        let sum = std::mem::take(&mut adding.steps);
        let steps = if sum.is_empty() { own } else { &sum };
        let mut headers = std::mem::take(&mut adding.headers);
        headers.sort_by_key(|header| header.origin);
        let mut bytes = Vec::new();
        encoding::write_steps(first as u32, steps, &mut bytes);
        let head = PartHead {
            round: self.round,
            members: self.fingerprint,
            piece: piece as u32,
            whole: route.to.is_none(),
            headers,
        };
        let bytes: Arc<[u8]> = bytes.into();
        let Some(to) = route.to else {
            self.hand_on(piece, &head, &bytes, out);
            let steps = steps.to_vec();
            return self.whole(piece, head.headers, &steps);
        };
        out.push((self.members[to], RoundPart { head, steps: bytes }));
        PartOutcome::Part
    }

    fn hand_on(&self, piece: usize, head: &PartHead, bytes: &Arc<[u8]>, out: &mut Vec<(NodeId, RoundPart)>) {
        let route = self.path.route(self.members.len(), self.me, piece);
        out.extend(route.hands_to.into_iter().map(|to| {
            let part = RoundPart {
                head: head.clone(),
                steps: Arc::clone(bytes),
            };
            (self.members[to], part)
        }));
    }

    /// Records that the sum of a part is complete. Returns the bundle if it was the last part.
    fn whole(&mut self, piece: usize, headers: Vec<Header>, steps: &[i32]) -> PartOutcome {
        match &self.headers {
            Some(known) if !are_same(known, &headers) => return PartOutcome::Failed,
            Some(_) => {}
            None => self.headers = Some(headers),
        }
        if !steps.is_empty() {
            let place = self.place(piece);
            self.sums[place].copy_from_slice(steps);
        }
        self.parts[piece].whole = true;
        self.left -= 1;
        if self.left == 0 { self.rest() } else { PartOutcome::Part }
    }

    /// Returns the bundle of the other nodes' batches: the complete sum without this node's own.
    fn rest(&mut self) -> PartOutcome {
        let mut headers = self.headers.take().unwrap_or_default();
        let mut sums = std::mem::take(&mut self.sums);
        let own: Vec<(OriginId, u64)> = batches(&self.own.headers).collect();
        let before = headers.len();
        headers.retain(|header| !own.contains(&(header.origin, header.sequence)));
        let has_own = before == headers.len() + own.len();
        let fits = match &self.own.dense {
            Some(dense) => add_up(&mut sums, dense.steps(), Sign::Minus),
            None => true,
        };
        let first = self.window.map_or(0, |(first, _)| first);
        match Dense::checked(first as u32, sums, usize::MAX) {
            Some(dense) if has_own && fits => PartOutcome::Whole(Bundle { headers, dense }),
            _ => PartOutcome::Failed,
        }
    }

    /// Returns true if a member's movements of weights cover exactly this part of the round's weights, or are empty.
    fn fits(&self, piece: usize, dense: &Dense) -> bool {
        let place = self.place(piece);
        let of_part = |(first, _): (usize, usize)| {
            (dense.first() as usize, dense.steps().len()) == (first + place.start, place.len())
        };
        dense.steps().is_empty() || self.window.is_some_and(of_part)
    }

    fn place(&self, piece: usize) -> std::ops::Range<usize> {
        place(piece, self.parts.len(), self.window.map_or(0, |(_, length)| length))
    }
}

impl Own {
    /// Movements of a range of the round's weights by this node's own batches.
    fn steps(&self, place: std::ops::Range<usize>) -> &[i32] {
        self.dense.as_ref().map_or(&[], |dense| &dense.steps()[place])
    }
}

fn batches(headers: &[Header]) -> impl Iterator<Item = (OriginId, u64)> + '_ {
    headers.iter().map(|header| (header.origin, header.sequence))
}

/// Returns true if headers belong to the same batches. It compares digests rather than headers, because a loss may be
/// NaN, which is not equal to itself.
fn are_same(one: &[Header], other: &[Header]) -> bool {
    let digests = |headers: &[Header]| headers.iter().map(|header| header.digest).collect::<Vec<_>>();
    batches(one).eq(batches(other)) && digests(one) == digests(other)
}
