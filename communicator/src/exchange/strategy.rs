//! The exchange's part of a job's strategy: the path of single batches and, if the strategy has rounds, the barrier at
//! which workers wait for each other and the reduction path along which rounds are added up.

use std::collections::BTreeSet;

use protocol::ids::{NodeId, OriginId};
use protocol::log::batch::{Batch, OriginStatus, RoundPhase};
use protocol::log::bundle::Bundle;
use protocol::wire::link::Message;
use protocol::wire::part::RoundPart;
use protocol::wire::prefix::Prefix;
use protocol::wire::run_plan::RunPlan;

use super::barrier::{Barrier, Patience};
use super::bundle_check;
use super::bundling::{Bundling, BundlingOutcome, ReductionPath};
use super::event::Effect;
use super::origins::Origins;
use super::routing::{self, Routing};
use super::sequential_averaging::{AveragingStep, SequentialAveraging, rotated};
use crate::ledger::Ledger;

/// One node's side of the run's strategy: the path of single batches and, where workers wait for each other, the
/// rounds.
#[derive(Clone, Debug)]
pub(super) struct Strategy {
    me: NodeId,
    routing: Routing,
    rounds: Option<Rounds>,
}

/// One node's state in a run with rounds, after each of which the workers wait for each other.
#[derive(Clone, Debug)]
struct Rounds {
    me: NodeId,
    barrier: Barrier,
    /// Adds up the batches of a round along the reduction path; `None` if each batch goes by itself.
    bundling: Option<Bundling>,
    /// Passes partial sums from worker to worker, for sequential averaging (`stepwise`); `None` for other strategies.
    averaging: Option<SequentialAveraging>,
}

/// True if adding up a round was given up: its batches, which were withheld in favour of their sum, may now be sent one
/// by one.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LetGo(pub(super) bool);

impl Strategy {
    /// Returns a strategy without rounds: every node sends its workers' batches to every other node.
    pub(super) fn new(me: NodeId) -> Self {
        let routing = Routing::Mesh;
        Self {
            me,
            routing,
            rounds: None,
        }
    }

    /// Returns a node's exchange strategy for a run: the path of single batches and the rounds that the run's job asks
    /// for, for a model of this many weights.
    pub(super) fn of(me: NodeId, plan: &RunPlan, weights: usize) -> Self {
        let exchange = plan.job.exchange;
        let strategy = Self::new(me).routed(Routing::of(plan));
        if !exchange.waits() {
            return strategy;
        }
        let barrier = Barrier::new(me, Patience::DEFAULT, plan);
        let mut strategy = strategy.in_rounds(barrier, routing::reduction_path_of(exchange), weights);
        if let Some(rounds) = &mut strategy.rounds {
            let averaging = exchange.has_passes().then(|| SequentialAveraging::new(me, weights));
            rounds.averaging = averaging;
        }
        strategy
    }

    /// Replaces the path that single batches take between nodes.
    pub(super) fn routed(self, routing: Routing) -> Self {
        Self { routing, ..self }
    }

    /// Adds rounds: workers wait for each other at the barrier, and rounds are added up along the reduction path, if
    /// there is one.
    pub(super) fn in_rounds(self, barrier: Barrier, path: Option<ReductionPath>, weights: usize) -> Self {
        let rounds = Rounds {
            me: self.me,
            barrier,
            bundling: path.map(|path| Bundling::new(path, self.me, weights)),
            averaging: None,
        };
        Self {
            rounds: Some(rounds),
            ..self
        }
    }

    /// Returns true if this node sends the batches of `origin_node`'s workers to a peer as soon as it has them.
    pub(super) fn sends(&self, origin_node: NodeId, to: NodeId) -> bool {
        self.routing.sends(self.me, origin_node, to)
    }

    /// Returns true if this node's workers are throttled when the peer falls behind.
    pub(super) fn keeps_pace(&self, with: NodeId) -> bool {
        self.routing.keeps_pace(self.me, with)
    }

    /// Returns true if workers wait for each other's rounds.
    pub(super) fn has_rounds(&self) -> bool {
        self.rounds.is_some()
    }

    /// Returns true if nodes add up the batches of each round along a reduction path, rather than send each to all.
    pub(super) fn is_bundled(&self) -> bool {
        self.bundling().is_some()
    }

    fn bundling(&self) -> Option<&Bundling> {
        self.rounds.as_ref()?.bundling.as_ref()
    }

    fn bundling_mut(&mut self) -> Option<&mut Bundling> {
        self.rounds.as_mut()?.bundling.as_mut()
    }

    /// The newest round that any worker has reached, and the number of workers that make the next round together;
    /// `None` without rounds.
    pub(super) fn rounds(&self, origins: &Origins) -> Option<(u64, u32)> {
        let barrier = &self.rounds.as_ref()?.barrier;
        Some((barrier.newest(), barrier.workers(origins.known())))
    }

    /// Number of times that a wait for a worker's round timed out.
    pub(super) fn waited_in_vain(&self) -> u64 {
        self.rounds.as_ref().map_or(0, |rounds| rounds.barrier.in_vain())
    }

