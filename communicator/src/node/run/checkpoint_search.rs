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
    let digest = Digest::of_counts(&snapshot.counts);
    Some(FoundCheckpoint {
        resumed: Resumed {
            run,
            digest,
            first: digest - snapshot.head.digest_of_batches(),
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

#[cfg(test)]
mod tests {
    use protocol::ids::{NodeId, OriginId};
    use protocol::job::JobDraft;
    use protocol::log::cursor::Cursors;
    use protocol::log::frontier::Frontier;
    use protocol::wire::snapshot::{Applied, Head};

    use super::*;
    use crate::checkpoint::Header;
    use crate::small_plan::small_plan;

    #[test]
    fn a_module_goes_on_where_other_first_weights_are_drawn() {
        let folder = tempfile::tempdir().unwrap();
        let (before, run) = (RunId(7), RunId(8));
        let mut plan = small_plan(1);
        let draft = JobDraft {
            model: Some("py:net.py".into()),
            ..JobDraft::default()
        };
        *plan.job = draft.resolve().unwrap();
        let header = Header {
            run: before,
            job: plan.job.clone(),
            data: plan.data.clone().into(),
            slots: 1,
            stage: 0,
            states: Vec::new(),
        };
        let path = checkpoint::path(&folder.path().join(before.to_string()), "n1");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        // The run began with fives, and its only batch has moved one weight.
        let first = Digest::of_counts(&[5; 4]);
        let counts = [5, 5, 6, 5];
        let head = Head {
            run: before,
            applied: vec![Applied {
                origin: OriginId(3),
                sequence: 1,
                digest: Digest::of_counts(&counts) - first,
            }],
            cursors: Cursors::default(),
            samples: 10,
            weights: 4,
        };
        checkpoint::write(&path, &header, head, counts.into()).unwrap();
        let resumed = look(folder.path(), before).unwrap().resumed;
        assert_eq!(resumed.first, first);
        plan.first = resumed.first;
        plan.resumed = vec![resumed];
        let own = Ledger::new(run, vec![9; 4]).at_beginning(&plan, NodeId(1));
        let (ledger, _) = restore(folder.path(), run, resumed, own);
        assert_eq!((ledger.counts(), ledger.run()), (&counts[..], run));
        assert!(ledger.audit().is_ok() && ledger.is_that_of(&resumed));
        assert_ne!(*ledger.frontier(), Frontier::default());
    }
}
