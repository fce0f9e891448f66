//! The exchange's part of a strategy: the path of single batches, and where there are rounds, what workers wait for and how
//! rounds are added up.

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

/// One run's strategy on one node.
#[derive(Clone, Debug)]
pub(super) struct Strategy {
    me: NodeId,
    routing: Routing,
    rounds: Option<Rounds>,
}

/// The rounds of a strategy that has them.
#[derive(Clone, Debug)]
struct Rounds {
    me: NodeId,
    barrier: Barrier,
    /// Adds rounds up on their way.
    bundling: Option<Bundling>,
    /// Takes averaging steps from worker to worker.
    averaging: Option<SequentialAveraging>,
}

/// The batches of a round that was given up may go singly: peers are to be sent what they lack.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LetGo(pub(super) bool);

impl Strategy {
    /// A strategy without rounds, in which every node sends its workers' batches to every other.
    pub(super) fn new(me: NodeId) -> Self {
        let routing = Routing::Mesh;
        Self {
            me,
            routing,
            rounds: None,
        }
    }

    /// The strategy of a run's job, for a model of this many weights.
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

    /// The same strategy with another path of single batches.
    pub(super) fn routed(self, routing: Routing) -> Self {
        Self { routing, ..self }
    }

    /// The same strategy with workers that wait for each other, and rounds that are added up on a path, if there is one.
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

    /// Whether this node sends the batches of an origin's node to a peer as soon as it has them.
    pub(super) fn sends(&self, origin_node: NodeId, to: NodeId) -> bool {
        self.routing.sends(self.me, origin_node, to)
    }

    /// Whether this node's workers keep pace with a peer.
    pub(super) fn keeps_pace(&self, with: NodeId) -> bool {
        self.routing.keeps_pace(self.me, with)
    }

    /// Whether workers wait for each other's rounds.
    pub(super) fn has_rounds(&self) -> bool {
        self.rounds.is_some()
    }

    /// Whether rounds are added up on their way.
    pub(super) fn is_bundled(&self) -> bool {
        self.bundling().is_some()
    }

    fn bundling(&self) -> Option<&Bundling> {
        self.rounds.as_ref()?.bundling.as_ref()
    }

    fn bundling_mut(&mut self) -> Option<&mut Bundling> {
        self.rounds.as_mut()?.bundling.as_mut()
    }

    /// The newest round that any worker has come to, and the number of workers that make the next one together.
    pub(super) fn rounds(&self, origins: &Origins) -> Option<(u64, u32)> {
        let barrier = &self.rounds.as_ref()?.barrier;
        Some((barrier.newest(), barrier.workers(origins.known())))
    }

    /// The number of times that a worker's round was waited for in vain.
    pub(super) fn waited_in_vain(&self) -> u64 {
        self.rounds.as_ref().map_or(0, |rounds| rounds.barrier.in_vain())
    }

    /// The number of rounds that came added up, and of those that were given up.
    pub(super) fn bundles(&self) -> (u64, u64) {
        self.bundling()
            .map_or((0, 0), |bundling| (bundling.bundled, bundling.given_up))
    }

    /// Whether a batch waits for a bundle that is to reach a node, so that it does not go singly.
    pub(super) fn holds(&self, origin: OriginId, sequence: u64, node: NodeId) -> bool {
        self.bundling()
            .is_some_and(|bundling| bundling.holds(origin, sequence, node))
    }

    /// The points of an origin that a log must not merge over.
    pub(super) fn points(&self, origin: OriginId) -> impl Iterator<Item = u64> {
        self.bundling()
            .into_iter()
            .flat_map(move |bundling| bundling.points(origin))
    }

    /// A node takes part with this many workers, which are waited for.
    pub(super) fn joins(&mut self, node: NodeId, workers: usize) {
        if let Some(rounds) = &mut self.rounds {
            rounds.barrier.joins(node, workers);
        }
    }

    /// These nodes are not heard.
    pub(super) fn hears(&mut self, silent: &BTreeSet<NodeId>) {
        self.routing.lay(silent);
        if let Some(rounds) = &mut self.rounds {
            rounds.barrier.hears(silent);
        }
    }

    /// A batch is applied that says how its origin stands, and, if it came by itself, a loss.
    pub(super) fn applied(&mut self, origin: OriginId, status: OriginStatus, loss: Option<f32>, is_own: bool) {
        if let Some(rounds) = &mut self.rounds {
            rounds.barrier.applied(origin, status, loss, is_own);
        }
    }

    /// Lets workers go on that need wait no longer. Whatever they waited for was handed to them before.
    pub(super) fn release(&mut self, origins: &Origins, effects: &mut Vec<Effect>) {
        if let Some(rounds) = &mut self.rounds {
            let released = rounds.barrier.release(origins.known()).into_iter();
            effects.extend(released.map(|(origin, order)| Effect::GoOn { origin, order }));
        }
    }

    /// Some time has passed.
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

    /// One of this node's workers has made a batch: it may be for the round that is to be added up.
    pub(super) fn offer(&mut self, batch: Batch, origins: &Origins, effects: &mut Vec<Effect>) -> LetGo {
        let Some(rounds) = self.rounds.as_mut().filter(|_| is_share(&batch.header.status)) else {
            return LetGo(false);
        };
        let barrier = &rounds.barrier;
        bundle(&mut rounds.bundling, effects, |bundling, follows| {
            bundling.offer(batch, &barrier.members(origins.known()), follows);
        })
    }

    /// A part of a round comes from a peer.
    pub(super) fn take_part(&mut self, from: NodeId, part: RoundPart, effects: &mut Vec<Effect>) -> LetGo {
        self.bundle(effects, |bundling, follows| bundling.take(from, part, follows))
    }

    /// A member sends its batch of a round by itself: it does not add it up with the others.
    pub(super) fn hear_single(&mut self, member: NodeId, status: &OriginStatus, effects: &mut Vec<Effect>) -> LetGo {
        let is_share = is_share(status);
        self.bundle(effects, |bundling, follows| {
            let goes_alone = |(round, members): (u64, &[NodeId])| status.round >= round && members.contains(&member);
            if is_share && bundling.open().is_some_and(goes_alone) {
                bundling.give_up(true, follows);
            }
        })
    }

    /// Goes on with the open round, as far as what has happened allows.
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

    /// The round that is whole, if everything that comes before it is in the ledger.
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

    /// The batches of the round that was whole are applied, or cannot be.
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

    /// One of this node's workers has come to an averaging step.
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

    /// A prefix comes from a peer. One that is for no worker of this node, or is of an unknown worker, is dropped.
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

/// Whether a batch holds its origin's contribution to a round.
fn is_share(status: &OriginStatus) -> bool {
    status.round_phase == RoundPhase::Contributes && !status.last && !status.stop
}

/// Lets bundling act, if there is any, and sends the parts that follow.
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
