//! This node's workers in a run: seated with what the ledger has, told who trains and who does not, and in the end asked
//! what they hold.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Instant;

use protocol::ids::{NodeId, OriginId};
use protocol::wire::attach::{Assignment, COUNTS_PER_PIECE, Pace, SaveOrder, ToWorker};

use super::ExchangeState;
use crate::checkpoint::State;
use crate::entropy;
use crate::exchange::Event;
use crate::node::workers::WorkerHandle;
use crate::pipeline::PipelineEvent;
use crate::run::{Liveness, Saving, WorkerKey};
use protocol::wire::link::OriginInfo;

impl ExchangeState {
    /// Gives a worker everything that the ledger has, in one go with being listed for what comes next: it misses
    /// nothing and gets nothing twice.
    pub(super) fn seat(&mut self, worker: WorkerHandle, slot: usize) {
        // A worker takes the ledger for right, and could never tell that it is not.
        self.event(Event::Audit);
        if self.core.is_damaged() {
            // It is started again, and asks again.
            worker.hang_up();
            return;
        }
        let origin = OriginId(entropy::number());
        self.event(Event::Origin(OriginInfo {
            origin,
            node: self.me,
            slot: slot as u32,
            ended: None,
        }));
        let restore = self.take_state();
        worker.route_batches(Some(self.myself.get_derived()));
        self.hand_over(&worker, origin, slot, restore);
        for &slot in self.pipeline.dead_slots() {
            worker.tell(ToWorker::Slot { slot, alive: false });
        }
        self.tell_origins();
        for &origin in self.pipeline.dead_origins() {
            worker.tell(ToWorker::Origin { origin, alive: false });
        }
        if self.pauses.is_on() {
            worker.tell(ToWorker::Pause(true));
        }
        self.first.get_or_insert_with(Instant::now);
        self.workers.insert(worker.key, (origin, worker));
    }

    /// Gives a worker the ledger.
    fn hand_over(&self, worker: &WorkerHandle, origin: OriginId, slot: usize, restore: Option<PathBuf>) {
        let ledger = self.core.ledger();
        let (round, workers) = self.core.rounds().unwrap_or((0, self.plan.slots() as u32));
        // A worker knows those that follow from the seed.
        if ledger.batches() > 0 || self.plan.job.from.is_some() {
            for piece in ledger.counts().chunks(COUNTS_PER_PIECE) {
                worker.tell(ToWorker::Counts(piece.to_vec()));
            }
        }
        worker.tell(ToWorker::Begin(Box::new(Assignment {
            run: self.run,
            job: self.plan.job.clone(),
            paced: self.plan.topology().evaluates_by_itself().then(|| Pace {
                every: self.plan.evaluation_interval(),
                seconds: self.moment().seconds,
            }),
            founders: self.plan.topology().workers(),
            origin,
            slot,
            slots: self.plan.slots(),
            cursors: ledger.cursors().clone(),
            batches: ledger.batches(),
            samples: ledger.samples(),
            restore,
            round,
            workers,
            pipeline: self.plan.topology().assignment(self.me),
        })));
    }

    /// Workers take no further step; one of them may stand by.
    pub(super) fn stop_workers(&self, stands_by: Option<WorkerKey>) {
        for (&key, (_, worker)) in &self.workers {
            let message = if Some(key) == stands_by {
                ToWorker::StandBy
            } else {
                ToWorker::Stop
            };
            worker.tell(message);
        }
    }

    /// Workers may train the samples of these slots, as if they had no workers.
    pub(super) fn take_over(&mut self, slots: BTreeSet<usize>) {
        self.pipeline_event(PipelineEvent::TakeOver(slots));
        self.tell_origins();
    }

    /// All batches have come: a worker tells what it has, and saves the model if it is to.
    pub(super) fn finish(&self, key: WorkerKey, save: Option<Saving>) {
        if let Some((_, worker)) = self.workers.get(&key) {
            let save = save.map(|save| self.save_order(save));
            worker.tell(ToWorker::Finish { save });
        }
    }

    /// All batches have come, and the workers that had them are gone: another one is given the ledger, to measure and
    /// save it. It trains nothing, so it has no origin that anybody knows, and what it sends is not listened to.
    pub(super) fn measure(&self, worker: &WorkerHandle, save: Saving) {
        self.hand_over(worker, OriginId(entropy::number()), 0, None);
        worker.tell(ToWorker::Stop);
        let save = Some(self.save_order(save));
        worker.tell(ToWorker::Finish { save });
    }

    /// Seats a worker at the end, for the measurement of its pipeline. Its origin is not announced, so that its batches do not
    /// count.
    pub(super) fn reseat(&mut self, worker: WorkerHandle, slot: usize) {
        let origin = OriginId(entropy::number());
        worker.route_batches(Some(self.myself.get_derived()));
        self.hand_over(&worker, origin, slot, None);
        worker.tell(ToWorker::Stop);
        self.workers.insert(worker.key, (origin, worker));
    }

    /// Whether batches of a worker count.
    pub(super) fn trains(&self, key: WorkerKey) -> bool {
        let origin = self.workers.get(&key).map(|(origin, _)| *origin);
        origin.is_some_and(|origin| self.core.node_of(origin).is_some())
    }

    fn save_order(&self, save: Saving) -> SaveOrder {
        SaveOrder {
            path: if save.spare {
                self.files.spare_model(self.run)
            } else {
                self.files.model(self.run)
            },
            frontier: self.core.ledger().frontier().clone(),
            with_pipeline: save.measures_pipeline,
        }
    }

    /// What some worker had alone, if it fits what the ledger has of its batches to the last one. What does not is dropped.
    pub(super) fn take_state(&mut self) -> Option<PathBuf> {
        let frontier = self.core.ledger().frontier();
        let fits = |state: &State| frontier.applied(state.origin) == state.sequence;
        let (usable, dropped): (Vec<State>, Vec<State>) = self.states.drain(..).partition(fits);
        for state in dropped {
            tracing::warn!(
                event = "worker_state_dropped",
                path = %state.path.display(),
                "a worker's saved residual and optimiser state are dropped: they belong to other batches than the run resumes from"
            );
        }
        self.states = usable;
        self.states.pop().map(|state| state.path)
    }

    /// A worker is gone: what it sent is all that will ever come of its origin.
    pub(super) fn unseat(&mut self, key: WorkerKey) {
        let Some((origin, worker)) = self.workers.remove(&key) else {
            return;
        };
        worker.route_batches(None);
        self.pipeline_event(PipelineEvent::WorkerLost);
        self.checkpoints.saved(key, None);
        self.try_checkpoint();
        let Some(&info) = self.core.origins().find(|info| info.origin == origin) else {
            return;
        };
        let ended = Some(self.core.ledger().frontier().applied(origin));
        self.event(Event::Origin(OriginInfo { ended, ..info }));
    }

    /// Participants have fallen silent, speak again, or are gone.
    pub(super) fn heed(&mut self, liveness: Liveness) {
        let before = self.pipeline.liveness().clone();
        let (gone, mut absent) = (liveness.gone.clone(), liveness.absent());
        self.pipeline_event(PipelineEvent::Liveness(liveness));
        let holds_the_same = |node: &NodeId| self.plan.topology().same_slice(self.me, *node);
        absent.retain(holds_the_same);
        let gone = gone.difference(&before.gone).copied();
        for node in gone.filter(holds_the_same).collect::<Vec<_>>() {
            self.event(Event::Left(node));
        }
        self.event(Event::Silent(absent));
        self.unlink_the_succeeded();
        self.tell_links(&before.absent());
        self.tell_origins();
        self.tell_progress();
    }
}
