//! This node's workers in a run: they are seated with the contents of the ledger, told which other workers are alive,
//! and at the end asked for their digest.

use std::path::PathBuf;

use protocol::ids::OriginId;
use protocol::wire::attach::{Assignment, COUNTS_PER_PIECE, Pace, SaveOrder, ToWorker};
use protocol::wire::link::OriginInfo;

use super::{ExchangeNews, RunExchange, RunExchangeEffect};
use crate::checkpoint::State;
use crate::exchange::Event;
use crate::pipeline::PipelineEvent;
use crate::run::{Saving, WorkerKey};

impl RunExchange {
    /// Lets a worker take part in the run: sends it the whole replica and adds it to the receivers of batches in the
    /// same step, so that it misses no batch and gets none twice.
    pub(super) fn seat(&mut self, worker: WorkerKey, origin: OriginId, slot: usize) {
        // A worker trusts the ledger and could not detect damage in it.
        self.exchange_event(Event::Audit);
        if self.exchange.is_damaged() {
            // The worker is started again, and asks for a seat again.
            return self.effects.push(RunExchangeEffect::HangUp(worker));
        }
        self.exchange_event(Event::Origin(OriginInfo {
            origin,
            node: self.me,
            slot: slot as u32,
            ended: None,
        }));
        let restore = self.take_state();
        self.hear(worker, true);
        self.hand_over(worker, origin, slot, restore);
        for slot in self.pipeline.dead_slots().clone() {
            self.tell(worker, ToWorker::Slot { slot, alive: false });
        }
        self.tell_origins();
        for origin in self.pipeline.dead_origins().clone() {
            self.tell(worker, ToWorker::Origin { origin, alive: false });
        }
        if self.pauses.is_on() {
            self.tell(worker, ToWorker::Pause(true));
        }
        self.first.get_or_insert(self.now);
        self.seats.insert(worker, origin);
    }

    /// Sends a worker this node's replica and its assignment in the run.
    fn hand_over(&mut self, worker: WorkerKey, origin: OriginId, slot: usize, restore: Option<PathBuf>) {
        let (ledger, topology) = (self.exchange.ledger(), self.plan.topology());
        let (round, workers) = self.exchange.rounds().unwrap_or((0, self.plan.slots() as u32));
        let mut messages = Vec::new();
        // Without batches, the weights may follow from the seed, which the worker knows.
        if ledger.batches() > 0 || self.plan.job.begins_with_told_weights() {
            let pieces = ledger.counts().chunks(COUNTS_PER_PIECE);
            messages.extend(pieces.map(|piece| ToWorker::Counts(piece.to_vec())));
        }
        messages.push(ToWorker::Begin(Box::new(Assignment {
            run: self.run,
            job: self.plan.job.clone(),
            paced: topology.evaluates_by_itself().then(|| Pace {
                every: self.plan.evaluation_interval(),
                seconds: self.moment(self.now).seconds,
            }),
            founders: topology.workers(),
            origin,
            slot,
            slots: self.plan.slots(),
            cursors: ledger.cursors().clone(),
            batches: ledger.batches(),
            samples: ledger.samples(),
            restore,
            round,
            workers,
            pipeline: topology.assignment(self.me),
        })));
        for message in messages {
            self.tell(worker, message);
        }
    }

    /// Takes, for a new worker, one of the files with the private states of former workers. A state can be used only if
    /// it was saved right after the last batch of its worker that this node has; all others are dropped.
    fn take_state(&mut self) -> Option<PathBuf> {
        let frontier = self.exchange.ledger().frontier();
        let fits = |state: &State| frontier.applied(state.origin) == state.sequence;
        let (usable, dropped): (Vec<State>, Vec<State>) = self.states.drain(..).partition(fits);
        for state in dropped {
            self.notice(ExchangeNews::StateDropped(state.path));
        }
        self.states = usable;
        self.states.pop().map(|state| state.path)
    }

