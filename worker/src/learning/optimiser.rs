//! Optimisers: turn gradients into updates, with the formulas of PyTorch's optimisers. The factors of a step are
//! computed here once for every backend; the formulas here are the CPU's, pure over slices, and the GPU's kernels have
//! their own.
//!
//! An update includes the minus sign and the learning rate: it is added to the own weights.

use multiversion::multiversion;
use protocol::job::optimiser::Rule;

/// Magnitude below which optimiser state becomes zero. Such state moves no weight. But if a weight's gradient stays
/// zero, as for a pixel that is nearly always dark, its state shrinks in every step until it is subnormal, and a CPU
/// takes a hundred times as long for subnormal numbers.
pub(crate) const NEGLIGIBLE: f32 = 1e-30;

/// Returns an optimiser state as it is stored after a step: values below `NEGLIGIBLE` become zero.
#[inline]
pub(crate) fn kept(state: f32) -> f32 {
    if state.abs() < NEGLIGIBLE { 0.0 } else { state }
}

/// Formula by which an optimiser turns a gradient `g` into an update `u`. Rules that differ only in their numbers share
/// a formula.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Formula {
    /// Update formula of plain SGD, and of Muon with its orthogonal direction as `g`: `u = -rate g`.
    Sgd,
    /// Update formula of momentum and Nesterov: `v = μ v + g`, `u = -(a g + b v)` with factors `a` and `b` that depend
    /// on the rule, plus the movement of the look-ahead offset (see [`Ahead`]).
    Velocity,
    /// Update formula of AdaGrad and RMSProp: `s = keep s + take g²`, `u = -rate g / (√s + ε)` with factors `keep` and
    /// `take` that depend on the rule.
    Squares,
    /// Update formula of Adam, with the correction for its start at zero.
    Adam,
}

impl Formula {
    pub(crate) fn of(rule: Rule) -> Self {
        match rule {
            // Muon makes the direction before; the weights then move along it as in SGD.
            Rule::Sgd | Rule::Muon(_) => Self::Sgd,
            Rule::Momentum { .. } | Rule::Nesterov { .. } => Self::Velocity,
            Rule::AdaGrad { .. } | Rule::RmsProp { .. } => Self::Squares,
            Rule::Adam { .. } => Self::Adam,
        }
    }
}

/// The numerical factors of an optimiser's update in one step; each formula uses some of them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Factors {
    pub(crate) rate: f32,
    pub(crate) momentum: f32,
    pub(crate) of_gradient: f32,
    pub(crate) of_velocity: f32,
    pub(crate) ahead_before: f32,
    pub(crate) keep: f32,
    pub(crate) take: f32,
    pub(crate) epsilon: f32,
    pub(crate) spread: f32,
    /// Fraction of itself by which a weight decays in this step.
    pub(crate) shrink: f32,
}

/// Look-ahead offset of a worker's own weights, which may be stored at `w - ahead·v`: where the velocity `v` will take
/// them if it lasts. An update moves the weights from their old look-ahead position to the new one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Ahead {
    /// Multiple `ahead` of the velocity by which the stored weights differ from the true weights `w` before the update.
    pub(crate) before: f32,
    /// Multiple `ahead` of the velocity by which the stored weights differ from the true weights `w` after the update.
    pub(crate) after: f32,
}

impl Factors {
    /// Computes the numerical factors of an optimiser's update at a learning rate. `step` counts from 1.
    pub(crate) fn new(rule: Rule, rate: f32, step: u64, ahead: Ahead) -> Self {
        let none = Self {
            rate,
            ..Self::default()
        };
        let squares = |keep: f32, take: f32, epsilon: f32| Self {
            keep,
            take,
            epsilon,
            ..none
        };
        let velocity = |of_gradient: f32, of_velocity: f32, momentum: f32| Self {
            momentum,
            of_gradient,
            of_velocity: of_velocity + ahead.after,
            ahead_before: ahead.before,
            ..none
        };
        match rule {
            Rule::Sgd | Rule::Muon(_) => none,
            Rule::Momentum { momentum } => velocity(0.0, rate, momentum),
            Rule::Nesterov { momentum } => velocity(rate, rate * momentum, momentum),
            Rule::AdaGrad { epsilon } => squares(1.0, 1.0, epsilon),
            Rule::RmsProp { decay, epsilon } => squares(decay, 1.0 - decay, epsilon),
            Rule::Adam { beta1, beta2, epsilon } => {
                // Corrects for the zero start of both means.
                let steps = step as f64;
                let corrected = f64::from(rate) / (1.0 - f64::from(beta1).powf(steps));
                let spread = 1.0 / (1.0 - f64::from(beta2).powf(steps)).sqrt();
                Self {
                    rate: corrected as f32,
                    momentum: beta1,
                    keep: beta2,
                    epsilon,
                    spread: spread as f32,
                    ..none
                }
            }
        }
    }
}

