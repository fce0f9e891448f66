//! The weights that a run begins with, as workers read them from a model file, until the first ledger is made of them.

use std::collections::BTreeMap;

use protocol::ids::RunId;

use crate::log_context::NEWS;
use crate::run::WorkerKey;

/// First weights of a run that workers have read from a model file and sent so far: each worker sends the same, piece
/// by piece.
#[derive(Debug, Default)]
pub(super) struct FirstCounts {
    by_worker: BTreeMap<WorkerKey, (RunId, First)>,
}

/// First weights of a run that one worker has sent.
#[derive(Debug, Default)]
pub(super) struct First {
    pub(super) counts: Vec<i32>,
    /// Names of the model's tensors that the model file lacks, and that start from random values.
    afresh: Vec<String>,
}

impl First {
    /// Logs which of the model's tensors the model file lacks.
    pub(super) fn tell(&self) {
        if !self.afresh.is_empty() {
            let afresh = self.afresh.join(", ");
            tracing::info!(
                target: NEWS, event = "tensors_initialised", tensors = afresh,
                "the model file lacks some of the model's tensors: these start with new random weights"
            );
        }
    }
}

impl FirstCounts {
    /// Adds a further piece of a run's first weights from a worker. The worker's pieces of another run are dropped.
    pub(super) fn add(&mut self, run: RunId, worker: WorkerKey, counts: Vec<i32>, afresh: Vec<String>) {
        let (of, first) = self.by_worker.entry(worker).or_insert_with(|| (run, First::default()));
        if *of != run {
            (*of, *first) = (run, First::default());
        }
        first.counts.extend(counts);
        first.afresh.extend(afresh);
    }

    /// Drops the pieces of first weights that a worker has sent, because the worker is gone.
    pub(super) fn forget(&mut self, worker: WorkerKey) {
        self.by_worker.remove(&worker);
    }

    /// Takes the first weights of a run. All workers that have said that they are ready have sent all weights; those of
    /// one are enough.
    pub(super) fn take(&mut self, run: RunId) -> Option<First> {
        let all = std::mem::take(&mut self.by_worker).into_values();
        let told = all.filter(|(of, _)| *of == run).map(|(_, first)| first);
        told.max_by_key(|first| first.counts.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_put_together_by_worker_and_run() {
        let mut first = FirstCounts::default();
        let (one, other) = (WorkerKey(1), WorkerKey(2));
        first.add(RunId(8), one, vec![9, 9], vec![]);
        for piece in [vec![1, 2], vec![3]] {
            first.add(RunId(7), one, piece, vec![]);
        }
        first.add(RunId(7), other, vec![1], vec!["2.bias".into()]);
        let found = first.take(RunId(7)).unwrap();
        assert_eq!(
            found.counts,
            [1, 2, 3],
            "the counts of the worker that has sent all of them"
        );
        assert!(first.take(RunId(7)).is_none());
        first.add(RunId(7), other, vec![1], vec![]);
        first.forget(other);
        assert!(first.take(RunId(7)).is_none());
    }
}