    /// Number of rounds that were applied as bundles (sums of all workers' batches), and of rounds whose batches went
    /// one by one because adding them up was given up.
    pub(super) fn bundles(&self) -> (u64, u64) {
        self.bundling()
            .map_or((0, 0), |bundling| (bundling.bundled, bundling.given_up))
    }

    /// Returns true if a batch must not be sent to a node by itself, because a bundle (a sum of several workers'
    /// batches) with the batch will reach the node.
    pub(super) fn holds(&self, origin: OriginId, sequence: u64, node: NodeId) -> bool {
        self.bundling()
            .is_some_and(|bundling| bundling.holds(origin, sequence, node))
    }

    /// The sequences before and after a worker's batches of rounds that could not be added up. Merged ranges in the log
    /// must not span them, because other nodes may have applied those rounds as sums (bundles).
    pub(super) fn points(&self, origin: OriginId) -> impl Iterator<Item = u64> {
        self.bundling()
            .into_iter()
            .flat_map(move |bundling| bundling.points(origin))
    }

    /// Records that a node takes part with this many workers, for whose rounds others wait.
    pub(super) fn joins(&mut self, node: NodeId, workers: usize) {
        if let Some(rounds) = &mut self.rounds {
            rounds.barrier.joins(node, workers);
        }
    }

    /// Sets the nodes that are silent (out of reach). Workers do not wait for them, and a star chooses its hub among
    /// the other nodes.
    pub(super) fn hears(&mut self, silent: &BTreeSet<NodeId>) {
        self.routing.lay(silent);
        if let Some(rounds) = &mut self.rounds {
            rounds.barrier.hears(silent);
        }
    }

    /// Records a worker's progress through the rounds, from a batch that was applied. `loss` is the announced loss,
    /// unless the batch came in a bundle (the sum of several workers' batches).
    pub(super) fn applied(&mut self, origin: OriginId, status: OriginStatus, loss: Option<f32>, is_own: bool) {
        if let Some(rounds) = &mut self.rounds {
            rounds.barrier.applied(origin, status, loss, is_own);
        }
    }

    /// Releases the workers that need not wait any longer. The batches that they waited for must have been delivered
    /// before.
    pub(super) fn release(&mut self, origins: &Origins, effects: &mut Vec<Effect>) {
        if let Some(rounds) = &mut self.rounds {
            let released = rounds.barrier.release(origins.known()).into_iter();
            effects.extend(released.map(|(origin, order)| Effect::GoOn { origin, order }));
        }
    }

    /// Counts a tick: waits of workers, rounds and averaging steps may time out.
    pub(super) fn tick(&mut self, origins: &Origins, effects: &mut Vec<Effect>) -> LetGo {
        let Some(rounds) = &mut self.rounds else {
            return LetGo(false);
        };
        rounds.barrier.tick();
        rounds.tick_averaging(origins, effects);
        let patience = rounds.barrier.patience_for_bundles();
        bundle(&mut rounds.bundling, effects, |bundling, follows| {
            bundling.tick(patience, follows);
        })
    }

    /// Offers a new batch of this node's worker to the round, so that it is added up with other nodes' batches.
    pub(super) fn offer(&mut self, batch: Batch, origins: &Origins, effects: &mut Vec<Effect>) -> LetGo {
        let Some(rounds) = self.rounds.as_mut().filter(|_| is_share(&batch.header.status)) else {
            return LetGo(false);
        };
        let barrier = &rounds.barrier;
        bundle(&mut rounds.bundling, effects, |bundling, follows| {
            bundling.offer(batch, &barrier.members(origins.known()), follows);
        })
    }

    /// Takes a part of a round's sum (the sum over some of the weights) from a peer.
    pub(super) fn take_part(&mut self, from: NodeId, part: RoundPart, effects: &mut Vec<Effect>) -> LetGo {
        self.bundle(effects, |bundling, follows| bundling.take(from, part, follows))
    }

    /// Gives up adding up the current round if a member sends its batch of that round by itself: the member will not
    /// add that batch to the sum.
    pub(super) fn hear_single(&mut self, member: NodeId, status: &OriginStatus, effects: &mut Vec<Effect>) -> LetGo {
        let is_share = is_share(status);
        self.bundle(effects, |bundling, follows| {
            let goes_alone = |(round, members): (u64, &[NodeId])| status.round >= round && members.contains(&member);
            if is_share && bundling.open().is_some_and(goes_alone) {
                bundling.give_up(true, follows);
            }
        })
    }

    /// Advances the round that this node prepares or adds up: gives it up if a member is lost, and starts adding up
    /// when all workers of this node have reached it.
    pub(super) fn go_on(&mut self, origins: &Origins, effects: &mut Vec<Effect>) -> LetGo {
        let Some(Rounds {
            me, barrier, bundling, ..
        }) = &mut self.rounds
        else {
            return LetGo(false);
        };
        bundle(bundling, effects, |bundling, follows| {
            let members = barrier.members(origins.known());
            let lost = |(_, open): (u64, &[NodeId])| open.iter().any(|member| !members.contains(member));
            if bundling.open().is_some_and(lost) {
                bundling.give_up(false, follows);
            }
            if let Some(round) = bundling.is_to_begin()
                && barrier.has_come(*me, round, origins.known())
            {
                bundling.begin(follows);
            }
        })
    }

