//! One run on this node, phase by phase.

mod beginning;
mod finishing;
mod living;
mod preparing;
mod stats;
mod training;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use protocol::attach::{DataInfo, Scores, WorkerStats};
use protocol::control::{Begin, NodeInfo, Offer, Phase, RunBeat, RunResult, RunStatus, StopReason, Word};
use protocol::ids::{NodeId, RunId};
use protocol::job::Job;
use ractor::ActorRef;

use super::RunMessage;
use super::seat::Seat;
use crate::ledger::Ledger;
use crate::node::ending::Ending;
use crate::node::exchange::{ExchangeMessage, Progress, Settlement};
use crate::node::membership::MembershipMessage;
use crate::node::workers::{WorkerHandle, WorkerKey};
use crate::transport::Security;

/// How long a node that is ready waits to hear that the run begins.
const BEGIN_LIMIT: Duration = Duration::from_mins(10);

/// Workers attached to this node.
pub(super) type Attached = BTreeMap<WorkerKey, WorkerHandle>;

/// What a run has to know of its node.
pub(super) struct Context {
    pub(super) me: NodeInfo,
    pub(super) dir: PathBuf,
    pub(super) security: Security,
    pub(super) myself: ActorRef<RunMessage>,
    pub(super) membership: Option<ActorRef<MembershipMessage>>,
}

impl Context {
    pub(super) fn tell(&self, message: MembershipMessage) {
        if let Some(membership) = &self.membership {
            // Without it the node is about to stop.
            let _ = membership.cast(message);
        }
    }

    pub(super) fn send(&self, to: NodeId, word: Word) {
        let word = Box::new(word);
        self.tell(MembershipMessage::Send { to, word });
    }

    pub(super) fn broadcast(&self, word: Word) {
        self.tell(MembershipMessage::Broadcast(Box::new(word)));
    }

    /// Answers a prepare, also this node's own.
    pub(super) fn answer(&self, coordinator: NodeId, run: RunId, answer: Result<Offer, String>) {
        let from = self.me.id;
        if coordinator == from {
            let _ = self.myself.cast(RunMessage::Answer { run, from, answer });
        } else {
            self.send(coordinator, Word::Answer { run, from, answer });
        }
    }

    /// Where this node saves the model of a run.
    pub(super) fn model_path(&self, run: RunId) -> PathBuf {
        let file = format!("{}.safetensors", self.me.name);
        self.dir.join(run.to_string()).join(file)
    }
}

/// One run on this node.
pub(super) struct Current {
    pub(super) run: RunId,
    pub(super) coordinator: NodeId,
    job: Box<Job>,
    phase: Phase,
    since: Instant,
    workers_wanted: usize,
    /// What workers said to the prepare; none while they are at it.
    prepared: BTreeMap<WorkerKey, Option<Result<DataInfo, String>>>,
    answered: bool,
    ledger: Option<Ledger>,
    /// A run that this node joins when it had begun already.
    joins: Option<Begin>,
    withdrawn: bool,
    begin: Option<Begin>,
    exchange: Option<ActorRef<ExchangeMessage>>,
    seats: BTreeMap<usize, Seat>,
    seated: Option<Instant>,
    checkpointed: Instant,
    silent: BTreeSet<NodeId>,
    /// Those that are not waited for any more, unless they come back.
    given_up: BTreeSet<NodeId>,
    /// Those of them that will not: they have left, or lie.
    gone: BTreeSet<NodeId>,
    progress: Progress,
    stop: Option<StopReason>,
    scores: Option<Scores>,
    /// Of the model that was saved.
    final_scores: Option<Scores>,
    evaluate_at: u64,
    settlement: Option<Settlement>,
    ending: Ending,
    outcome: Option<Result<Box<RunResult>, String>>,
    /// Sums at the last record.
    recorded: (WorkerStats, Duration),
}

impl Current {
    pub(super) fn new(run: RunId, coordinator: NodeId, job: Box<Job>, workers_wanted: usize) -> Self {
        Self {
            run,
            coordinator,
            job,
            phase: Phase::Preparing,
            since: Instant::now(),
            workers_wanted,
            prepared: BTreeMap::new(),
            answered: false,
            ledger: None,
            joins: None,
            withdrawn: false,
            begin: None,
            exchange: None,
            seats: BTreeMap::new(),
            seated: None,
            checkpointed: Instant::now(),
            silent: BTreeSet::new(),
            given_up: BTreeSet::new(),
            gone: BTreeSet::new(),
            progress: Progress::default(),
            stop: None,
            scores: None,
            final_scores: None,
            evaluate_at: 0,
            settlement: None,
            ending: Ending::default(),
            outcome: None,
            recorded: (WorkerStats::default(), Duration::ZERO),
        }
    }

    /// A run that others have begun without this node.
    pub(super) fn joining(run: RunId, from: NodeId, begin: Begin, workers_wanted: usize) -> Self {
        Self {
            joins: Some(begin.clone()),
            ..Self::new(run, from, begin.job, workers_wanted)
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.phase == Phase::Ended
    }

    pub(super) fn is_training(&self) -> bool {
        self.phase == Phase::Training
    }

    pub(super) fn is_preparing(&self) -> bool {
        self.phase == Phase::Preparing
    }

    /// Why it failed, if it did.
    pub(super) fn failure(&self) -> Option<String> {
        self.outcome
            .as_ref()
            .and_then(|outcome| outcome.as_ref().err().cloned())
    }

    pub(super) fn status(&self) -> RunStatus {
        RunStatus {
            run: self.run,
            phase: self.phase,
            job: self.job.clone(),
            train: self.begin.as_ref().map_or(0, |begin| begin.data.train),
            outcome: self.outcome.clone(),
        }
    }

    /// Lets everybody know how far this node is.
    pub(super) fn publish(&self, context: &Context) {
        let beat = RunBeat {
            run: self.run,
            begin: self.begin.clone(),
            stop: self.stop.clone(),
            settled: self.ending.of(context.me.id).cloned(),
            failed: self.failure().filter(|_| !self.withdrawn),
            withdrawn: self.withdrawn,
        };
        context.tell(MembershipMessage::Run(Box::new(beat), self.phase));
    }

    pub(super) async fn tick(&mut self, context: &Context, attached: &Attached) {
        match self.phase {
            Phase::Preparing => {
                self.try_answer(context, attached).await;
                if self.since.elapsed() > BEGIN_LIMIT {
                    self.fail("the run was prepared and never began".into(), context, attached);
                }
            }
            Phase::Training => {
                let elapsed = self.seated.map(|seated| seated.elapsed().as_secs_f64());
                let limit = self.job.max_seconds.zip(elapsed);
                if limit.is_some_and(|(limit, elapsed)| elapsed >= limit) {
                    self.stop(StopReason::TimeUp, context);
                }
                let since = self.checkpointed.elapsed().as_secs_f64();
                if self.job.checkpoint_every.is_some_and(|every| since >= every) {
                    self.checkpoint(context);
                }
            }
            Phase::Settling => self.try_finish(context, attached).await,
            Phase::Finishing => self.check_over(context, attached),
            Phase::Ended => {}
        }
    }
}
