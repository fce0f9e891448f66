//! One run on this node.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use protocol::attach::{DataInfo, FromWorker, SaveOrder, Scores, ToWorker, WorkerStats};
use protocol::control::{
    Begin, NodeInfo, Offer, Participant, Phase, RunBeat, RunResult, RunStatus, Settled, StopReason, Word,
};
use protocol::ids::{NodeId, OriginId, RunId};
use protocol::job::Job;
use protocol::model::{Layout, initial_counts};
use protocol::stats::StatsRecord;
use ractor::rpc::CallResult;
use ractor::{Actor, ActorRef};
use tokio::sync::OwnedSemaphorePermit;

use super::seat::Seat;
use super::{RunMessage, dismiss, finding, rand_u64};
use crate::checkpoint::{self, Checkpoint};
use crate::ledger::Ledger;
use crate::node::ending::Ending;
use crate::node::exchange::{
    ExchangeActor, ExchangeArguments, ExchangeMessage, Progress, Readiness, Settlement, Standing,
};
use crate::node::membership::MembershipMessage;
use crate::node::workers::{WorkerHandle, WorkerKey};
use crate::transport::{Security, Stream};
use crate::{usage, whereabouts};

/// How long workers that have not attached yet are waited for.
const WORKERS_LIMIT: Duration = Duration::from_secs(15);
/// How long a node that is ready waits to hear that the run begins.
const BEGIN_LIMIT: Duration = Duration::from_mins(10);
/// How long training waits for links: what is learned without them is learned apart.
const LINKS_LIMIT: Duration = Duration::from_secs(3);
/// How long the exchange may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_mins(1);
/// Evaluations in an epoch, with a target that is to be hit and without.
const EVALUATIONS_WITH_TARGET: u64 = 16;
const EVALUATIONS: u64 = 1;

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
        context.tell(MembershipMessage::Run(Some(Box::new(beat)), self.phase.text()));
    }

    // Prepare.

    /// Asks a worker to open the data: in the beginning all, and later those that take the place of another.
    pub(super) fn ask(&mut self, worker: &WorkerHandle) {
        let wanted = match self.phase {
            Phase::Preparing => !self.answered,
            Phase::Training => self.stop.is_none() && self.seats.values().any(|seat| seat.worker.is_none()),
            _ => false,
        };
        if wanted {
            self.prepared.insert(worker.key, None);
            worker.tell(ToWorker::Prepare {
                run: self.run,
                job: self.job.clone(),
            });
        }
    }

    /// Answers the coordinator once all workers have answered this node, or joins the run that had begun.
    async fn try_answer(&mut self, context: &Context, attached: &Attached) {
        let waiting = self.since.elapsed() < WORKERS_LIMIT && self.prepared.len() < self.workers_wanted;
        if self.answered || waiting || self.prepared.values().any(Option::is_none) {
            return;
        }
        self.answered = true;
        let answer = self.offer();
        match self.joins.take() {
            None => context.answer(self.coordinator, self.run, answer),
            Some(begin) => match answer {
                Ok(_) => self.begin(begin, context, attached).await,
                Err(reason) => self.withdraw(&reason, context, attached),
            },
        }
    }

    /// Takes no part in a run that goes on.
    fn withdraw(&mut self, reason: &str, context: &Context, attached: &Attached) {
        tracing::warn!(reason, "this node takes no part in the run");
        self.withdrawn = true;
        let outcome = Err(format!("this node takes no part in the run: {reason}"));
        self.end(outcome, context, attached);
    }

    /// What others have to know of this node to let it join, if its data is the run's.
    fn guest(&self, begin: &Begin, context: &Context) -> Option<Participant> {
        let same = |answer: &Option<Result<DataInfo, String>>| matches!(answer, Some(Ok(data)) if *data == begin.data);
        let ready = self.ledger.is_some() && self.prepared.values().all(same);
        ready.then(|| Participant {
            node: context.me.id,
            name: context.me.name.clone(),
            address: context.me.address,
            workers: self.prepared.len(),
            guest: true,
        })
    }

    fn offer(&mut self) -> Result<Offer, String> {
        let mut found = self.prepared.values().flatten();
        let data = found.next().ok_or("no worker is attached to it")?.clone()?;
        for other in found {
            if *other.as_ref()? != data {
                return Err("its workers do not find the same data".into());
            }
        }
        let layout = Layout::new(&self.job.model, data.input, data.classes).map_err(|error| error.to_string())?;
        let workers = self.prepared.len();
        usage::check_memory(&self.job, &layout, workers)
            .map_err(|error| format!("{error}: use a smaller model or --minibatch"))?;
        let ledger = Ledger::new(self.run, initial_counts(&layout, self.job.seed));
        let digest = ledger.digest();
        self.ledger = Some(ledger);
        Ok(Offer { data, digest, workers })
    }

    // Begin.

    pub(super) async fn begin(&mut self, mut begin: Begin, context: &Context, attached: &Attached) {
        if self.begin.is_some() {
            self.admit(&begin, context);
            return;
        }
        if begin.participant(context.me.id).is_none() {
            match self.guest(&begin, context) {
                Some(guest) => drop(begin.admit(guest)),
                None if self.answered => return self.withdraw("its data is not the run's", context, attached),
                // Its workers are still at it.
                None => {
                    self.joins = Some(begin);
                    return;
                }
            }
        }
        let Some(mut ledger) = self.ledger.take() else {
            return;
        };
        let mut states = Vec::new();
        if let Some(resumed) = begin.resumed
            && let Some(Checkpoint { header, mut snapshot }) = finding::newest(&context.dir, resumed.run).await
        {
            states = header.states;
            snapshot.head.run = self.run;
            let chosen = snapshot.head.samples == resumed.samples;
            // Others than the chosen one come to it as latecomers do.
            match Ledger::restored(snapshot, self.run, ledger.initial()) {
                Ok(restored) if chosen && restored.digest() == resumed.digest => ledger = restored,
                Ok(_) => tracing::info!("another node's checkpoint has come further than this one's"),
                Err(error) => tracing::error!(%error, "this node's checkpoint is of no use"),
            }
        }
        let started = Actor::spawn_linked(
            None,
            ExchangeActor,
            ExchangeArguments {
                me: context.me.id,
                version: context.me.version.clone(),
                run: self.run,
                begin: begin.clone(),
                ledger,
                states,
                security: context.security.clone(),
                run_actor: context.myself.clone(),
            },
            context.myself.get_cell(),
        );
        match started.await {
            Ok((exchange, _)) => {
                tracing::info!(nodes = begin.participants.len(), "a run begins");
                self.exchange = Some(exchange);
                self.seats = begin
                    .slots_of(context.me.id)
                    .map(|slot| (slot, Seat::default()))
                    .collect();
                self.evaluate_at = self.evaluation_interval(begin.data.train);
                self.begin = Some(begin);
                self.phase = Phase::Training;
                let run = self.run;
                // A guest begins when it has what the others have, and so does who has to get a checkpoint from them.
                let resumes = self.begin.as_ref().is_some_and(|begin| begin.resumed.is_some());
                if !self.is_guest(context) && !resumes {
                    context
                        .myself
                        .send_after(LINKS_LIMIT, move || RunMessage::LinksWaited(run));
                }
                self.tell_live();
                self.publish(context);
            }
            Err(error) => self.fail(format!("the exchange could not be started: {error}"), context, attached),
        }
    }

    fn is_guest(&self, context: &Context) -> bool {
        self.begin.as_ref().is_some_and(|begin| begin.is_guest(context.me.id))
    }

    /// Others know of guests that this node does not know.
    fn admit(&mut self, theirs: &Begin, context: &Context) {
        let (Some(begin), Some(exchange)) = (&mut self.begin, &self.exchange) else {
            return;
        };
        if self.phase > Phase::Settling {
            return;
        }
        let mut news = false;
        for guest in theirs.participants.iter().filter(|one| one.guest) {
            if begin.admit(guest.clone()) {
                news = true;
                let _ = exchange.cast(ExchangeMessage::Joined(guest.clone()));
            }
        }
        if news {
            self.tell_live();
            self.publish(context);
        }
    }

    /// Puts workers to work, when links are there or were waited for.
    pub(super) fn seat_workers(&mut self, attached: &Attached) {
        if self.phase != Phase::Training || self.seated.is_some() {
            return;
        }
        self.seated = Some(Instant::now());
        let ready: Vec<WorkerKey> = self.prepared.keys().copied().collect();
        for worker in ready.iter().filter_map(|key| attached.get(key)) {
            self.seat(worker);
        }
        // Workers that came after this node had answered are in time too.
        for worker in attached.values().filter(|worker| !ready.contains(&worker.key)) {
            self.ask(worker);
        }
        if self.stop.is_some() {
            self.stop_workers();
        }
    }

    fn seat(&mut self, worker: &WorkerHandle) {
        if self.seat_of(worker.key).is_some() {
            return;
        }
        let vacant = self.seats.iter_mut().find(|(_, seat)| seat.worker.is_none());
        if let (Some((&slot, seat)), Some(exchange)) = (vacant, &self.exchange) {
            seat.take(worker.key);
            let _ = exchange.cast(ExchangeMessage::Seat {
                worker: worker.clone(),
                slot,
                origin: OriginId(rand_u64()),
            });
        }
    }

    /// Whether a node's call for a link would be taken.
    pub(super) fn expects(&self, from: NodeId) -> bool {
        let participant = self.begin.as_ref().and_then(|begin| begin.participant(from));
        self.exchange.is_some() && participant.is_some()
    }

    pub(super) fn link(&self, from: NodeId, stream: Stream) {
        if let Some(exchange) = &self.exchange {
            let _ = exchange.cast(ExchangeMessage::Accepted { from, stream });
        }
    }

    // Train.

    pub(super) fn batch(&self, key: WorkerKey, bytes: Arc<[u8]>, permit: Option<OwnedSemaphorePermit>) {
        if let Some(exchange) = &self.exchange {
            let _ = exchange.cast(ExchangeMessage::Local { key, bytes, permit });
        }
    }

    fn seat_of(&mut self, key: WorkerKey) -> Option<&mut Seat> {
        self.seats.values_mut().find(|seat| seat.worker == Some(key))
    }

    pub(super) async fn hear(
        &mut self,
        worker: &WorkerHandle,
        word: FromWorker,
        context: &Context,
        attached: &Attached,
    ) {
        match word {
            FromWorker::Prepared { run, data } if run == self.run => {
                self.prepared(worker, Ok(data), context, attached).await;
            }
            FromWorker::Refused { run, reason } if run == self.run => {
                self.prepared(worker, Err(reason), context, attached).await;
            }
            FromWorker::Stats(stats) => {
                if let Some(seat) = self.seat_of(worker.key) {
                    seat.count(*stats);
                }
            }
            FromWorker::Evaluated { run, scores } if run == self.run && self.phase != Phase::Finishing => {
                tracing::info!(accuracy = scores.accuracy, loss = scores.loss, "evaluated");
                self.scores = Some(scores);
                let reached = |target| scores.accuracy >= target;
                if self.job.target_accuracy.is_some_and(reached) {
                    self.stop(StopReason::TargetReached, context);
                }
            }
            FromWorker::Saved { sequence, path } => {
                if let Some(exchange) = &self.exchange {
                    let key = worker.key;
                    let _ = exchange.cast(ExchangeMessage::Saved { key, sequence, path });
                }
            }
            FromWorker::Closed { residual_norm } => {
                tracing::info!(residual_norm, "a worker is done; what it has not emitted is dropped");
                if let Some(seat) = self.seat_of(worker.key) {
                    seat.closed = true;
                }
                self.try_finish(context, attached).await;
            }
            FromWorker::Finished { digest, scores } => {
                self.final_scores = scores.or(self.final_scores);
                self.scores = self.final_scores.or(self.scores);
                if let Some(seat) = self.seat_of(worker.key) {
                    seat.finished = true;
                    seat.digest = digest;
                }
                self.try_settle(context, attached);
            }
            FromWorker::Failed { reason, diverged } => {
                let known = self.seat_of(worker.key).is_some();
                if known && diverged {
                    self.fail(reason, context, attached);
                } else if known {
                    tracing::error!(reason, "a worker failed; it is started again");
                    worker.hang_up();
                }
            }
            FromWorker::Hello(_)
            | FromWorker::Alive
            | FromWorker::Prepared { .. }
            | FromWorker::Refused { .. }
            | FromWorker::Evaluated { .. } => {}
        }
    }

    async fn prepared(
        &mut self,
        worker: &WorkerHandle,
        answer: Result<DataInfo, String>,
        context: &Context,
        attached: &Attached,
    ) {
        if self.phase == Phase::Preparing {
            self.prepared.insert(worker.key, Some(answer));
            self.try_answer(context, attached).await;
            return;
        }
        let expected = self.begin.as_ref().map(|begin| &begin.data);
        match answer {
            // Too late: the run ends without it.
            Ok(_) if self.phase != Phase::Training || self.stop.is_some() => worker.tell(ToWorker::Abort),
            Ok(data) if Some(&data) == expected => self.seat(worker),
            Ok(_) => tracing::error!("the data has changed since the run began: the worker is not used"),
            Err(reason) => tracing::error!(reason, "a worker that was started again cannot take part"),
        }
    }

    pub(super) async fn worker_gone(&mut self, key: WorkerKey, context: &Context, attached: &Attached) {
        self.prepared.remove(&key);
        if let Some(seat) = self.seat_of(key) {
            seat.leave();
            if let Some(exchange) = &self.exchange {
                let _ = exchange.cast(ExchangeMessage::Unseat(key));
            }
        }
        match self.phase {
            Phase::Preparing => self.try_answer(context, attached).await,
            Phase::Finishing => self.try_settle(context, attached),
            _ => self.try_finish(context, attached).await,
        }
    }

    pub(super) async fn progressed(&mut self, progress: Progress, context: &Context, attached: &Attached) {
        self.progress = progress;
        match progress.readiness {
            Readiness::Ready => self.seat_workers(attached),
            Readiness::Stranded if !self.is_over() => {
                let reason = "all who had something of it are gone; `tau start --resume` goes on from a checkpoint";
                return self.withdraw(reason, context, attached);
            }
            Readiness::Stranded | Readiness::Waiting => {}
        }
        self.evaluate(context);
        self.try_finish(context, attached).await;
    }

    fn evaluation_interval(&self, train: u64) -> u64 {
        let often = if self.job.target_accuracy.is_some() {
            EVALUATIONS_WITH_TARGET
        } else {
            EVALUATIONS
        };
        (train / often).max(1)
    }

    /// One worker of the whole cluster measures now and then: the first of the first node that is there.
    fn evaluate(&mut self, context: &Context) {
        let Some(begin) = &self.begin else {
            return;
        };
        let there = |node: NodeId| !self.silent.contains(&node) && !self.given_up.contains(&node);
        let first = begin.participants.iter().find(|participant| there(participant.node));
        let total = begin.data.train * u64::from(begin.job.epochs);
        let due = (self.evaluate_at..total).contains(&self.progress.samples) && self.stop.is_none();
        if due && first.is_some_and(|participant| participant.node == context.me.id) {
            self.evaluate_at = self.progress.samples + self.evaluation_interval(begin.data.train);
            if let Some(exchange) = &self.exchange {
                let _ = exchange.cast(ExchangeMessage::Evaluate);
            }
        }
    }

    // The living.

    pub(super) fn live(&mut self, silent: BTreeSet<NodeId>, context: &Context, attached: &Attached) {
        self.silent = silent;
        self.tell_live();
        self.check_over(context, attached);
    }

    /// A participant will not be waited for any more; what it is, whether it may come back.
    pub(super) fn give_up(&mut self, node: NodeId, for_good: bool, context: &Context) {
        let takes_part = self
            .begin
            .as_ref()
            .is_some_and(|begin| begin.participant(node).is_some());
        if self.is_over() || !takes_part || node == context.me.id {
            return;
        }
        let news = self.given_up.insert(node) | (for_good && self.gone.insert(node));
        if news {
            tracing::warn!(%node, for_good, "a participant is not waited for any more");
            self.tell_live();
        }
    }

    /// A participant that was silent is heard again, and has not left the run for another.
    fn returned(&mut self, node: NodeId) {
        if !self.gone.contains(&node) && self.given_up.remove(&node) {
            tracing::info!(%node, "a participant is back");
            self.tell_live();
        }
    }

    /// Everybody who takes part in it, while it goes on.
    pub(super) fn participants(&self) -> impl Iterator<Item = NodeId> + '_ {
        let begin = self.begin.iter().filter(|_| !self.is_over());
        begin.flat_map(|begin| begin.participants.iter().map(|one| one.node))
    }

    fn waited_for(&self) -> BTreeSet<NodeId> {
        let participants = self.begin.iter().flat_map(|begin| &begin.participants);
        let nodes = participants.map(|participant| participant.node);
        nodes.filter(|node| !self.given_up.contains(node)).collect()
    }

    fn tell_live(&self) {
        if let Some(exchange) = &self.exchange {
            let _ = exchange.cast(ExchangeMessage::Live(Standing {
                live: self.waited_for(),
                silent: self.silent.union(&self.given_up).copied().collect(),
                gone: self.gone.clone(),
            }));
        }
    }

    /// A peer tells how far it is.
    pub(super) async fn peer(&mut self, from: NodeId, beat: RunBeat, context: &Context, attached: &Attached) {
        if self.is_over() {
            return;
        }
        if let Some(reason) = beat.failed {
            // Who did not take part, or not to the end, does not speak for those who do.
            let speaks = match &self.begin {
                Some(begin) => begin.participant(from).is_some() && !self.given_up.contains(&from),
                None => from == self.coordinator,
            };
            if speaks {
                self.fail(reason, context, attached);
            }
            return;
        }
        if beat.withdrawn {
            self.give_up(from, true, context);
            return;
        }
        self.returned(from);
        if self.is_guest(context) && self.seated.is_none() && (beat.settled.is_some() || beat.stop.is_some()) {
            self.withdraw("it ends before this node has caught up", context, attached);
            return;
        }
        if let Some(begin) = beat.begin {
            self.begin(begin, context, attached).await;
        }
        if let Some(reason) = beat.stop {
            self.stop(reason, context);
        }
        if let Some(settled) = beat.settled.filter(|_| !self.given_up.contains(&from)) {
            self.ending.settle(from, settled);
            self.check_over(context, attached);
        }
    }

    // Checkpoint.

    /// Lets the exchange write a checkpoint, with what workers alone have.
    pub(super) fn checkpoint(&mut self, context: &Context) {
        self.checkpointed = Instant::now();
        if self.phase != Phase::Training || self.seated.is_none() {
            return;
        }
        let path = checkpoint::path(&context.dir.join(self.run.to_string()), &context.me.name);
        if let Some(exchange) = &self.exchange {
            let _ = exchange.cast(ExchangeMessage::Checkpoint(path));
        }
    }

    // Stop.

    pub(super) fn stop(&mut self, reason: StopReason, context: &Context) {
        if self.stop.is_none() && !self.is_over() {
            tracing::info!(?reason, "the run is to end");
            self.stop = Some(reason);
            self.stop_workers();
            self.publish(context);
        }
    }

    /// The news came with a batch; the reason follows with a beat.
    pub(super) fn stop_seen(&mut self) {
        self.stop_workers();
    }

    fn stop_workers(&self) {
        if let Some(exchange) = &self.exchange {
            let _ = exchange.cast(ExchangeMessage::Tell(ToWorker::Stop));
        }
    }

    // Finish.

    /// When nothing more will come, workers tell what they hold, and one of them measures and saves it.
    async fn try_finish(&mut self, context: &Context, attached: &Attached) {
        if self.phase == Phase::Training && self.seated.is_some() && (self.stop.is_some() || self.progress.complete) {
            self.phase = Phase::Settling;
            self.publish(context);
        }
        let closed = self.seats.values().all(|seat| seat.closed || seat.worker.is_none());
        if self.phase != Phase::Settling || !closed || !self.progress.settled {
            return;
        }
        let Some(exchange) = &self.exchange else {
            return;
        };
        let Ok(CallResult::Success(settlement)) = exchange.call(ExchangeMessage::Settle, Some(ANSWER_LIMIT)).await
        else {
            self.fail(
                "the exchange gives no answer; this is a fault in Tau".into(),
                context,
                attached,
            );
            return;
        };
        if settlement.digest.is_err() && self.waited_for().len() > 1 {
            // A peer is asked for its ledger; the exchange says when it is settled again.
            self.progress.settled = false;
            return;
        }
        self.phase = Phase::Finishing;
        let mut save = self.save_order(&settlement, context);
        for seat in self.seats.values() {
            if let Some(worker) = seat.worker.and_then(|key| attached.get(&key)) {
                worker.tell(ToWorker::Finish { save: save.take() });
            }
        }
        self.settlement = Some(settlement);
        self.publish(context);
        self.try_settle(context, attached);
    }

    fn save_order(&self, settlement: &Settlement, context: &Context) -> Option<SaveOrder> {
        let path = context.model_path(self.run);
        let made = path.parent().map(std::fs::create_dir_all);
        if let Some(Err(error)) = made {
            tracing::error!(%error, path = %path.display(), "the folder for the model could not be made");
            return None;
        }
        Some(SaveOrder {
            path,
            frontier: settlement.frontier.clone(),
        })
    }

    /// When all workers have told what they hold, everybody is told what this node ended with.
    fn try_settle(&mut self, context: &Context, attached: &Attached) {
        let told = |seat: &Seat| seat.finished || seat.worker.is_none();
        let Some(settlement) = &self.settlement else {
            return;
        };
        if self.phase != Phase::Finishing || !self.seats.values().all(told) {
            return;
        }
        let (digest, sound) = match &settlement.digest {
            Ok(digest) => (*digest, true),
            Err(error) => {
                tracing::error!(%error, "this node's replica is not the sum of its batches");
                (error.found, false)
            }
        };
        let finished = self.seats.values().filter(|seat| seat.finished);
        let workers = finished.map(|seat| seat.digest).all(|found| found == Some(digest));
        let settled = Settled {
            frontier: settlement.frontier.clone(),
            digest,
            workers_agree: Some(sound && workers),
            stats: self.stats(),
            samples: settlement.samples,
            repeated: settlement.repeated,
            bytes_sent: settlement.bytes_sent,
            seconds: settlement.seconds,
            scores: self.final_scores,
        };
        self.ending.settle(context.me.id, settled);
        self.publish(context);
        self.check_over(context, attached);
    }

    fn check_over(&mut self, context: &Context, attached: &Attached) {
        let (Some(begin), Some(settlement)) = (&self.begin, &self.settlement) else {
            return;
        };
        if self.is_over() || self.ending.of(context.me.id).is_none() || !self.ending.is_over(&self.waited_for()) {
            return;
        }
        let model = context.model_path(self.run);
        let result = self
            .ending
            .result(context.me.id, begin, settlement.weights, self.stop.clone(), model);
        let outcome = result
            .map(Box::new)
            .ok_or_else(|| "no node could measure and save the model; see the nodes' logs".to_string());
        match &outcome {
            Ok(result) => tracing::info!(digest = %result.digest, agree = result.agree, "the run is over"),
            Err(reason) => tracing::error!(reason, "the run is over"),
        }
        self.end(outcome, context, attached);
    }

    pub(super) fn fail(&mut self, reason: String, context: &Context, attached: &Attached) {
        if !self.is_over() {
            tracing::error!(reason, "the run has failed");
            self.end(Err(reason), context, attached);
        }
    }

    fn end(&mut self, outcome: Result<Box<RunResult>, String>, context: &Context, attached: &Attached) {
        self.phase = Phase::Ended;
        self.outcome = Some(outcome);
        self.ledger = None;
        if let Some(exchange) = self.exchange.take() {
            exchange.stop(None);
        }
        dismiss(attached.values());
        self.publish(context);
        whereabouts::set_run(None);
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

    // Stats.

    /// What this node's workers did so far.
    fn stats(&self) -> WorkerStats {
        let stats: Vec<WorkerStats> = self.seats.values().map(Seat::stats).collect();
        WorkerStats::combined(stats.iter())
    }

    pub(super) async fn record(&mut self, elapsed: Duration) -> StatsRecord {
        let mut record = StatsRecord {
            run: self.run.to_string(),
            state: self.phase.text().into(),
            accuracy: self.scores.map(|scores| scores.accuracy),
            ..StatsRecord::default()
        };
        let report = match &self.exchange {
            Some(exchange) => exchange.call(ExchangeMessage::Report, Some(elapsed)).await,
            None => return record,
        };
        let Ok(CallResult::Success(report)) = report else {
            return record;
        };
        let total = self.stats();
        let (before, paused_before) = std::mem::replace(&mut self.recorded, (total, report.paused));
        let seconds = elapsed.as_secs_f64();
        let recent = total.since(&before);
        record.samples_per_second = recent.samples as f64 / seconds;
        record.samples = total.samples;
        record.loss = recent.mean_loss();
        record.tau = total.tau;
        record.density = recent.density(report.weights);
        record.bytes_in = report.peers.iter().map(|peer| peer.bytes_in).sum();
        record.bytes_out = if report.peers.is_empty() {
            report.bytes_encoded
        } else {
            report.peers.iter().map(|peer| peer.bytes_out).sum()
        };
        record.staleness = total.staleness;
        record.frontier_lag = report.frontier_lag;
        record.digest = report.digest.to_string();
        record.queue = report.peers.iter().map(|peer| peer.queue).sum();
        record.paused_share = (report.paused.saturating_sub(paused_before).as_secs_f64() / seconds).min(1.0);
        record.exchange_share = recent.exchange_share();
        record.gpu = recent.gpu.as_secs_f64() / seconds;
        record.gpu_memory_bytes = total.gpu_memory;
        record.residual_norm = total.residual_norm;
        record.residual_lost = total.residual_lost;
        record.repeated_samples = report.repeated;
        record.peers = report.peers;
        record
    }
}
