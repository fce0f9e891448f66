//! One round, added up by its members: parts come, this node's own is added, and they go on.

use std::sync::Arc;

use protocol::ids::{NodeId, OriginId};
use protocol::log::batch::Header;
use protocol::log::bundle::Bundle;
use protocol::weights::dense::{Dense, Sign, add_up};
use protocol::weights::encoding::{self, DENSE_MAX};
use protocol::wire::part::{PartHead, RoundPart};

use super::reduction_path::{ReductionPath, place};

/// What this node adds to a round: its own workers' batches.
#[derive(Clone, Debug, Default)]
pub(super) struct Own {
    pub(super) headers: Vec<Header>,
    /// Their sum; none if they move nothing.
    pub(super) dense: Option<Dense>,
}

/// What became of a part.
#[derive(Debug, PartialEq)]
pub(super) enum PartOutcome {
    /// The round is not whole yet.
    Part,
    /// The round is whole: all batches of others that are in it.
    Whole(Bundle),
    /// It cannot become whole: somebody means another round by the same name.
    Failed,
}

/// A round that is being added up.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    path: ReductionPath,
    pub(super) members: Arc<[NodeId]>,
    me: usize,
    fingerprint: u64,
    pub(super) round: u64,
    own: Own,
    parts: Vec<PartialSum>,
    /// Parts that are not whole yet.
    left: usize,
    /// The batches of the round, by the first part that was whole.
    headers: Option<Vec<Header>>,
    /// Where the steps begin, and how many there are.
    window: Option<(usize, usize)>,
    sums: Vec<i32>,
}

/// A part that is being added up.
#[derive(Clone, Debug)]
struct PartialSum {
    /// Those whose part of it has not come.
    waits: Vec<usize>,
    headers: Vec<Header>,
    /// What has come of it, with this node's own; nothing before the first has come.
    steps: Vec<i32>,
    whole: bool,
}

impl Attempt {
    /// Begins a round of a model with so many weights among these members, of whom this node is one, and sends what can go
    /// at once.
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
        // A model that one batch holds is told whole. Of a larger one, who adds nothing does not know which weights have
        // their turn.
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

    /// Whether a part is of this round as this node knows it.
    pub(super) fn is_of(&self, head: &PartHead) -> bool {
        (head.round, head.members) == (self.round, self.fingerprint)
    }

    /// A part of it comes.
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
            // It came before.
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

    /// All that are waited for have added theirs to a part.
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

    /// A part is whole; perhaps it was the last.
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

    /// What the others have added to it.
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

    /// Whether steps are of this part's weights, or there are none.
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
    /// Its steps of some weights.
    fn steps(&self, place: std::ops::Range<usize>) -> &[i32] {
        self.dense.as_ref().map_or(&[], |dense| &dense.steps()[place])
    }
}

fn batches(headers: &[Header]) -> impl Iterator<Item = (OriginId, u64)> + '_ {
    headers.iter().map(|header| (header.origin, header.sequence))
}

/// Whether headers are of the same batches. Losses may be no numbers, which are not equal to themselves.
fn are_same(one: &[Header], other: &[Header]) -> bool {
    let digests = |headers: &[Header]| headers.iter().map(|header| header.digest).collect::<Vec<_>>();
    batches(one).eq(batches(other)) && digests(one) == digests(other)
}
