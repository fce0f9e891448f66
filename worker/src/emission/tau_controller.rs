//! The τ controller: nobody has to guess τ. It follows a target density, the fraction of weights changed in a batch.
//!
//! The density falls when τ rises: in inverse proportion where updates pull steadily one way, since as much leaves the
//! residual as enters it, and faster where they are noise. So the controller compares logarithms: each batch moves log
//! τ by a part of how far the log of the density is from that of its target. The density is a short average, because
//! single batches scatter. The controller's own τ is a real number, of which a batch gets the nearest lattice value: at
//! a small τ, a correction is less than a whole lattice step and would be lost.

use protocol::weights::lattice::Tau;

/// Contribution of a new batch in the averaged density.
const SMOOTHING: f64 = 0.2;
/// How much of the logarithmic error is corrected by one batch.
const GAIN: f64 = 0.12;
/// One batch moves τ by this factor at most, however wrong the density is.
const FACTOR_MAX: f64 = 1.25;
/// The learning rate moves τ by this factor at most in one step: the residual still holds older, larger updates.
const RATE_FACTOR_MAX: f64 = 1.1;

/// Keeps the density of emitted batches near its target.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TauController {
    mode: Mode,
}

#[derive(Clone, Debug, PartialEq)]
enum Mode {
    Fixed(Tau),
    /// Nothing is known of the updates' size: the first step compares nothing, and its residual tells.
    Unset,
    Following(Following),
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Following {
    tau: f64,
    density: f64,
    /// The learning rate of the last step.
    rate: f64,
}

impl TauController {
    /// A τ that never changes.
    pub(super) fn fixed(tau: Tau) -> Self {
        Self { mode: Mode::Fixed(tau) }
    }

    /// A τ that follows a density; it has none until [`TauController::start`].
    pub(super) fn following() -> Self {
        Self { mode: Mode::Unset }
    }

    /// The τ of the next batch; `None` while nothing is known of the size of updates.
    pub(super) fn tau(&self) -> Option<Tau> {
        match self.mode {
            Mode::Fixed(tau) => Some(tau),
            Mode::Unset => None,
            Mode::Following(Following { tau, .. }) => Some(Tau::nearest(tau)),
        }
    }

    /// Starts from a τ at which the target fraction of a first residual, made at this learning rate, would have left.
    pub(super) fn start(&mut self, tau: f64, target: f64, rate: f64) {
        if self.mode == Mode::Unset {
            self.mode = Mode::Following(Following {
                tau: within_lattice(tau),
                density: target,
                rate,
            });
        }
    }

    /// Where it stands, for another to go on from: its τ, density and learning rate. `None` if its τ is fixed, or not
    /// known yet.
    pub(super) fn stands_at(&self) -> Option<[f64; 3]> {
        match self.mode {
            Mode::Following(Following { tau, density, rate }) => Some([tau, density, rate]),
            Mode::Fixed(_) | Mode::Unset => None,
        }
    }

    /// Goes on from where another stood. A fixed τ stays, and so does everything if that is no place to stand.
    pub(super) fn go_on_from(&mut self, at: [f64; 3]) {
        // What is no number would stay none for ever.
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

    /// Moves τ with the learning rate, before the density can tell: updates are proportional to it.
    pub(super) fn follow_rate(&mut self, next: f64) {
        if let Mode::Following(Following { tau, rate, .. }) = &mut self.mode {
            let factor = (next / *rate).clamp(1.0 / RATE_FACTOR_MAX, RATE_FACTOR_MAX);
            // A rate of zero has no ratio to the next one.
            if factor.is_finite() {
                *tau = within_lattice(*tau * factor);
            }
            *rate = next;
        }
    }

    /// Takes the density of an emitted batch into account.
    pub(super) fn observe(&mut self, emitted: f64, target: f64) {
        if let Mode::Following(Following { tau, density, .. }) = &mut self.mode {
            *density += SMOOTHING * (emitted - *density);
            // An average of nothing at all still is a finite error.
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

    /// Residuals fed by a steady pull and by noise, both shrinking with the learning rate; the densities of the batches.
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
