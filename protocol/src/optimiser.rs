//! Optimisers: how a gradient becomes an update. Pure over slices, with the formulas of PyTorch's optimisers.
//!
//! The update already holds the minus sign and the learning rate: it is what the residual grows by.

use std::fmt;
use std::str::FromStr;

use multiversion::multiversion;

use crate::text_options::{TextOptions, serde_as_text, within};

/// A rule with its learning rate; text form `sgd:0.05,momentum=0.5`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Optimiser {
    /// The learning rate before the schedule's factor.
    pub learning_rate: f64,
    /// The rule.
    pub rule: Rule,
}

/// What is done with a gradient. `state` arrays are as long as the weights and start at zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// `u = -lr g`
    Sgd,
    /// `v = μ v + g`, `u = -lr v`
    Momentum {
        /// μ
        momentum: f32,
    },
    /// `v = μ v + g`, `u = -lr (g + μ v)`
    Nesterov {
        /// μ
        momentum: f32,
    },
    /// `s += g²`, `u = -lr g / (√s + ε)`
    AdaGrad {
        /// ε
        epsilon: f32,
    },
    /// `s = α s + (1 - α) g²`, `u = -lr g / (√s + ε)`
    RmsProp {
        /// α
        decay: f32,
        /// ε
        epsilon: f32,
    },
    /// Adam with both corrections for its zero start.
    Adam {
        /// β₁
        beta1: f32,
        /// β₂
        beta2: f32,
        /// ε
        epsilon: f32,
    },
}

impl Rule {
    /// How many state arrays the rule keeps.
    #[must_use]
    pub fn state_arrays(&self) -> usize {
        match self {
            Self::Sgd => 0,
            Self::Momentum { .. } | Self::Nesterov { .. } | Self::AdaGrad { .. } | Self::RmsProp { .. } => 1,
            Self::Adam { .. } => 2,
        }
    }

    /// Whether the rule's first state array is a velocity, along which weights can look ahead.
    #[must_use]
    pub fn has_velocity(&self) -> bool {
        matches!(self, Self::Momentum { .. } | Self::Nesterov { .. })
    }

    /// Whether a gradient of half the size makes an update of half the size; adaptive rules undo any scaling.
    #[must_use]
    pub fn follows_gradient_size(&self) -> bool {
        matches!(self, Self::Sgd | Self::Momentum { .. } | Self::Nesterov { .. })
    }

    /// Computes the updates of some weights: `gradient` is scaled by `clip` first; `step` counts from 1.
    ///
    /// `first` and `second` are the state of the same weights, empty where the rule keeps none. Works on any part of
    /// the weights, so that a caller can walk through all of them in blocks that stay in the cache.
    ///
    /// # Panics
    /// If the slices that the rule uses differ in length.
    pub fn update(&self, scale: Scale, gradient: &[f32], first: &mut [f32], second: &mut [f32], update: &mut [f32]) {
        assert_eq!(gradient.len(), update.len());
        let arrays = self.state_arrays();
        assert!(arrays < 1 || first.len() == gradient.len());
        assert!(arrays < 2 || second.len() == gradient.len());
        let Scale {
            learning_rate,
            clip,
            step,
            ahead,
        } = scale;
        match *self {
            Self::Sgd => sgd(-learning_rate * clip, gradient, update),
            Self::Momentum { momentum } => {
                with_velocity((0.0, learning_rate), momentum, clip, ahead, gradient, first, update);
            }
            Self::Nesterov { momentum } => {
                let weights = (learning_rate, learning_rate * momentum);
                with_velocity(weights, momentum, clip, ahead, gradient, first, update);
            }
            Self::AdaGrad { epsilon } => {
                scaled_by_squares(learning_rate, clip, (1.0, 1.0), epsilon, gradient, first, update);
            }
            Self::RmsProp { decay, epsilon } => {
                scaled_by_squares(
                    learning_rate,
                    clip,
                    (decay, 1.0 - decay),
                    epsilon,
                    gradient,
                    first,
                    update,
                );
            }
            Self::Adam { beta1, beta2, epsilon } => {
                let (rate, spread) = adam_corrections(learning_rate, beta1, beta2, step);
                let factors = AdamFactors {
                    rate,
                    spread,
                    beta1,
                    beta2,
                    epsilon,
                };
                adam(factors, clip, gradient, first, second, update);
            }
        }
    }
}

/// Adam's corrections for its zero start, at a step from 1: the rate to use, and what the root of the squares is
/// multiplied by.
#[must_use]
pub fn adam_corrections(learning_rate: f32, beta1: f32, beta2: f32, step: u64) -> (f32, f32) {
    let steps = step as f64;
    let rate = f64::from(learning_rate) / (1.0 - f64::from(beta1).powf(steps));
    let spread = 1.0 / (1.0 - f64::from(beta2).powf(steps)).sqrt();
    (rate as f32, spread as f32)
}

