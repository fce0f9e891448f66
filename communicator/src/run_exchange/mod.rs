//! One node's exchange of a run: a pure state machine that takes events and the time, and returns effects, which the
//! exchange's actor or the simulation carries out.
//!
//! ```text
//!  orders of the run's core ─▶ ┌─────────────┐ ─▶ progress and settlement, for the run's core
//!  links, their messages ────▶ │ RunExchange │ ─▶ links to set up and to give up, messages on them
//!  workers' batches, flows ──▶ │             │ ─▶ messages for workers, hang-ups
//!  ticks ────────────────────▶ └─────────────┘ ─▶ files to write, reports, news for people
//! ```
//!
//! It owns two other state machines: [`exchange`](crate::exchange) decides which batch goes to which node, and
//! [`pipeline`](crate::pipeline) which message goes to which worker of a pipeline. It keeps both in step with the plan,
//! seats workers (`seats`) and throttles them (`pauses`), decides when checkpoints are written (`checkpoints`), and
//! tells the run's core the state of the exchange (`progress`).

mod checkpoints;
mod event;
mod follow;
mod links;
mod pauses;
mod progress;
mod seats;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use protocol::ids::{NodeId, OriginId, RunId};
use protocol::stats::measured::{Moment, NodeUsage};
use protocol::stats::record_interval;
use protocol::wire::attach::ToWorker;
use protocol::wire::link::OriginInfo;
use protocol::wire::run_plan::{Participant, RunPlan};

use self::checkpoints::Checkpoints;
pub(crate) use self::event::{ExchangeNews, RunExchangeEffect, RunExchangeEvent, WriteOccasion};
use self::pauses::Pauses;
use self::progress::{has_first_weights, progress};
use crate::checkpoint::{Header, State};
use crate::exchange::{Event, Exchange};
use crate::ledger::Ledger;
use crate::pipeline::{PipelineEvent, PipelineNode};
use crate::planted::{Bug, planted};
use crate::run::{ExchangeOrder, Liveness, Progress, RunEvent, Settlement, WorkerKey};
use crate::run_files::RunFiles;
use crate::timing::ClockTimes;

/// One node's exchange of batches in a run.
pub(crate) struct RunExchange {
    me: NodeId,
    run: RunId,
    plan: RunPlan,
    exchange: Exchange,
    pipeline: PipelineNode,
    clocks: ClockTimes,
    files: RunFiles,
    keeps_runs: bool,
    /// Peers that this node has a link to.
    linked: BTreeSet<NodeId>,
    /// This node's workers that have a place in the run, with their origins (streams of batches).
    seats: BTreeMap<WorkerKey, OriginId>,
    /// Files with the private state (residual, optimiser state) of this node's workers, from the checkpoint that the
    /// run continues from.
    states: Vec<State>,
    checkpoints: Checkpoints,
    /// Number of the order that froze the exchange, so that it takes no batches; 0 if it is not frozen.
    freeze: u64,
    /// The progress of the exchange last sent to the run's core; only changes are sent.
    told: Option<Progress>,
    pauses: Pauses,
    /// Bytes of batches that this node's workers have made.
    bytes_encoded: u64,
    now: Duration,
    audited: Duration,
    reported: Duration,
    /// Time at which the first worker was given its place in the run.
    first: Option<Duration>,
    /// Time at which batches were last applied, those of this node's workers included.
    last: Option<Duration>,
    /// Actions for the caller that the current event has led to so far.
    effects: Vec<RunExchangeEffect>,
}

/// Arguments with which a node starts its exchange of batches in a run.
pub(crate) struct RunExchangeArguments {
    pub(crate) me: NodeId,
    pub(crate) run: RunId,
    /// The participants, the job and the data of the run.
    pub(crate) plan: RunPlan,
    /// This node's replica of the weights (its ledger), with which the exchange starts.
    pub(crate) ledger: Ledger,
    /// Files with the private state of this node's workers, from a checkpoint.
    pub(crate) states: Vec<State>,
    /// The paths of the node's files for the run.
    pub(crate) files: RunFiles,
    /// True if this node's final replica is kept in a checkpoint.
    pub(crate) keeps_runs: bool,
    pub(crate) clocks: ClockTimes,
}

