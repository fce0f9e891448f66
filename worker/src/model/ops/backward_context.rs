//! How a micro-batch comes back through a network that others hold with this machine.
//!
//! Whoever is next on the way back waits for gradients, and nobody waits for the gradient of weights. So a dense layer's is
//! deferred: it is computed when there is nothing else to do. And gradients of micro-batches are added where they are
//! written, which saves writing and reading all of them once more.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dfdx::prelude::HasShape;

use super::matmul::{Matrix, WriteMode, multiply};
use super::{Rows, bias_relu, values};
use crate::machine::parallel::Threads;
use crate::model::program::Dense;

/// How a pass comes back. As a rule it is all of a minibatch: gradients are written, at once.
#[derive(Clone, Debug, Default)]
pub struct BackwardContext(Option<Arc<Mutex<MicroBatchContext>>>);

#[derive(Debug)]
struct MicroBatchContext {
    /// What becomes of the gradient that is there: another micro-batch may have written it.
    write_mode: WriteMode,
    /// How much of the minibatch this micro-batch is.
    share: f32,
    deferred: Vec<DeferredWeightGradient>,
}

/// The gradient of a dense layer's weights, still to be computed.
#[derive(Debug)]
pub struct DeferredWeightGradient {
    pub(super) dense: Dense,
    pub(super) x: Rows,
    /// The gradients at its output, cut where relu follows.
    pub(super) dy: Vec<f32>,
    pub(super) threads: Threads,
}

impl BackwardContext {
    /// That of a micro-batch.
    #[must_use]
    pub fn of_micro_batch() -> Self {
        Self(Some(Arc::new(Mutex::new(MicroBatchContext {
            write_mode: WriteMode::Overwrite,
            share: 1.0,
            deferred: Vec::new(),
        }))))
    }

    /// Says before the way back what becomes of the gradient that is there, and how much of the minibatch this micro-batch is.
    pub fn begins(&self, write_mode: WriteMode, share: f32) {
        if let Some(mut micro_batch) = self.micro_batch() {
            (micro_batch.write_mode, micro_batch.share) = (write_mode, share);
        }
    }

    /// What was deferred on the way.
    #[must_use]
    pub fn take_deferred(&self) -> Vec<DeferredWeightGradient> {
        let micro_batch = self.micro_batch();
        micro_batch
            .map(|mut micro_batch| std::mem::take(&mut micro_batch.deferred))
            .unwrap_or_default()
    }

    pub(super) fn written(&self) -> WriteMode {
        self.micro_batch()
            .map_or(WriteMode::Overwrite, |micro_batch| micro_batch.write_mode)
    }

    pub(super) fn share(&self) -> f32 {
        self.micro_batch().map_or(1.0, |micro_batch| micro_batch.share)
    }

    /// Lets a gradient wait, if it may; else gives it back.
    pub(super) fn defer(&self, deferred: DeferredWeightGradient) -> Option<DeferredWeightGradient> {
        match self.micro_batch() {
            Some(mut micro_batch) => {
                micro_batch.deferred.push(deferred);
                None
            }
            None => Some(deferred),
        }
    }

    fn micro_batch(&self) -> Option<MutexGuard<'_, MicroBatchContext>> {
        let micro_batch = self.0.as_ref()?;
        Some(micro_batch.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl DeferredWeightGradient {
    /// Writes it into the flat gradient.
    pub fn add_to(&self, flat: &mut [f32], write_mode: WriteMode) {
        let Self { dense, x, dy, threads } = self;
        let samples = x.shape().0;
        bias_relu::sum_rows(dy, &mut flat[dense.bias.clone()], write_mode);
        multiply(
            Matrix::row_major(dy, samples, dense.outputs).transposed(),
            Matrix::row_major(values(x), samples, dense.inputs),
            &mut flat[dense.weight.clone()],
            write_mode,
            *threads,
        );
    }
}
