//! The batches in a worker's weights, other origins' included.

use protocol::log::batch::Header;
use protocol::weights::digest::Digest;
use protocol::weights::sums::Sums;
use protocol::wire::attach::JumpOrder;

use super::TrainingError;
use crate::learning::staleness_guard::StalenessGuard;

/// Totals of the batches in a worker's weights.
#[derive(Debug)]
pub(super) struct Applied {
    /// Digest that the weights must have: the first weights' digest plus those of all batches since.
    expected: Digest,
    batches: u64,
    samples: u64,
    /// Number of samples in the whole run, over all epochs.
    samples_total: u64,
    guard: StalenessGuard,
}

impl Applied {
    /// Creates the totals of a worker that holds only the first weights, with this digest, and no batches.
    pub(super) fn new(first: Digest, samples_total: u64) -> Self {
        Self {
            expected: first,
            batches: 0,
            samples: 0,
            samples_total,
            guard: StalenessGuard::default(),
        }
    }

    /// Sets the number of batches and samples that the weights hold already.
    pub(super) fn resume(&mut self, batches: u64, samples: u64) {
        self.batches = batches;
        self.samples = samples;
    }

    /// The digest that the weights must have.
    pub(super) fn digest(&self) -> Digest {
        self.expected
    }

    pub(super) fn batches(&self) -> u64 {
        self.batches
    }

    /// Number of samples in applied batches, which schedules follow.
    pub(super) fn samples(&self) -> u64 {
        self.samples
    }

    /// The fraction of the run's samples that are in applied batches.
    pub(super) fn progress(&self) -> f64 {
        self.samples as f64 / self.samples_total.max(1) as f64
    }

    /// Average number of batches between another origin's batch and the weights at which it was computed.
    pub(super) fn staleness(&self) -> f64 {
        self.guard.batches()
    }

    /// Factor by which steps are shortened, because other workers' batches are stale.
    pub(super) fn guard_factor(&self) -> f64 {
        self.guard.factor()
    }

    /// Counts a batch of this worker.
    pub(super) fn count_own(&mut self, header: &Header) {
        self.batches += 1;
        self.samples += u64::from(header.samples);
        self.expected += header.digest;
    }

    /// Counts a batch of another origin.
    pub(super) fn count(&mut self, header: &Header) {
        self.guard.observe(self.batches.saturating_sub(header.seen));
        self.count_own(header);
    }

    /// Counts many batches that came as one sum.
    pub(super) fn jump(&mut self, sums: &Sums, order: &JumpOrder) {
        self.batches += order.batches;
        self.samples += order.samples;
        self.expected += sums.digest();
    }

    /// Compares the digest of the weights, if they have one, with the one that they must have.
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
