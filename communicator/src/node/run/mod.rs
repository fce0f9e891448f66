//! The run's actor: carries out what the run's core decides, and tells it what happens.

mod checkpoint_search;
mod messages;
mod offer;
mod recording;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use protocol::attach::{FromWorker, ToWorker};
use protocol::begin::Begin;
use protocol::control::{NodeInfo, Phase, Reply};
use protocol::ids::{OriginId, RunId};
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort, SupervisionEvent};

use super::exchange::{ExchangeActor, ExchangeArguments, ExchangeMessage, ExchangeNotice};
use super::membership::{MembershipMessage, MembershipNotice};
use super::roster::Change;
use super::stats::StatsMessage;
use super::workers::{WorkerHandle, WorkersNotice};
use crate::checkpoint;
use crate::control::Payload;
use crate::drawn;
use crate::ledger::Ledger;
use crate::run::{ExchangeOrder, RunCore, RunEffect, RunEvent, RunWord, Ticket, WorkerKey, WorkerWord};
use crate::timing::Timing;
use crate::transport::Security;
use crate::usage::UsageMeter;
use crate::whereabouts;
pub(crate) use messages::RunMessage;
use recording::Recording;

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
    /// How long this node waits for what.
    pub(crate) timing: Timing,
    /// Who keeps the records.
    pub(crate) stats: ActorRef<StatsMessage>,
}

/// The actor.
pub(crate) struct RunActor;

