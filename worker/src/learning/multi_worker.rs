//! What a job's settings become when several workers train at once. A job says what one worker would do; alone it
//! does exactly that.
//!
//! Updates of n workers add up, so in one round the weights move n times as far as in one step of a lone worker, and a
//! worker's momentum, which forgets after so many of its own steps, remembers n times as many samples. Both overshoot.
//! So momentum forgets sooner, at the same total weight of each gradient; the newest gradient weighs more
//! (Nesterov's form), which answers a change of direction a round earlier; gradients are clipped, and computed where
//! the velocity will have taken the weights by the time that they arrive. That calms updates enough for larger ones.

use protocol::job::Job;
use protocol::job::clip::Clip;
use protocol::job::optimiser::{Muon, Optimiser, Rule};

/// The norm that gradients are clipped to among several workers when the job leaves it open.
const NORM: f64 = 1.0;
/// How many updates of the present velocity gradients are computed ahead, among several workers.
const LOOK_AHEAD: f64 = 2.0;
/// What looking ahead lets the learning rate be multiplied by.
const RATE_FACTOR: f64 = 1.5;
/// What the learning rate of orthogonal updates is multiplied by among several workers: shortened momentum and what other
/// workers add in other directions calm them more than one worker alone.
const ORTHOGONAL_RATE_FACTOR: f64 = 2.0;

/// How many parts of the weights take turns in being compared, at most. A turn is a delay of one more step for three
/// quarters of the changes, which is little among the many steps of few workers.
pub const TURNS_MAX: usize = 4;
/// The most workers that take so many turns; more of them, which make fewer steps each, take fewer.
const WORKERS_TAKING_TURNS: usize = 10;

/// How one worker among others learns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// How its gradients become updates.
    pub optimiser: Optimiser,
    /// The norm that its gradients are clipped to.
    pub clip: Option<f64>,
    /// How many updates of the present velocity it computes gradients ahead.
    pub look_ahead: f64,
    /// How many parts of the weights take turns in being compared.
    pub turns: usize,
    /// Whether steps become shorter where others' batches come late.
    pub is_guarded: bool,
}

impl Settings {
    /// As one worker alone, though there may be others: what counts is the mean of their updates.
    #[must_use]
    pub fn alone(job: &Job) -> Self {
        Self {
            is_guarded: false,
            ..Self::adding_up(job, 1)
        }
    }

    /// For one of so many workers whose updates add up.
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

/// The optimiser of one worker among so many.
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
                // What a gradient moves in all, over all the steps that remember it, has the same ratio for all.
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

/// How many updates of the present velocity one worker among so many computes its gradients ahead.
fn look_ahead_among(slots: usize) -> f64 {
    if slots > 1 { LOOK_AHEAD } else { 0.0 }
}

/// How many parts of the weights take turns among so many workers.
fn turns_among(slots: usize) -> usize {
    (TURNS_MAX * WORKERS_TAKING_TURNS / slots.max(1)).clamp(1, TURNS_MAX)
}

/// The norm that one worker among so many clips its gradients to.
fn clip_among(clip: Clip, slots: usize) -> Option<f64> {
    match clip {
        Clip::Auto if slots > 1 => Some(NORM),
        Clip::Auto | Clip::Never => None,
        Clip::Norm(norm) => Some(norm),
    }
}

/// A momentum remembers about 1 / (1 - μ) steps, the present one among them. Of the steps before it, one in √n is kept:
/// half-way between the same number of steps and the same number of samples.
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
