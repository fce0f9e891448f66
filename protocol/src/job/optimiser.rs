//! Optimisers as a job names them: an update rule with its numbers. Workers carry the rule out.

use std::fmt;
use std::str::FromStr;

use crate::text_options::{TextOptions, serde_as_text, within};

/// Update rule with its learning rate and weight decay; as a text, `sgd:0.05,momentum=0.5`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Optimiser {
    /// Learning rate of the optimiser before the schedule's factor.
    pub learning_rate: f64,
    /// Rule by which the optimiser turns a gradient into an update of the weights.
    pub rule: Rule,
    /// Weight decay: in each step, every weight shrinks by this part of itself times the learning rate.
    pub weight_decay: f32,
    /// True if the job uses Muon and sets no learning rate, so that the rate is adapted to the run's number of steps.
    pub follows_steps: bool,
}

/// Update rule: from a gradient `g`, it computes the update `u` of the weights at the learning rate `lr`. State arrays
/// such as `v` and `s` are as long as the weights and start at zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// Update rule: plain gradient descent, `u = -lr g`.
    Sgd,
    /// Update rule: momentum, `v = μ v + g`, `u = -lr v`.
    Momentum {
        /// Momentum factor μ.
        momentum: f32,
    },
    /// Update rule: Nesterov momentum, `v = μ v + g`, `u = -lr (g + μ v)`.
    Nesterov {
        /// Momentum factor μ.
        momentum: f32,
    },
    /// Update rule: `AdaGrad`, `s += g²`, `u = -lr g / (√s + ε)`.
    AdaGrad {
        /// Small number ε that keeps the divisor of an update above zero.
        epsilon: f32,
    },
    /// Update rule: `RMSProp`, `s = α s + (1 - α) g²`, `u = -lr g / (√s + ε)`.
    RmsProp {
        /// Decay α of RMSProp's mean of squared gradients.
        decay: f32,
        /// Small number ε that keeps the divisor of an update above zero.
        epsilon: f32,
    },
    /// Update rule: Adam, with bias correction of both moments for their start at zero.
    Adam {
        /// Decay β₁ of Adam's mean gradient.
        beta1: f32,
        /// Decay β₂ of Adam's mean of squared gradients.
        beta2: f32,
        /// Small number ε that keeps the divisor of an update above zero.
        epsilon: f32,
    },
    /// Update rule: Muon, orthogonal updates for matrices, and Adam for all other weights.
    Muon(Muon),
}

/// Settings of Muon, whose update of a matrix is the matrix's velocity with all singular values made about equal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Muon {
    /// Momentum factor μ of Muon's velocity, `v = μ v + g`; the matrix that is made orthogonal is `g + μ v`.
    pub momentum: f32,
    /// Number of rows of a matrix (outputs of its layer) that Muon makes orthogonal together, as one block.
    pub block: u32,
    /// Number of Newton–Schulz iterations by which Muon makes a block of rows orthogonal.
    pub steps: u32,
    /// Number of steps in which each block of rows moves once. Blocks take turns, and each moves this many times as far
    /// as it would if it moved in every step.
    pub every: u32,
}

impl Default for Muon {
    fn default() -> Self {
        Self {
            momentum: 0.9,
            block: 64,
            steps: 5,
            every: 2,
        }
    }
}

impl fmt::Display for Muon {
    /// Writes those options of the update rule that differ from their defaults.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default = Self::default();
        if self.momentum != default.momentum {
            write!(f, ",momentum={}", self.momentum)?;
        }
        for (key, value, default) in [
            ("block", self.block, default.block),
            ("steps", self.steps, default.steps),
            ("every", self.every, default.every),
        ] {
            if value != default {
                write!(f, ",{key}={value}")?;
            }
        }
        Ok(())
    }
}

impl Rule {
    /// Returns the number of state arrays (such as velocities) that the update rule keeps, each as long as the weights.
    #[must_use]
    pub fn state_arrays(&self) -> usize {
        match self {
            Self::Sgd => 0,
            Self::Momentum { .. } | Self::Nesterov { .. } | Self::AdaGrad { .. } | Self::RmsProp { .. } => 1,
            Self::Adam { .. } | Self::Muon(_) => 2,
        }
    }

    /// True if the rule's first state array is a velocity, along which a worker can look ahead.
    #[must_use]
    pub fn has_velocity(&self) -> bool {
        matches!(self, Self::Momentum { .. } | Self::Nesterov { .. })
    }

    /// True if, under this update rule, a gradient of half the size makes an update of half the size; adaptive rules
    /// undo any scaling.
    #[must_use]
    pub fn follows_gradient_size(&self) -> bool {
        matches!(self, Self::Sgd | Self::Momentum { .. } | Self::Nesterov { .. })
    }
}