impl RunExchange {
    /// Starts the exchange of batches in a run. Returns it with its first effects.
    pub(crate) fn start(arguments: RunExchangeArguments, now: Duration) -> (Self, Vec<RunExchangeEffect>) {
        let RunExchangeArguments {
            me,
            run,
            plan,
            ledger,
            states,
            files,
            keeps_runs,
            clocks,
        } = arguments;
        let mut core = Self {
            exchange: Exchange::for_run(me, ledger, &plan),
            pipeline: PipelineNode::new(me, &plan),
            me,
            run,
            plan,
            clocks,
            files,
            keeps_runs,
            linked: BTreeSet::new(),
            seats: BTreeMap::new(),
            states,
            checkpoints: Checkpoints::default(),
            freeze: 0,
            told: None,
            pauses: Pauses::default(),
            bytes_encoded: 0,
            now,
            audited: now,
            reported: now,
            first: None,
            last: None,
            effects: Vec::new(),
        };
        core.restore_origins();
        let takes_itself_for_a_founder = planted(Bug::OwnFirstWeights) && !core.plan.is_guest(me);
        if has_first_weights(core.exchange.ledger(), &core.plan, me) || takes_itself_for_a_founder {
            core.exchange_event(Event::Founder(me));
        }
        for participant in core.plan.participants.clone() {
            core.join(participant);
        }
        let effects = std::mem::take(&mut core.effects);
        (core, effects)
    }

    /// Handles an event of the exchange. Returns the effects in the order in which they must be carried out.
    pub(crate) fn handle(&mut self, event: RunExchangeEvent, now: Duration) -> Vec<RunExchangeEffect> {
        self.now = now;
        match event {
            RunExchangeEvent::Order { order, origin } => {
                self.carry_out(order, origin);
                self.tell_progress();
            }
            RunExchangeEvent::LinkUp(node) => self.link_up(node),
            RunExchangeEvent::LinkDown(node) => self.link_down(node),
            RunExchangeEvent::Received { from, message } => self.receive(from, message),
            RunExchangeEvent::Sent(node) => self.exchange_event(Event::Progress(node)),
            RunExchangeEvent::Batch { worker, bytes } => {
                if self.trains(worker) {
                    self.bytes_encoded += bytes.len() as u64;
                    self.exchange_event(Event::Local(bytes));
                }
            }
            RunExchangeEvent::Prefix { worker, prefix } => {
                // A worker may send partial averages under its own origin only.
                if self.seats.get(&worker) == Some(&prefix.head.from) {
                    self.exchange_event(Event::Pass(prefix));
                }
            }
            RunExchangeEvent::Flow { worker, bytes } => {
                if self.seats.contains_key(&worker) {
                    self.pipeline_event(PipelineEvent::FromWorker { worker, bytes });
                }
            }
            RunExchangeEvent::Saved { worker, sequence, path } => self.saved(worker, sequence, path),
            RunExchangeEvent::CheckpointWritten => self.checkpoint_written(),
            RunExchangeEvent::Tick => self.tick(),
        }
        self.pace();
        std::mem::take(&mut self.effects)
    }

    /// The core of the exchange, which decides which batch goes to which node.
    pub(crate) fn exchange(&self) -> &Exchange {
        &self.exchange
    }

    /// The participants, the job and the data of the run.
    pub(crate) fn plan(&self) -> &RunPlan {
        &self.plan
    }

    /// Returns the point that the run has reached: the number of samples trained, and the seconds since the first
    /// worker was given its place.
    pub(crate) fn moment(&self, now: Duration) -> Moment {
        let age = self.first.map(|first| now.saturating_sub(first));
        Moment {
            samples: self.exchange.ledger().samples(),
            seconds: age.unwrap_or_default().as_secs_f64(),
        }
    }

    /// Total time for which workers were throttled (told to pause, because peers lag behind), the current pause
    /// included.
    pub(crate) fn paused(&self, now: Duration) -> Duration {
        self.pauses.total(now)
    }

    /// Bytes of batches that this node's workers have made.
    pub(crate) fn bytes_encoded(&self) -> u64 {
        self.bytes_encoded
    }

    /// Tells the exchange which origins (workers' streams of batches) the checkpoint contains that the run continues
    /// from. All of them have ended; they are recorded as origins of this node.
    fn restore_origins(&mut self) {
        let applied: Vec<(OriginId, u64)> = self.exchange.ledger().frontier().iter().collect();
        for (origin, sequence) in applied {
            self.exchange_event(Event::Origin(OriginInfo {
                origin,
                node: self.me,
                slot: OriginInfo::NO_SLOT,
                ended: Some(sequence),
            }));
        }
    }

