//! Writes the ledger to a file: as a checkpoint, at the end of a run, or because it must be kept.

use std::path::PathBuf;

use super::{ExchangeMessage, ExchangeNotice, ExchangeState};
use crate::checkpoint::{self, Header};
use crate::node::checkpoints;
use crate::run::RunEvent;
use crate::run_exchange::WriteOccasion;

impl ExchangeState {
    pub(super) fn write(&self, occasion: WriteOccasion, path: PathBuf, header: Header) {
        let ledger = self.core.exchange().ledger();
        let (head, counts) = (ledger.head(), ledger.counts().into());
        match occasion {
            WriteOccasion::Checkpoint => {
                let myself = self.myself.clone();
                tokio::task::spawn_blocking(move || {
                    checkpoints::write(&path, &header, head, counts);
                    let _ = myself.cast(ExchangeMessage::Checkpointed);
                });
            }
            WriteOccasion::Last => {
                // A thread of its own, because the runtime would wait for one of its threads when the node ends.
                std::thread::spawn(move || checkpoints::write_last(&path, &header, head, counts));
            }
            WriteOccasion::Kept => {
                let (run, parent) = (self.run, self.parent.clone());
                tokio::task::spawn_blocking(move || {
                    let folder = path.parent().map_or(Ok(()), std::fs::create_dir_all);
                    let written = folder.and_then(|()| checkpoint::write(&path, &header, head, counts));
                    let kept = written.map(|()| path).map_err(|error| error.to_string());
                    let _ = parent.send_message(ExchangeNotice::Happened(Box::new(RunEvent::Kept(run, kept))));
                });
            }
        }
    }
}