    /// Removes a worker that is gone from the run. Its origin (stream of batches) ends with the last batch that came.
    pub(super) fn unseat(&mut self, worker: WorkerKey) {
        let Some(origin) = self.seats.remove(&worker) else {
            return;
        };
        self.hear(worker, false);
        self.pipeline_event(PipelineEvent::WorkerLost);
        self.checkpoints.saved(worker, None);
        self.try_checkpoint();
        let Some(&info) = self.exchange.origins().find(|info| info.origin == origin) else {
            return;
        };
        let ended = Some(self.exchange.ledger().frontier().applied(origin));
        self.exchange_event(Event::Origin(OriginInfo { ended, ..info }));
    }

    /// Tells workers to take no further step. The worker `stands_by` may have to restore measured weights later, so its
    /// origin (stream of batches) stays open.
    pub(super) fn stop_workers(&mut self, stands_by: Option<WorkerKey>) {
        for worker in self.workers_but(None) {
            let stands_by = Some(worker) == stands_by;
            self.tell(worker, if stands_by { ToWorker::StandBy } else { ToWorker::Stop });
        }
    }

    /// Asks a worker, after all batches have come, for the digest of its weights, and to save the model if `save` says
    /// so.
    pub(super) fn finish(&mut self, worker: WorkerKey, save: Option<Saving>) {
        if self.seats.contains_key(&worker) {
            let save = save.map(|save| self.save_order(save));
            self.tell(worker, ToWorker::Finish { save });
        }
    }

    /// Gives the final replica to a worker without a place in the run, which measures and saves the model because the
    /// workers that trained are gone. It trains nothing: its origin (stream of batches) is not announced, and its
    /// batches are not taken.
    pub(super) fn measure(&mut self, worker: WorkerKey, origin: OriginId, save: Saving) {
        self.hand_over(worker, origin, 0, None);
        self.tell(worker, ToWorker::Stop);
        let save = Some(self.save_order(save));
        self.tell(worker, ToWorker::Finish { save });
    }

    /// Gives a worker a place in the run at the end, for the measurement of its pipeline. Its origin (stream of
    /// batches) is not announced, so that its batches do not count.
    pub(super) fn reseat(&mut self, worker: WorkerKey, origin: OriginId, slot: usize) {
        self.hear(worker, true);
        self.hand_over(worker, origin, slot, None);
        self.tell(worker, ToWorker::Stop);
        self.seats.insert(worker, origin);
    }

    /// Returns true if a worker's batches count: its origin (stream of batches) has been announced.
    pub(super) fn trains(&self, worker: WorkerKey) -> bool {
        let origin = self.seats.get(&worker);
        origin.is_some_and(|&origin| self.exchange.node_of(origin).is_some())
    }

    fn save_order(&self, save: Saving) -> SaveOrder {
        SaveOrder {
            path: if save.spare {
                self.files.spare_model(self.run)
            } else {
                self.files.model(self.run)
            },
            frontier: self.exchange.ledger().frontier().clone(),
            with_pipeline: save.measures_pipeline,
        }
    }

    /// All workers with a place in the run, except that of the origin (stream of batches) `but`.
    pub(super) fn workers_but(&self, but: Option<OriginId>) -> Vec<WorkerKey> {
        let others = self.seats.iter().filter(|(_, origin)| Some(**origin) != but);
        others.map(|(&worker, _)| worker).collect()
    }

    /// The worker that makes an origin's batches, if it has a place in the run.
    pub(super) fn worker_of(&self, origin: OriginId) -> Option<WorkerKey> {
        let mut seats = self.seats.iter();
        seats.find(|(_, of)| **of == origin).map(|(&worker, _)| worker)
    }

    fn hear(&mut self, worker: WorkerKey, is_heard: bool) {
        self.effects.push(RunExchangeEffect::Hear { worker, is_heard });
    }

    pub(super) fn tell(&mut self, worker: WorkerKey, message: ToWorker) {
        self.effects.push(RunExchangeEffect::Tell { worker, message });
    }

    pub(super) fn tell_all(&mut self, message: &ToWorker) {
        for worker in self.workers_but(None) {
            self.tell(worker, message.clone());
        }
    }
}