/// Number of steps of a run from which on a learning rate that the job does not set has its default; in shorter runs it
/// is higher. The number is about that of five epochs of MNIST.
const USUAL_STEPS: f64 = 4600.0;
/// Largest factor by which a learning rate that the job does not set is raised in a run of few steps. In a wide layer
/// of two inputs, a step ten times as long takes weights out of their range.
const LONGEST_STEPS: f64 = 4.0;

impl Optimiser {
    /// Update rule Adam with its default options.
    pub(crate) const ADAM: Self = Self {
        learning_rate: 0.001,
        rule: Rule::Adam {
            beta1: ADAM_BETA1,
            beta2: ADAM_BETA2,
            epsilon: ADAM_EPSILON,
        },
        weight_decay: 0.0,
        follows_steps: false,
    };

    /// Returns the optimiser for a run of `steps` steps of all workers together. If the job sets no learning rate, the
    /// rate is higher for fewer steps, because an orthogonal update has the length of its rate, however steep the loss
    /// is.
    #[must_use]
    pub fn for_steps(self, steps: u64) -> Self {
        if !self.follows_steps {
            return self;
        }
        let longer = (USUAL_STEPS / steps.max(1) as f64).sqrt().clamp(1.0, LONGEST_STEPS);
        Self {
            learning_rate: self.learning_rate * longer,
            follows_steps: false,
            ..self
        }
    }
}

/// Most rows of a matrix that Muon makes orthogonal as one block: larger blocks cost more than a step gains.
const BLOCK_MAX: u32 = 8192;
/// Most Newton–Schulz iterations of Muon: after ten nothing changes.
const STEPS_MAX: u32 = 10;
/// Largest value of Muon's option `every`: the number of steps in which the blocks of a matrix take turns, so that each
/// moves once.
const EVERY_MAX: u32 = 64;

const ADAM_BETA1: f32 = 0.9;
const ADAM_BETA2: f32 = 0.999;
const ADAM_EPSILON: f32 = 1e-8;

/// Weight decay of `adamw` if none is given, which is the usual default elsewhere.
const ADAMW_DECAY: f64 = 0.01;

/// Help text of the job key `optimiser`.
#[cfg(feature = "clap")]
pub(crate) const HELP: &str = "Optimiser: muon (orthogonal updates, for one worker or many) or \
     muon:LR,momentum=M,block=B,steps=S,every=N, sgd:LR,momentum=M,nesterov, adam:LR,beta1=B,beta2=B,eps=E, adamw \
     (adam with weight_decay=0.01), adagrad:LR,eps=E or rmsprop:LR,decay=D,eps=E, each with any of its options; sgd, \
     adam and muon also take weight_decay=W; without a learning rate LR, sgd takes 0.05, adagrad 0.01, adam and \
     rmsprop 0.001, muon 0.01 and up to 0.04 in runs of fewer than 4,600 steps [default: adam for short runs and \
     muon for others, with a learning rate by the number of steps]";

const FORMS: &str = "sgd:LR[,momentum=M[,nesterov]][,weight_decay=W], muon:LR[,momentum=M][,block=B][,steps=S][,every=N][,weight_decay=W], adam:LR[,beta1=B][,beta2=B][,eps=E][,weight_decay=W], adamw (adam with weight_decay=0.01), adagrad:LR[,eps=E], rmsprop:LR[,decay=D][,eps=E]";

