//! The run's actor: this node's part in a run, from prepare to the saved model.
//!
//! ```text
//!  Start ─▶ prepare everywhere ─▶ begin ─▶ training ─▶ settling ─▶ finishing ─▶ ended
//!          (coordinated by the     (state that beats carry: whoever misses one
//!           node that was asked)    hears the next)
//! ```

mod current;
mod finding;
mod messages;
mod seat;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use protocol::attach::{FromWorker, ToWorker};
use protocol::control::{Found, NodeInfo, Offer, Reply, Resumed, RunBeat, RunStatus, StopReason, Word};
use protocol::ids::{NodeId, RunId};
use protocol::job::Job;
use protocol::stats::StatsRecord;
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort, SupervisionEvent};

use super::coordination::{Coordination, Decision};
use super::membership::MembershipMessage;
use super::roster::Change;
use super::stats::StatsMessage;
use super::workers::{WorkerHandle, WorkerKey};
use crate::control::Payload;
use crate::transport::Security;
use crate::usage::UsageMeter;
use crate::whereabouts;
use current::{Context, Current};
use finding::Finding;
pub(crate) use messages::RunMessage;

/// How often time limits are looked at.
const TICK: Duration = Duration::from_millis(200);
const STATS_EVERY: Duration = Duration::from_secs(1);
/// A participant that has been silent for so long is given up.
const GIVE_UP_AFTER: Duration = Duration::from_secs(30);

/// What the actor is started with.
pub(crate) struct RunArguments {
    /// This node.
    pub(crate) me: NodeInfo,
    /// Where models are saved.
    pub(crate) dir: PathBuf,
    /// How peers are reached.
    pub(crate) security: Security,
    /// How many workers there are to be.
    pub(crate) workers: usize,
    /// Who keeps the records.
    pub(crate) stats: ActorRef<StatsMessage>,
}

/// The actor.
pub(crate) struct RunActor;

/// A run that this node was asked to start.
struct Coordinating {
    run: RunId,
    coordination: Coordination,
    reply: RpcReplyPort<Payload<Reply>>,
}

/// The actor's state.
pub(crate) struct RunState {
    context: Context,
    stats: ActorRef<StatsMessage>,
    peers: BTreeMap<NodeId, NodeInfo>,
    /// Peers that are silent, and since when.
    silent: BTreeMap<NodeId, Instant>,
    workers: BTreeMap<WorkerKey, WorkerHandle>,
    workers_wanted: usize,
    /// A run that this node was asked to go on with.
    finding: Option<Finding>,
    coordinating: Option<Coordinating>,
    current: Option<Current>,
    usage: UsageMeter,
    recorded: Instant,
}

impl Actor for RunActor {
    type Msg = RunMessage;
    type State = RunState;
    type Arguments = RunArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<RunMessage>,
        arguments: RunArguments,
    ) -> Result<RunState, ActorProcessingErr> {
        let RunArguments {
            me,
            dir,
            security,
            workers,
            stats,
        } = arguments;
        myself.send_interval(TICK, || RunMessage::Tick);
        Ok(RunState {
            context: Context {
                me,
                dir,
                security,
                myself,
                membership: None,
            },
            stats,
            peers: BTreeMap::new(),
            silent: BTreeMap::new(),
            workers: BTreeMap::new(),
            workers_wanted: workers,
            finding: None,
            coordinating: None,
            current: None,
            usage: UsageMeter::start(Instant::now()),
            recorded: Instant::now(),
        })
    }

    async fn handle(
        &self,
        _myself: ActorRef<RunMessage>,
        message: RunMessage,
        state: &mut RunState,
    ) -> Result<(), ActorProcessingErr> {
        state.handle(message).await;
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _myself: ActorRef<RunMessage>,
        event: SupervisionEvent,
        state: &mut RunState,
    ) -> Result<(), ActorProcessingErr> {
        // An exchange ends with its run; one that fails takes it along.
        if let SupervisionEvent::ActorFailed(_, error) = event
            && let Some(current) = &mut state.current
        {
            let reason = format!("the exchange failed: {error}; this is a fault in Tau, please report it");
            current.fail(reason, &state.context, &state.workers);
        }
        Ok(())
    }
}

