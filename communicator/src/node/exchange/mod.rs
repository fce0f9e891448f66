//! The exchange's actor: carries out what the exchange's core decides, for one run.

mod checkpointing;
mod messages;
mod reporting;
mod seating;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use protocol::attach::{SUMS_PER_PIECE, ShiftOrder, ToWorker};
use protocol::begin::{Begin, Participant};
use protocol::ids::{NodeId, OriginId, RunId};
use ractor::{Actor, ActorProcessingErr, ActorRef, DerivedActorRef, SupervisionEvent};
use tokio::sync::mpsc;

use super::checkpoints::Checkpoints;
use super::link::{LinkActor, LinkArguments, LinkMessage, LinkNotice, Traffic};
use super::workers::{SeatNotice, WorkerHandle};
use crate::checkpoint::State;
use crate::exchange::{Effect, Event, Exchange, Limits, Message, OriginInfo, Shift};
use crate::run::{Progress, RunEvent, Standing, WorkerKey, lacks_checkpoint};
use crate::timing::Timing;
use crate::transport::Security;
pub(crate) use messages::{ExchangeArguments, ExchangeMessage, ExchangeNotice, Report};

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
    timing: Timing,
    myself: ActorRef<ExchangeMessage>,
    run: RunId,
    begin: Begin,
    core: Exchange,
    effects: Vec<Effect>,
    peers: BTreeMap<NodeId, Peer>,
    workers: BTreeMap<WorkerKey, (OriginId, WorkerHandle)>,
    states: Vec<State>,
    checkpoints: Checkpoints,
    standing: Standing,
    /// The number of the order since which no batch is taken; 0 while they are.
    freeze: u64,
    audited: Instant,
    reported: Instant,
    /// Origins that workers were told emit no more.
    dead: BTreeSet<OriginId>,
    parent: DerivedActorRef<ExchangeNotice>,
    told: Option<Progress>,
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
            timing,
            parent,
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
            timing,
            myself: myself.clone(),
            run,
            core: Exchange::new(me, ledger, limits),
            effects: Vec::new(),
            peers: BTreeMap::new(),
            workers: BTreeMap::new(),
            states,
            checkpoints: Checkpoints::default(),
            freeze: 0,
            audited: Instant::now(),
            reported: Instant::now(),
            dead: BTreeSet::new(),
            begin,
            parent,
            told: None,
            paused_since: None,
            paused: Duration::ZERO,
            bytes_encoded: 0,
            first: None,
            last: None,
        };
        state.restore_origins();
        if !state.begin.is_guest(me) && !lacks_checkpoint(&state.core, &state.begin) {
            state.event(Event::Founder(me));
        }
        for participant in state.begin.participants.clone() {
            state.join(participant).await?;
        }
        myself.send_interval(timing.clocks.exchange_tick, || ExchangeMessage::Tick);
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
                    let _ = peer.link.cast(LinkMessage::Up { stream, dialled: false });
                }
            }
            ExchangeMessage::Link(notice) => state.hear_link(notice),
            ExchangeMessage::FromSeat(SeatNotice::Batch { key, bytes, permit }) => {
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
            ExchangeMessage::FromSeat(SeatNotice::Saved { key, sequence, path }) => state.saved(key, sequence, path),
            ExchangeMessage::Joined(participant) => {
                if state.begin.admit(participant.clone()) {
                    tracing::info!(node = participant.name, "a node joins the run");
                    state.join(participant).await?;
                    state.tell_progress();
                }
            }
            ExchangeMessage::Live(standing) => state.stand(standing),
            ExchangeMessage::Freeze { number, stand } => state.freeze(number, stand),
            ExchangeMessage::Thaw => state.thaw(),
            ExchangeMessage::Settle => state.settle(),
            ExchangeMessage::Finish { key, save } => state.finish(key, save),
            ExchangeMessage::Measure { worker, path } => state.measure(&worker, path),
            ExchangeMessage::Keep(path) => state.keep(path),
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
            times: self.timing.link,
            traffic: Arc::clone(&traffic),
            parent: self.myself.get_derived(),
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
            Effect::Stop => self.tell_run(RunEvent::StopSeen(self.run)),
            Effect::Spoilt => tracing::error!(
                "a bit had flipped in this node's memory, in what it kept for others: they get a snapshot instead"
            ),
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
                let (run, node) = (self.run, peer);
                self.tell_run(RunEvent::Lied { run, node });
            }
            Effect::WorkerFault(reason) => {
                tracing::error!(reason, "a worker sent something that is no batch of this run");
                self.workers.values().for_each(|(_, worker)| worker.hang_up());
            }
            Effect::Diverged(reason) => self.tell_run(RunEvent::Diverged(self.run, reason)),
        }
    }

    fn tell_run(&self, event: RunEvent) {
        let _ = self.parent.send_message(ExchangeNotice::Happened(event));
    }

    /// Takes no further batches, if exactly these are there.
    fn freeze(&mut self, number: u64, stand: u64) {
        if self.core.stand() == stand {
            self.freeze = number;
            self.event(Event::Freeze(true));
        }
        self.tell_progress();
    }

    fn thaw(&mut self) {
        self.freeze = 0;
        self.event(Event::Freeze(false));
        self.tell_progress();
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

    fn hear_link(&mut self, notice: LinkNotice) {
        match notice {
            LinkNotice::Up {
                peer,
                generation,
                outbox,
            } => self.linked(peer, generation, outbox),
            LinkNotice::Down { peer, generation } => {
                if self.forget_link(peer, generation) {
                    self.event(Event::LinkDown(peer));
                }
            }
            LinkNotice::Received {
                peer,
                generation,
                message,
                permit,
            } => {
                if self.is_present(peer, generation) {
                    self.event(Event::Received { from: peer, message });
                }
                drop(permit);
            }
        }
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
        if self.reported.elapsed() >= self.timing.clocks.report {
            self.reported = Instant::now();
            let _ = self
                .parent
                .send_message(ExchangeNotice::Report(self.run, Box::new(self.report())));
        }
    }

    /// Recomputes the ledger's digest now and then.
    fn audit(&mut self) {
        if self.audited.elapsed() >= self.timing.clocks.audit {
            self.audited = Instant::now();
            self.event(Event::Audit);
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
