//! The exchange's actor: carries out what the exchange's core decides, for one run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use protocol::attach::{Assignment, COUNTS_PER_PIECE, SUMS_PER_PIECE, ShiftOrder, ToWorker};
use protocol::control::{Begin, Participant};
use protocol::digest::Digest;
use protocol::frontier::Frontier;
use protocol::ids::{NodeId, OriginId, RunId};
use protocol::stats::PeerRecord;
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort, SupervisionEvent};
use ractor_cluster::RactorMessage;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::checkpoints::{self, Checkpoints};
use super::link::{LinkActor, LinkArguments, LinkMessage, Traffic};
use super::run::RunMessage;
use super::workers::{WorkerHandle, WorkerKey};
use crate::checkpoint::{Header, State};
use crate::exchange::{Effect, Event, Exchange, Limits, Message, OriginInfo, Shift};
use crate::ledger::{AuditError, Ledger};
use crate::transport::{Security, Stream};

/// How often the core's clock ticks. Acknowledgements of a trickle of batches wait for it at most.
const TICK: Duration = Duration::from_millis(50);
/// For so long nobody must have had anything to give before a node gives up: words may be under way.
const STRANDED_AFTER: Duration = Duration::from_secs(5);
/// How often the ledger is audited.
const AUDIT_EVERY: Duration = Duration::from_secs(30);

/// What the exchange is told.
#[derive(RactorMessage)]
pub(crate) enum ExchangeMessage {
    /// A peer's call for a link was taken.
    Accepted {
        /// Whose.
        from: NodeId,
        /// The connection.
        stream: Stream,
    },
    /// A link is there.
    Linked {
        /// To whom.
        peer: NodeId,
        /// Its number.
        generation: u64,
        /// What is written on it.
        outbox: mpsc::Sender<Message>,
    },
    /// A link is gone.
    Unlinked {
        /// To whom.
        peer: NodeId,
        /// Its number.
        generation: u64,
    },
    /// A message came over a link.
    Received {
        /// From whom.
        peer: NodeId,
        /// On which of its connections.
        generation: u64,
        /// What.
        message: Message,
        /// Room for the next one, when this is done.
        permit: Option<OwnedSemaphorePermit>,
    },
    /// One of this node's workers made a batch.
    Local {
        /// Which.
        key: WorkerKey,
        /// The batch.
        bytes: Arc<[u8]>,
        /// Room for the next one, when this is done.
        permit: Option<OwnedSemaphorePermit>,
    },
    /// A worker takes a seat: it is given what the ledger has, and then all that comes.
    Seat {
        /// Which worker.
        worker: WorkerHandle,
        /// Its place.
        slot: usize,
        /// Its new name.
        origin: OriginId,
    },
    /// A worker is gone.
    Unseat(WorkerKey),
    /// Something for all of this node's workers.
    Tell(ToWorker),
    /// One of this node's workers is to measure the weights.
    Evaluate,
    /// Write a checkpoint to this file.
    Checkpoint(PathBuf),
    /// The checkpoint that was being written is written, or could not be.
    Checkpointed,
    /// A worker has written, or is about to have written, what it alone has.
    Saved {
        /// Which.
        key: WorkerKey,
        /// After which of its batches; none if it has not.
        sequence: Option<u64>,
        /// Where.
        path: PathBuf,
    },
    /// A guest takes part.
    Joined(Participant),
    /// How things stand with the participants.
    Live(Standing),
    /// What has been done so far?
    Report(RpcReplyPort<Report>),
    /// What is the end of it? The digest is recomputed.
    Settle(RpcReplyPort<Settlement>),
    /// Some time has passed.
    Tick,
}

/// How things stand with the participants.
#[derive(Clone, Debug, Default)]
pub(crate) struct Standing {
    /// Those that must have everything before the run is settled.
    pub(crate) live: BTreeSet<NodeId>,
    /// Those whose samples others may take.
    pub(crate) silent: BTreeSet<NodeId>,
    /// Those that will never come back: nothing is kept for them.
    pub(crate) gone: BTreeSet<NodeId>,
}