impl RunState {
    async fn handle(&mut self, message: RunMessage) {
        match message {
            RunMessage::Membership(membership) => self.context.membership = Some(membership),
            RunMessage::Start {
                job,
                allow_partial,
                reply,
            } => {
                if let Some(reply) = self.unless_busy(reply) {
                    self.start(RunId(rand_u64()), (job, None), allow_partial, reply);
                }
            }
            RunMessage::Resume {
                run,
                allow_partial,
                reply,
            } => self.resume(run, allow_partial, reply).await,
            RunMessage::Find {
                run,
                coordinator,
                resumes,
            } => {
                let found = finding::look(&self.context.dir, resumes).await.map(Box::new);
                let from = self.context.me.id;
                self.context.send(coordinator, Word::Found { run, from, found });
            }
            RunMessage::Found { run, from, found } => {
                if let Some(finding) = self.finding.as_mut().filter(|finding| finding.run == run) {
                    finding.answer(from, found.map(|found| *found));
                    self.try_resume();
                }
            }
            RunMessage::CheckpointAll(reply) => self.checkpoint_all(reply),
            RunMessage::Checkpoint(run) => {
                if let Some(current) = named(&mut self.current, run) {
                    current.checkpoint(&self.context);
                }
            }
            RunMessage::Stop(reply) => self.stop(reply),
            RunMessage::Status(reply) => {
                let _ = reply.send(Reply::Status(self.status()).into());
            }
            RunMessage::Prepare { run, coordinator, job } => self.prepare(run, coordinator, job),
            RunMessage::Answer { run, from, answer } => self.answer(run, from, answer).await,
            RunMessage::GiveUp { run, node } => {
                if let Some(current) = named(&mut self.current, run) {
                    current.give_up(node, true, &self.context);
                }
            }
            RunMessage::Abort { run, reason } | RunMessage::Diverged(run, reason) => self.abort(run, reason),
            RunMessage::PeerRun(from, beat) => match named(&mut self.current, beat.run) {
                Some(current) => current.peer(from, *beat, &self.context, &self.workers).await,
                None => self.try_join(from, *beat),
            },
            RunMessage::Member(change) => self.member(change).await,
            RunMessage::WorkerAttached(worker) => self.attached(worker),
            RunMessage::WorkerGone(key) => self.gone(key).await,
            RunMessage::FromWorker { key, word } => self.hear(key, *word).await,
            RunMessage::WorkerBatch { key, bytes, permit } => {
                if let Some(current) = &self.current {
                    current.batch(key, bytes, permit);
                }
            }
            RunMessage::Progress(run, progress) => {
                if let Some(current) = named(&mut self.current, run) {
                    current.progressed(progress, &self.context, &self.workers).await;
                }
            }
            RunMessage::StopSeen(run) => {
                if let Some(current) = named(&mut self.current, run) {
                    current.stop_seen();
                }
            }
            RunMessage::LinksWaited(run) => {
                if let Some(current) = named(&mut self.current, run) {
                    current.seat_workers(&self.workers);
                }
            }
            RunMessage::Expects { run, from, reply } => {
                let expected = named(&mut self.current, run).is_some_and(|current| current.expects(from));
                let _ = reply.send(expected);
            }
            RunMessage::Link { run, from, stream } => {
                if let Some(current) = named(&mut self.current, run) {
                    current.link(from, stream);
                }
            }
            RunMessage::Model { run, reply } => {
                let path = self.context.model_path(run);
                let _ = reply.send(path.exists().then_some(path));
            }
            RunMessage::Tick => self.tick().await,
        }
        self.call_off();
    }

    /// Tells who started a run that it failed before it began.
    fn call_off(&mut self) {
        let over = |one: &Coordinating| {
            let current = self.current.as_ref().filter(|current| current.run == one.run);
            current.and_then(Current::failure)
        };
        if let Some(reason) = self.coordinating.as_ref().and_then(over)
            && let Some(one) = self.coordinating.take()
        {
            let _ = one.reply.send(Reply::Refused(vec![reason]).into());
        }
    }

    /// Refuses what needs a node that has nothing to do, if this one has.
    fn unless_busy(&self, reply: RpcReplyPort<Payload<Reply>>) -> Option<RpcReplyPort<Payload<Reply>>> {
        let Some(busy) = self.current.as_ref().filter(|current| !current.is_over()) else {
            return Some(reply);
        };
        let reason = format!(
            "{} is busy with run {}: wait for it, or end it with 'tau stop'",
            self.context.me.name, busy.run
        );
        let _ = reply.send(Reply::Refused(vec![reason]).into());
        None
    }