/// The gradient, optimiser state and update of a range of weights. State that the formula does not keep is empty.
pub(crate) struct Slices<'a> {
    pub(crate) gradient: &'a [f32],
    pub(crate) first: &'a mut [f32],
    pub(crate) second: &'a mut [f32],
    /// Output of an optimiser's update: the amounts to add to the weights.
    pub(crate) update: &'a mut [f32],
}

impl Formula {
    /// Computes the updates of a range of weights on a CPU; `gradient` is multiplied by `clip` first. Works on any part
    /// of the weights, so that a caller can process them in blocks that stay in the cache.
    ///
    /// # Panics
    /// If the slices that the formula uses differ in length.
    pub(crate) fn update(self, by: &Factors, clip: f32, slices: Slices<'_>) {
        let Slices {
            gradient,
            first,
            second,
            update,
        } = slices;
        assert_eq!(gradient.len(), update.len());
        assert!(self == Self::Sgd || first.len() == gradient.len());
        assert!(self != Self::Adam || second.len() == gradient.len());
        match self {
            Self::Sgd => sgd(-by.rate * clip, gradient, update),
            Self::Velocity => velocity(by, clip, gradient, first, update),
            Self::Squares => squares(by, clip, gradient, first, update),
            Self::Adam => adam(by, clip, gradient, first, second, update),
        }
    }
}

#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn sgd(rate: f32, gradient: &[f32], update: &mut [f32]) {
    for (u, &g) in update.iter_mut().zip(gradient) {
        *u = rate * g;
    }
}

#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn velocity(by: &Factors, clip: f32, gradient: &[f32], velocity: &mut [f32], update: &mut [f32]) {
    let by = *by;
    for ((u, v), &g) in update.iter_mut().zip(velocity).zip(gradient) {
        let g = clip * g;
        let before = *v;
        *v = kept(by.momentum * before + g);
        *u = by.ahead_before * before - (by.of_gradient * g + by.of_velocity * *v);
    }
}

#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn squares(by: &Factors, clip: f32, gradient: &[f32], squares: &mut [f32], update: &mut [f32]) {
    let by = *by;
    for ((u, s), &g) in update.iter_mut().zip(squares).zip(gradient) {
        let g = clip * g;
        *s = kept(by.keep * *s + by.take * (g * g));
        *u = -by.rate * g / (s.sqrt() + by.epsilon);
    }
}

#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn adam(by: &Factors, clip: f32, gradient: &[f32], mean: &mut [f32], squares: &mut [f32], update: &mut [f32]) {
    let by = *by;
    for (((u, m), s), &g) in update.iter_mut().zip(mean).zip(squares).zip(gradient) {
        let g = clip * g;
        *m = kept(by.momentum * *m + (1.0 - by.momentum) * g);
        *s = kept(by.keep * *s + (1.0 - by.keep) * (g * g));
        *u = -by.rate * *m / (s.sqrt() * by.spread + by.epsilon);
    }
}

#[cfg(test)]
mod tests {
    use protocol::job::optimiser::Optimiser;

    use super::*;

    /// Returns the update that a rule makes of one weight, and advances the weight's optimiser state.
    fn update(rule: Rule, factors: &Factors, clip: f32, gradient: f32, state: &mut [f32; 2]) -> f32 {
        let [first, second] = state;
        let mut update = [f32::NAN];
        let slices = Slices {
            gradient: &[gradient],
            first: std::slice::from_mut(first),
            second: std::slice::from_mut(second),
            update: &mut update,
        };
        Formula::of(rule).update(factors, clip, slices);
        update[0]
    }

