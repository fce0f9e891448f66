//! State of a micro-batch's backward pass through a pipeline stage.
//!
//! The stage before waits for input gradients, but nothing waits for weight gradients. So weight gradients of dense
//! layers are deferred until there is nothing else to compute. Gradients of micro-batches are added where they are
//! written, which saves writing and reading all of them once more.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dfdx::prelude::HasShape;

use super::matmul::{Matrix, WriteMode, multiply};
use super::{Rows, bias_relu, values};
use crate::machine::parallel::Threads;
use crate::model::program::Dense;

/// Settings of a backward pass. By default it covers a whole minibatch: gradients overwrite memory and none is
/// deferred.
#[derive(Clone, Debug, Default)]
pub struct BackwardContext(Option<Arc<Mutex<MicroBatchContext>>>);

#[derive(Debug)]
struct MicroBatchContext {
    /// Tells if weight gradients overwrite memory, or are added to those of other micro-batches.
    write_mode: WriteMode,
    /// Size of the micro-batch as a fraction of its minibatch.
    share: f32,
    deferred: Vec<DeferredWeightGradient>,
}

/// The weight gradient of a dense layer, still to be computed.
#[derive(Debug)]
pub struct DeferredWeightGradient {
    pub(super) dense: Dense,
    pub(super) x: Rows,
    /// Gradients at the layer's output, zeroed where relu cut the output.
    pub(super) dy: Vec<f32>,
    pub(super) threads: Threads,
}

impl BackwardContext {
    /// Makes settings for a micro-batch's backward pass, which defers the weight gradients of dense layers;
    /// [`BackwardContext::begins`] completes them.
    #[must_use]
    pub fn of_micro_batch() -> Self {
        Self(Some(Arc::new(Mutex::new(MicroBatchContext {
            write_mode: WriteMode::Overwrite,
            share: 1.0,
            deferred: Vec::new(),
        }))))
    }

    /// Prepares a micro-batch's backward pass: sets if its gradients overwrite memory or are added to it, and `share`,
    /// the micro-batch's fraction of its minibatch.
    pub fn begins(&self, write_mode: WriteMode, share: f32) {
        if let Some(mut micro_batch) = self.micro_batch() {
            (micro_batch.write_mode, micro_batch.share) = (write_mode, share);
        }
    }

    /// Takes the weight gradients that a micro-batch's backward pass has deferred, for the caller to compute.
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

    /// Keeps a dense layer's weight gradient for later and returns `None`, if the pass is that of a micro-batch; else
    /// returns it, to be computed at once.
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
    /// Computes the layer's gradients of weights and biases, and writes them to the flat gradient (of all weights in
    /// one array) or adds them to it.
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