    /// Asks everybody which checkpoint they have of an earlier run.
    async fn resume(&mut self, resumes: RunId, allow_partial: bool, reply: RpcReplyPort<Payload<Reply>>) {
        let Some(reply) = self.unless_busy(reply) else {
            return;
        };
        let run = RunId(rand_u64());
        let coordinator = self.context.me.id;
        let asked: Vec<NodeId> = self.alive().map(|info| info.id).collect();
        for &peer in &asked {
            let find = Word::Find {
                run,
                coordinator,
                resumes,
            };
            self.context.send(peer, find);
        }
        let mut finding = Finding::new(
            run,
            resumes,
            asked.into_iter().chain([coordinator]),
            allow_partial,
            reply,
        );
        finding.answer(coordinator, finding::look(&self.context.dir, resumes).await);
        self.finding = Some(finding);
        self.try_resume();
    }

    /// Goes on from the furthest checkpoint, when all have told what they have.
    fn try_resume(&mut self) {
        let Some(finding) = self.finding.take_if(|finding| finding.is_over()) else {
            return;
        };
        let Some(Found { resumed, job }) = finding.furthest().cloned() else {
            let reason = format!(
                "no node has a checkpoint of run {}: name a folder that nodes keep under their --dir, with files that end \
                 with .checkpoint",
                finding.resumes
            );
            let _ = finding.reply.send(Reply::Refused(vec![reason]).into());
            return;
        };
        tracing::info!(run = %resumed.run, samples = resumed.samples, "a run is gone on with");
        self.start(finding.run, (job, Some(resumed)), finding.allow_partial, finding.reply);
    }

    /// Lets every node write a checkpoint.
    fn checkpoint_all(&mut self, reply: RpcReplyPort<Payload<Reply>>) {
        let answer = match self.current.as_mut().filter(|current| current.is_training()) {
            Some(current) => {
                current.checkpoint(&self.context);
                self.context.broadcast(Word::Checkpoint(current.run));
                Reply::Checkpointing(current.run)
            }
            None => Reply::Refused(vec!["there is no run to write a checkpoint of".into()]),
        };
        let _ = reply.send(answer.into());
    }

    /// Asks everybody whether they can take part.
    fn start(
        &mut self,
        run: RunId,
        (job, resumed): (Box<Job>, Option<Resumed>),
        allow_partial: bool,
        reply: RpcReplyPort<Payload<Reply>>,
    ) {
        let invited = self.alive().chain([self.context.me.clone()]);
        let coordination = Coordination::new(job.clone(), resumed, allow_partial, invited);
        self.coordinating = Some(Coordinating {
            run,
            coordination,
            reply,
        });
        let coordinator = self.context.me.id;
        for peer in self.alive().collect::<Vec<_>>() {
            let job = job.clone();
            self.context.send(peer.id, Word::Prepare { run, coordinator, job });
        }
        self.prepare(run, coordinator, job);
    }

