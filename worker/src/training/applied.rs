//! The batches in a worker's weights, other origins' included.

use protocol::log::batch::Header;
use protocol::weights::digest::Digest;
use protocol::weights::sums::Sums;
use protocol::wire::attach::JumpOrder;

use super::TrainingError;
use crate::learning::staleness_guard::StalenessGuard;

/// Totals of the batches that are contained in a worker's weights: number, samples, digest and staleness.
#[derive(Debug)]
pub(super) struct Applied {
    /// Digest (checksum of a replica) that the weights must have: the first weights' digest plus those of all batches
    /// since.
    expected: Digest,
    batches: u64,
    samples: u64,
    samples_total: u64,
    guard: StalenessGuard,
}

impl Applied {
    /// Creates the totals of a worker whose weights are the initial ones, with this digest, and contain no batches.
    pub(super) fn new(first: Digest, samples_total: u64) -> Self {
        Self {
            expected: first,
            batches: 0,
            samples: 0,
            samples_total,
            guard: StalenessGuard::default(),
        }
    }

    /// Sets the number of batches and samples that the weights contain when the worker starts in the middle of a run.
    pub(super) fn resume(&mut self, batches: u64, samples: u64) {
        self.batches = batches;
        self.samples = samples;
    }

    /// Returns the digest that the weights must have: that of the initial weights plus those of all batches since.
    pub(super) fn digest(&self) -> Digest {
        self.expected
    }

    pub(super) fn batches(&self) -> u64 {
        self.batches
    }

    /// Returns the number of samples in applied batches, which learning-rate schedules follow.
    pub(super) fn samples(&self) -> u64 {
        self.samples
    }

    /// Returns the fraction of the run's samples that are in applied batches, from 0 to 1.
    pub(super) fn progress(&self) -> f64 {
        self.samples as f64 / self.samples_total.max(1) as f64
    }

    /// Returns the average number of other batches that entered the weights between the gradient of another worker's
    /// batch and the batch's arrival.
    pub(super) fn staleness(&self) -> f64 {
        self.guard.batches()
    }

    /// Returns the factor by which steps are shortened while other workers' batches arrive late.
    pub(super) fn guard_factor(&self) -> f64 {
        self.guard.factor()
    }

    /// Adds a batch of this worker to the totals.
    pub(super) fn count_own(&mut self, header: &Header) {
        self.batches += 1;
        self.samples += u64::from(header.samples);
        self.expected += header.digest;
    }

    /// Adds another worker's batch to the totals, including its staleness.
    pub(super) fn count(&mut self, header: &Header) {
        self.guard.observe(self.batches.saturating_sub(header.seen));
        self.count_own(header);
    }

    /// Adds many batches, which came as one sum, to the totals.
    pub(super) fn jump(&mut self, sums: &Sums, order: &JumpOrder) {
        self.batches += order.batches;
        self.samples += order.samples;
        self.expected += sums.digest();
    }

    /// Compares the digest of the weights, if they have one, with the digest that they must have. A difference is an
    /// error: this replica is corrupted.
    pub(super) fn audit(&self, found: Option<Digest>) -> Result<(), TrainingError> {
        if found == Some(self.expected) {
            return Ok(());
        }
        Err(TrainingError::Spoilt {
            expected: self.expected,
            found: found.map_or_else(
                || "none, because a weight is not a multiple of 2^-20 below 16".into(),
                |digest| digest.to_string(),
            ),
        })
    }
}
