//! Adjusts a job's settings to several workers that train at once. A job describes the training of one worker; a lone
//! worker uses its settings unchanged.
//!
//! Updates of n workers add up, so in one round the weights move n times as far as in one step of a lone worker, and a
//! worker's momentum, which decays with its own steps, remembers n times as many samples. Both overshoot. So momentum
//! forgets sooner, at the same total weight of each gradient; the newest gradient weighs more (Nesterov's form), which
//! answers a change of direction a round earlier; gradients are clipped, and computed where the velocity will have
//! taken the weights by the time that they arrive. That calms updates enough for larger ones.

use protocol::job::Job;
use protocol::job::clip::Clip;
use protocol::job::optimiser::{Muon, Optimiser, Rule};

/// Norm to which a worker clips its gradients if several workers train and the job leaves clipping automatic.
const NORM: f64 = 1.0;
/// Number of updates by which several workers look ahead: each computes gradients where its velocity would take the
/// weights after these updates.
const LOOK_AHEAD: f64 = 2.0;
/// Factor on the learning rate of several workers: looking ahead along the velocity allows longer steps.
const RATE_FACTOR: f64 = 1.5;
/// Factor on the learning rate of Muon's orthogonal updates with several workers. It makes up for the smaller progress
/// of each step: the momentum is shorter than with one worker, and the workers' updates partly cancel.
const ORTHOGONAL_RATE_FACTOR: f64 = 2.0;

/// Largest number of steps over which one comparison of all weights with the shared weights is spread, a part per step.
/// With four steps, three quarters of the changes are found and sent one to three steps later, which costs little where
/// few workers make many steps each.
pub const TURNS_MAX: usize = 4;
/// Largest number of workers that spread a comparison of all their weights over [`TURNS_MAX`] steps. With more workers,
/// each makes fewer steps and spreads it over fewer.
const WORKERS_TAKING_TURNS: usize = 10;

/// Training settings of one worker, adapted to the number of workers of the run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Optimiser that turns the worker's gradients into updates.
    pub optimiser: Optimiser,
    /// Norm to which the worker clips its gradients; `None` if it does not clip.
    pub clip: Option<f64>,
    /// Number of updates by which the worker looks ahead: it computes gradients where its velocity would take the
    /// weights.
    pub look_ahead: f64,
    /// Number of steps over which the worker spreads one comparison of all its own weights with the shared weights: in
    /// each step it compares a part of them.
    pub turns: usize,
    /// True if the staleness guard shortens steps when other workers' batches arrive late.
    pub is_guarded: bool,
}

impl Settings {
    /// Returns the settings of a lone worker. They also suit one of several workers whose updates are averaged.
    #[must_use]
    pub fn alone(job: &Job) -> Self {
        Self {
            is_guarded: false,
            ..Self::adding_up(job, 1)
        }
    }

    /// Returns the training settings of one of `slots` workers whose updates add up. Momentum, clipping, look-ahead and
    /// the number of steps per comparison of all weights depend on the number of workers.
    #[must_use]
    pub fn adding_up(job: &Job, slots: usize) -> Self {
        Self {
            optimiser: optimiser_among(job.optimiser, slots),
            clip: clip_among(job.clip, slots),
            look_ahead: look_ahead_among(slots),
            turns: turns_among(slots),
            is_guarded: true,
        }
    }
}

/// Adapts an optimiser to one of `slots` workers whose updates add up: with several workers, a momentum is shortened
/// and the learning rate may change.
fn optimiser_among(optimiser: Optimiser, slots: usize) -> Optimiser {
    if slots <= 1 {
        return optimiser;
    }
    let Optimiser {
        learning_rate, rule, ..
    } = optimiser;
    match rule {
        Rule::Momentum { momentum } | Rule::Nesterov { momentum } => {
            let shorter = shorter_memory(momentum, slots);
            Optimiser {
                // Keeps the total movement that a gradient causes, over all steps that remember it, in the same ratio
                // for any number of workers.
                learning_rate: RATE_FACTOR * learning_rate * f64::from(1.0 - shorter) / f64::from(1.0 - momentum),
                rule: Rule::Nesterov { momentum: shorter },
                ..optimiser
            }
        }
        Rule::Adam { beta1, beta2, epsilon } => Optimiser {
            rule: Rule::Adam {
                beta1: shorter_memory(beta1, slots),
                beta2,
                epsilon,
            },
            ..optimiser
        },
        Rule::Muon(muon) => Optimiser {
            learning_rate: ORTHOGONAL_RATE_FACTOR * learning_rate,
            rule: Rule::Muon(Muon {
                momentum: shorter_memory(muon.momentum, slots),
                ..muon
            }),
            ..optimiser
        },
        Rule::Sgd | Rule::AdaGrad { .. } | Rule::RmsProp { .. } => optimiser,
    }
}

