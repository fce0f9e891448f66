//! Bundling: adding up the batches of a round along a reduction path, instead of sending each batch to each node.
//!
//! A batch that is offered to a round is *withheld*: the round's members do not get it singly. It is sent singly after
//! all if the round is given up, or some ticks after the round was complete, to members that have not acknowledged it
//! by then.

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

/// Minimum number of nodes in a round for which they add its batches up to one sum. Two nodes send each other their
/// batches directly.
const MEMBERS_MIN: usize = 3;
/// Ticks after the batches of a round were added up until they go one by one to members that have not acknowledged
/// them.
const WAITING_TICKS: u32 = 20;
/// After a round that could not be added up, batches go one by one until the next round whose number is a multiple of
/// this; the number doubles with each further failure in a row.
const RETRY_ROUNDS: u64 = 16;
/// Maximum number of times that `RETRY_ROUNDS` doubles after failed rounds.
const RETRY_DOUBLINGS: u32 = 6;
/// Maximum number of batches of given-up rounds that are remembered, so that the log does not merge them with other
/// batches.
const FAILED_MAX: usize = 64;
/// Memory for parts of later rounds, which arrive before this node has reached the round, as a multiple of the model's
/// size. `STASH_BYTES_MIN` is added to it.
const STASHED_MODELS: usize = 16;
/// Bytes of memory for parts of later rounds, which arrive before this node has reached the round, in addition to
/// `STASHED_MODELS` times the model's size.
const STASH_BYTES_MIN: usize = 1 << 20;
/// Estimated bytes of memory that a part of a round's sum takes besides its values.
const PART_BYTES: usize = 1 << 10;

/// A node's state in bundling: the members of a round add up their batches, so that each gets one sum (a bundle).
#[derive(Clone, Debug)]
pub(super) struct Bundling {
    path: ReductionPath,
    me: NodeId,
    weights: usize,
    /// The batches that this node's workers have offered for the current round.
    offer: Option<Offer>,
    attempt: Option<Attempt>,
    /// The sum of a complete round, until the batches that precede it are applied.
    pending: Option<Bundle>,
    /// Parts of later rounds' sums, each with its sender, until this node reaches those rounds.
    stash: VecDeque<(NodeId, RoundPart)>,
    waiting: VecDeque<PendingBatch>,
    /// Batches of rounds that were given up, the newest ones of this node's workers. The log must not merge across
    /// them, because other nodes may have applied those rounds as sums (bundles).
    failed: VecDeque<(OriginId, u64)>,
    /// The last round that is over: its batches were applied as one sum, or adding them up was given up.
    done: u64,
    failures: u32,
    /// First round that nodes add up again after a round that failed: until then batches go one by one.
    resumes_at: u64,
    /// Number of rounds whose batches were added up by their members and applied as one sum.
    pub(super) bundled: u64,
    /// Number of rounds whose batches this node gave up adding up, so that they went one by one.
    pub(super) given_up: u64,
}

#[derive(Clone, Debug)]
struct Offer {
    round: u64,
    members: Arc<[NodeId]>,
    own: Own,
    ticks: u32,
}

/// A batch that is not sent to members by itself because they are to get it in a bundle (the sum of all members'
/// batches).
#[derive(Clone, Debug)]
struct PendingBatch {
    origin: OriginId,
    sequence: u64,
    /// The members that get the batch within its round's bundle (the sum of all members' batches).
    members: Arc<[NodeId]>,
    /// Ticks until the batch may be sent by itself, to members that the round's sum has not reached; `None` while its
    /// round is incomplete.
    left: Option<u32>,
}

/// Actions that the caller has to carry out after a call to `Bundling`, which adds up the batches of a round.
#[derive(Debug, Default)]
pub(super) struct BundlingOutcome {
    /// Parts of a round's sum to send, each with its receiver.
    pub(super) out: Vec<(NodeId, RoundPart)>,
    /// True if batches that were withheld in favour of a round's sum may now be sent one by one.
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

    /// Returns true if a batch must not be sent to `node` by itself, because a bundle (the sum of its round's batches)
    /// is to bring it there.
    pub(super) fn holds(&self, origin: OriginId, sequence: u64, node: NodeId) -> bool {
        let is_meant = |waiting: &PendingBatch| {
            (waiting.origin, waiting.sequence) == (origin, sequence) && waiting.members.contains(&node)
        };
        self.waiting.iter().any(is_meant)
    }

    /// The sequences before and after a worker's batches of rounds that could not be added up. The log must not merge
    /// across them, because other nodes may have applied those rounds as sums (bundles).
    pub(super) fn points(&self, origin: OriginId) -> impl Iterator<Item = u64> + '_ {
        let failed = self.failed.iter().filter(move |(failed, _)| *failed == origin);
        failed.flat_map(|&(_, sequence)| [sequence - 1, sequence])
    }

    /// The number of the round that this node is preparing or adding up, with the round's member nodes.
    pub(super) fn open(&self) -> Option<(u64, &[NodeId])> {
        self.offer.as_ref().map(|offer| (offer.round, &*offer.members))
    }

    /// Offers a batch of this node's worker to be added up with those of the round's other members. If its round is to
    /// be added up, the batch is not sent by itself.
    pub(super) fn offer(&mut self, batch: Batch, members: &[NodeId], follows: &mut BundlingOutcome) {
        let Batch { header, payload } = batch;
        let round = header.status.round;
        // The first round is sent singly: it shows which nodes take part.
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

    /// The number of the round for which this node has batches and whose adding up has not begun; `None` if there is
    /// none.
    pub(super) fn is_to_begin(&self) -> Option<u64> {
        self.offer
            .as_ref()
            .filter(|_| self.attempt.is_none())
            .map(|offer| offer.round)
    }

    /// Starts adding up the current round. The caller has checked that all of this node's workers have reached it.
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

    /// Takes a part of a round's sum from a member, and keeps it for later if this node has not reached the round.
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
        // The newest parts are the most useful. Honest nodes are at most one round ahead.
        let bytes_max = STASH_BYTES_MIN + STASHED_MODELS * size_of::<i32>() * self.weights;
        let kept = self.stash.iter().rev().skip(1).take_while(|(_, part)| {
            all += bytes(part);
            all <= bytes_max
        });
        let dropped = self.stash.len() - 1 - kept.count();
        self.stash.drain(..dropped);
    }

    /// The sum of the complete round, if its batches are not applied yet.
    pub(super) fn pending(&self) -> Option<&Bundle> {
        self.pending.as_ref()
    }

    pub(super) fn take_pending(&mut self) -> Option<Bundle> {
        self.pending.take()
    }

    /// Ends the work on a round whose sum was applied.
    pub(super) fn succeed(&mut self) {
        let open = self.waiting.iter_mut().filter(|waiting| waiting.left.is_none());
        open.for_each(|waiting| waiting.left = Some(WAITING_TICKS));
        self.failures = 0;
        self.bundled += 1;
        self.close();
    }

    /// Gives up adding up the current round: its batches will go one by one. `failed` makes the batches of further
    /// rounds do so for a while, too; it is false if the cause is the loss of a member.
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

    /// Counts a tick of the current round: adding it up is given up after `ticks_max` ticks.
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
    /// Adds one worker's movements of weights to the sum. Returns false, without a change, if they cover other weights
    /// than the sum, or if a value of the sum would leave its range.
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
