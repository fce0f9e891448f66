//! The staleness guard, which shortens a worker's steps when other workers' batches arrive late.
//!
//! Staleness is the number of batches that entered the weights between a gradient and the arrival of its batch. Each of
//! them may have made the same correction, so the more there are, the further updates overshoot, until a run that was
//! stable diverges. Stability depends on the product of that number and the step length, so the guard divides by the
//! number. It counts batches and not rounds: three workers that are a whole round behind have fewer corrections in
//! flight than ten that are half a round behind.

/// Weight of a newly arrived batch in the average of other workers' staleness.
const SMOOTHING: f64 = 0.02;
/// Staleness up to which steps keep their length: the number of batches between a gradient and the arrival of its
/// batch. A little more than that of ten workers in step with each other.
const BATCHES_NORMAL: f64 = 6.0;
/// Largest staleness, in batches, that one batch counts with: a batch that was long delayed says little about the next.
const BATCHES_MAX: f64 = 512.0;

/// Guard against stale gradients: averages the staleness of other workers' batches as they arrive, and computes the
/// factor by which this worker shortens its steps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StalenessGuard {
    batches: f64,
}

impl StalenessGuard {
    /// Adds an arrived batch to the average of other workers' staleness. `batches` is the number of other batches that
    /// entered the weights since its gradient was computed.
    pub fn observe(&mut self, batches: u64) {
        self.batches += SMOOTHING * ((batches as f64).min(BATCHES_MAX) - self.batches);
    }

    /// Returns the averaged staleness of other workers' batches: the number of batches applied between a gradient and
    /// the arrival of its batch. 0 where no batches arrive.
    #[must_use]
    pub fn batches(&self) -> f64 {
        self.batches
    }

    /// Returns the factor on the length of steps: 1 while other workers' batches are no staler than normal, less
    /// beyond.
    #[must_use]
    pub fn factor(&self) -> f64 {
        BATCHES_NORMAL / self.batches.max(BATCHES_NORMAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(arrivals: usize, batches: u64) -> StalenessGuard {
        let mut guard = StalenessGuard::default();
        (0..arrivals).for_each(|_| guard.observe(batches));
        guard
    }

    #[test]
    fn a_lone_worker_and_a_healthy_cluster_are_left_alone() {
        assert_eq!(StalenessGuard::default().factor(), 1.0);
        assert_eq!(after(1000, 6).factor(), 1.0);
    }

    #[test]
    fn steps_shrink_as_staleness_grows_and_recover() {
        let mut guard = after(1000, 30);
        assert!((guard.batches() - 30.0).abs() < 1e-6);
        assert!((guard.factor() - 0.2).abs() < 1e-6);
        assert!(after(1000, 60).factor() < guard.factor());
        (0..1000).for_each(|_| guard.observe(5));
        assert_eq!(guard.factor(), 1.0);
    }

    #[test]
    fn one_late_batch_changes_little() {
        let mut guard = after(1000, 5);
        guard.observe(u64::MAX);
        assert!(guard.factor() > 0.3);
        assert!(after(10_000, u64::MAX).factor() > 0.0);
    }
}