/// Returns the number of updates by which each of `slots` workers looks ahead along its velocity when it computes
/// gradients.
fn look_ahead_among(slots: usize) -> f64 {
    if slots > 1 { LOOK_AHEAD } else { 0.0 }
}

/// Returns the number of steps over which each of `slots` workers spreads one comparison of all its weights with the
/// shared copy.
fn turns_among(slots: usize) -> usize {
    (TURNS_MAX * WORKERS_TAKING_TURNS / slots.max(1)).clamp(1, TURNS_MAX)
}

/// Returns the norm to which each of `slots` workers clips its gradients; `None` for no clipping. Automatic clipping
/// only applies to several workers.
fn clip_among(clip: Clip, slots: usize) -> Option<f64> {
    match clip {
        Clip::Auto if slots > 1 => Some(NORM),
        Clip::Auto | Clip::Never => None,
        Clip::Norm(norm) => Some(norm),
    }
}

/// Returns the momentum of one of `slots` workers, shortened because all workers' updates add up. A momentum μ
/// remembers about 1 / (1 - μ) steps, the present one included. Of the earlier steps, one in √n is kept: half-way
/// between the same number of steps and the same number of samples.
fn shorter_memory(momentum: f32, slots: usize) -> f32 {
    let before = f64::from(momentum) / (1.0 - f64::from(momentum));
    let kept = before / (slots as f64).sqrt();
    (kept / (1.0 + kept)) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn among(text: &str, slots: usize) -> Optimiser {
        optimiser_among(text.parse().unwrap(), slots)
    }

    #[test]
    fn alone_nothing_changes() {
        for text in [
            "sgd:0.05,momentum=0.9",
            "adam:0.001",
            "rmsprop:0.001",
            "sgd:0.1",
            "muon:0.01",
        ] {
            assert_eq!(among(text, 1), text.parse().unwrap());
            assert_eq!(among(text, 0), text.parse().unwrap());
        }
        assert_eq!(clip_among(Clip::Auto, 1), None);
    }

    #[test]
    fn memory_shrinks_and_the_total_weight_of_a_gradient_stays() {
        let mut last = 0.9;
        for slots in [2, 3, 10, 100] {
            let optimiser = among("sgd:0.05,momentum=0.9", slots);
            let Rule::Nesterov { momentum } = optimiser.rule else {
                panic!("{optimiser}");
            };
            assert!(momentum < last);
            last = momentum;
            assert!((optimiser.learning_rate / f64::from(1.0 - momentum) - 0.5 * RATE_FACTOR).abs() < 1e-6);
        }
        // Nine steps before the present one become three.
        let Rule::Nesterov { momentum } = among("sgd:0.05,momentum=0.9", 9).rule else {
            panic!();
        };
        assert!((momentum - 0.75).abs() < 1e-6);
    }

    #[test]
    fn other_rules_keep_their_rate_and_their_state() {
        for text in [
            "adam:0.001",
            "adagrad:0.01",
            "rmsprop:0.001",
            "sgd:0.1",
            "sgd:0.1,momentum=0.5",
        ] {
            let optimiser: Optimiser = text.parse().unwrap();
            let many = among(text, 10);
            assert_eq!(many.rule.state_arrays(), optimiser.rule.state_arrays());
        }
        assert_eq!(among("sgd:0.1", 10), "sgd:0.1".parse().unwrap());
        let muon = among("muon:0.01,momentum=0.9,weight_decay=0.1", 9);
        assert_eq!((muon.learning_rate, muon.weight_decay), (0.02, 0.1));
        assert!(matches!(muon.rule, Rule::Muon(muon) if (muon.momentum - 0.75).abs() < 1e-6));
        let Rule::Adam { beta1, .. } = among("adam:0.001", 9).rule else {
            panic!();
        };
        assert!((beta1 - 0.75).abs() < 1e-6);
    }

    #[test]
    fn many_workers_take_fewer_turns() {
        assert_eq!([0, 1, 10, 13, 16, 32, 1000].map(turns_among), [4, 4, 4, 3, 2, 1, 1]);
    }

    #[test]
    fn what_a_user_says_of_clipping_holds() {
        assert_eq!(clip_among(Clip::Auto, 2), Some(NORM));
        for slots in [1, 10] {
            assert_eq!(clip_among(Clip::Never, slots), None);
            assert_eq!(clip_among(Clip::Norm(5.0), slots), Some(5.0));
        }
    }
}
