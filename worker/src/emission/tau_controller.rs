//! The τ controller, which sets τ so that batches have a target density: the fraction of the weights that a batch
//! changes.
//!
//! The density falls when τ rises: in inverse proportion where updates pull steadily one way, since as much leaves the
//! residual as enters it, and faster where they are noise. So the controller compares logarithms: each batch moves log
//! τ by a fraction of the difference between the logarithms of the density and of its target. The density is a short
//! moving average, because single batches scatter. The controller's own τ is a real number, of which a batch gets the
//! nearest lattice value: at a small τ, a correction is less than a whole lattice step and would be lost.

use protocol::weights::lattice::Tau;

/// Weight of a new batch in the moving average of the density, the fraction of weights that a batch changes.
const SMOOTHING: f64 = 0.2;
/// Strength of the correction of τ after a batch: τ is multiplied by the ratio of the average density to its target,
/// raised to this power.
const GAIN: f64 = 0.12;
/// Largest factor by which one batch moves τ, however far the density is from its target.
const FACTOR_MAX: f64 = 1.25;
/// Largest factor by which a change of the learning rate moves τ in one step. It is small because the residual still
/// holds updates that were made at the old learning rate.
const RATE_FACTOR_MAX: f64 = 1.1;

/// Controller that moves τ, the size of one weight change, so that batches change about the target fraction (density)
/// of the weights.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TauController {
    mode: Mode,
}

#[derive(Clone, Debug, PartialEq)]
enum Mode {
    Fixed(Tau),
    /// Controller mode before the first step: the size of updates is unknown, so the first step compares no weights,
    /// and the residual after it determines τ.
    Unset,
    Following(Following),
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Following {
    tau: f64,
    density: f64,
    rate: f64,
}

impl TauController {
    pub(super) fn fixed(tau: Tau) -> Self {
        Self { mode: Mode::Fixed(tau) }
    }

    /// Creates a controller that moves τ so that batches reach a target density; it has no τ until
    /// [`TauController::start`].
    pub(super) fn following() -> Self {
        Self { mode: Mode::Unset }
    }

    /// Returns the size τ of one weight change in the next batch; `None` while the size of updates is unknown.
    pub(super) fn tau(&self) -> Option<Tau> {
        match self.mode {
            Mode::Fixed(tau) => Some(tau),
            Mode::Unset => None,
            Mode::Following(Following { tau, .. }) => Some(Tau::nearest(tau)),
        }
    }

    /// Sets the first τ, chosen so that a first batch that sends every change of size τ or more changes the target
    /// fraction of the weights. `rate` is the learning rate of the steps made so far.
    pub(super) fn start(&mut self, tau: f64, target: f64, rate: f64) {
        if self.mode == Mode::Unset {
            self.mode = Mode::Following(Following {
                tau: within_lattice(tau),
                density: target,
                rate,
            });
        }
    }

    /// Returns τ, density and learning rate for the worker's saved state; `None` if τ is fixed or not known yet.
    pub(super) fn stands_at(&self) -> Option<[f64; 3]> {
        match self.mode {
            Mode::Following(Following { tau, density, rate }) => Some([tau, density, rate]),
            Mode::Fixed(_) | Mode::Unset => None,
        }
    }

    /// Continues from the τ, density and learning rate of a saved state. A controller with a fixed τ does not change,
    /// and values that are not finite are ignored.
    pub(super) fn go_on_from(&mut self, at: [f64; 3]) {
        // A value that is not finite would stay so for ever.
        let sound = at.iter().all(|it| it.is_finite());
        if sound && !matches!(self.mode, Mode::Fixed(_)) {
            let [tau, density, rate] = at;
            self.mode = Mode::Following(Following {
                tau: within_lattice(tau),
                density,
                rate,
            });
        }
    }

    /// Scales τ with the learning rate at once, because updates are proportional to it. The density of batches, by
    /// which τ is otherwise corrected, would show the change only some batches later.
    pub(super) fn follow_rate(&mut self, next: f64) {
        if let Mode::Following(Following { tau, rate, .. }) = &mut self.mode {
            let factor = (next / *rate).clamp(1.0 / RATE_FACTOR_MAX, RATE_FACTOR_MAX);
            // The ratio to a rate of zero is not finite.
            if factor.is_finite() {
                *tau = within_lattice(*tau * factor);
            }
            *rate = next;
        }
    }

