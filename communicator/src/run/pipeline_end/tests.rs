//! Tests of nodes in one or two pipelines at the end of a run, with workers that die.

use protocol::reasons::waiting::{NodeTask, WaitingFor};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::time::Duration;

use protocol::ids::{NodeId, RunId};
use protocol::job::JobDraft;
use protocol::reasons::{KeptWeights, RunFailure};
use protocol::stats::measured::{NodeUsage, Scores};
use protocol::stats::named::NamedNumbers;
use protocol::weights::digest::Digest;
use protocol::wire::attach::FromWorker;
use protocol::wire::control::RunResult;
use protocol::wire::run_beat::Ballot;
use protocol::wire::run_plan::RunPlan;

use super::super::active::State;
use super::super::core::RunCore;
use super::super::event::{ExchangeOrder, RunEffect, RunEvent, Saving, Settlement, WorkerKey};
use super::super::states::{Exchanging, Finishing};
use crate::small_plan::{small_node, small_plan};
use crate::timing::Timing;

const RUN: RunId = RunId(7);
const SECOND: Duration = Duration::from_secs(1);
const SCORES: Scores = Scores {
    accuracy: Some(0.5),
    loss: 1.0,
    mae: None,
    named: NamedNumbers::NONE,
};

/// Nodes in pipelines of two stages that have agreed on their batches. Every message arrives at once.
struct Nodes {
    plan: RunPlan,
    cores: BTreeMap<NodeId, RunCore>,
    now: Duration,
    queue: VecDeque<(NodeId, RunEvent)>,
    /// The worker that saves at each node and its options, until the worker has saved.
    saving: BTreeMap<NodeId, (WorkerKey, Saving)>,
    reseated: Vec<WorkerKey>,
    workers: u64,
    /// The node whose model folder takes no file.
    full: Option<NodeId>,
}

impl Nodes {
    fn new(count: u64) -> Self {
        Self::with_full_disk(count, None)
    }

    fn with_full_disk(count: u64, full: Option<NodeId>) -> Self {
        let mut plan = small_plan(count);
        let draft = JobDraft {
            exchange: Some("layers:groups=2".into()),
            ..JobDraft::default()
        };
        *plan.job = draft.resolve().unwrap();
        let mut nodes = Self {
            plan,
            cores: BTreeMap::new(),
            now: SECOND,
            queue: VecDeque::new(),
            saving: BTreeMap::new(),
            reseated: Vec::new(),
            workers: count,
            full,
        };
        for id in 1..=count {
            nodes.add(NodeId(id));
        }
        nodes.carry_on();
        nodes
    }

    /// Adds a node; the key of its worker is the id of the node.
    fn add(&mut self, me: NodeId) {
        let (plan, now) = (&self.plan, self.now);
        let mut core = RunCore::new(small_node(me.0), 1, &Timing::DEFAULT.run);
        let worker = WorkerKey(me.0);
        core.workers.insert(worker);
        let mut run = core.preparing(RUN, NodeId(1), plan.job.clone(), None, now);
        let all = || plan.participants.iter().map(|one| one.node);
        run.members.admit(all(), now);
        run.members
            .hold_others(all().filter(|&node| !plan.topology().same_slice(me, node)));
        let own = &mut run.members.own;
        (own.closed, own.frozen, own.decided) = (true, true, true);
        own.ballot = Some(Ballot {
            fingerprint: 1,
            members: 1,
            attempt: 0,
        });
        let mut exchanging = Exchanging::new(plan.clone(), me, BTreeSet::new(), now);
        for seat in exchanging.seats.values_mut() {
            seat.take(worker);
            seat.closed = true;
        }
        let members = all().filter(|&node| plan.topology().same_slice(me, node)).collect();
        run.state = State::Finishing(Box::new(exchanging), Finishing::new(members, now));
        core.current = Some(run);
        self.cores.insert(me, core);
        let settlement = Settlement {
            digest: Ok(Digest::default()),
            whole: None,
            samples: 10,
            repeated: 0,
            seconds: 1.0,
            bytes_sent: 1,
            weights: 5,
            usage: NodeUsage::default(),
        };
        self.queue
            .push_back((me, RunEvent::Settlement(RUN, Box::new(settlement))));
    }