/// What an exchange has done so far.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    /// The digest that the ledger's batches add up to.
    pub(crate) digest: Digest,
    /// Batches that peers have and this node has not.
    pub(crate) frontier_lag: u64,
    /// What was exchanged with each peer.
    pub(crate) peers: Vec<PeerRecord>,
    /// The weights of the model.
    pub(crate) weights: u64,
    /// Bytes of batches of this node's workers.
    pub(crate) bytes_encoded: u64,
    /// For how long workers were told to hold back.
    pub(crate) paused: Duration,
    /// Samples that were trained more than once.
    pub(crate) repeated: u64,
}

/// What an exchange ends with.
#[derive(Clone, Debug)]
pub(crate) struct Settlement {
    /// The batches applied.
    pub(crate) frontier: Frontier,
    /// The digest recomputed from the ledger.
    pub(crate) digest: Result<Digest, AuditError>,
    /// The samples in those batches.
    pub(crate) samples: u64,
    /// How many of them were trained more than once.
    pub(crate) repeated: u64,
    /// First step to last batch applied.
    pub(crate) seconds: f64,
    /// Bytes sent on the data plane; with no peers, the bytes that one would have been sent.
    pub(crate) bytes_sent: u64,
    /// The weights of the model.
    pub(crate) weights: u64,
}

/// Whether workers may begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// Links to participants are not up yet. For whoever came late: it has not got what they have.
    #[default]
    Waiting,
    /// They may.
    Ready,
    /// This node has nothing, and nobody is left who has anything to give it.
    Stranded,
}

/// How far an exchange is, as the run has to know it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Whether workers may begin.
    pub(crate) readiness: Readiness,
    /// All samples are trained.
    pub(crate) complete: bool,
    /// Nothing more will come, and the ledger is sound.
    pub(crate) settled: bool,
    /// Samples in applied batches.
    pub(crate) samples: u64,
}

/// What the actor is started with.
pub(crate) struct ExchangeArguments {
    /// This node.
    pub(crate) me: NodeId,
    /// Its release.
    pub(crate) version: String,
    /// The run.
    pub(crate) run: RunId,
    /// Who takes part.
    pub(crate) begin: Begin,
    /// The replica to begin with.
    pub(crate) ledger: Ledger,
    /// What this node's workers had alone at a checkpoint.
    pub(crate) states: Vec<State>,
    /// How to reach peers.
    pub(crate) security: Security,
    /// Whom it serves.
    pub(crate) run_actor: ActorRef<RunMessage>,
}

/// The actor.
pub(crate) struct ExchangeActor;

#[derive(Debug)]
struct Peer {
    name: String,
    link: ActorRef<LinkMessage>,
    traffic: Arc<Traffic>,
    /// The present connection.
    outbox: Option<(u64, mpsc::Sender<Message>)>,
    /// Bytes sent at the last tick.
    progress: u64,
}

/// The actor's state.
pub(crate) struct ExchangeState {
    me: NodeId,
    version: String,
    security: Security,
    myself: ActorRef<ExchangeMessage>,
    run: RunId,
    begin: Begin,
    core: Exchange,
    effects: Vec<Effect>,
    peers: BTreeMap<NodeId, Peer>,
    workers: BTreeMap<WorkerKey, (OriginId, WorkerHandle)>,
    states: Vec<State>,
    checkpoints: Checkpoints,
    /// Since when nobody has had anything to give to this node, which has nothing.
    stranded: Option<Instant>,
    standing: Standing,
    audited: Instant,
    /// Origins that workers were told emit no more.
    dead: BTreeSet<OriginId>,
    run_actor: ActorRef<RunMessage>,
    told: Progress,
    paused_since: Option<Instant>,
    paused: Duration,
    bytes_encoded: u64,
    first: Option<Instant>,
    last: Option<Instant>,
}