/// The actor's state.
pub(crate) struct RunState {
    core: RunCore,
    effects: Vec<RunEffect>,
    start: Instant,
    me: NodeInfo,
    dir: PathBuf,
    security: Security,
    timing: Timing,
    myself: ActorRef<RunMessage>,
    membership: Option<ActorRef<MembershipMessage>>,
    stats: ActorRef<StatsMessage>,
    workers: BTreeMap<WorkerKey, WorkerHandle>,
    /// Clients that wait for answers.
    clients: BTreeMap<Ticket, RpcReplyPort<Payload<Reply>>>,
    tickets: u64,
    /// The ledger that a run begins with, until there is an exchange.
    ledger: Option<(RunId, Ledger)>,
    exchange: Option<(RunId, ActorRef<ExchangeMessage>)>,
    recording: Recording,
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
            timing,
            stats,
        } = arguments;
        myself.send_interval(timing.clocks.run_tick, || RunMessage::Tick);
        let start = Instant::now();
        Ok(RunState {
            core: RunCore::new(me.clone(), workers, &timing.run),
            effects: Vec::new(),
            start,
            me,
            dir,
            security,
            timing,
            myself,
            membership: None,
            stats,
            workers: BTreeMap::new(),
            clients: BTreeMap::new(),
            tickets: 0,
            ledger: None,
            exchange: None,
            recording: Recording::new(UsageMeter::start(start), start),
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
    fn handle(&mut self, message: RunMessage) {
        match message {
            RunMessage::Membership(membership) => self.membership = Some(membership),
            RunMessage::StartTraining {
                job,
                allow_partial,
                reply,
            } => {
                let (run, ticket) = (RunId(drawn::number()), self.ticket(reply));
                self.event(RunEvent::StartTraining {
                    run,
                    job,
                    allow_partial,
                    ticket,
                });
            }
            RunMessage::Resume {
                run: resumes,
                allow_partial,
                reply,
            } => {
                let (run, ticket) = (RunId(drawn::number()), self.ticket(reply));
                self.event(RunEvent::Resume {
                    run,
                    resumes,
                    allow_partial,
                    ticket,
                });
            }
            RunMessage::CheckpointAll(reply) => {
                let ticket = self.ticket(reply);
                self.event(RunEvent::CheckpointAll(ticket));
            }
            RunMessage::Stop(reply) => {
                let ticket = self.ticket(reply);
                self.event(RunEvent::Stop(ticket));
            }
            RunMessage::Status(reply) => {
                let mut status = self.core.status(self.start.elapsed());
                if let Some(status) = &mut status
                    && let Some(Ok(result)) = &mut status.outcome
                {
                    result.model = self.model_path(status.run);
                }
                let _ = reply.send(Reply::Status(status).into());
            }
            RunMessage::Word { from, word } => self.event(RunEvent::Word { from, word }),
            RunMessage::Cluster(notice) => self.event(match notice {
                MembershipNotice::Beat { from, number, runs } => RunEvent::Beat { from, number, runs },
                MembershipNotice::Changed(Change::Alive(info)) => RunEvent::Alive(info),
                MembershipNotice::Changed(Change::Away(node)) => RunEvent::Away(node),
                MembershipNotice::Changed(Change::Left(node)) => RunEvent::Left(node),
            }),
            RunMessage::Workers(WorkersNotice::Attached(worker)) => self.attached(worker),
            RunMessage::Workers(WorkersNotice::Gone(key)) => self.gone(key),
            RunMessage::Workers(WorkersNotice::Said { key, word }) => self.hear(key, *word),
            RunMessage::Exchange(ExchangeNotice::Report(run, report)) => self.recording.reported(run, *report),
            RunMessage::Event(event) | RunMessage::Exchange(ExchangeNotice::Happened(event)) => self.event(event),
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
                let places = [self.model_path(run), self.spare_path(run)];
                let _ = reply.send(places.into_iter().find(|path| path.exists()));
            }
            RunMessage::Tick => {
                self.event(RunEvent::Tick);
                self.record();
            }
        }
    }

    /// Remembers a client that is to be answered.
    fn ticket(&mut self, reply: RpcReplyPort<Payload<Reply>>) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.clients.insert(ticket, reply);
        ticket
    }

    /// Tells the core what happened, and does what it says.
    fn event(&mut self, event: RunEvent) {
        let mut effects = std::mem::take(&mut self.effects);
        self.core.handle(event, self.start.elapsed(), &mut effects);
        for effect in effects.drain(..) {
            self.carry_out(effect);
        }
        self.effects = effects;
    }

    fn carry_out(&mut self, effect: RunEffect) {
        match effect {
            RunEffect::Publish { beats, phase } => {
                whereabouts::set_run(beats.first().filter(|_| phase != Phase::Ended).map(|beat| beat.run));
                self.tell_membership(MembershipMessage::Run(beats, phase));
            }
            RunEffect::Send { to, word } if to == self.me.id => {
                if let Some(word) = RunWord::of(word) {
                    let _ = self.myself.cast(RunMessage::Word { from: to, word });
                }
            }
            RunEffect::Send { to, word } => {
                let word = Box::new(word);
                self.tell_membership(MembershipMessage::Send { to, word });
            }
            RunEffect::Broadcast(word) => self.tell_membership(MembershipMessage::Broadcast(Box::new(word))),
            RunEffect::Reply(ticket, reply) => {
                if let Some(client) = self.clients.remove(&ticket) {
                    let _ = client.send(reply.into());
                }
            }
            RunEffect::Prepare { worker, run, job } => self.tell_worker(worker, ToWorker::Prepare { run, job }),
            RunEffect::Dismiss(worker) => self.tell_worker(worker, ToWorker::Abort),
            RunEffect::HangUp(worker) => {
                if let Some(worker) = self.workers.get(&worker) {
                    worker.hang_up();
                }
            }
            RunEffect::Offer {
                run,
                job,
                data,
                workers,
            } => {
                let myself = self.myself.clone();
                tokio::task::spawn_blocking(move || {
                    let offered = offer::make(run, &job, data, workers);
                    let _ = myself.cast(RunMessage::Offered { run, offered });
                });
            }
            RunEffect::LookUp { run, resumes } => {
                let (myself, dir) = (self.myself.clone(), self.dir.clone());
                tokio::task::spawn_blocking(move || {
                    let found = checkpoint_search::look(&dir, resumes).map(Box::new);
                    let _ = myself.cast(RunMessage::Event(RunEvent::LookedUp { run, found }));
                });
            }
            RunEffect::Open { run, begin } => self.open(run, *begin),
            RunEffect::Exchange(order) => self.order(order),
            RunEffect::Close => {
                self.ledger = None;
                if let Some((_, exchange)) = self.exchange.take() {
                    exchange.stop(None);
                }
            }
            RunEffect::Keep => {
                let path = self.run_folder().map(|folder| checkpoint::path(&folder, &self.me.name));
                if let Some(path) = path {
                    self.tell_exchange(ExchangeMessage::Keep(path));
                }
            }
        }
    }

    fn order(&mut self, order: ExchangeOrder) {
        let message = match order {
            ExchangeOrder::Joined(participant) => ExchangeMessage::Joined(participant),
            ExchangeOrder::Standing(standing) => ExchangeMessage::Live(standing),
            ExchangeOrder::Seat { worker, slot } => {
                let Some(worker) = self.workers.get(&worker).cloned() else {
                    return;
                };
                let origin = OriginId(drawn::number());
                ExchangeMessage::Seat { worker, slot, origin }
            }
            ExchangeOrder::Unseat(worker) => ExchangeMessage::Unseat(worker),
            ExchangeOrder::StopWorkers => ExchangeMessage::Tell(ToWorker::Stop),
            ExchangeOrder::Evaluate => ExchangeMessage::Evaluate,
            ExchangeOrder::Checkpoint => {
                let Some(folder) = self.run_folder() else {
                    return;
                };
                ExchangeMessage::Checkpoint(checkpoint::path(&folder, &self.me.name))
            }
            ExchangeOrder::Freeze { number, stand } => ExchangeMessage::Freeze { number, stand },
            ExchangeOrder::Thaw => ExchangeMessage::Thaw,
            ExchangeOrder::Settle => ExchangeMessage::Settle,
            ExchangeOrder::Finish { worker: key, save } => ExchangeMessage::Finish {
                key,
                save: save
                    .then(|| self.exchange.as_ref().map(|(run, _)| self.model_path(*run)))
                    .flatten(),
            },
            ExchangeOrder::Measure { worker, spare } => {
                let Some((worker, run)) = self
                    .workers
                    .get(&worker)
                    .cloned()
                    .zip(self.exchange.as_ref().map(|one| one.0))
                else {
                    return;
                };
                let path = if spare {
                    self.spare_path(run)
                } else {
                    self.model_path(run)
                };
                ExchangeMessage::Measure { worker, path }
            }
        };
        self.tell_exchange(message);
    }

    /// Starts the exchange, from this node's checkpoint where the run goes on from one.
    fn open(&mut self, run: RunId, begin: Begin) {
        let Some((_, ledger)) = self.ledger.take_if(|(name, _)| *name == run) else {
            return self.event(RunEvent::Opened {
                run,
                opened: Err("it has no ledger; this is a fault in Tau".into()),
            });
        };
        let (me, security, timing, dir, myself) = (
            self.me.clone(),
            self.security.clone(),
            self.timing,
            self.dir.clone(),
            self.myself.clone(),
        );
        tokio::spawn(async move {
            let resumed = begin.resumed;
            let restored = tokio::task::spawn_blocking(move || match resumed {
                Some(resumed) => checkpoint_search::restore(&dir, run, resumed, ledger),
                None => (ledger, Vec::new()),
            });
            let opened = match restored.await {
                Ok((ledger, states)) => {
                    let arguments = ExchangeArguments {
                        me: me.id,
                        version: me.version,
                        run,
                        begin,
                        ledger,
                        states,
                        security,
                        timing,
                        parent: myself.get_derived(),
                    };
                    let started = Actor::spawn_linked(None, ExchangeActor, arguments, myself.get_cell()).await;
                    started.map(|(exchange, _)| exchange).map_err(|error| error.to_string())
                }
                Err(error) => Err(error.to_string()),
            };
            let opened = opened.map_err(|error| format!("the exchange could not be started: {error}"));
            let _ = myself.cast(RunMessage::Opened { run, opened });
        });
    }

    fn opened(&mut self, run: RunId, opened: Result<ActorRef<ExchangeMessage>, String>) {
        let opened = opened.map(|exchange| {
            if self.core.is_opening(run) {
                self.exchange = Some((run, exchange));
            } else {
                // The run ended meanwhile.
                exchange.stop(None);
            }
        });
        self.event(RunEvent::Opened { run, opened });
    }

    fn attached(&mut self, worker: WorkerHandle) {
        tracing::info!(
            pid = worker.info.pid,
            device = worker.info.device,
            "a worker is attached"
        );
        let key = worker.key;
        self.workers.insert(key, worker);
        self.describe();
        self.event(RunEvent::Attached(key));
    }

    fn gone(&mut self, key: WorkerKey) {
        if self.workers.remove(&key).is_some() {
            tracing::info!("a worker is gone");
            self.describe();
            self.event(RunEvent::Detached(key));
        }
    }

    /// Tells others what this node is now.
    fn describe(&mut self) {
        self.me.workers = self.workers.len();
        if let Some(worker) = self.workers.values().next() {
            self.me.device.clone_from(&worker.info.device);
        }
        self.core.describe(self.me.clone());
        self.tell_membership(MembershipMessage::Me(self.me.clone()));
    }

    fn hear(&mut self, key: WorkerKey, word: FromWorker) {
        let word = match word {
            // What is saved goes to the exchange, with the batches.
            FromWorker::Hello(_) | FromWorker::Alive | FromWorker::Saved { .. } => return,
            FromWorker::Prepared { run, data } => WorkerWord::Prepared { run, data: Ok(data) },
            FromWorker::Refused { run, reason } => WorkerWord::Prepared { run, data: Err(reason) },
            FromWorker::Stats(stats) => WorkerWord::Stats(*stats),
            FromWorker::Evaluated { run, scores } => WorkerWord::Evaluated { run, scores },
            FromWorker::Closed { residual_norm } => WorkerWord::Closed { residual_norm },
            FromWorker::Finished { digest } => WorkerWord::Finished { digest },
            FromWorker::SavedModel { run, saved } => WorkerWord::SavedModel { run, saved },
            FromWorker::Failed { reason, diverged } => WorkerWord::Failed { reason, diverged },
            FromWorker::Idle => WorkerWord::Idle,
        };
        self.event(RunEvent::Worker(key, word));
    }

    fn tell_worker(&self, worker: WorkerKey, word: ToWorker) {
        if let Some(worker) = self.workers.get(&worker) {
            worker.tell(word);
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

    /// Where this node keeps the files of the run under way.
    fn run_folder(&self) -> Option<PathBuf> {
        self.exchange.as_ref().map(|(run, _)| self.dir.join(run.to_string()))
    }

    /// Where this node saves the model of a run.
    fn model_path(&self, run: RunId) -> PathBuf {
        self.dir
            .join(run.to_string())
            .join(format!("{}.safetensors", self.me.name))
    }

    /// Where it saves it if that place takes no files.
    fn spare_path(&self, run: RunId) -> PathBuf {
        std::env::temp_dir()
            .join(format!("tau-rescued-{run}"))
            .join(format!("{}.safetensors", self.me.name))
    }
}
