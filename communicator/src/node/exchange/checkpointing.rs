//! Writing down what this node has: checkpoints with what workers alone have, and a ledger that nobody could save as a
//! model.

use std::path::PathBuf;

use protocol::wire::attach::ToWorker;

use super::{ExchangeMessage, ExchangeNotice, ExchangeState};
use crate::checkpoint::{self, Header, State};
use crate::exchange::Event;
use crate::node::checkpoints;
use crate::run::{RunEvent, WorkerKey};

impl ExchangeState {
    /// Writes a checkpoint once all workers have said at which of their batches they have written theirs.
    pub(super) fn checkpoint(&mut self, path: PathBuf) {
        // Workers write theirs first, and make the folder.
        for (key, path) in self.checkpoints.ask(path, self.workers.keys().copied()) {
            self.workers[&key].1.tell(ToWorker::Save { path });
        }
        self.try_checkpoint();
    }

    pub(super) fn saved(&mut self, key: WorkerKey, sequence: Option<u64>, path: PathBuf) {
        let origin = self.workers.get(&key).map(|(origin, _)| *origin);
        let state = origin
            .zip(sequence)
            .map(|(origin, sequence)| State { origin, sequence, path });
        self.checkpoints.saved(key, state);
        self.try_checkpoint();
    }

    pub(super) fn try_checkpoint(&mut self) {
        let Some((path, states)) = self.checkpoints.take_ready() else {
            return;
        };
        self.event(Event::Audit);
        if self.core.is_damaged() {
            tracing::error!(
                event = "checkpoint_skipped",
                "no checkpoint is written: this node's ledger is damaged and not replaced yet"
            );
            return self.checkpointed();
        }
        let header = self.header(states);
        let ledger = self.core.ledger();
        let (head, counts) = (ledger.head(), ledger.counts().into());
        let myself = self.myself.clone();
        tokio::task::spawn_blocking(move || {
            checkpoints::write(&path, &header, head, counts);
            let _ = myself.cast(ExchangeMessage::Checkpointed);
        });
    }

    pub(super) fn checkpointed(&mut self) {
        if let Some(path) = self.checkpoints.written() {
            self.checkpoint(path);
        }
    }

    fn header(&self, states: Vec<State>) -> Header {
        Header {
            run: self.run,
            job: self.plan.job.clone(),
            data: self.plan.data.clone(),
            slots: self.plan.slots(),
            stage: self.plan.topology().stage(self.me),
            states,
        }
    }

    /// Keeps what the run has come to, so that it can be gone on with. It is over: nobody waits for the disk.
    pub(super) fn keep_last(&self) {
        let path = self.files.checkpoint(self.run);
        let header = self.header(Vec::new());
        let ledger = self.core.ledger();
        let (head, counts) = (ledger.head(), ledger.counts().into());
        // A thread of its own, not one of the runtime's: that would wait for it when the node ends.
        std::thread::spawn(move || checkpoints::write_last(&path, &header, head, counts));
    }

    /// Keeps a ledger that nobody could save as a model, and says where it is.
    pub(super) fn keep(&self) {
        let path = self.files.checkpoint(self.run);
        let header = self.header(Vec::new());
        let ledger = self.core.ledger();
        let (head, counts) = (ledger.head(), ledger.counts().into());
        let (run, parent) = (self.run, self.parent.clone());
        tokio::task::spawn_blocking(move || {
            let folder = path.parent().map_or(Ok(()), std::fs::create_dir_all);
            let written = folder.and_then(|()| checkpoint::write(&path, &header, head, counts));
            let kept = written.map(|()| path).map_err(|error| error.to_string());
            let _ = parent.send_message(ExchangeNotice::Happened(Box::new(RunEvent::Kept(run, kept))));
        });
    }
}
