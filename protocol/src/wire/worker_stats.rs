//! What a worker did, in numbers.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::stats::ratio;

/// Sums over a worker's run so far, and its newest readings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerStats {
    /// Batches emitted.
    pub batches: u64,
    /// Samples trained.
    pub samples: u64,
    /// Changes emitted.
    pub changes: u64,
    /// The sum of the losses of all samples.
    pub loss: f64,
    /// Thread time of training.
    pub training: Duration,
    /// The part of it in which updates were made orthogonal.
    pub directions: Duration,
    /// Thread time of the exchange, and waits for it.
    pub exchange: Duration,
    /// The part of it in which others' rounds were waited for.
    pub waited: Duration,
    /// Time in which a GPU was at work for it.
    pub gpu: Duration,
    /// Bytes of a GPU's memory that it holds.
    pub gpu_memory: u64,
    /// Steps after which nothing left, because the worker was throttled.
    pub throttled: u64,
    /// The newest τ.
    pub tau: f64,
    /// How stale others' batches were on arrival, in rounds.
    pub staleness: f64,
    /// The norm of the residual, now and then.
    pub residual_norm: f64,
    /// The norm of what was lost with workers that died: their residuals, when they were last told.
    pub residual_lost: f64,
    /// A weight has gone beyond ±8.
    pub alarmed: bool,
}

impl WorkerStats {
    /// The sums of several workers; readings are averaged by those that trained, or added where they add up.
    #[must_use]
    pub fn combined<'a>(all: impl Iterator<Item = &'a Self> + Clone) -> Self {
        let mut sum = Self::default();
        for one in all.clone() {
            // Others' sums are among them: whatever they say, this does not fail.
            sum.batches = sum.batches.saturating_add(one.batches);
            sum.samples = sum.samples.saturating_add(one.samples);
            sum.changes = sum.changes.saturating_add(one.changes);
            sum.loss += one.loss;
            sum.training = sum.training.saturating_add(one.training);
            sum.directions = sum.directions.saturating_add(one.directions);
            sum.exchange = sum.exchange.saturating_add(one.exchange);
            sum.waited = sum.waited.saturating_add(one.waited);
            sum.gpu = sum.gpu.saturating_add(one.gpu);
            sum.gpu_memory = sum.gpu_memory.saturating_add(one.gpu_memory);
            sum.throttled = sum.throttled.saturating_add(one.throttled);
            sum.residual_norm = sum.residual_norm.hypot(one.residual_norm);
            sum.residual_lost = sum.residual_lost.hypot(one.residual_lost);
            sum.alarmed |= one.alarmed;
        }
        let count = all.clone().count().max(1) as f64;
        sum.tau = all.clone().map(|one| one.tau).sum::<f64>() / count;
        sum.staleness = all.map(|one| one.staleness).sum::<f64>() / count;
        sum
    }

    /// What was done since earlier sums of the same workers. Readings are the newest.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            batches: self.batches.saturating_sub(before.batches),
            samples: self.samples.saturating_sub(before.samples),
            changes: self.changes.saturating_sub(before.changes),
            loss: self.loss - before.loss,
            training: self.training.saturating_sub(before.training),
            directions: self.directions.saturating_sub(before.directions),
            exchange: self.exchange.saturating_sub(before.exchange),
            waited: self.waited.saturating_sub(before.waited),
            gpu: self.gpu.saturating_sub(before.gpu),
            throttled: self.throttled.saturating_sub(before.throttled),
            ..*self
        }
    }

    /// The mean loss per sample; none without any.
    #[must_use]
    pub fn mean_loss(&self) -> Option<f64> {
        (self.samples > 0).then(|| self.loss / self.samples as f64)
    }

    /// What every step's gradient as `f32` to every other of so many nodes would have cost. A single node counts as having one
    /// peer, to which its batches would have gone.
    #[must_use]
    pub fn bytes_dense(&self, weights: u64, nodes: usize) -> u64 {
        let gradient = weights.saturating_mul(size_of::<f32>() as u64);
        let peers = nodes.saturating_sub(1).max(1) as u64;
        let steps = self.batches + self.throttled;
        steps.saturating_mul(gradient).saturating_mul(peers)
    }

    /// Changes per weight and batch.
    #[must_use]
    pub fn density(&self, weights: u64) -> f64 {
        ratio(self.changes as f64, self.batches as f64 * weights as f64)
    }

    /// The share of the workers' time that making updates orthogonal took.
    #[must_use]
    pub fn direction_share(&self) -> f64 {
        let all = self.training.saturating_add(self.exchange);
        ratio(self.directions.as_secs_f64(), all.as_secs_f64())
    }

    /// The share of the workers' time in which they waited for others' rounds.
    #[must_use]
    pub fn waited_share(&self) -> f64 {
        let all = self.training.saturating_add(self.exchange);
        ratio(self.waited.as_secs_f64(), all.as_secs_f64())
    }

    /// The share of the workers' time that the exchange took.
    #[must_use]
    pub fn exchange_share(&self) -> f64 {
        let exchange = self.exchange.as_secs_f64();
        ratio(exchange, exchange + self.training.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_add_up() {
        let one = WorkerStats {
            samples: 10,
            tau: 1.0,
            residual_norm: 3.0,
            ..WorkerStats::default()
        };
        let other = WorkerStats {
            samples: 5,
            tau: 2.0,
            residual_norm: 4.0,
            alarmed: true,
            ..WorkerStats::default()
        };
        let both = WorkerStats::combined([one, other].iter());
        assert_eq!(
            (both.samples, both.tau, both.residual_norm, both.alarmed),
            (15, 1.5, 5.0, true)
        );
        assert_eq!(WorkerStats::combined([].iter()), WorkerStats::default());
    }

    #[test]
    fn shares_are_of_what_was_done_since() {
        let at = |times: u32| WorkerStats {
            batches: 2 * u64::from(times),
            samples: 10 * u64::from(times),
            changes: 6 * u64::from(times),
            loss: 5.0 * f64::from(times),
            training: Duration::from_secs(3) * times,
            directions: Duration::from_secs(2) * times,
            exchange: Duration::from_secs(1) * times,
            waited: Duration::from_millis(500) * times,
            tau: f64::from(times),
            ..WorkerStats::default()
        };
        let since = at(3).since(&at(1));
        assert_eq!(since, WorkerStats { tau: 3.0, ..at(2) });
        assert_eq!((since.mean_loss(), since.density(100)), (Some(0.5), 0.03));
        assert_eq!((since.exchange_share(), since.direction_share()), (0.25, 0.5));
        assert_eq!(since.waited_share(), 0.125);
        let nothing = WorkerStats::default();
        assert_eq!(
            (nothing.mean_loss(), nothing.density(100), nothing.exchange_share()),
            (None, 0.0, 0.0)
        );
    }
}
