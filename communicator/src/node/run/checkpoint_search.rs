//! Looking through this node's checkpoints of an earlier run. Files are large: none of this is done on an actor's thread.

use std::path::Path;

use protocol::ids::RunId;
use protocol::weights::digest::Digest;
use protocol::wire::control::FoundCheckpoint;
use protocol::wire::run_plan::Resumed;

use crate::checkpoint::{self, Checkpoint, State};
use crate::ledger::Ledger;

/// What others have to know of the furthest checkpoint of a run that this node has.
pub(super) fn look(dir: &Path, run: RunId) -> Option<FoundCheckpoint> {
    let Checkpoint { header, snapshot } = checkpoint::newest(&dir.join(run.to_string()))?;
    Some(FoundCheckpoint {
        resumed: Resumed {
            run,
            digest: Digest::of_counts(&snapshot.counts),
            frontier: snapshot.head.frontier().fingerprint(),
            samples: snapshot.head.samples,
            slots: header.slots,
        },
        stage: header.stage,
        job: header.job,
    })
}

/// The ledger that a run begins with here: that of the checkpoint that was chosen, if this node has it. Others come to it
/// as latecomers do. And what this node's workers had alone.
pub(super) fn restore(dir: &Path, run: RunId, resumed: Resumed, first: Ledger) -> (Ledger, Vec<State>) {
    let Some(Checkpoint { header, mut snapshot }) = checkpoint::newest(&dir.join(resumed.run.to_string())) else {
        return (first, Vec::new());
    };
    snapshot.head.run = run;
    let ledger = match Ledger::restored(snapshot, run, first.initial()) {
        Ok(restored) if restored.is_that_of(&resumed) => restored,
        Ok(_) => {
            tracing::info!(
                event = "own_checkpoint_unused",
                "the run resumes from another node's checkpoint, which has more samples or other batches than this node's"
            );
            first
        }
        Err(error) => {
            tracing::error!(event = "checkpoint_unusable", %error, "this node's checkpoint cannot be used");
            first
        }
    };
    (ledger, header.states)
}
