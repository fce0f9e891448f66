//! The exchange's actor: carries out what the exchange's core decides, for one run.

mod carrying_out;
mod checkpointing;
mod linking;
mod messages;
mod pauses;
mod peer;
mod pipeline;
mod reporting;
mod seating;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use protocol::ids::{NodeId, OriginId, RunId};
use protocol::stats::record_interval;
use protocol::wire::attach::ToWorker;
use protocol::wire::prefix::Prefix;
use protocol::wire::run_plan::{Participant, RunPlan};
use ractor::{Actor, ActorProcessingErr, ActorRef, DerivedActorRef, SupervisionEvent};

use super::checkpoints::Checkpoints;
use super::run_files::RunFiles;
use super::workers::{SeatNotice, WorkerHandle};
use crate::checkpoint::State;
use crate::exchange::{Effect, Event, Exchange};
use crate::pipeline::{PipelineEvent, PipelineNode};
use crate::run::{ExchangeOrder, Progress, RunEvent, WorkerKey, lacks_checkpoint};
use crate::timing::Timing;
use crate::transport::Security;
pub(crate) use messages::{ExchangeArguments, ExchangeMessage, ExchangeNotice, Report};
use pauses::Pauses;
use peer::PeerConnection;
use protocol::wire::link::OriginInfo;

pub(crate) struct ExchangeActor;