/// What varies from step to step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// The learning rate of this step, schedule included.
    pub learning_rate: f32,
    /// What the gradient is multiplied by before anything else: 1, or less where it was clipped.
    pub clip: f32,
    /// The number of this step, from 1.
    pub step: u64,
    /// How far the weights look ahead; only rules with a velocity do.
    pub ahead: Ahead,
}

impl Scale {
    /// Without looking ahead.
    #[must_use]
    pub const fn new(learning_rate: f32, clip: f32, step: u64) -> Self {
        Self {
            learning_rate,
            clip,
            step,
            ahead: Ahead {
                before: 0.0,
                after: 0.0,
            },
        }
    }
}

/// Weights may be kept ahead of what they have come to: at `w - ahead·v`, where the velocity will take them if it
/// lasts. An update then moves them from where they looked before to where they look after it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ahead {
    /// The multiple of the velocity that they are ahead before the update.
    pub before: f32,
    /// And after it.
    pub after: f32,
}

#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn sgd(rate: f32, gradient: &[f32], update: &mut [f32]) {
    for (u, &g) in update.iter_mut().zip(gradient) {
        *u = rate * g;
    }
}

/// `v = μ v + g`, `u = -(a g + b v)`, and from where the weights looked ahead to where they will.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn with_velocity(
    (of_gradient, of_velocity): (f32, f32),
    momentum: f32,
    clip: f32,
    ahead: Ahead,
    gradient: &[f32],
    velocity: &mut [f32],
    update: &mut [f32],
) {
    let of_velocity = of_velocity + ahead.after;
    for ((u, v), &g) in update.iter_mut().zip(velocity).zip(gradient) {
        let g = clip * g;
        let before = *v;
        *v = momentum * before + g;
        *u = ahead.before * before - (of_gradient * g + of_velocity * *v);
    }
}

#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn scaled_by_squares(
    rate: f32,
    clip: f32,
    (keep, take): (f32, f32),
    epsilon: f32,
    gradient: &[f32],
    squares: &mut [f32],
    update: &mut [f32],
) {
    for ((u, s), &g) in update.iter_mut().zip(squares).zip(gradient) {
        let g = clip * g;
        *s = keep * *s + take * (g * g);
        *u = -rate * g / (s.sqrt() + epsilon);
    }
}

#[derive(Clone, Copy)]
struct AdamFactors {
    rate: f32,
    spread: f32,
    beta1: f32,
    beta2: f32,
    epsilon: f32,
}

#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn adam(by: AdamFactors, clip: f32, gradient: &[f32], mean: &mut [f32], squares: &mut [f32], update: &mut [f32]) {
    for (((u, m), s), &g) in update.iter_mut().zip(mean).zip(squares).zip(gradient) {
        let g = clip * g;
        *m = by.beta1 * *m + (1.0 - by.beta1) * g;
        *s = by.beta2 * *s + (1.0 - by.beta2) * (g * g);
        *u = -by.rate * *m / (s.sqrt() * by.spread + by.epsilon);
    }
}

const FORMS: &str = "sgd:LR[,momentum=M[,nesterov]], adagrad:LR[,eps=E], rmsprop:LR[,decay=D][,eps=E], adam:LR[,beta1=B][,beta2=B][,eps=E]";

impl FromStr for Optimiser {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut options = TextOptions::parse(text);
        let rate = options.leading_number()?;
        // Judged as the `f32` that they are used as: 0.99999999 is 1 there, and a division by 0 would be near.
        let number = |options: &mut TextOptions<'_>, key: &str, default: f64| -> Result<f32, String> {
            let value = options.number(key)?.unwrap_or(default) as f32;
            match key {
                "eps" => within(key, f64::from(value), f64::from(f32::MIN_POSITIVE).., "above 0")?,
                _ => within(key, f64::from(value), 0.0..1.0, "at least 0 and below 1")?,
            };
            Ok(value)
        };
        let (default_rate, rule) = match options.name {
            "sgd" => {
                let momentum = number(&mut options, "momentum", 0.0)?;
                let rule = match (momentum, options.flag("nesterov")) {
                    (0.0, false) => Rule::Sgd,
                    (0.0, true) => {
                        return Err("nesterov needs a momentum above 0: sgd:LR,momentum=M,nesterov".into());
                    }
                    (momentum, false) => Rule::Momentum { momentum },
                    (momentum, true) => Rule::Nesterov { momentum },
                };
                (0.05, rule)
            }
            "adagrad" => (
                0.01,
                Rule::AdaGrad {
                    epsilon: number(&mut options, "eps", 1e-10)?,
                },
            ),
            "rmsprop" => {
                let decay = number(&mut options, "decay", 0.99)?;
                (
                    0.001,
                    Rule::RmsProp {
                        decay,
                        epsilon: number(&mut options, "eps", 1e-8)?,
                    },
                )
            }
            "adam" => {
                let beta1 = number(&mut options, "beta1", 0.9)?;
                let beta2 = number(&mut options, "beta2", 0.999)?;
                (
                    0.001,
                    Rule::Adam {
                        beta1,
                        beta2,
                        epsilon: number(&mut options, "eps", 1e-8)?,
                    },
                )
            }
            unknown => {
                return Err(format!("there is no optimiser '{unknown}'; use one of: {FORMS}"));
            }
        };
        options.finish(FORMS)?;
        let learning_rate = rate.unwrap_or(default_rate);
        if learning_rate <= 0.0 {
            return Err(format!("the learning rate must be above 0, not {learning_rate}"));
        }
        Ok(Self { learning_rate, rule })
    }
}