    fn alive(&self) -> impl Iterator<Item = NodeInfo> + '_ {
        let alive = self.peers.values().filter(|info| !self.silent.contains_key(&info.id));
        alive.cloned()
    }

    fn stop(&mut self, reply: RpcReplyPort<Payload<Reply>>) {
        let answer = match self.current.as_mut().filter(|current| !current.is_over()) {
            Some(current) => {
                let run = current.run;
                if current.is_preparing() {
                    let reason = String::from("it was stopped before it began");
                    current.fail(reason.clone(), &self.context, &self.workers);
                    self.context.broadcast(Word::Abort { run, reason });
                } else {
                    current.stop(StopReason::Asked, &self.context);
                }
                Reply::Stopping(run)
            }
            None => Reply::Refused(vec!["there is no run to be stopped".into()]),
        };
        let _ = reply.send(answer.into());
    }

    fn status(&self) -> Option<Box<RunStatus>> {
        self.current.as_ref().map(|current| Box::new(current.status()))
    }

    /// Gets ready for a run, unless another one has this node.
    fn prepare(&mut self, run: RunId, coordinator: NodeId, job: Box<Job>) {
        if let Some(busy) = self.current.as_ref().filter(|current| !current.is_over()) {
            // Of two that are being prepared at the same time the lower one wins, everywhere.
            if !busy.is_preparing() || busy.run <= run {
                if busy.run != run {
                    let reason = format!("it is busy with run {}", busy.run);
                    self.context.answer(coordinator, run, Err(reason));
                }
                return;
            }
            let beaten = busy.run;
            self.abort(beaten, format!("run {run} was started at the same time"));
            self.call_off();
        }
        self.enter(Current::new(run, coordinator, job, self.workers_wanted));
    }

    /// Joins a run that a peer is in, if this node has nothing else to do.
    fn try_join(&mut self, from: NodeId, beat: RunBeat) {
        let busy = self.current.as_ref().is_some_and(|current| !current.is_over());
        let ends = beat.stop.is_some() || beat.settled.is_some() || beat.failed.is_some() || beat.withdrawn;
        let Some(begin) = beat.begin.filter(|_| !busy && !ends) else {
            return;
        };
        // One that it took part in before, as another process or not: nobody does twice under one name.
        if begin.participant(self.context.me.id).is_some() {
            return;
        }
        tracing::info!(run = %beat.run, "this node joins a run that is under way");
        let current = Current::joining(beat.run, from, begin, self.workers_wanted);
        self.enter(current);
    }

    /// Asks all workers to get ready for a run.
    fn enter(&mut self, mut current: Current) {
        whereabouts::set_run(Some(current.run));
        for worker in self.workers.values() {
            current.ask(worker);
        }
        self.current = Some(current);
        self.publish();
    }

    async fn answer(&mut self, run: RunId, from: NodeId, answer: Result<Offer, String>) {
        if let Some(coordinating) = self.coordinating.as_mut().filter(|one| one.run == run) {
            coordinating.coordination.answer(from, answer);
            self.decide().await;
        }
    }

    /// Begins the run, or calls it off, when all have answered.
    async fn decide(&mut self) {
        let Some(decision) = self.coordinating.as_ref().and_then(|one| one.coordination.decide()) else {
            return;
        };
        let Some(Coordinating { run, reply, .. }) = self.coordinating.take() else {
            return;
        };
        match decision {
            Decision::Begin(begin) if begin.participant(self.context.me.id).is_none() => {
                let others: Vec<&str> = begin.participants.iter().map(|one| one.name.as_str()).collect();
                let reason = format!(
                    "{} itself cannot take part: send the job to one of {}",
                    self.context.me.name,
                    others.join(", ")
                );
                self.refuse(run, reply, vec![reason]);
            }
            Decision::Begin(begin) => {
                let current = named(&mut self.current, run);
                if let Some(current) = current {
                    current.begin(begin, &self.context, &self.workers).await;
                }
                self.publish();
                let _ = reply.send(Reply::Started(run).into());
            }
            Decision::Refuse(reasons) => self.refuse(run, reply, reasons),
        }
    }

    /// Calls a run off that was being prepared.
    fn refuse(&mut self, run: RunId, reply: RpcReplyPort<Payload<Reply>>, reasons: Vec<String>) {
        let reason = reasons.join("; ");
        self.context.broadcast(Word::Abort {
            run,
            reason: reason.clone(),
        });
        let _ = reply.send(Reply::Refused(reasons).into());
        self.abort(run, reason);
    }

    /// A run is over before it could finish.
    fn abort(&mut self, run: RunId, reason: String) {
        if let Some(current) = named(&mut self.current, run) {
            current.fail(reason, &self.context, &self.workers);
        }
    }

    async fn member(&mut self, change: Change) {
        match change {
            Change::Alive(info) => {
                self.silent.remove(&info.id);
                self.peers.insert(info.id, info);
            }
            Change::Away(id) => {
                self.silent.insert(id, Instant::now());
                self.lost(id, "it fell silent").await;
            }
            Change::Left(id) => {
                self.peers.remove(&id);
                self.silent.remove(&id);
                self.lost(id, "it has left").await;
                if let Some(current) = &mut self.current {
                    current.give_up(id, true, &self.context);
                }
            }
        }
        self.tell_live();
    }

    /// A node cannot answer any more.
    async fn lost(&mut self, id: NodeId, why: &str) {
        if let Some(finding) = &mut self.finding {
            finding.answer(id, None);
            self.try_resume();
        }
        if let Some(one) = &mut self.coordinating {
            one.coordination.answer(id, Err(why.into()));
            self.decide().await;
        }
        if let Some(current) = &self.current
            && current.is_preparing()
            && current.coordinator == id
        {
            let run = current.run;
            self.abort(run, format!("the node that started it is gone: {why}"));
        }
    }

    fn tell_live(&mut self) {
        if let Some(current) = &mut self.current {
            let silent = self.silent.keys().copied().collect();
            current.live(silent, &self.context, &self.workers);
        }
    }

    fn attached(&mut self, worker: WorkerHandle) {
        tracing::info!(
            pid = worker.info.pid,
            device = worker.info.device,
            "a worker is attached"
        );
        if let Some(current) = &mut self.current {
            current.ask(&worker);
        }
        self.workers.insert(worker.key, worker);
        self.describe();
    }

    async fn gone(&mut self, key: WorkerKey) {
        if self.workers.remove(&key).is_some() {
            tracing::info!("a worker is gone");
            if let Some(current) = &mut self.current {
                current.worker_gone(key, &self.context, &self.workers).await;
            }
            self.describe();
        }
    }

    /// Tells others what this node is now.
    fn describe(&mut self) {
        let me = &mut self.context.me;
        me.workers = self.workers.len();
        if let Some(worker) = self.workers.values().next() {
            me.device.clone_from(&worker.info.device);
        }
        self.context.tell(MembershipMessage::Me(self.context.me.clone()));
    }

    async fn hear(&mut self, key: WorkerKey, word: FromWorker) {
        if let (Some(worker), Some(current)) = (self.workers.get(&key), &mut self.current) {
            let worker = worker.clone();
            current.hear(&worker, word, &self.context, &self.workers).await;
        }
    }

    fn publish(&self) {
        if let Some(current) = &self.current {
            current.publish(&self.context);
        }
    }

    /// Participants that this node has never met are silent, too: they died before it came.
    fn look_for_strangers(&mut self) {
        let participants = self.current.iter().flat_map(Current::participants);
        let strangers: Vec<NodeId> = participants
            .filter(|id| *id != self.context.me.id)
            .filter(|id| !self.peers.contains_key(id) && !self.silent.contains_key(id))
            .collect();
        if !strangers.is_empty() {
            self.silent.extend(strangers.into_iter().map(|id| (id, Instant::now())));
            self.tell_live();
        }
    }

    async fn tick(&mut self) {
        self.look_for_strangers();
        self.try_resume();
        let given_up: Vec<NodeId> = self
            .silent
            .iter()
            .filter(|(_, since)| since.elapsed() > GIVE_UP_AFTER)
            .map(|(&id, _)| id)
            .collect();
        if let Some(current) = &mut self.current {
            for id in given_up {
                current.give_up(id, false, &self.context);
            }
            current.tick(&self.context, &self.workers).await;
        }
        if self.recorded.elapsed() >= STATS_EVERY {
            let elapsed = std::mem::replace(&mut self.recorded, Instant::now()).elapsed();
            self.record(elapsed).await;
        }
    }

    /// What this node did in the last second, for all who want to know.
    async fn record(&mut self, elapsed: Duration) {
        let pids = self.workers.values().map(|worker| worker.info.pid);
        let usage = self.usage.read(Instant::now(), pids);
        let mut record = match &mut self.current {
            Some(current) => current.record(elapsed).await,
            None => StatsRecord {
                state: "idle".into(),
                ..StatsRecord::default()
            },
        };
        record.node.clone_from(&self.context.me.name);
        record.cpu = usage.cpu;
        record.memory_bytes = usage.memory_bytes;
        self.context.broadcast(Word::Stats(Box::new(record.clone())));
        let _ = self.stats.cast(StatsMessage::Record(Box::new(record)));
    }
}

/// The run under way, if it is this one.
fn named(current: &mut Option<Current>, run: RunId) -> Option<&mut Current> {
    current.as_mut().filter(|current| current.run == run)
}

/// A number that nobody else draws.
pub(crate) fn rand_u64() -> u64 {
    use std::hash::BuildHasher;
    // The standard library's own keys: drawn from the system for every thread, and moved on with every use.
    std::collections::hash_map::RandomState::new().hash_one((std::process::id(), Instant::now()))
}

/// Tells a worker to forget the run.
fn dismiss<'a>(workers: impl Iterator<Item = &'a WorkerHandle>) {
    workers.for_each(|worker| worker.tell(ToWorker::Abort));
}
