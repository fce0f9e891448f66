//! The staleness guard: the older changes are when they arrive, the smaller the steps.
//!
//! Staleness is counted in rounds, one round being a batch of every other worker. In a healthy cluster it is about one
//! or less. Beyond that, corrections arrive after several workers have made the same one, updates overshoot, and a
//! run that was stable diverges. What is stable is about the product of learning rate and delay, so the guard divides
//! by the delay.

/// Share of a newly arrived batch in the averaged staleness.
const SMOOTHING: f64 = 0.02;
/// Up to this many rounds the learning rate is not touched.
pub const ROUNDS_NORMAL: f64 = 1.5;
/// One batch counts as at most this old: one that was long under way tells little about the next.
const ROUNDS_MAX: f64 = 64.0;

/// Follows how old arriving batches are, and says how far the learning rate is to be lowered.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StalenessGuard {
    rounds: f64,
}

impl StalenessGuard {
    /// Takes an arrived batch into account: in how many rounds the weights had moved on since its gradient.
    pub fn observe(&mut self, rounds: f64) {
        self.rounds += SMOOTHING * (rounds.clamp(0.0, ROUNDS_MAX) - self.rounds);
    }

    /// The averaged staleness in rounds; 0 where nothing arrives.
    #[must_use]
    pub fn rounds(&self) -> f64 {
        self.rounds
    }

    /// What the learning rate is to be multiplied by: 1 while staleness is normal, less beyond.
    #[must_use]
    pub fn factor(&self) -> f64 {
        ROUNDS_NORMAL / self.rounds.max(ROUNDS_NORMAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(batches: usize, rounds: f64) -> StalenessGuard {
        let mut guard = StalenessGuard::default();
        (0..batches).for_each(|_| guard.observe(rounds));
        guard
    }

    #[test]
    fn a_lone_worker_and_a_healthy_cluster_are_left_alone() {
        assert_eq!(StalenessGuard::default().factor(), 1.0);
        assert_eq!(after(1000, ROUNDS_NORMAL).factor(), 1.0);
    }

    #[test]
    fn steps_shrink_as_staleness_grows_and_recover() {
        let mut guard = after(1000, 3.0);
        assert!((guard.rounds() - 3.0).abs() < 1e-6);
        assert!((guard.factor() - 0.5).abs() < 1e-6);
        assert!(after(1000, 6.0).factor() < guard.factor());
        (0..1000).for_each(|_| guard.observe(1.0));
        assert_eq!(guard.factor(), 1.0);
    }

    #[test]
    fn one_late_batch_changes_little() {
        let mut guard = after(1000, 0.6);
        guard.observe(f64::MAX);
        assert!(guard.factor() > 0.7);
        assert!(after(10_000, f64::MAX).factor() > 0.0);
    }
}