impl FromStr for Optimiser {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut options = TextOptions::parse(text);
        let rate = options.leading_number()?;
        // Numbers are checked as the `f32` that they are used as: 0.99999999 becomes 1, which would lead to a division
        // by 0.
        let number = |options: &mut TextOptions<'_>, key: &str, default: f64| -> Result<f32, String> {
            let value = options.number(key)?.unwrap_or(default) as f32;
            match key {
                "eps" => within(key, f64::from(value), f64::from(f32::MIN_POSITIVE).., "above 0")?,
                _ => within(key, f64::from(value), 0.0..1.0, "at least 0 and below 1")?,
            };
            Ok(value)
        };
        let count = |options: &mut TextOptions<'_>, key: &str, default: u32, max: u32| -> Result<u32, String> {
            let value = options.number(key)?.unwrap_or(f64::from(default));
            let whole = value.fract() == 0.0 && (1.0..=f64::from(max)).contains(&value);
            if whole {
                Ok(value as u32)
            } else {
                Err(format!("{key} must be a whole number from 1 to {max}, not {value}"))
            }
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
            "adam" | "adamw" => {
                let beta1 = number(&mut options, "beta1", f64::from(ADAM_BETA1))?;
                let beta2 = number(&mut options, "beta2", f64::from(ADAM_BETA2))?;
                (
                    0.001,
                    Rule::Adam {
                        beta1,
                        beta2,
                        epsilon: number(&mut options, "eps", f64::from(ADAM_EPSILON))?,
                    },
                )
            }
            "muon" => {
                let default = Muon::default();
                let muon = Muon {
                    momentum: number(&mut options, "momentum", f64::from(default.momentum))?,
                    block: count(&mut options, "block", default.block, BLOCK_MAX)?,
                    steps: count(&mut options, "steps", default.steps, STEPS_MAX)?,
                    every: count(&mut options, "every", default.every, EVERY_MAX)?,
                };
                (0.01, Rule::Muon(muon))
            }
            unknown => {
                return Err(format!("there is no optimiser '{unknown}'; use one of: {FORMS}"));
            }
        };
        let is_adamw = options.name == "adamw";
        let weight_decay = match rule {
            // The accumulated squares would have to take the decay into account, too.
            Rule::AdaGrad { .. } | Rule::RmsProp { .. } => 0.0,
            // Decay is decoupled from the gradient with every rule: `adamw` is `adam` with the usual decay.
            _ if is_adamw => number(&mut options, "weight_decay", ADAMW_DECAY)?,
            _ => number(&mut options, "weight_decay", 0.0)?,
        };
        options.finish(FORMS)?;
        let follows_steps = rate.is_none() && matches!(rule, Rule::Muon(_));
        let learning_rate = rate.unwrap_or(default_rate);
        if learning_rate <= 0.0 {
            return Err(format!("the learning rate must be above 0, not {learning_rate}"));
        }
        Ok(Self {
            learning_rate,
            rule,
            weight_decay,
            follows_steps,
        })
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
            Rule::Adam { beta1, beta2, epsilon } => {
                write!(f, "adam:{rate}")?;
                let usual = [ADAM_BETA1, ADAM_BETA2, ADAM_EPSILON];
                for ((key, value), usual) in [("beta1", beta1), ("beta2", beta2), ("eps", epsilon)]
                    .into_iter()
                    .zip(usual)
                {
                    if value != usual {
                        write!(f, ",{key}={value}")?;
                    }
                }
                Ok(())
            }
            Rule::Muon(muon) if self.follows_steps => return f.write_str(&self.without_rate(muon)),
            Rule::Muon(muon) => write!(f, "muon:{rate}{muon}"),
        }?;
        f.write_str(&self.decay_text())
    }
}

impl Optimiser {
    fn decay_text(&self) -> String {
        match self.weight_decay {
            0.0 => String::new(),
            decay => format!(",weight_decay={decay}"),
        }
    }

    fn without_rate(&self, muon: Muon) -> String {
        let settings = format!("{muon}{}", self.decay_text());
        match settings.strip_prefix(',') {
            Some(settings) => format!("muon:{settings}"),
            None => "muon".into(),
        }
    }
}

serde_as_text!(Optimiser);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_that_is_left_open_is_higher_for_few_steps() {
        let rate = |text: &str, steps| text.parse::<Optimiser>().unwrap().for_steps(steps).learning_rate;
        assert_eq!(rate("muon", 4600), 0.01);
        assert_eq!(rate("muon", 1_000_000), 0.01);
        assert!((rate("muon", 460) / 0.01 - 10f64.sqrt()).abs() < 1e-9);
        assert!((rate("muon", 0) - 0.04).abs() < 1e-9);
        assert_eq!(rate("muon:0.02", 10), 0.02);
        assert_eq!(rate("sgd", 10), 0.05);
    }

    #[test]
    fn texts_round_trip() {
        for text in [
            "sgd:0.05",
            "sgd:0.05,momentum=0.5",
            "sgd:0.05,momentum=0.9,nesterov",
            "adagrad:0.01,eps=0.0001",
            "rmsprop:0.001,decay=0.99,eps=0.00000001",
            "adam:0.001",
            "adam:0.001,beta1=0.8,beta2=0.99,eps=0.0001,weight_decay=0.1",
            "muon",
            "muon:block=32,weight_decay=0.1",
            "muon:0.02",
            "muon:0.02,block=32,every=4",
            "muon:0.02,momentum=0.95,steps=3,every=1,weight_decay=0.01",
            "sgd:0.05,momentum=0.5,weight_decay=0.0001",
        ] {
            let optimiser: Optimiser = text.parse().unwrap();
            assert_eq!(optimiser.to_string(), text);
        }
        assert_eq!("adam".parse::<Optimiser>().unwrap().learning_rate, 0.001);
        for (text, same) in [
            ("adamw", "adam:0.001,weight_decay=0.01"),
            ("adamw:0.002,beta2=0.99", "adam:0.002,beta2=0.99,weight_decay=0.01"),
            ("adamw:0.002,weight_decay=0", "adam:0.002"),
        ] {
            assert_eq!(text.parse::<Optimiser>(), same.parse(), "{text}");
        }
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
        assert!(error("muon:0.1,block=0").contains("from 1 to 8192"));
        assert!(error("muon:0.1,steps=2.5").contains("whole number"));
        assert!(error("muon:0.1,weight_decay=-1").contains("at least 0"));
        assert!(error("rmsprop:0.1,weight_decay=0.1").contains("no option"));
        assert!(error("adam:0.1,beta1=x").contains("'x' is not a number"));
    }
}
