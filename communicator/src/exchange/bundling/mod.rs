//! Bundling: this node's part in adding rounds up on their way, and which batches wait for that.
//!
//! A batch that is offered to a round is *held*: members of the round do not get it singly. It is let go when the round is
//! given up, or some time after it was whole, for those who have not said by then that they have it.

mod attempt;
mod reduction_path;

use std::collections::VecDeque;
use std::sync::Arc;

use protocol::ids::{NodeId, OriginId};
use protocol::log::batch::{Batch, Payload};
use protocol::log::bundle::Bundle;
use protocol::weights::dense::{Dense, Sign, add_up};
use protocol::wire::part::RoundPart;

use self::attempt::{Attempt, Own, PartOutcome};
pub use self::reduction_path::ReductionPath;
use crate::planted::{Bug, planted};

/// Fewer have nothing to add up on the way: each sends the other what it has.
const MEMBERS_MIN: usize = 3;
/// Ticks after a round was whole before members that have not said that they have it get its batches singly.
const WAITING_TICKS: u32 = 20;
/// After a failure rounds go by the mesh until the next whose number is a multiple of this, and twice as much after each
/// further one.
const RETRY_ROUNDS: u64 = 16;
const RETRY_DOUBLINGS: u32 = 6;
/// Batches of rounds that were given up, at most, that are not merged with others.
const FAILED_MAX: usize = 64;
/// What is kept of parts of rounds that this node has not come to: so many models, and so many bytes.
const STASHED_MODELS: usize = 16;
const STASH_BYTES_MIN: usize = 1 << 20;
/// What a part takes beside its steps, about.
const PART_BYTES: usize = 1 << 10;

/// A node's part in adding up rounds.
#[derive(Clone, Debug)]
pub(super) struct Bundling {
    path: ReductionPath,
    me: NodeId,
    weights: usize,
    /// What this node's workers have made of the present round.
    offer: Option<Offer>,
    attempt: Option<Attempt>,
    /// A round that is whole, and waits for batches before it.
    pending: Option<Bundle>,
    /// Parts of rounds that this node has not come to.
    stash: VecDeque<(NodeId, RoundPart)>,
    waiting: VecDeque<PendingBatch>,
    /// Batches that were offered to rounds which were given up, the latest ones.
    failed: VecDeque<(OriginId, u64)>,
    /// The last round that is done with, one way or the other.
    done: u64,
    failures: u32,
    /// Rounds before this go by the mesh.
    resumes_at: u64,
    /// Rounds that came as bundles, and that were given up.
    pub(super) bundled: u64,
    pub(super) given_up: u64,
}

#[derive(Clone, Debug)]
struct Offer {
    round: u64,
    members: Arc<[NodeId]>,
    own: Own,
    ticks: u32,
}

/// A batch that waits for a bundle.
#[derive(Clone, Debug)]
struct PendingBatch {
    origin: OriginId,
    sequence: u64,
    /// Whom the bundle will reach.
    members: Arc<[NodeId]>,
    /// Ticks until it is let go, once the round is whole.
    left: Option<u32>,
}

/// What is to be done after something has come.
#[derive(Debug, Default)]
pub(super) struct BundlingOutcome {
    /// Parts to be sent.
    pub(super) out: Vec<(NodeId, RoundPart)>,
    /// Rounds were given up: their batches go singly.
    pub(super) let_go: bool,
}

impl Bundling {
    pub(super) fn new(path: ReductionPath, me: NodeId, weights: usize) -> Self {
        Self {
            path,
            me,
            weights,
            offer: None,
            attempt: None,
            pending: None,
            stash: VecDeque::new(),
            waiting: VecDeque::new(),
            failed: VecDeque::new(),
            done: 0,
            failures: 0,
            resumes_at: 0,
            bundled: 0,
            given_up: 0,
        }
    }

    /// Whether a batch waits for a bundle that is to reach this node.
    pub(super) fn holds(&self, origin: OriginId, sequence: u64, node: NodeId) -> bool {
        let is_meant = |waiting: &PendingBatch| {
            (waiting.origin, waiting.sequence) == (origin, sequence) && waiting.members.contains(&node)
        };
        self.waiting.iter().any(is_meant)
    }

