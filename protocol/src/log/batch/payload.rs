//! The payload of a batch: steps of one size, or sums of any size, of few weights or of nearly all.
//!
//! All payloads are exact on the lattice and commute, so a replica, a log, a merged range and a snapshot treat them
//! alike. The strategy that makes a batch chooses its form.

use serde::{Deserialize, Serialize};

use crate::weights::changes::{self, ChangesError};
use crate::weights::dense::Dense;
use crate::weights::digest::Digest;
use crate::weights::encoding::{self, DENSE_MAX, Encoding, PayloadError, SUMS_MAX};
use crate::weights::lattice::{BATCH_STEPS_MAX, Range, RangeError, Tau};
use crate::weights::sums::Sums;

/// Changes of a batch, valid for the model that they were decoded for.
#[derive(Clone, Debug, PartialEq)]
pub enum Payload {
    /// Payload of a batch: changes, each of which moves a weight by plus or minus τ. A change that repeats moves its
    /// weight again.
    Steps {
        /// Distance by which each change of the payload moves its weight.
        tau: Tau,
        /// Changes of the payload, each as `index << 1 | plus`: sorted, with indices of weights that the model has. A
        /// weight that is changed several times has the same sign each time.
        changes: Vec<u32>,
    },
    /// Payload of a batch: some weights, each of which moves by its own multiple of the smallest step, below 2^24.
    Sums(Sums),
    /// Payload of a batch: neighbouring weights, of which nearly all move, each by its own multiple of the smallest
    /// step.
    Dense(Dense),
}

/// Encoding of a payload, as a batch's header states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Form {
    Steps { tau: Tau, encoding: Encoding },
    Sums,
    Dense,
}

impl Default for Payload {
    fn default() -> Self {
        Self::Steps {
            tau: Tau::ONE_STEP,
            changes: Vec::new(),
        }
    }
}

impl Payload {
    /// Returns the amount that a batch's payload adds to a replica's digest (checksum of all weights).
    #[must_use]
    pub fn digest(&self) -> Digest {
        match self {
            Self::Steps { tau, changes } => Digest::of_changes(changes, *tau),
            Self::Sums(sums) => sums.digest(),
            Self::Dense(dense) => dense.digest(),
        }
    }

    /// True if the payload is dense: it has a number of steps for each of some neighbouring weights, of which nearly
    /// all move.
    #[must_use]
    pub fn is_dense(&self) -> bool {
        matches!(self, Self::Dense(_))
    }

    /// Returns the number of weight changes in a batch's payload.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Steps { changes, .. } => changes.len(),
            Self::Sums(sums) => sums.entries().len(),
            Self::Dense(dense) => dense.steps().len(),
        }
    }

    /// True if a batch's payload changes no weight.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a batch's payload to a replica held as counts (weights as whole multiples of the smallest step).
    ///
    /// # Panics
    /// If the payload is of a model with more weights.
    pub fn apply_to_counts(&self, counts: &mut [i32]) -> Result<Range, RangeError> {
        match self {
            Self::Steps { tau, changes } => changes::apply_to_counts(changes, *tau, counts),
            Self::Sums(sums) => sums.apply_to_counts(counts),
            Self::Dense(dense) => dense.apply_to_counts(counts),
        }
    }

    /// Appends the payload's bytes in their shortest encoding, and returns this encoding.
    pub(super) fn encode(&self, out: &mut Vec<u8>) -> Form {
        match self {
            Self::Steps { tau, changes } => Form::Steps {
                tau: *tau,
                encoding: encoding::encode_shortest(changes, out),
            },
            Self::Sums(sums) => {
                encoding::sums::encode(sums.entries(), out);
                Form::Sums
            }
            Self::Dense(dense) => {
                encoding::plain::encode(dense.first(), dense.steps(), out);
                Form::Dense
            }
        }
    }

    /// Decodes a batch's payload of `count` changes for a model of `weights` weights. Everything that the bytes claim
    /// is checked.
    pub(super) fn decode(form: Form, bytes: &[u8], count: usize, weights: usize) -> Result<Self, PayloadError> {
        match form {
            Form::Steps { tau, encoding } => {
                let mut changes = Vec::new();
                encoding::decode(encoding, bytes, count, weights, tau, &mut changes)?;
                Ok(Self::Steps { tau, changes })
            }
            Form::Dense if count > DENSE_MAX => Err(PayloadError::TooManySteps(count)),
            Form::Dense => Ok(Self::Dense(encoding::plain::decode(bytes, count, weights)?)),
            Form::Sums if count > SUMS_MAX => Err(PayloadError::TooManySums(count)),
            Form::Sums => {
                let entries = encoding::sums::decode(bytes, count, weights)?;
                // A batch moves no weight further than a float can follow exactly.
                if let Some(far) = entries.iter().find(|entry| entry.1.unsigned_abs() >= BATCH_STEPS_MAX) {
                    return Err(ChangesError::MovesTooFar(far.0).into());
                }
                Ok(Self::Sums(Sums::from_sorted(entries)))
            }
        }
    }
}
