//! How a part of a minibatch comes back through a network that others hold with this machine.
//!
//! Whoever is next on the way back waits for slopes, and nobody waits for the gradient of weights. So a dense layer's is owed:
//! it is computed when there is nothing else to do. And gradients of parts are added where they are written, which saves
//! writing and reading all of them once more.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dfdx::prelude::HasShape;

use super::matmul::{Into, Matrix, multiply};
use super::{Rows, Threads, bias_relu, values};
use crate::program::Dense;

/// How a pass comes back. As a rule it is all of a minibatch: gradients are written, at once.
#[derive(Clone, Debug, Default)]
pub struct WayBack(Option<Arc<Mutex<OfPart>>>);

#[derive(Debug)]
struct OfPart {
    /// What becomes of the gradient that is there: another part may have written it.
    into: Into,
    /// How much of the minibatch this part is.
    share: f32,
    owed: Vec<Owed>,
}

/// The gradient of a dense layer's weights, still to be computed.
#[derive(Debug)]
pub struct Owed {
    pub(super) dense: Dense,
    pub(super) x: Rows,
    /// The slopes at its output, cut where relu follows.
    pub(super) dy: Vec<f32>,
    pub(super) threads: Threads,
}

impl WayBack {
    /// That of a part of a minibatch.
    #[must_use]
    pub fn of_part() -> Self {
        Self(Some(Arc::new(Mutex::new(OfPart {
            into: Into::Overwrite,
            share: 1.0,
            owed: Vec::new(),
        }))))
    }

    /// Says before the way back what becomes of the gradient that is there, and how much of the minibatch this part is.
    pub fn begins(&self, into: Into, share: f32) {
        if let Some(mut part) = self.part() {
            (part.into, part.share) = (into, share);
        }
    }

    /// What was owed on the way.
    #[must_use]
    pub fn take_owed(&self) -> Vec<Owed> {
        let part = self.part();
        part.map(|mut part| std::mem::take(&mut part.owed)).unwrap_or_default()
    }

    pub(super) fn written(&self) -> Into {
        self.part().map_or(Into::Overwrite, |part| part.into)
    }

    pub(super) fn share(&self) -> f32 {
        self.part().map_or(1.0, |part| part.share)
    }

    /// Lets a gradient wait, if it may; else gives it back.
    pub(super) fn owe(&self, owed: Owed) -> Option<Owed> {
        match self.part() {
            Some(mut part) => {
                part.owed.push(owed);
                None
            }
            None => Some(owed),
        }
    }

    fn part(&self) -> Option<MutexGuard<'_, OfPart>> {
        let part = self.0.as_ref()?;
        Some(part.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Owed {
    /// Writes it into the flat gradient.
    pub fn pay(&self, flat: &mut [f32], into: Into) {
        let Self { dense, x, dy, threads } = self;
        let samples = x.shape().0;
        bias_relu::sum_rows(dy, &mut flat[dense.bias.clone()], into);
        multiply(
            Matrix::row_major(dy, samples, dense.outputs).transposed(),
            Matrix::row_major(values(x), samples, dense.inputs),
            &mut flat[dense.weight.clone()],
            into,
            *threads,
        );
    }
}
