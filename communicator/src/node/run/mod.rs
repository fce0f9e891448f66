//! The run's actor: carries out the effects of the run's core, and tells the core what happens.

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

/// Arguments with which the run's actor is started.
pub(crate) struct RunArguments {
    pub(crate) me: NodeInfo,
    /// Folder in which the node saves models and checkpoints.
    pub(crate) dir: PathBuf,
    /// Protection of the connections to peers: TLS with the cluster's credentials, or plain text within one machine.
    pub(crate) security: Security,
    /// True to keep the final weights of a run in a checkpoint.
    pub(crate) keeps_runs: bool,
    /// Number of workers that this node is to have.
    pub(crate) workers: usize,
    /// Intervals and time limits of the node.
    pub(crate) timing: Timing,
    /// Actor that keeps the records of all nodes' statistics.
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
    /// First weights of a run that workers have read from a model file, until the node's exact replica (its ledger) is
    /// made of them.
    first: FirstCounts,
    /// The ledger (this node's exact replica of the weights) with which a run will begin: made for the node's offer,
    /// taken by the exchange when that starts.
    ledger: Option<(RunId, Ledger)>,
    exchange: Option<(RunId, ActorRef<ExchangeMessage>)>,
    usage: UsageMeter,
    records: Records,
    /// Port for the reply when this node has left its run.
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
        // An exchange ends with its run; one that fails takes this node out of the run.
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
                    // No node ends the run before it has heard that this node has settled, and it has this node's
                    // record by then.
                    self.record_now();
                }
                self.event(*event);
            }
            RunMessage::Event(event) => self.event(event),
            // A late ledger of a run that no longer waits for it must not replace the one that a run waits for.
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

    /// Passes an event to the run's core, and carries out the effects that the core decides on.
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
            // Without the membership, the node is about to stop.
            let _ = membership.cast(message);
        }
    }
}