pub(crate) struct ExchangeState {
    me: NodeId,
    version: String,
    security: Security,
    timing: Timing,
    myself: ActorRef<ExchangeMessage>,
    run: RunId,
    plan: RunPlan,
    core: Exchange,
    effects: Vec<Effect>,
    /// The time that the core took.
    adding: Duration,
    peers: BTreeMap<NodeId, PeerConnection>,
    workers: BTreeMap<WorkerKey, (OriginId, WorkerHandle)>,
    states: Vec<State>,
    files: RunFiles,
    keeps_runs: bool,
    checkpoints: Checkpoints,
    pipeline: PipelineNode,
    /// The number of the order since which no batch is taken; 0 while they are.
    freeze: u64,
    audited: Instant,
    reported: Instant,
    parent: DerivedActorRef<ExchangeNotice>,
    told: Option<Progress>,
    pauses: Pauses,
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
            plan,
            ledger,
            states,
            files,
            keeps_runs,
            security,
            timing,
            parent,
        } = arguments;
        let mut state = ExchangeState {
            me,
            version,
            security,
            timing,
            myself: myself.clone(),
            run,
            core: Exchange::for_run(me, ledger, &plan),
            pipeline: PipelineNode::new(me, &plan),
            effects: Vec::new(),
            adding: Duration::ZERO,
            peers: BTreeMap::new(),
            workers: BTreeMap::new(),
            states,
            files,
            keeps_runs,
            checkpoints: Checkpoints::default(),
            freeze: 0,
            audited: Instant::now(),
            reported: Instant::now(),
            plan,
            parent,
            told: None,
            pauses: Pauses::default(),
            bytes_encoded: 0,
            first: None,
            last: None,
        };
        state.restore_origins();
        if !state.plan.is_guest(me) && !lacks_checkpoint(&state.core, &state.plan, me) {
            state.event(Event::Founder(me));
        }
        for participant in state.plan.participants.clone() {
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
            ExchangeMessage::Accepted { from, stream } => state.accepted(from, stream),
            ExchangeMessage::Link(notice) => state.hear_link(notice),
            ExchangeMessage::FromSeat(SeatNotice::Batch { key, bytes, permit }) => {
                if state.trains(key) {
                    state.bytes_encoded += bytes.len() as u64;
                    state.event(Event::Local(bytes));
                }
                drop(permit);
            }
            ExchangeMessage::Order { order, worker } => state.carry_out_order(order, worker).await?,
            ExchangeMessage::Checkpointed => state.checkpointed(),
            ExchangeMessage::FromSeat(SeatNotice::Saved { key, sequence, path }) => state.saved(key, sequence, path),
            ExchangeMessage::FromSeat(SeatNotice::Prefix { key, prefix, permit }) => {
                state.pass(key, prefix);
                drop(permit);
            }
            ExchangeMessage::FromSeat(SeatNotice::Flow { key, bytes, permit }) => {
                if state.workers.contains_key(&key) {
                    state.pipeline_event(PipelineEvent::FromWorker { worker: key, bytes });
                }
                drop(permit);
            }
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
    /// Origins of a run that is gone on with are all ended, and this node answers for them.
    fn restore_origins(&mut self) {
        let applied: Vec<(OriginId, u64)> = self.core.ledger().frontier().iter().collect();
        for (origin, sequence) in applied {
            self.event(Event::Origin(OriginInfo {
                origin,
                node: self.me,
                slot: OriginInfo::NO_SLOT,
                ended: Some(sequence),
            }));
        }
    }

    /// Does what the run's core wants. A worker that the exchange does not have yet comes with the order.
    async fn carry_out_order(
        &mut self,
        order: ExchangeOrder,
        worker: Option<WorkerHandle>,
    ) -> Result<(), ActorProcessingErr> {
        match (order, worker) {
            (ExchangeOrder::Joined(participant), _) => self.admit(participant).await?,
            (ExchangeOrder::Liveness(liveness), _) => self.heed(liveness),
            (ExchangeOrder::Seat { slot, .. }, Some(worker)) => self.seat(worker, slot),
            (ExchangeOrder::Reseat { slot, .. }, Some(worker)) => self.reseat(worker, slot),
            (ExchangeOrder::Measure { save, .. }, Some(worker)) => self.measure(&worker, save),
            (ExchangeOrder::Seat { .. } | ExchangeOrder::Reseat { .. } | ExchangeOrder::Measure { .. }, None) => {}
            (ExchangeOrder::Unseat(key), _) => self.unseat(key),
            (ExchangeOrder::StopWorkers { stands_by }, _) => self.stop_workers(stands_by),
            (ExchangeOrder::LeaveWorkers, _) => self.tell(&ToWorker::Leave),
            (ExchangeOrder::TakeOver(slots), _) => self.take_over(slots),
            (ExchangeOrder::GoBack(key), _) => {
                if let Some((_, worker)) = self.workers.get(&key) {
                    worker.tell(ToWorker::GoBack(self.moment()));
                }
            }
            (ExchangeOrder::Evaluate, _) => {
                if let Some((_, worker)) = self.workers.values().next() {
                    worker.tell(ToWorker::Evaluate(self.moment()));
                }
            }
            (ExchangeOrder::Checkpoint, _) => self.checkpoint(self.files.checkpoint(self.run)),
            (ExchangeOrder::Keep, _) => self.keep(),
            (ExchangeOrder::Freeze { number, fingerprint }, _) => self.freeze(number, fingerprint),
            (ExchangeOrder::Thaw, _) => self.thaw(),
            (ExchangeOrder::Settle, _) => self.settle(),
            (ExchangeOrder::Finish { worker, save }, _) => self.finish(worker, save),
        }
        Ok(())
    }

    /// A guest takes part.
    async fn admit(&mut self, participant: Participant) -> Result<(), ActorProcessingErr> {
        if self.plan.admit(participant.clone()) {
            self.core.reckon_with_workers(participant.node, participant.workers);
            tracing::info!(
                event = "participant_joined",
                peer = participant.name,
                "a node joins the run"
            );
            self.join(participant).await?;
            self.pipeline_event(PipelineEvent::Admitted);
            self.tell_progress();
        }
        Ok(())
    }

    fn event(&mut self, event: Event) {
        let mut effects = std::mem::take(&mut self.effects);
        let begun = Instant::now();
        self.core.handle(event, &mut effects);
        self.adding += begun.elapsed();
        for effect in effects.drain(..) {
            self.carry_out(effect);
        }
        self.effects = effects;
        self.pace();
    }

    /// A worker has come to a pass; under its own name only.
    fn pass(&mut self, key: WorkerKey, prefix: Prefix) {
        if self
            .workers
            .get(&key)
            .is_some_and(|(origin, _)| *origin == prefix.head.from)
        {
            self.event(Event::Pass(prefix));
        }
    }

    fn tell_run(&self, event: RunEvent) {
        let _ = self.parent.send_message(ExchangeNotice::Happened(Box::new(event)));
    }

    /// Takes no further batches, if exactly these are there.
    fn freeze(&mut self, number: u64, fingerprint: u64) {
        if self.core.fingerprint() == fingerprint {
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

    /// Throttles workers, or lets them go on, when that changes.
    fn pace(&mut self) {
        let pause = self.core.should_pause();
        if !self.pauses.change(pause, Instant::now()) {
            return;
        }
        self.tell(&ToWorker::Pause(pause));
    }

    fn tell(&self, message: &ToWorker) {
        self.workers
            .values()
            .for_each(|(_, worker)| worker.tell(message.clone()));
    }

    fn tick(&mut self) {
        for node in self.moved_on() {
            self.event(Event::Progress(node));
        }
        self.event(Event::Tick);
        // Peers tell of origins, too, whose nodes nobody has heard for long.
        self.tell_origins();
        self.audit();
        self.tell_progress();
        let age = self.first.map_or(Duration::MAX, |first| first.elapsed());
        if self.reported.elapsed() >= record_interval(age, self.timing.clocks.report) {
            self.tell_report();
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