impl Actor for ExchangeActor {
    type Msg = ExchangeMessage;
    type State = ExchangeState;
    type Arguments = ExchangeArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<ExchangeMessage>,
        arguments: ExchangeArguments,
    ) -> Result<ExchangeState, ActorProcessingErr> {
        let ExchangeArguments {
            me,
            version,
            run,
            begin,
            ledger,
            states,
            security,
            run_actor,
        } = arguments;
        let limits = Limits::for_weights(ledger.weight_count());
        let mut state = ExchangeState {
            standing: Standing {
                live: begin.participants.iter().map(|participant| participant.node).collect(),
                ..Standing::default()
            },
            me,
            version,
            security,
            myself: myself.clone(),
            run,
            core: Exchange::new(me, ledger, limits),
            effects: Vec::new(),
            peers: BTreeMap::new(),
            workers: BTreeMap::new(),
            states,
            checkpoints: Checkpoints::default(),
            stranded: None,
            audited: Instant::now(),
            dead: BTreeSet::new(),
            begin,
            run_actor,
            told: Progress::default(),
            paused_since: None,
            paused: Duration::ZERO,
            bytes_encoded: 0,
            first: None,
            last: None,
        };
        state.restore_origins();
        if !state.begin.is_guest(me) && !state.lacks_checkpoint() {
            state.event(Event::Founder(me));
        }
        for participant in state.begin.participants.clone() {
            state.join(participant).await?;
        }
        myself.send_interval(TICK, || ExchangeMessage::Tick);
        Ok(state)
    }

    async fn handle(
        &self,
        _myself: ActorRef<ExchangeMessage>,
        message: ExchangeMessage,
        state: &mut ExchangeState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            ExchangeMessage::Accepted { from, stream } => {
                if let Some(peer) = state.peers.get(&from) {
                    let _ = peer.link.cast(LinkMessage::Up(stream));
                }
            }
            ExchangeMessage::Linked {
                peer,
                generation,
                outbox,
            } => state.linked(peer, generation, outbox),
            ExchangeMessage::Unlinked { peer, generation } => {
                if state.forget_link(peer, generation) {
                    state.event(Event::LinkDown(peer));
                }
            }
            ExchangeMessage::Received {
                peer,
                generation,
                message,
                permit,
            } => {
                if state.is_present(peer, generation) {
                    state.event(Event::Received { from: peer, message });
                }
                drop(permit);
            }
            ExchangeMessage::Local { key, bytes, permit } => {
                if state.workers.contains_key(&key) {
                    state.bytes_encoded += bytes.len() as u64;
                    state.event(Event::Local(bytes));
                }
                drop(permit);
            }
            ExchangeMessage::Seat { worker, slot, origin } => state.seat(worker, slot, origin),
            ExchangeMessage::Unseat(key) => state.unseat(key),
            ExchangeMessage::Tell(word) => state.tell(&word),
            ExchangeMessage::Evaluate => {
                if let Some((_, worker)) = state.workers.values().next() {
                    worker.tell(ToWorker::Evaluate);
                }
            }
            ExchangeMessage::Checkpoint(path) => state.checkpoint(path),
            ExchangeMessage::Checkpointed => state.checkpointed(),
            ExchangeMessage::Saved { key, sequence, path } => state.saved(key, sequence, path),
            ExchangeMessage::Joined(participant) => {
                if state.begin.admit(participant.clone()) {
                    tracing::info!(node = participant.name, "a node joins the run");
                    state.join(participant).await?;
                    state.tell_progress();
                }
            }
            ExchangeMessage::Live(standing) => state.stand(standing),
            ExchangeMessage::Report(reply) => drop(reply.send(state.report())),
            ExchangeMessage::Settle(reply) => drop(reply.send(state.settle())),
            ExchangeMessage::Tick => state.tick(),
        }
        Ok(())
    }

    async fn post_stop(
        &self,
        myself: ActorRef<ExchangeMessage>,
        _state: &mut ExchangeState,
    ) -> Result<(), ActorProcessingErr> {
        // Left to themselves links would be killed, and could not close their connections.
        myself.stop_children_and_wait(None, None).await;
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _myself: ActorRef<ExchangeMessage>,
        event: SupervisionEvent,
        _state: &mut ExchangeState,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            // A link of somebody in quarantine was ended on purpose; one that failed is a fault of ours.
            SupervisionEvent::ActorFailed(_, error) => Err(error),
            _ => Ok(()),
        }
    }
}