impl fmt::Display for Optimiser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.learning_rate;
        match self.rule {
            Rule::Sgd => write!(f, "sgd:{rate}"),
            Rule::Momentum { momentum } => write!(f, "sgd:{rate},momentum={momentum}"),
            Rule::Nesterov { momentum } => write!(f, "sgd:{rate},momentum={momentum},nesterov"),
            Rule::AdaGrad { epsilon } => write!(f, "adagrad:{rate},eps={epsilon}"),
            Rule::RmsProp { decay, epsilon } => {
                write!(f, "rmsprop:{rate},decay={decay},eps={epsilon}")
            }
            Rule::Adam { beta1, beta2, epsilon } => write!(f, "adam:{rate},beta1={beta1},beta2={beta2},eps={epsilon}"),
        }
    }
}

serde_as_text!(Optimiser);

#[cfg(test)]
mod tests {
    use super::*;

    /// Three steps with gradients 1, 2, -1 on one weight; the update of each.
    fn three_steps(text: &str) -> [f32; 3] {
        let optimiser: Optimiser = text.parse().unwrap();
        let (mut first, mut second) = ([0.0], [0.0]);
        let mut step = 0;
        [1.0, 2.0, -1.0].map(|g: f32| {
            step += 1;
            let scale = Scale::new(optimiser.learning_rate as f32, 0.5, step);
            let mut update = [f32::NAN];
            optimiser
                .rule
                .update(scale, &[2.0 * g], &mut first, &mut second, &mut update);
            update[0]
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
            let (mut plain, mut ahead) = ([1.0f32], [1.0f32]);
            let (mut velocity, mut same) = ([0.0], [0.0]);
            let mut before = 0.0;
            for (step, gradient) in (1..).zip([1.0f32, 2.0, -1.0, 0.5]) {
                let after = 0.125 * step as f32;
                let scale = Scale::new(0.1, 1.0, step);
                let looking = Scale {
                    ahead: Ahead { before, after },
                    ..scale
                };
                before = after;
                let mut update = [f32::NAN];
                rule.update(scale, &[gradient], &mut velocity, &mut [], &mut update);
                plain[0] += update[0];
                rule.update(looking, &[gradient], &mut same, &mut [], &mut update);
                ahead[0] += update[0];
                assert_eq!(velocity, same);
                assert!(
                    (ahead[0] + after * velocity[0] - plain[0]).abs() < 1e-6,
                    "{text}, step {step}"
                );
            }
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

    #[test]
    fn texts_round_trip() {
        for text in [
            "sgd:0.05",
            "sgd:0.05,momentum=0.5",
            "sgd:0.05,momentum=0.9,nesterov",
            "adagrad:0.01,eps=0.0001",
            "rmsprop:0.001,decay=0.99,eps=0.00000001",
            "adam:0.001,beta1=0.9,beta2=0.999,eps=0.00000001",
        ] {
            let optimiser: Optimiser = text.parse().unwrap();
            assert_eq!(optimiser.to_string(), text);
        }
        assert_eq!("adam".parse::<Optimiser>().unwrap().learning_rate, 0.001);
    }

    #[test]
    fn mistakes_are_named() {
        let error = |text: &str| text.parse::<Optimiser>().unwrap_err();
        assert!(error("sdg:0.1").contains("no optimiser 'sdg'"));
        assert!(error("sgd:fast").contains("no option 'fast'"));
        assert!(error("sgd:0.1,momentum=1").contains("below 1"));
        assert!(error("sgd:0").contains("above 0"));
        assert!(error("sgd:-1").contains("above 0"));
        assert!(error("sgd:0.1,moment=0.5").contains("no option 'moment=0.5'"));
        assert!(error("sgd:nan").contains("no option"));
        assert!(error("sgd:0.1,momentum=0.99999999").contains("below 1"));
        assert!(error("sgd:0.1,nesterov").contains("nesterov needs a momentum"));
        assert!(error("adam:0.1,eps=0").contains("above 0"));
        assert!(error("adam:0.1,beta1=x").contains("'x' is not a number"));
    }
}
