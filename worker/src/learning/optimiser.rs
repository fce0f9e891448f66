//! Optimisers: how a gradient becomes an update. Pure over slices, with the formulas of PyTorch's optimisers.
//!
//! The update already holds the minus sign and the learning rate: it is what the residual grows by.

use multiversion::multiversion;
use protocol::optimiser::Rule;

/// Computes the updates of some weights: `gradient` is scaled by `clip` first; `step` counts from 1.
///
/// `first` and `second` are the state of the same weights, empty where the rule keeps none. Works on any part of
/// the weights, so that a caller can walk through all of them in blocks that stay in the cache.
///
/// # Panics
/// If the slices that the rule uses differ in length.
pub fn update(rule: Rule, scale: Scale, gradient: &[f32], first: &mut [f32], second: &mut [f32], update: &mut [f32]) {
    assert_eq!(gradient.len(), update.len());
    let arrays = rule.state_arrays();
    assert!(arrays < 1 || first.len() == gradient.len());
    assert!(arrays < 2 || second.len() == gradient.len());
    let Scale {
        learning_rate,
        clip,
        step,
        ahead,
    } = scale;
    match rule {
        Rule::Sgd => sgd(-learning_rate * clip, gradient, update),
        Rule::Momentum { momentum } => {
            with_velocity((0.0, learning_rate), momentum, clip, ahead, gradient, first, update);
        }
        Rule::Nesterov { momentum } => {
            let weights = (learning_rate, learning_rate * momentum);
            with_velocity(weights, momentum, clip, ahead, gradient, first, update);
        }
        Rule::AdaGrad { epsilon } => {
            scaled_by_squares(learning_rate, clip, (1.0, 1.0), epsilon, gradient, first, update);
        }
        Rule::RmsProp { decay, epsilon } => {
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
        Rule::Adam { beta1, beta2, epsilon } => {
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

#[cfg(test)]
mod tests {
    use protocol::optimiser::Optimiser;

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
            super::update(optimiser.rule, scale, &[2.0 * g], &mut first, &mut second, &mut update);
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
                super::update(rule, scale, &[gradient], &mut velocity, &mut [], &mut update);
                plain[0] += update[0];
                super::update(rule, looking, &[gradient], &mut same, &mut [], &mut update);
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
}