    fn carry_out(&mut self, order: ExchangeOrder, origin: OriginId) {
        match order {
            ExchangeOrder::Joined(participant) => self.admit(participant),
            ExchangeOrder::Liveness(liveness) => self.heed(liveness),
            ExchangeOrder::Seat { worker, slot } => self.seat(worker, origin, slot),
            ExchangeOrder::Reseat { worker, slot } => self.reseat(worker, origin, slot),
            ExchangeOrder::Measure { worker, save } => self.measure(worker, origin, save),
            ExchangeOrder::Unseat(worker) => self.unseat(worker),
            ExchangeOrder::StopWorkers { stands_by } => self.stop_workers(stands_by),
            ExchangeOrder::LeaveWorkers => self.tell_all(&ToWorker::Leave),
            ExchangeOrder::TakeOver(slots) => {
                self.pipeline_event(PipelineEvent::TakeOver(slots));
                self.tell_origins();
            }
            ExchangeOrder::GoBack(worker) => {
                if self.seats.contains_key(&worker) {
                    self.tell(worker, ToWorker::GoBack(self.moment(self.now)));
                }
            }
            ExchangeOrder::Evaluate => {
                if let Some((&worker, _)) = self.seats.first_key_value() {
                    self.tell(worker, ToWorker::Evaluate(self.moment(self.now)));
                }
            }
            ExchangeOrder::Checkpoint => self.checkpoint(),
            ExchangeOrder::Keep => self.write(WriteOccasion::Kept, Vec::new()),
            ExchangeOrder::Freeze { number, fingerprint } => self.freeze(number, fingerprint),
            ExchangeOrder::Thaw => {
                self.freeze = 0;
                self.exchange_event(Event::Freeze(false));
            }
            ExchangeOrder::Settle => self.settle(),
            ExchangeOrder::Finish { worker, save } => self.finish(worker, save),
        }
    }

    /// Adds a guest: a node that joins the run after its beginning.
    fn admit(&mut self, participant: Participant) {
        if self.plan.admit(participant.clone()) {
            self.exchange.reckon_with_workers(participant.node, participant.workers);
            self.notice(ExchangeNews::Joined(participant.name.clone()));
            self.join(participant);
            self.pipeline_event(PipelineEvent::Admitted);
        }
    }

    /// Takes the new liveness of the participants, of which some became silent, speak again, or are gone, and tells it
    /// to all parts of the exchange.
    fn heed(&mut self, liveness: Liveness) {
        let before = self.pipeline.liveness().clone();
        let (gone, mut absent) = (liveness.gone.clone(), liveness.absent());
        self.pipeline_event(PipelineEvent::Liveness(liveness));
        absent.retain(|&node| self.holds_the_same(node));
        for &node in gone.difference(&before.gone) {
            if self.holds_the_same(node) {
                self.exchange_event(Event::Left(node));
            }
        }
        self.exchange_event(Event::Silent(absent));
        self.unlink_the_succeeded();
        self.tell_links(&before.absent());
        self.tell_origins();
    }

    /// Obeys the order with this number to freeze the exchange, so that it takes no further batch. The order is ignored
    /// unless this node has exactly the batches with this fingerprint.
    fn freeze(&mut self, number: u64, fingerprint: u64) {
        if self.exchange.fingerprint() == fingerprint {
            self.freeze = number;
            self.exchange_event(Event::Freeze(true));
        }
    }

    /// Checks this node's replica for flipped bits, and sends the final figures of the exchange to the run's core.
    fn settle(&mut self) {
        self.exchange_event(Event::Audit);
        // A damaged ledger may be replaced before the next tick; the run's core must learn of the damage before the
        // settlement.
        self.tell_progress();
        self.report();
        let ledger = self.exchange.ledger();
        let seconds = self
            .last
            .zip(self.first)
            .map(|(last, first)| last.saturating_sub(first));
        let stage = self.plan.topology().held_stage(self.me);
        let settlement = Box::new(Settlement {
            digest: ledger.audit(),
            whole: stage.map(|stage| stage.digest(ledger.counts())),
            samples: ledger.samples(),
            repeated: ledger.repeated(),
            seconds: seconds.unwrap_or_default().as_secs_f64(),
            bytes_sent: self.bytes_encoded,
            weights: ledger.weight_count() as u64,
            // The run fills this in, because it knows the processes.
            usage: NodeUsage::default(),
        });
        if self.keeps_runs && settlement.digest.is_ok() {
            self.write(WriteOccasion::Last, Vec::new());
        }
        self.effects.push(RunExchangeEffect::Settle(settlement));
    }

