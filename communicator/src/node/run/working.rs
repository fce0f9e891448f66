//! This node's workers: which are attached, and their messages.

use protocol::wire::attach::FromWorker;

use super::RunState;
use crate::log_context::NEWS;
use crate::node::membership::MembershipMessage;
use crate::node::workers::WorkerHandle;
use crate::run::{RunEvent, WorkerKey};
use crate::usage::Workers;

impl RunState {
    pub(super) fn attached(&mut self, worker: WorkerHandle) {
        tracing::info!(
            event = "worker_attached",
            pid = worker.info.pid,
            device = worker.info.device,
            "a worker has attached"
        );
        let key = worker.key;
        self.workers.insert(key, worker);
        self.describe();
        self.event(RunEvent::Attached(key));
    }

    pub(super) fn gone(&mut self, key: WorkerKey) {
        self.first.forget(key);
        if self.workers.remove(&key).is_some() {
            tracing::info!(event = "worker_detached", "a worker has disconnected");
            self.describe();
            self.event(RunEvent::Detached(key));
        }
    }

    /// Returns the resources of this node for a run with `count` workers: the machine's memory, and the speed and the
    /// GPU memory of the worker that has least.
    pub(super) fn workers(&self, count: usize) -> Workers {
        let gpus = self.workers.values().filter_map(|worker| worker.info.gpu_bytes);
        let speeds = self.workers.values().map(|worker| worker.speed);
        Workers {
            speed: speeds.min().unwrap_or(0),
            ..Workers::here(count, gpus.min())
        }
    }

    /// Sends this node's new description (its device and number of workers) to other nodes.
    fn describe(&mut self) {
        self.me.workers = self.workers.len();
        if let Some(worker) = self.workers.values().next() {
            self.me.device = worker.info.device.as_str().into();
        }
        self.core.describe(self.me.clone());
        self.tell_membership(MembershipMessage::Me(self.me.clone()));
    }

    pub(super) fn hear(&mut self, key: WorkerKey, message: FromWorker) {
        if let (FromWorker::Prepared { speed, .. }, Some(worker)) = (&message, self.workers.get_mut(&key)) {
            worker.speed = *speed;
        }
        if let FromWorker::First { run, counts, afresh } = message {
            // A worker that replaces another is given the ledger instead.
            if self.exchange.as_ref().is_none_or(|(name, _)| *name != run) {
                self.first.add(run, key, counts, afresh);
            }
            return;
        }
        if let FromWorker::SavedModel { run, saved: Ok(_) } = &message {
            let places = [self.files.model(*run), self.files.spare_model(*run)];
            if let Some(path) = places.iter().find(|path| path.exists()) {
                tracing::info!(target: NEWS, event = "model_saved", path = %path.display(), "the model is saved");
            }
        }
        self.event(RunEvent::Worker(key, message));
    }
}
