//! Looks through this node's checkpoints of an earlier run. Files are large, so this never runs on an actor's thread.

use std::path::Path;

use protocol::ids::RunId;
use protocol::weights::digest::Digest;
use protocol::wire::control::FoundCheckpoint;
use protocol::wire::run_plan::Resumed;

use crate::checkpoint::{self, Checkpoint, State};
use crate::ledger::Ledger;

/// Returns the description of this node's furthest checkpoint of a run, as the coordinator needs it.
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

/// Returns the ledger (exact replica of the weights) with which a run begins at this node, and the states that only
/// this node's workers had. The ledger is that of the chosen checkpoint if this node has it, or else `first`; such a
/// node catches up like a latecomer.
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
