//! A node's checkpoints, one at a time: first the workers save their private states, then the ledger is written.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::checkpoint::State;
use crate::run::WorkerKey;

/// The state of writing the checkpoints of a run on one node.
#[derive(Debug, Default)]
pub(super) struct Checkpoints {
    /// Number of checkpoints so far. It is part of the names of the workers' files, so that each checkpoint has its
    /// own.
    count: u64,
    phase: CheckpointPhase,
    /// True if another checkpoint was requested while this one is written. Two at the same time would write to one
    /// file.
    is_followed: bool,
}

#[derive(Debug, Default)]
enum CheckpointPhase {
    #[default]
    Idle,
    /// Phase of a checkpoint: workers were asked to save their private states.
    Saving {
        waiting: BTreeSet<WorkerKey>,
        states: Vec<State>,
    },
    /// Phase of a checkpoint: the ledger (the node's replica) is being written.
    Writing,
}

impl Checkpoints {
    /// Requests a checkpoint at this path. Returns the file in which each worker is to save its state. Returns no files
    /// if another checkpoint is in progress; then the new one follows it.
    pub(super) fn ask(&mut self, path: &Path, workers: impl Iterator<Item = WorkerKey>) -> Vec<(WorkerKey, PathBuf)> {
        if !matches!(self.phase, CheckpointPhase::Idle) {
            self.is_followed = true;
            return Vec::new();
        }
        self.count += 1;
        let files: Vec<_> = workers
            .enumerate()
            .map(|(index, key)| (key, path.with_extension(format!("{index}.{}.state", self.count))))
            .collect();
        self.phase = CheckpointPhase::Saving {
            waiting: files.iter().map(|&(key, _)| key).collect(),
            states: Vec::new(),
        };
        files
    }

    /// Records that a worker has saved its private state for the checkpoint, or (`None`) never will.
    pub(super) fn saved(&mut self, key: WorkerKey, state: Option<State>) {
        if let CheckpointPhase::Saving { waiting, states, .. } = &mut self.phase
            && waiting.remove(&key)
        {
            states.extend(state);
        }
    }

    /// Returns the workers' saved states once all workers have answered. The caller must write them and this node's
    /// replica to the checkpoint, and call [`Checkpoints::written`].
    pub(super) fn take_ready(&mut self) -> Option<Vec<State>> {
        match std::mem::replace(&mut self.phase, CheckpointPhase::Writing) {
            CheckpointPhase::Saving { waiting, states } if waiting.is_empty() => Some(states),
            before => {
                self.phase = before;
                None
            }
        }
    }

    /// Records that the checkpoint was written, or could not be. Returns true if another one was requested meanwhile.
    pub(super) fn written(&mut self) -> bool {
        self.phase = CheckpointPhase::Idle;
        std::mem::take(&mut self.is_followed)
    }
}

#[cfg(test)]
mod tests {
    use protocol::ids::OriginId;

    use super::*;

    fn state(origin: u64, path: &Path) -> State {
        State {
            origin: OriginId(origin),
            sequence: 5,
            path: path.into(),
        }
    }

    #[test]
    fn a_checkpoint_waits_for_all_workers_and_takes_what_they_could_write() {
        let mut checkpoints = Checkpoints::default();
        let keys = [1, 2, 3].map(WorkerKey);
        let files = checkpoints.ask(Path::new("run/n.checkpoint"), keys.into_iter());
        assert_eq!(files[1], (keys[1], PathBuf::from("run/n.1.1.state")));
        let first = state(7, &files[0].1);
        checkpoints.saved(keys[0], Some(first.clone()));
        checkpoints.saved(keys[1], None);
        assert_eq!(checkpoints.take_ready(), None, "the third worker has not answered");
        checkpoints.saved(keys[2], None);
        assert_eq!(checkpoints.take_ready(), Some(vec![first]));
    }

    #[test]
    fn one_that_is_asked_for_while_another_is_written_follows_it() {
        let mut checkpoints = Checkpoints::default();
        let key = WorkerKey(1);
        let ask = |checkpoints: &mut Checkpoints| checkpoints.ask(Path::new("n.checkpoint"), [key].into_iter());
        let files = ask(&mut checkpoints);
        assert!(
            ask(&mut checkpoints).is_empty(),
            "the worker is still writing its state"
        );
        checkpoints.saved(key, None);
        assert!(checkpoints.take_ready().is_some());
        assert_eq!(
            checkpoints.take_ready(),
            None,
            "a checkpoint that is being written is not started again"
        );
        assert!(ask(&mut checkpoints).is_empty());
        checkpoints.saved(key, None);
        assert_eq!(checkpoints.take_ready(), None);
        assert!(
            checkpoints.written(),
            "requests that come during a write become one further checkpoint"
        );
        assert_ne!(
            ask(&mut checkpoints),
            files,
            "the next checkpoint has state files of its own"
        );
        checkpoints.saved(key, None);
        assert!(checkpoints.take_ready().is_some());
        assert!(!checkpoints.written());
    }

    #[test]
    fn a_node_without_workers_writes_its_ledger() {
        let mut checkpoints = Checkpoints::default();
        assert!(
            checkpoints
                .ask(Path::new("n.checkpoint"), std::iter::empty())
                .is_empty()
        );
        assert!(checkpoints.take_ready().is_some());
    }
}