    fn tick(&mut self) {
        self.exchange_event(Event::Tick);
        // Peers announce, too, origins of nodes that have been silent for long.
        self.tell_origins();
        if self.now.saturating_sub(self.audited) >= self.clocks.audit {
            self.audited = self.now;
            self.exchange_event(Event::Audit);
        }
        self.tell_progress();
        let age = self.first.map_or(Duration::MAX, |first| self.now.saturating_sub(first));
        if self.now.saturating_sub(self.reported) >= record_interval(age, self.clocks.report) {
            self.report();
        }
    }

    fn report(&mut self) {
        self.reported = self.now;
        self.effects.push(RunExchangeEffect::Report);
    }

    /// Sends the progress of the exchange to the run's core if it has changed.
    fn tell_progress(&mut self) {
        let progress = progress(self);
        if self.told != Some(progress) {
            self.told = Some(progress);
            self.tell_run(RunEvent::Progress(self.run, progress));
        }
    }

    /// Tells the workers to pause or to go on, if that has changed. They pause while fewer than half of this node's
    /// peers keep up with the batches of these workers.
    fn pace(&mut self) {
        let pause = self.exchange.should_pause();
        if self.pauses.change(pause, self.now) {
            self.tell_all(&ToWorker::Pause(pause));
        }
    }

    /// Starts a checkpoint: asks all workers to save their private states. This node's replica is written once they
    /// have saved them and have named the batch at which they did.
    fn checkpoint(&mut self) {
        let path = self.files.checkpoint(self.run);
        // Workers write their states first, and create the folder.
        for (worker, path) in self.checkpoints.ask(&path, self.seats.keys().copied()) {
            self.tell(worker, ToWorker::Save { path });
        }
        self.try_checkpoint();
    }

    fn saved(&mut self, worker: WorkerKey, sequence: Option<u64>, path: PathBuf) {
        let origin = self.seats.get(&worker).copied();
        let state = origin
            .zip(sequence)
            .map(|(origin, sequence)| State { origin, sequence, path });
        self.checkpoints.saved(worker, state);
        self.try_checkpoint();
    }

    fn try_checkpoint(&mut self) {
        let Some(states) = self.checkpoints.take_ready() else {
            return;
        };
        self.exchange_event(Event::Audit);
        if self.exchange.is_damaged() {
            self.notice(ExchangeNews::CheckpointSkipped);
            return self.checkpoint_written();
        }
        self.write(WriteOccasion::Checkpoint, states);
    }

    fn checkpoint_written(&mut self) {
        if self.checkpoints.written() {
            self.checkpoint();
        }
    }

    fn write(&mut self, occasion: WriteOccasion, states: Vec<State>) {
        let path = self.files.checkpoint(self.run);
        let header = Box::new(Header {
            run: self.run,
            job: self.plan.job.clone(),
            data: self.plan.data.clone().into(),
            slots: self.plan.slots(),
            stage: self.plan.topology().stage(self.me),
            states,
        });
        self.effects.push(RunExchangeEffect::Write { occasion, path, header });
    }

    /// Returns true if a node holds the same weights as this node, so that the two exchange batches.
    fn holds_the_same(&self, node: NodeId) -> bool {
        self.plan.topology().same_slice(self.me, node)
    }

    fn tell_run(&mut self, event: RunEvent) {
        self.effects.push(RunExchangeEffect::Run(event));
    }

    fn notice(&mut self, news: ExchangeNews) {
        self.effects.push(RunExchangeEffect::Notice(news));
    }
}

/// Access to the state of an exchange for the simulation.
#[cfg(test)]
impl RunExchange {
    pub(crate) fn seats(&self) -> &BTreeMap<WorkerKey, OriginId> {
        &self.seats
    }

    pub(crate) fn linked(&self) -> &BTreeSet<NodeId> {
        &self.linked
    }

    pub(crate) fn told(&self) -> Option<Progress> {
        self.told
    }

    pub(crate) fn liveness(&self) -> &Liveness {
        self.pipeline.liveness()
    }
}

#[cfg(test)]
mod tests;