    /// Before and after batches that were offered to rounds which were given up: others may have those rounds all the same.
    pub(super) fn points(&self, origin: OriginId) -> impl Iterator<Item = u64> + '_ {
        let failed = self.failed.iter().filter(move |(failed, _)| *failed == origin);
        failed.flat_map(|&(_, sequence)| [sequence - 1, sequence])
    }

    /// The round that is open, and its members.
    pub(super) fn open(&self) -> Option<(u64, &[NodeId])> {
        self.offer.as_ref().map(|offer| (offer.round, &*offer.members))
    }

    /// One of this node's workers has made a batch of a round that has these members. It is held, if the round is to be
    /// added up.
    pub(super) fn offer(&mut self, batch: Batch, members: &[NodeId], follows: &mut BundlingOutcome) {
        let Batch { header, payload } = batch;
        let round = header.status.round;
        // The first round has no members yet: who takes part shows by it.
        let is_tried = round > 1 && round > self.done && round >= self.resumes_at;
        if !is_tried || members.len() < MEMBERS_MIN || !members.contains(&self.me) {
            return;
        }
        let dense = match payload {
            Payload::Dense(dense) => Some(dense),
            payload if payload.is_empty() => None,
            Payload::Steps { .. } | Payload::Sums(_) => return,
        };
        if self.offer.as_ref().is_some_and(|offer| offer.round > round) || self.attempt_is_of(round) {
            return;
        }
        if self.offer.as_ref().is_some_and(|offer| offer.round < round) {
            self.give_up(true, follows);
        }
        let offer = self.offer.get_or_insert_with(|| Offer {
            round,
            members: members.into(),
            own: Own::default(),
            ticks: 0,
        });
        if !offer.own.add(dense) {
            return;
        }
        self.waiting.push_back(PendingBatch {
            origin: header.origin,
            sequence: header.sequence,
            members: Arc::clone(&offer.members),
            left: None,
        });
        offer.own.headers.push(header);
    }

    fn attempt_is_of(&self, round: u64) -> bool {
        self.attempt.as_ref().is_some_and(|attempt| attempt.round == round)
    }

    /// Whether all that this node adds to the open round is to be offered before it begins.
    pub(super) fn is_to_begin(&self) -> Option<u64> {
        self.offer
            .as_ref()
            .filter(|_| self.attempt.is_none())
            .map(|offer| offer.round)
    }

    /// All of this node's workers have come to the open round: it is added up.
    pub(super) fn begin(&mut self, follows: &mut BundlingOutcome) {
        let Some(offer) = &mut self.offer else {
            return;
        };
        let (round, members) = (offer.round, Arc::clone(&offer.members));
        let own = std::mem::take(&mut offer.own);
        let Some(me) = members.iter().position(|&member| member == self.me) else {
            return self.give_up(true, follows);
        };
        let (attempt, came) = Attempt::begin(self.path, (members, me), round, own, self.weights, &mut follows.out);
        self.attempt = Some(attempt);
        self.come(came, follows);
        let stashed = std::mem::take(&mut self.stash);
        for (from, part) in stashed {
            self.take(from, part, follows);
        }
    }

    /// A part comes.
    pub(super) fn take(&mut self, from: NodeId, part: RoundPart, follows: &mut BundlingOutcome) {
        let head = &part.head;
        if head.round <= self.done {
            return;
        }
        let Some(attempt) = self.attempt.as_mut().filter(|attempt| attempt.round == head.round) else {
            return self.put_aside(from, part);
        };
        if !attempt.is_of(head) {
            return self.give_up(true, follows);
        }
        let came = attempt.take(from, part, self.weights, &mut follows.out);
        self.come(came, follows);
    }

    fn come(&mut self, came: PartOutcome, follows: &mut BundlingOutcome) {
        match came {
            PartOutcome::Part => {}
            PartOutcome::Whole(bundle) => self.pending = Some(bundle),
            PartOutcome::Failed => self.give_up(true, follows),
        }
    }

    fn put_aside(&mut self, from: NodeId, part: RoundPart) {
        let bytes = |part: &RoundPart| PART_BYTES + part.steps.len();
        let mut all = bytes(&part);
        self.stash.push_back((from, part));
        // The newest are of most use. Honest nodes are a round ahead at most.
        let bytes_max = STASH_BYTES_MIN + STASHED_MODELS * size_of::<i32>() * self.weights;
        let kept = self.stash.iter().rev().skip(1).take_while(|(_, part)| {
            all += bytes(part);
            all <= bytes_max
        });
        let dropped = self.stash.len() - 1 - kept.count();
        self.stash.drain(..dropped);
    }

    /// The round that is whole, if one is.
    pub(super) fn pending(&self) -> Option<&Bundle> {
        self.pending.as_ref()
    }

    pub(super) fn take_pending(&mut self) -> Option<Bundle> {
        self.pending.take()
    }

    /// The batches of the round that was whole are applied.
    pub(super) fn succeed(&mut self) {
        let open = self.waiting.iter_mut().filter(|waiting| waiting.left.is_none());
        open.for_each(|waiting| waiting.left = Some(WAITING_TICKS));
        self.failures = 0;
        self.bundled += 1;
        self.close();
    }

    /// The open round is not added up: its batches go singly. By somebody's death it has not failed.
    pub(super) fn give_up(&mut self, failed: bool, follows: &mut BundlingOutcome) {
        let Some((round, _)) = self.open() else {
            return;
        };
        let (done, given_up): (Vec<PendingBatch>, Vec<PendingBatch>) =
            self.waiting.drain(..).partition(|waiting| waiting.left.is_some());
        self.waiting = done.into();
        for waiting in given_up {
            self.failed.push_back((waiting.origin, waiting.sequence));
            if planted(Bug::ForgottenRound) {
                self.waiting.push_back(PendingBatch {
                    left: Some(u32::MAX),
                    ..waiting
                });
            }
        }
        while self.failed.len() > FAILED_MAX {
            self.failed.pop_front();
        }
        if failed {
            let period = RETRY_ROUNDS << self.failures.min(RETRY_DOUBLINGS);
            self.resumes_at = (round + 1).next_multiple_of(period);
            self.failures = self.failures.saturating_add(1);
        }
        self.given_up += 1;
        follows.let_go = true;
        self.close();
    }

    fn close(&mut self) {
        if let Some(offer) = self.offer.take() {
            self.done = offer.round;
        }
        self.attempt = None;
        self.pending = None;
        let done = self.done;
        self.stash.retain(|(_, part)| part.head.round > done);
    }

    /// One more tick; a round is given up after so many.
    pub(super) fn tick(&mut self, ticks_max: u32, follows: &mut BundlingOutcome) {
        let before = self.waiting.len();
        for waiting in &mut self.waiting {
            waiting.left = waiting.left.map(|left| left.saturating_sub(1));
        }
        self.waiting.retain(|waiting| waiting.left != Some(0));
        follows.let_go |= self.waiting.len() < before;
        if let Some(offer) = &mut self.offer {
            offer.ticks += 1;
            if offer.ticks >= ticks_max {
                self.give_up(true, follows);
            }
        }
    }
}

impl Own {
    /// Adds one worker's steps; whether they are of the same weights as the others'.
    fn add(&mut self, dense: Option<Dense>) -> bool {
        let Some(dense) = dense.filter(|dense| !dense.steps().is_empty()) else {
            return true;
        };
        let Some(sum) = &self.dense else {
            self.dense = Some(dense);
            return true;
        };
        let first = dense.first();
        if (sum.first(), sum.steps().len()) != (first, dense.steps().len()) {
            return false;
        }
        let mut steps = dense.into_steps();
        let fits = add_up(&mut steps, sum.steps(), Sign::Plus);
        let sum = Dense::checked(first, steps, usize::MAX).filter(|_| fits);
        let is_added = sum.is_some();
        self.dense = sum.or_else(|| self.dense.take());
        is_added
    }
}

#[cfg(test)]
mod tests;