impl ExchangeState {
    /// Makes a link to a participant.
    async fn join(&mut self, participant: Participant) -> Result<(), ActorProcessingErr> {
        if participant.node == self.me {
            return Ok(());
        }
        let traffic = Arc::new(Traffic::default());
        let link = LinkArguments {
            me: self.me,
            version: self.version.clone(),
            run: self.run,
            peer: participant.clone(),
            security: self.security.clone(),
            traffic: Arc::clone(&traffic),
            exchange: self.myself.clone(),
        };
        let (link, _) = Actor::spawn_linked(None, LinkActor, link, self.myself.get_cell()).await?;
        let peer = Peer {
            name: participant.name,
            link,
            traffic,
            outbox: None,
            progress: 0,
        };
        self.peers.insert(participant.node, peer);
        // A guest knows of nobody what it needs, and nobody knows it of a guest.
        self.event(if self.begin.is_guest(self.me) || participant.guest {
            Event::Joined(participant.node)
        } else {
            Event::Founder(participant.node)
        });
        Ok(())
    }

    /// Whether this node lacks the checkpoint that the run goes on from.
    fn lacks_checkpoint(&self) -> bool {
        let resumed = self.begin.resumed.as_ref();
        resumed.is_some_and(|resumed| self.core.ledger().samples() < resumed.samples)
    }

    /// Origins of a run that is gone on with are all ended, and this node answers for them.
    fn restore_origins(&mut self) {
        let applied: Vec<(OriginId, u64)> = self.core.ledger().frontier().iter().collect();
        for (origin, sequence) in applied {
            self.event(Event::Origin(OriginInfo {
                origin,
                home: self.me,
                slot: OriginInfo::NO_SLOT,
                ended: Some(sequence),
            }));
        }
    }

    /// Writes a checkpoint once all workers have said at which of their batches they have written theirs.
    fn checkpoint(&mut self, path: PathBuf) {
        // Workers write theirs first. A folder that cannot be made will be named with the file that it is for.
        let _ = path.parent().map(std::fs::create_dir_all);
        for (key, path) in self.checkpoints.ask(path, self.workers.keys().copied()) {
            self.workers[&key].1.tell(ToWorker::Save { path });
        }
        self.try_checkpoint();
    }

    fn saved(&mut self, key: WorkerKey, sequence: Option<u64>, path: PathBuf) {
        let origin = self.workers.get(&key).map(|(origin, _)| *origin);
        let state = origin
            .zip(sequence)
            .map(|(origin, sequence)| State { origin, sequence, path });
        self.checkpoints.saved(key, state);
        self.try_checkpoint();
    }

    fn try_checkpoint(&mut self) {
        let Some((path, states)) = self.checkpoints.take_ready() else {
            return;
        };
        self.event(Event::Audit);
        if self.core.is_damaged() {
            tracing::error!("no checkpoint is written: the ledger is damaged, and not replaced yet");
            return self.checkpointed();
        }
        let header = Header {
            run: self.run,
            job: self.begin.job.clone(),
            data: self.begin.data.clone(),
            slots: self.begin.slots(),
            states,
        };
        let ledger = self.core.ledger();
        let (head, counts) = (ledger.head(), ledger.counts().into());
        let myself = self.myself.clone();
        tokio::task::spawn_blocking(move || {
            checkpoints::write(&path, &header, head, counts);
            let _ = myself.cast(ExchangeMessage::Checkpointed);
        });
    }

    fn checkpointed(&mut self) {
        if let Some(path) = self.checkpoints.written() {
            self.checkpoint(path);
        }
    }