    /// Corrects τ by the density of a batch that has left: `emitted` is the fraction of the weights that the batch
    /// changed.
    pub(super) fn observe(&mut self, emitted: f64, target: f64) {
        if let Mode::Following(Following { tau, density, .. }) = &mut self.mode {
            *density += SMOOTHING * (emitted - *density);
            // Keeps the error finite if the average density is zero.
            let error = (density.max(target / 100.0) / target).ln();
            let factor = (GAIN * error).exp().clamp(1.0 / FACTOR_MAX, FACTOR_MAX);
            *tau = within_lattice(*tau * factor);
        }
    }
}

fn within_lattice(tau: f64) -> f64 {
    tau.clamp(f64::from(Tau::ONE_STEP.value()), f64::from(Tau::MAX.value()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::rng::CounterRng;

    /// Simulates batches under a controller: in every step each weight's residual grows by a constant update and by
    /// noise, both proportional to the learning rate. Returns the fraction of weights that each batch changes.
    fn densities(target: f64, steps: usize, rate_at: fn(f64) -> f64) -> Vec<f64> {
        const WEIGHTS: usize = 4000;
        let mut random = CounterRng::new(11, 0);
        let mut uniform = || random.next_u64() as f64 / u64::MAX as f64 - 0.5;
        let pull: Vec<f64> = (0..WEIGHTS).map(|_| uniform().powi(5)).collect();
        let mut residual = vec![0.0; WEIGHTS];
        let mut controller = TauController::following();
        let mut found = Vec::new();
        for step in 0..steps {
            let rate = rate_at(step as f64 / steps as f64);
            controller.follow_rate(rate);
            for (r, p) in residual.iter_mut().zip(&pull) {
                *r += 0.01 * rate * (p + 0.3 * uniform());
            }
            let Some(tau) = controller.tau() else {
                let mut sorted: Vec<f64> = residual.iter().map(|r| r.abs()).collect();
                sorted.sort_by(f64::total_cmp);
                controller.start(sorted[((1.0 - target) * WEIGHTS as f64) as usize - 1], target, rate);
                continue;
            };
            let tau = f64::from(tau.value());
            let mut emitted = 0;
            for r in &mut residual {
                if r.abs() >= tau {
                    *r -= tau * r.signum();
                    emitted += 1;
                }
            }
            let density = f64::from(emitted) / WEIGHTS as f64;
            controller.observe(density, target);
            found.push(density);
        }
        found
    }

    #[test]
    fn the_mean_density_is_the_target() {
        let constant = |_| 1.0;
        let decay = |progress| 1.0 - progress;
        let warm_up = |progress: f64| (progress * 20.0).clamp(0.01, 1.0) * (1.0 - progress);
        for target in [2e-3, 1e-2, 5e-2] {
            for (name, rate) in [
                ("constant", constant as fn(f64) -> f64),
                ("decay", decay),
                ("warm-up", warm_up),
            ] {
                let found = densities(target, 3000, rate);
                let settled = &found[300..];
                let mean = settled.iter().sum::<f64>() / settled.len() as f64;
                assert!(
                    (mean / target - 1.0).abs() < 0.1,
                    "mean density {mean} instead of {target} with learning rate {name}"
                );
                let early = found[..300].iter().sum::<f64>() / 300.0;
                assert!(
                    early < 3.0 * target,
                    "density {early} at the start instead of {target} with learning rate {name}"
                );
            }
        }
    }

    #[test]
    fn a_fixed_tau_stays() {
        let tau = Tau::from_steps(7).unwrap();
        let mut controller = TauController::fixed(tau);
        controller.start(1.0, 0.1, 1.0);
        controller.observe(0.9, 0.001);
        controller.follow_rate(0.1);
        assert_eq!(controller.tau(), Some(tau));
    }

    #[test]
    fn another_goes_on_where_one_stood() {
        let mut one = TauController::following();
        assert_eq!(one.stands_at(), None);
        one.start(0.01, 0.1, 1.0);
        one.observe(0.3, 0.1);
        let at = one.stands_at().unwrap();
        let mut other = TauController::following();
        other.go_on_from(at);
        for controller in [&mut one, &mut other] {
            controller.follow_rate(0.95);
            controller.observe(0.2, 0.1);
        }
        assert_eq!(one, other);
        assert_ne!(one.stands_at(), Some(at));
        for nowhere in [
            [f64::NAN, at[1], at[2]],
            [at[0], f64::INFINITY, at[2]],
            [at[0], at[1], f64::NAN],
        ] {
            let before = other.clone();
            other.go_on_from(nowhere);
            assert_eq!(other, before);
        }
        let mut fixed = TauController::fixed(Tau::ONE_STEP);
        fixed.go_on_from(at);
        assert_eq!(fixed, TauController::fixed(Tau::ONE_STEP));
    }

    #[test]
    fn silence_and_noise_keep_tau_within_the_lattice() {
        let mut controller = TauController::following();
        assert_eq!(controller.tau(), None);
        controller.start(0.001, 0.01, 1.0);
        for _ in 0..10_000 {
            controller.observe(0.0, 0.01);
        }
        assert_eq!(controller.tau(), Some(Tau::ONE_STEP));
        for _ in 0..10_000 {
            controller.observe(1.0, 0.01);
        }
        assert_eq!(controller.tau(), Some(Tau::MAX));
    }
}
