//! The run's actor: carries out what the run's core decides, and tells it what happens.

mod carrying_out;
mod checkpoint_search;
mod clients;
mod first_counts;
mod messages;
mod offer;
mod opening;
mod recording;
mod records;
mod working;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use protocol::ids::RunId;
use protocol::wire::attach::ToWorker;
use protocol::wire::control::{NodeInfo, Reply};
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort, SupervisionEvent};

use super::exchange::{ExchangeMessage, ExchangeNotice};
use super::membership::MembershipMessage;
use super::stats::StatsMessage;
use super::workers::{WorkerHandle, WorkersNotice};
use crate::control::Payload;
use crate::entropy;
use crate::ledger::Ledger;
use crate::run::{RunCore, RunEffect, RunEvent, WorkerKey};
use crate::run_files::RunFiles;
use crate::timing::Timing;
use crate::transport::Security;
use crate::usage::UsageMeter;
use clients::Clients;
use first_counts::FirstCounts;
pub(crate) use messages::RunMessage;
use records::Records;

/// What the actor is started with.
pub(crate) struct RunArguments {
    pub(crate) me: NodeInfo,
    /// Where models are saved.
    pub(crate) dir: PathBuf,
    /// How peers are reached.
    pub(crate) security: Security,
    /// Whether what a run has come to is kept in a checkpoint.
    pub(crate) keeps_runs: bool,
    /// How many workers there are to be.
    pub(crate) workers: usize,
    /// How long this node waits for what.
    pub(crate) timing: Timing,
    /// Who keeps the records.
    pub(crate) stats: ActorRef<StatsMessage>,
}

pub(crate) struct RunActor;

pub(crate) struct RunState {
    core: RunCore,
    effects: Vec<RunEffect>,
    start: Instant,
    me: NodeInfo,
    files: RunFiles,
    keeps_runs: bool,
    security: Security,
    timing: Timing,
    myself: ActorRef<RunMessage>,
    membership: Option<ActorRef<MembershipMessage>>,
    stats: ActorRef<StatsMessage>,
    workers: BTreeMap<WorkerKey, WorkerHandle>,
    clients: Clients<RpcReplyPort<Payload<Reply>>>,
    /// What workers have found that it begins with, until there is a ledger.
    first: FirstCounts,
    /// The ledger that a run begins with, until there is an exchange.
    ledger: Option<(RunId, Ledger)>,
    exchange: Option<(RunId, ActorRef<ExchangeMessage>)>,
    usage: UsageMeter,
    records: Records,
    /// Who waits for this node to have left its run.
    leaving: Option<RpcReplyPort<()>>,
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
            keeps_runs,
            workers,
            timing,
            stats,
        } = arguments;
        myself.send_interval(timing.clocks.run_tick, || RunMessage::Tick);
        let start = Instant::now();
        Ok(RunState {
            core: RunCore::new(me.clone(), workers, &timing.run),
            effects: Vec::new(),
            start,
            files: RunFiles::new(dir, &me.name),
            keeps_runs,
            me,
            security,
            timing,
            myself,
            membership: None,
            stats,
            workers: BTreeMap::new(),
            clients: Clients::default(),
            first: FirstCounts::default(),
            ledger: None,
            exchange: None,
            usage: UsageMeter::start(start),
            records: Records::new(timing.clocks.record, start),
            leaving: None,
        })
    }

    async fn handle(
        &self,
        _myself: ActorRef<RunMessage>,
        message: RunMessage,
        state: &mut RunState,
    ) -> Result<(), ActorProcessingErr> {
        state.handle(message);
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _myself: ActorRef<RunMessage>,
        event: SupervisionEvent,
        state: &mut RunState,
    ) -> Result<(), ActorProcessingErr> {
        // An exchange ends with its run; one that fails takes this node out of it.
        if let SupervisionEvent::ActorFailed(actor, error) = event
            && let Some((run, _)) = state
                .exchange
                .take_if(|(_, exchange)| exchange.get_id() == actor.get_id())
        {
            state.event(RunEvent::ExchangeFailed(run, error.to_string()));
        }
        Ok(())
    }
}