    /// Returns the updates of one weight in three steps with the gradients 1, 2 and -1.
    fn three_steps(text: &str) -> [f32; 3] {
        let Optimiser {
            learning_rate, rule, ..
        } = text.parse().unwrap();
        let mut state = [0.0; 2];
        let mut step = 0;
        [1.0, 2.0, -1.0].map(|g: f32| {
            step += 1;
            let factors = Factors::new(rule, learning_rate as f32, step, Ahead::default());
            update(rule, &factors, 0.5, 2.0 * g, &mut state)
        })
    }

    fn assert_close(found: [f32; 3], expected: [f32; 3]) {
        for (a, b) in found.iter().zip(expected) {
            assert!(
                (a - b).abs() <= 1e-6 * b.abs().max(1e-3),
                "{found:?} instead of {expected:?}"
            );
        }
    }

    #[test]
    fn weights_that_look_ahead_are_the_velocity_away_from_what_they_have_come_to() {
        for text in ["sgd:0.1,momentum=0.5", "sgd:0.1,momentum=0.75,nesterov"] {
            let rule = text.parse::<Optimiser>().unwrap().rule;
            let (mut plain, mut ahead) = (1.0f32, 1.0f32);
            let (mut velocity, mut same) = ([0.0; 2], [0.0; 2]);
            let mut before = 0.0;
            for (step, gradient) in (1..).zip([1.0f32, 2.0, -1.0, 0.5]) {
                let after = 0.125 * step as f32;
                let factors = Factors::new(rule, 0.1, step, Ahead::default());
                let looking = Factors::new(rule, 0.1, step, Ahead { before, after });
                before = after;
                plain += update(rule, &factors, 1.0, gradient, &mut velocity);
                ahead += update(rule, &looking, 1.0, gradient, &mut same);
                assert_eq!(velocity, same);
                assert!(
                    (ahead + after * velocity[0] - plain).abs() < 1e-6,
                    "{text}, step {step}"
                );
            }
        }
    }

    #[test]
    fn state_that_fades_becomes_zero_and_is_never_subnormal() {
        for text in ["sgd:0.1,momentum=0.9", "adam:0.1,beta2=0.9", "rmsprop:0.1,decay=0.9"] {
            let rule = text.parse::<Optimiser>().unwrap().rule;
            let mut state = [0.0; 2];
            for step in 1..2000 {
                let gradient = if step == 1 { 1.0 } else { 0.0 };
                let factors = Factors::new(rule, 0.1, step, Ahead::default());
                update(rule, &factors, 1.0, gradient, &mut state);
                assert!(!state.iter().any(|state| state.is_subnormal()), "{text}: {state:?}");
            }
            assert_eq!(state, [0.0; 2], "{text}");
        }
    }

    #[test]
    fn formulas_are_those_of_pytorch() {
        // Computed by hand from torch.optim's documented recurrences.
        assert_close(three_steps("sgd:0.1"), [-0.1, -0.2, 0.1]);
        assert_close(three_steps("sgd:0.1,momentum=0.5"), [-0.1, -0.25, -0.025]);
        assert_close(three_steps("sgd:0.1,momentum=0.5,nesterov"), [-0.15, -0.325, 0.0875]);
        let adagrad = [-0.1, -0.2 / 5f32.sqrt(), 0.1 / 6f32.sqrt()];
        assert_close(three_steps("adagrad:0.1,eps=1e-30"), adagrad);
        let s1 = 0.1f32;
        let s2 = 0.9 * s1 + 0.4;
        let s3 = 0.9 * s2 + 0.1;
        let rmsprop = [-0.1 / s1.sqrt(), -0.2 / s2.sqrt(), 0.1 / s3.sqrt()];
        assert_close(three_steps("rmsprop:0.1,decay=0.9,eps=1e-30"), rmsprop);
        let m = [0.1f32, 0.29, 0.161];
        let s = [0.001f32, 0.004_999, 0.005_994_001];
        let adam = [0, 1, 2].map(|i| {
            let steps = i as i32 + 1;
            -0.1 * (m[i] / (1.0 - 0.9f32.powi(steps))) / (s[i] / (1.0 - 0.999f32.powi(steps))).sqrt()
        });
        let found = three_steps("adam:0.1,eps=1e-30");
        for (a, b) in found.iter().zip(adam) {
            assert!((a - b).abs() < 2e-4 * b.abs(), "{found:?} instead of {adam:?}");
        }
    }
}