    /// Returns the bundle (the sum of all batches) of a round that is completely added up, if this node has all batches
    /// that precede it.
    pub(super) fn take_whole_round(&mut self, origins: &Origins, ledger: &Ledger) -> Option<Bundle> {
        let bundling = self.bundling_mut()?;
        let is_due = |bundle: &Bundle| {
            let mut batches = bundle.batches();
            let are_known = batches.all(|(origin, _)| origins.known().contains_key(&origin));
            are_known && !bundle_check::is_early(bundle, ledger)
        };
        bundling
            .pending()
            .is_some_and(is_due)
            .then(|| bundling.take_pending())?
    }

    /// Ends the work on a round that was completely added up. If its sum could not be applied, the round's batches go
    /// one by one.
    pub(super) fn end_round(&mut self, is_applied: bool, effects: &mut Vec<Effect>) -> LetGo {
        self.bundle(effects, |bundling, follows| {
            if is_applied {
                bundling.succeed();
            } else {
                bundling.give_up(true, follows);
            }
        })
    }

    fn bundle(&mut self, effects: &mut Vec<Effect>, act: impl FnOnce(&mut Bundling, &mut BundlingOutcome)) -> LetGo {
        match &mut self.rounds {
            Some(rounds) => bundle(&mut rounds.bundling, effects, act),
            None => LetGo(false),
        }
    }

    /// Starts a sequential averaging step for a worker of this node, in which a partial sum goes from worker to worker.
    /// `own` is the worker's own contribution to it.
    pub(super) fn average(&mut self, own: Prefix, origins: &Origins, effects: &mut Vec<Effect>) {
        let rounds = self.rounds.as_mut();
        let Some((averaging, barrier)) = rounds.and_then(|rounds| Some((rounds.averaging.as_mut()?, &rounds.barrier)))
        else {
            return effects.push(Effect::WorkerFault(
                "the worker sent a partial average, but this run does not average sequentially".into(),
            ));
        };
        let chain = rotated(barrier.in_round_with(own.head.from, origins.known()), own.head.pass);
        let mut steps = Vec::new();
        averaging.begin(own, chain, &mut steps);
        carry_out(steps, effects);
    }

    /// Takes a prefix (the sum of the workers before) from a peer. It is dropped if its sender is unknown or its
    /// receiver is not a worker of this node.
    pub(super) fn take_prefix(&mut self, prefix: Prefix, origins: &Origins, effects: &mut Vec<Effect>) {
        let is_valid = origins.node_of(prefix.head.from).is_some() && origins.is_own(prefix.head.to);
        let averaging = self.rounds.as_mut().and_then(|rounds| rounds.averaging.as_mut());
        if let Some(averaging) = averaging.filter(|_| is_valid) {
            let mut steps = Vec::new();
            averaging.take(prefix, &mut steps);
            carry_out(steps, effects);
        }
    }
}

impl Rounds {
    fn tick_averaging(&mut self, origins: &Origins, effects: &mut Vec<Effect>) {
        let Some(averaging) = &mut self.averaging else {
            return;
        };
        let has_ended = |origin| origins.known().get(&origin).is_none_or(|info| info.ended.is_some());
        averaging.forget(has_ended);
        let mut steps = Vec::new();
        let is_there = |waits: OriginId, before: OriginId| {
            let with = self.barrier.in_round_with(waits, origins.known());
            with.iter().any(|(origin, _)| *origin == before)
        };
        averaging.tick(self.barrier.late_after(), is_there, &mut steps);
        carry_out(steps, effects);
    }
}

/// Returns true if a batch carries its worker's contribution to a round.
fn is_share(status: &OriginStatus) -> bool {
    status.round_phase == RoundPhase::Contributes && !status.last && !status.stop
}

/// Calls bundling (adding up rounds), if the strategy has it, and sends the resulting parts of sums to their receivers.
fn bundle(
    bundling: &mut Option<Bundling>,
    effects: &mut Vec<Effect>,
    act: impl FnOnce(&mut Bundling, &mut BundlingOutcome),
) -> LetGo {
    let mut follows = BundlingOutcome::default();
    if let Some(bundling) = bundling {
        act(bundling, &mut follows);
    }
    effects.extend(follows.out.into_iter().map(|(to, part)| Effect::Send {
        to,
        message: Message::Part(part),
    }));
    LetGo(follows.let_go)
}

fn carry_out(steps: Vec<AveragingStep>, effects: &mut Vec<Effect>) {
    effects.extend(steps.into_iter().map(|step| match step {
        AveragingStep::GoOn(origin, prefix) => Effect::Pass { origin, prefix },
        AveragingStep::Send(to, prefix) => Effect::Send {
            to,
            message: Message::Prefix(prefix),
        },
    }));
}