    /// Handles queued events and their effects until none are left.
    fn carry_on(&mut self) {
        while let Some((at, event)) = self.queue.pop_front() {
            let mut effects = Vec::new();
            let Some(core) = self.cores.get_mut(&at) else {
                continue;
            };
            core.handle(event, self.now, &mut effects);
            for effect in effects {
                self.carry_out(at, effect);
            }
        }
    }

    fn carry_out(&mut self, at: NodeId, effect: RunEffect) {
        let says = |worker, message| (at, RunEvent::Worker(worker, message));
        match effect {
            RunEffect::Publish { beats, .. } => {
                let number = beats[0].states[0].1.number;
                for &to in self.cores.keys().filter(|&&to| to != at) {
                    let beat = RunEvent::Beat {
                        from: at,
                        number,
                        runs: beats.clone(),
                    };
                    self.queue.push_back((to, beat));
                }
            }
            RunEffect::Prepare { worker, run, .. } => {
                let data = self.plan.data.clone();
                self.queue
                    .push_back(says(worker, FromWorker::Prepared { run, data, speed: 0 }));
            }
            RunEffect::Exchange(ExchangeOrder::Reseat { worker, .. }) => self.reseated.push(worker),
            RunEffect::Exchange(ExchangeOrder::Finish { worker, save }) => {
                let digest = Some(Digest::default());
                self.queue.push_back(says(worker, FromWorker::Finished { digest }));
                if let Some(saving) = save {
                    self.saving.insert(at, (worker, saving));
                    if !saving.measures_pipeline {
                        self.saves(at, None);
                    }
                }
            }
            RunEffect::Exchange(ExchangeOrder::Keep) => {
                let kept = Ok(PathBuf::from("run/checkpoint"));
                self.queue.push_back((at, RunEvent::Kept(RUN, kept)));
            }
            _ => {}
        }
    }

    /// Lets the worker that was told to save at a node report that it has saved.
    fn saves(&mut self, at: NodeId, scores: Option<Scores>) {
        let (worker, saving) = self.saving.remove(&at).expect("a worker was told to save");
        let is_full = self.full == Some(at) && !saving.spare;
        let saved = if is_full { Err("no room".into()) } else { Ok(scores) };
        let message = FromWorker::SavedModel { run: RUN, saved };
        self.queue.push_back((at, RunEvent::Worker(worker, message)));
    }

    /// Lets the leader of a pipeline report that it has measured it.
    fn measures(&mut self, at: u64) {
        self.saves(NodeId(at), Some(SCORES));
        self.carry_on();
    }

    /// Kills a node's worker and attaches the next one.
    fn replace_worker(&mut self, at: u64, worker: u64) -> u64 {
        self.lose_worker(at, worker);
        self.workers += 1;
        let next = WorkerKey(self.workers);
        self.queue.push_back((NodeId(at), RunEvent::Attached(next)));
        self.carry_on();
        next.0
    }

    fn lose_worker(&mut self, at: u64, worker: u64) {
        let (at, worker) = (NodeId(at), WorkerKey(worker));
        self.saving.retain(|_, (saver, _)| *saver != worker);
        self.queue.push_back((at, RunEvent::Detached(worker)));
        self.carry_on();
    }

    fn pass(&mut self, seconds: u32) {
        for _ in 0..2 * seconds {
            self.now += SECOND / 2;
            let ids: Vec<NodeId> = self.cores.keys().copied().collect();
            self.queue.extend(ids.into_iter().map(|at| (at, RunEvent::Tick)));
            self.carry_on();
        }
    }

    fn outcome(&self, at: u64) -> Option<&Result<Box<RunResult>, RunFailure>> {
        match &self.cores[&NodeId(at)].current.as_ref()?.state {
            State::Ended(ended) => Some(&ended.outcome),
            _ => None,
        }
    }

    fn all_finished(&self) -> bool {
        let finished = |id: &NodeId| matches!(self.outcome(id.0), Some(Ok(result)) if result.missing.is_empty());
        self.cores.keys().all(finished)
    }

    /// Returns the worker that measures the pipeline of a leader.
    fn measuring(&self, at: u64) -> Option<u64> {
        let (worker, saving) = self.saving.get(&NodeId(at))?;
        saving.measures_pipeline.then_some(worker.0)
    }
}

