//! The staleness guard: the older changes are when they arrive, the smaller the steps.
//!
//! Staleness is counted in batches: how many came into the weights between a gradient and its arrival. Each of them
//! may have made the same correction, so the more there are, the further updates overshoot, until a run that was
//! stable diverges. What is stable is about the product of their number and the length of one step, so the guard
//! divides by their number. Batches and not rounds: three workers at a whole round have fewer
//! corrections under way than ten at half a round.

/// Share of a newly arrived batch in the averaged staleness.
const SMOOTHING: f64 = 0.02;
/// Up to this many batches steps are left as they are: a little more than ten workers in step with each other have.
const BATCHES_NORMAL: f64 = 6.0;
/// One batch counts as at most this old: one that was long under way tells little about the next.
const BATCHES_MAX: f64 = 512.0;

/// Follows how old arriving batches are, and says how much shorter steps are to be.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StalenessGuard {
    batches: f64,
}

impl StalenessGuard {
    /// Takes an arrived batch into account: by how many others the weights had moved on since its gradient.
    pub fn observe(&mut self, batches: u64) {
        self.batches += SMOOTHING * ((batches as f64).min(BATCHES_MAX) - self.batches);
    }

    /// The averaged staleness in batches; 0 where nothing arrives.
    #[must_use]
    pub fn batches(&self) -> f64 {
        self.batches
    }

    /// What the length of steps is to be multiplied by: 1 while staleness is normal, less beyond.
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