    fn event(&mut self, event: Event) {
        let mut effects = std::mem::take(&mut self.effects);
        self.core.handle(event, &mut effects);
        for effect in effects.drain(..) {
            self.carry_out(effect);
        }
        self.effects = effects;
        self.pace();
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Send { to, message } => {
                if let Some(peer) = self.peers.get(&to)
                    && let Some((_, outbox)) = &peer.outbox
                    // A link whose queue is full is too slow to live; a new one resumes from the peer's frontier.
                    && outbox.try_send(message).is_err()
                {
                    let _ = peer.link.cast(LinkMessage::Cut);
                }
            }
            Effect::Deliver { origin, bytes } => {
                self.last = Some(Instant::now());
                for (_, worker) in self.workers.values().filter(|(own, _)| *own != origin) {
                    worker.deliver(&bytes);
                }
            }
            Effect::Ended(_) => self.tell_origins(),
            Effect::Stop => drop(self.run_actor.cast(RunMessage::StopSeen(self.run))),
            Effect::Giving(to) => {
                let peer = self.name(to);
                tracing::info!(peer, "a node gets a snapshot");
            }
            Effect::Shift(shift) => {
                if let Some(origin) = shift.origin {
                    tracing::info!(%origin, batches = shift.batches, "a range of batches is taken");
                }
                self.last = Some(Instant::now());
                for (_, worker) in self.workers.values() {
                    hand_shift(worker, &shift);
                }
            }
            Effect::Mended(weight) => {
                tracing::error!(weight, "a bit had flipped in this node's memory; it is put right");
            }
            Effect::Damaged(error) => {
                tracing::error!(%error, "this node's memory is at fault; a peer is asked for its ledger");
            }
            Effect::Healed => tracing::warn!("the damaged ledger is replaced by a peer's"),
            Effect::RestartWorkers => self.workers.values().for_each(|(_, worker)| worker.hang_up()),
            Effect::Reset(node) => {
                if let Some(peer) = self.peers.get_mut(&node) {
                    peer.outbox = None;
                    let _ = peer.link.cast(LinkMessage::Cut);
                }
            }
            Effect::Quarantine { peer, reason } => {
                let name = self.name(peer);
                tracing::error!(
                    peer = name,
                    reason,
                    "a node is put in quarantine: nothing is taken from it any more"
                );
                if let Some(peer) = self.peers.get_mut(&peer) {
                    peer.outbox = None;
                    peer.link.stop(None);
                }
                self.give_up(peer);
            }
            Effect::WorkerFault(reason) => {
                tracing::error!(reason, "a worker sent something that is no batch of this run");
                self.workers.values().for_each(|(_, worker)| worker.hang_up());
            }
            Effect::Diverged(reason) => drop(self.run_actor.cast(RunMessage::Diverged(self.run, reason))),
        }
    }

    fn give_up(&self, node: NodeId) {
        let run = self.run;
        let _ = self.run_actor.cast(RunMessage::GiveUp { run, node });
    }

    fn name(&self, node: NodeId) -> String {
        self.peers
            .get(&node)
            .map_or_else(|| node.to_string(), |peer| peer.name.clone())
    }

    fn is_present(&self, peer: NodeId, generation: u64) -> bool {
        let present = self.peers.get(&peer).and_then(|peer| peer.outbox.as_ref());
        present.is_some_and(|(present, _)| *present == generation)
    }

    fn linked(&mut self, node: NodeId, generation: u64, outbox: mpsc::Sender<Message>) {
        if let Some(peer) = self.peers.get_mut(&node) {
            let before = peer.outbox.replace((generation, outbox));
            if before.is_some() {
                self.event(Event::LinkDown(node));
            }
            self.event(Event::LinkUp(node));
            self.tell_progress();
        }
    }

    fn forget_link(&mut self, node: NodeId, generation: u64) -> bool {
        let present = self.is_present(node, generation);
        if present && let Some(peer) = self.peers.get_mut(&node) {
            peer.outbox = None;
        }
        present
    }

    /// Tells workers to hold back, or to go on, when that changes.
    fn pace(&mut self) {
        let pause = self.core.should_pause();
        if pause == self.paused_since.is_some() {
            return;
        }
        match self.paused_since.take() {
            Some(since) => self.paused += since.elapsed(),
            None => self.paused_since = Some(Instant::now()),
        }
        self.tell(&ToWorker::Pause(pause));
    }

    fn tell(&self, word: &ToWorker) {
        self.workers.values().for_each(|(_, worker)| worker.tell(word.clone()));
    }

    /// Gives a worker everything that the ledger has, in one go with being listed for what comes next: it misses
    /// nothing and gets nothing twice.
    fn seat(&mut self, worker: WorkerHandle, slot: usize, origin: OriginId) {
        // A worker takes the ledger for right, and could never tell that it is not.
        self.event(Event::Audit);
        if self.core.is_damaged() {
            // It is started again, and asks again.
            worker.hang_up();
            return;
        }
        self.event(Event::Origin(OriginInfo {
            origin,
            home: self.me,
            slot: slot as u32,
            ended: None,
        }));
        let restore = self.take_state();
        let ledger = self.core.ledger();
        if ledger.batches() > 0 {
            for piece in ledger.counts().chunks(COUNTS_PER_PIECE) {
                worker.tell(ToWorker::Counts(piece.to_vec()));
            }
        }
        worker.tell(ToWorker::Begin(Box::new(Assignment {
            run: self.run,
            origin,
            slot,
            slots: self.begin.slots(),
            cursors: ledger.cursors().clone(),
            batches: ledger.batches(),
            samples: ledger.samples(),
            restore,
        })));
        // A run that is gone on with may have fewer workers than samples were shared out to.
        for slot in self.begin.workers()..self.begin.slots() {
            worker.tell(ToWorker::Slot { slot, alive: false });
        }
        self.tell_origins();
        for &origin in &self.dead {
            worker.tell(ToWorker::Origin { origin, alive: false });
        }
        for participant in &self.begin.participants {
            if self.standing.silent.contains(&participant.node) {
                for slot in self.begin.slots_of(participant.node) {
                    worker.tell(ToWorker::Slot { slot, alive: false });
                }
            }
        }
        if self.paused_since.is_some() {
            worker.tell(ToWorker::Pause(true));
        }
        self.first.get_or_insert_with(Instant::now);
        self.workers.insert(worker.key, (origin, worker));
    }

    /// What some worker had alone, if it fits what the ledger has of its batches to the last one. What does not is dropped.
    fn take_state(&mut self) -> Option<PathBuf> {
        let frontier = self.core.ledger().frontier();
        let fits = |state: &State| frontier.applied(state.origin) == state.sequence;
        let (fitting, dropped): (Vec<State>, Vec<State>) = self.states.drain(..).partition(fits);
        for state in dropped {
            tracing::warn!(
                path = %state.path.display(),
                "a worker's residual and optimiser state are dropped: the run goes on from other batches"
            );
        }
        self.states = fitting;
        self.states.pop().map(|state| state.path)
    }

    /// A worker is gone: what it sent is all that will ever come of its origin.
    fn unseat(&mut self, key: WorkerKey) {
        let Some((origin, _)) = self.workers.remove(&key) else {
            return;
        };
        self.checkpoints.saved(key, None);
        self.try_checkpoint();
        let Some(&info) = self.core.origins().find(|info| info.origin == origin) else {
            return;
        };
        let ended = Some(self.core.ledger().frontier().applied(origin));
        self.event(Event::Origin(OriginInfo { ended, ..info }));
    }

    fn stand(&mut self, standing: Standing) {
        let before = std::mem::replace(&mut self.standing, standing);
        let gone = self.standing.gone.difference(&before.gone).copied();
        for node in gone.collect::<Vec<_>>() {
            self.event(Event::Left(node));
        }
        for participant in &self.begin.participants {
            let alive = !self.standing.silent.contains(&participant.node);
            if alive == before.silent.contains(&participant.node) {
                for slot in self.begin.slots_of(participant.node) {
                    self.tell(&ToWorker::Slot { slot, alive });
                }
            }
        }
        self.tell_origins();
        self.tell_progress();
    }

    /// Tells workers which origins emit no more: they have ended, or their nodes are not there. What those have begun is
    /// for others to finish.
    fn tell_origins(&mut self) {
        let Standing { silent, gone, .. } = &self.standing;
        let is_dead = |info: &&OriginInfo| {
            let out_of_reach = silent.contains(&info.home) || gone.contains(&info.home);
            info.ended.is_some() || out_of_reach && info.home != self.me
        };
        let dead: BTreeSet<OriginId> = self.core.origins().filter(is_dead).map(|info| info.origin).collect();
        let before = std::mem::replace(&mut self.dead, dead);
        for &origin in self.dead.symmetric_difference(&before) {
            let alive = before.contains(&origin);
            self.tell(&ToWorker::Origin { origin, alive });
        }
    }

    fn tick(&mut self) {
        let mut working = Vec::new();
        for (&node, peer) in &mut self.peers {
            let sent = peer.traffic.bytes_out.load(Ordering::Relaxed);
            if std::mem::replace(&mut peer.progress, sent) != sent {
                working.push(node);
            }
        }
        for node in working {
            self.event(Event::Progress(node));
        }
        self.event(Event::Tick);
        // Peers tell of origins, too, whose nodes nobody has heard for long.
        self.tell_origins();
        self.audit();
        self.tell_progress();
    }

    /// Recomputes the ledger's digest now and then.
    fn audit(&mut self) {
        if self.audited.elapsed() >= AUDIT_EVERY {
            self.audited = Instant::now();
            self.event(Event::Audit);
        }
    }

    fn tell_progress(&mut self) {
        let stranded = self.core.is_stranded(|node| self.standing.live.contains(&node));
        let since = self.stranded.unwrap_or_else(Instant::now);
        self.stranded = stranded.then_some(since);
        let ledger = self.core.ledger();
        let total = self.begin.data.train * u64::from(self.begin.job.epochs);
        let up = |node: &NodeId| *node == self.me || self.peers.get(node).is_some_and(|peer| peer.outbox.is_some());
        let live = &self.standing.live;
        let participants = self.begin.participants.iter().filter(|one| live.contains(&one.node));
        let participants = participants.map(|one| (one.node, one.workers));
        let is_live = |node: NodeId| live.contains(&node);
        let ready = if self.begin.is_guest(self.me) {
            self.core.is_caught_up(is_live)
        } else if self.begin.resumed.is_some() {
            // Without the checkpoint there is nothing to go on from.
            !self.lacks_checkpoint()
        } else {
            live.iter().all(up)
        };
        let progress = Progress {
            readiness: if self.stranded.is_some_and(|since| since.elapsed() > STRANDED_AFTER) {
                Readiness::Stranded
            } else if ready {
                Readiness::Ready
            } else {
                Readiness::Waiting
            },
            complete: ledger.cursors().samples_done() >= total,
            settled: !self.core.is_damaged() && self.core.is_settled(participants, is_live),
            samples: ledger.samples(),
        };
        if progress != self.told {
            self.told = progress;
            let _ = self.run_actor.cast(RunMessage::Progress(self.run, progress));
        }
    }

    fn report(&self) -> Report {
        let peers = self.peers.iter().map(|(&node, peer)| {
            let queue = peer
                .outbox
                .as_ref()
                .map_or(0, |(_, outbox)| outbox.max_capacity() - outbox.capacity());
            PeerRecord {
                node: peer.name.clone(),
                bytes_in: peer.traffic.bytes_in.load(Ordering::Relaxed),
                bytes_out: peer.traffic.bytes_out.load(Ordering::Relaxed),
                lag: self.core.lag_of(node),
                queue: queue as u64,
            }
        });
        Report {
            digest: self.core.ledger().digest(),
            frontier_lag: self.core.frontier_lag(),
            peers: peers.collect(),
            weights: self.core.ledger().weight_count() as u64,
            bytes_encoded: self.bytes_encoded,
            repeated: self.core.ledger().repeated(),
            paused: self.paused + self.paused_since.map_or(Duration::ZERO, |since| since.elapsed()),
        }
    }

    fn settle(&mut self) -> Settlement {
        self.event(Event::Audit);
        // A damaged ledger may be replaced before the next tick: that it was not settled in between must be heard.
        self.tell_progress();
        let ledger = self.core.ledger();
        let seconds = match (self.first, self.last) {
            (Some(first), Some(last)) => last.saturating_duration_since(first).as_secs_f64(),
            _ => 0.0,
        };
        let sent = self
            .peers
            .values()
            .map(|peer| peer.traffic.bytes_out.load(Ordering::Relaxed));
        Settlement {
            frontier: ledger.frontier().clone(),
            digest: ledger.audit(),
            samples: ledger.samples(),
            repeated: ledger.repeated(),
            seconds,
            bytes_sent: if self.peers.is_empty() {
                self.bytes_encoded
            } else {
                sent.sum()
            },
            weights: ledger.weight_count() as u64,
        }
    }
}

/// Hands a worker what came other than as batches.
fn hand_shift(worker: &WorkerHandle, shift: &Shift) {
    for piece in shift.sums.entries().chunks(SUMS_PER_PIECE) {
        worker.tell(ToWorker::Sums(piece.to_vec()));
    }
    worker.tell(ToWorker::Shift(Box::new(ShiftOrder {
        origin: shift.origin,
        batches: shift.batches,
        samples: shift.samples,
        cursors: shift.cursors.clone(),
    })));
}