#[test]
fn a_quiet_end_is_measured_by_the_leader() {
    let mut nodes = Nodes::new(2);
    assert_eq!((nodes.measuring(1), nodes.measuring(2)), (Some(1), None));
    nodes.measures(1);
    assert!(nodes.all_finished() && nodes.reseated.is_empty());
}

#[test]
fn a_worker_that_dies_after_it_has_saved_is_replaced_for_the_measurement() {
    let mut nodes = Nodes::new(2);
    let next = nodes.replace_worker(2, 2);
    assert_eq!(nodes.reseated, [WorkerKey(next)]);
    let next = nodes.replace_worker(2, next);
    assert_eq!(nodes.reseated.last(), Some(&WorkerKey(next)));
    assert_eq!(
        nodes.measuring(1),
        Some(1),
        "the leader's worker starts the measurement again by itself"
    );
    nodes.measures(1);
    assert!(nodes.all_finished());
}

#[test]
fn the_successor_of_a_leaders_worker_measures_and_has_the_full_time() {
    let mut nodes = Nodes::new(2);
    nodes.pass(40);
    nodes.lose_worker(1, 1);
    nodes.pass(29);
    let next = nodes.replace_worker(1, 1);
    assert_eq!(
        (&nodes.reseated[..], nodes.measuring(1)),
        (&[WorkerKey(next)][..], Some(next))
    );
    nodes.measures(1);
    assert!(nodes.all_finished());
}

#[test]
fn whose_worker_is_missing_at_the_end_is_named() {
    let mut nodes = Nodes::new(2);
    nodes.lose_worker(2, 2);
    let core = &nodes.cores[&NodeId(1)];
    let waiting = core.current.as_ref().unwrap().waiting(nodes.now, &core.limits);
    assert!(
        waiting.contains(&WaitingFor::node("n2", NodeTask::RestartWorker)),
        "{waiting:?}"
    );
}

#[test]
fn workers_that_die_in_every_measurement_end_the_run_in_a_checkpoint() {
    let mut nodes = Nodes::new(2);
    let mut worker = 1;
    let mut waited = 0;
    while nodes.outcome(1).is_none() {
        nodes.pass(15);
        waited += 15;
        worker = nodes.replace_worker(1, worker);
        assert!(waited < 200, "a worker that keeps dying delays the end of the run");
    }
    for at in [1, 2] {
        let reason = nodes.outcome(at).unwrap().as_ref().unwrap_err();
        let kept = KeptWeights::Checkpoint {
            checkpoint: "run/checkpoint".into(),
            folder: "run".into(),
        };
        assert_eq!(*reason, RunFailure::NotSaved(kept));
    }
}

#[test]
fn a_pipeline_that_is_not_needed_for_the_scores_is_not_waited_for() {
    let mut nodes = Nodes::new(4);
    assert_eq!((nodes.measuring(1), nodes.measuring(3)), (Some(1), Some(3)));
    nodes.measures(3);
    assert!(
        nodes.all_finished(),
        "the first pipeline saves without its own measurement"
    );
}

#[test]
fn a_stage_whose_disk_is_full_is_saved_elsewhere() {
    for (full, measurements) in [(1, 2), (2, 1)] {
        let mut nodes = Nodes::with_full_disk(2, Some(NodeId(full)));
        for _ in 0..measurements {
            assert!(!nodes.all_finished());
            nodes.pass(1);
            nodes.measures(1);
        }
        assert!(nodes.all_finished(), "node {full}");
        let saved = |at: &NodeId| nodes.cores[at].current.as_ref().unwrap().members.own.saved == Some(true);
        assert!(nodes.cores.keys().all(saved), "node {full}");
    }
}

#[test]
fn a_pipeline_that_has_lost_a_node_for_good_is_saved_without_a_measurement() {
    let mut nodes = Nodes::new(4);
    nodes.cores.remove(&NodeId(4));
    nodes.pass(31);
    assert_eq!((nodes.measuring(1), nodes.measuring(3)), (Some(1), None));
    nodes.measures(1);
    for at in [1, 2, 3] {
        assert!(matches!(nodes.outcome(at), Some(Ok(_))), "node {at}");
    }
}