impl RunState {
    fn leave(&mut self, reply: RpcReplyPort<()>) {
        self.leaving = Some(reply);
        self.event(RunEvent::Leave);
    }

    fn leave_unfinished(&mut self, reply: RpcReplyPort<()>) {
        self.event(RunEvent::LeaveUnfinished);
        let _ = reply.send(());
    }

    fn handle(&mut self, message: RunMessage) {
        match message {
            RunMessage::Membership(membership) => self.membership = Some(membership),
            RunMessage::Request { request, reply } => {
                let (run, ticket) = (RunId(entropy::number()), self.clients.add(reply));
                self.event(RunEvent::Request { ticket, run, request });
            }
            RunMessage::Leave(reply) => self.leave(reply),
            RunMessage::LeaveUnfinished(reply) => self.leave_unfinished(reply),
            RunMessage::Status(reply) => {
                let mut status = self.core.status(self.start.elapsed());
                if let Some(status) = &mut status
                    && let Some(Ok(result)) = &mut status.outcome
                {
                    result.model = self.files.model(status.run);
                }
                let _ = reply.send(Reply::Status(status).into());
            }
            RunMessage::Workers(WorkersNotice::Attached(worker)) => self.attached(worker),
            RunMessage::Workers(WorkersNotice::Gone(key)) => self.gone(key),
            RunMessage::Workers(WorkersNotice::Said { key, message }) => self.hear(key, *message),
            RunMessage::Exchange(ExchangeNotice::Report(run, report)) => {
                self.records.reported(run, *report, Instant::now());
            }
            RunMessage::Exchange(ExchangeNotice::Happened(mut event)) => {
                if let RunEvent::Settlement(_, settlement) = &mut *event {
                    settlement.usage = self.used();
                    // Nobody ends the run before it has heard that this node has settled, and so has its record by then.
                    self.record_now();
                }
                self.event(*event);
            }
            RunMessage::Event(event) => self.event(event),
            // A ledger of a run that nobody waits for must not take the place of one that somebody does.
            RunMessage::Offered { run, .. } if !self.core.is_offering(run) => {}
            RunMessage::Offered { run, offered } => {
                let offer = offered.map(|(offer, ledger)| {
                    self.ledger = Some((run, *ledger));
                    offer
                });
                self.event(RunEvent::Offered { run, offer });
            }
            RunMessage::Opened { run, opened } => self.opened(run, opened),
            RunMessage::Expects { run, from, reply } => {
                let _ = reply.send(self.core.expects(run, from));
            }
            RunMessage::Link { run, from, stream } => {
                if self.exchange.as_ref().is_some_and(|(name, _)| *name == run) {
                    self.tell_exchange(ExchangeMessage::Accepted { from, stream });
                }
            }
            RunMessage::Model { run, reply } => {
                let places = [self.files.model(run), self.files.spare_model(run)];
                let _ = reply.send(places.into_iter().find(|path| path.exists()));
            }
            RunMessage::Tick => {
                self.event(RunEvent::Tick);
                self.record();
            }
        }
    }

    /// Tells the core what happened, and does what it says.
    fn event(&mut self, event: RunEvent) {
        let mut effects = std::mem::take(&mut self.effects);
        self.core.handle(event, self.start.elapsed(), &mut effects);
        let ends = effects.iter().any(|effect| matches!(effect, RunEffect::Close));
        for effect in effects.drain(..) {
            self.carry_out(effect);
        }
        self.effects = effects;
        if ends {
            self.record_now();
        }
    }

    fn tell_worker(&self, worker: WorkerKey, message: ToWorker) {
        if let Some(worker) = self.workers.get(&worker) {
            worker.tell(message);
        }
    }

    fn tell_exchange(&self, message: ExchangeMessage) {
        if let Some((_, exchange)) = &self.exchange {
            let _ = exchange.cast(message);
        }
    }

    fn tell_membership(&self, message: MembershipMessage) {
        if let Some(membership) = &self.membership {
            // Without it the node is about to stop.
            let _ = membership.cast(message);
        }
    }
}
