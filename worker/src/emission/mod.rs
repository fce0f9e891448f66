//! Emission: the worker's side of a strategy. An emission decides which part of the residual leaves as a batch, and
//! when.
//!
//! A worker trains on its own copy of the weights; the difference to the shared copy is its residual. After each step
//! the emission decides how much of the residual leaves as a batch. Replicas agree whatever it decides, because they
//! are sums of the batches that left. A new emission is one file here and one arm in [`of`].

mod rounds;
mod strom;
mod tau_controller;

use protocol::job::{Exchange, Job, PipelineSpec, RoundWeighting};
use protocol::log::batch::Payload;
use protocol::weights::lattice::{Range, Tau};

use crate::learning::multi_worker::Settings;
use crate::trainer::{TrainError, Trainer};
use protocol::weights::contribution::Contribution;

use self::rounds::InRounds;
use self::strom::Strom;

/// Facts about a worker's next training step, by which its [`Emission`] plans if a batch of weight changes leaves after
/// it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NextStep {
    pub learning_rate: f64,
    /// True if the node takes no batches of this worker at present: then no batch should leave after the step, if the
    /// emission can keep it back.
    pub throttle: bool,
    /// True if the header of the next batch has no room for the cursors (positions in the data) of another step, so
    /// that a batch must leave after this one.
    pub must_leave: bool,
    /// True if the step is the worker's last one in an epoch, after which some exchange strategies send a batch.
    pub ends_epoch: bool,
}

/// Decision, made before a training step, whether a batch of weight changes leaves the worker after the step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Plan {
    /// Plan: no batch leaves after the step; the header of a later batch counts the step's samples.
    Keep,
    /// Plan: a batch leaves after the step.
    Leave {
        /// The τ at which the device compares both copies of the weights while it updates them, which saves a separate
        /// pass. `None` if the device compares nothing in this step.
        compare: Option<Tau>,
    },
}

/// Contents of a batch of weight changes that is about to leave a worker.
#[derive(Clone, Debug, PartialEq)]
pub struct Leaving {
    pub payload: Payload,
    /// Result of the range check of the shared weights that this batch moved: an alarm if one of them is beyond ±8.
    pub range: Range,
}

/// Rule of an exchange strategy that decides which part of a worker's residual (learned, not sent yet) leaves as a
/// batch, and after which step.
pub trait Emission<T> {
    /// Returns the optimiser settings of one worker out of `slots` workers. They depend on the combination of the
    /// workers' updates: a sum or a mean.
    fn settings(&self, job: &Job, slots: usize) -> Settings;

    /// True if the next step can be made without a batch after it, with its changes kept in the residual: the worker
    /// does so while its batches are not taken.
    fn can_keep(&self) -> bool;

    fn plan(&mut self, next: NextStep) -> Plan;

    /// Makes the batch that leaves after a step for which [`Emission::plan`] returned [`Plan::Leave`]. `changes` are
    /// the changes that the device found by comparing at `compared`; the shared weights contain them already.
    fn leave(&mut self, trainer: &mut T, compared: Option<Tau>, changes: Vec<u32>) -> Result<Leaving, TrainError>;

    /// Returns the rule that sets the worker's contribution to a round; `None` if the worker does not wait for other
    /// workers' rounds after its own batch.
    fn weighting(&self) -> Option<RoundWeighting> {
        None
    }

    /// True if the step just made is followed by sequential averaging (strategy `stepwise`), without a batch: the
    /// worker then goes on from the mean of its own weights and those of the workers before it.
    fn passes(&mut self) -> bool {
        false
    }

    /// Sets the fraction of the difference between its own and the shared weights that the worker sends in its next
    /// batch. It follows from the losses that all workers have announced.
    fn agree(&mut self, _contribution: Contribution) {}

    /// Begins the next round, once the other workers' batches of the last one are applied or no longer waited for.
    /// `workers` is the number of workers whose contributions the next round combines.
    fn go_on(&mut self, _workers: u32) {}

    /// Returns the next batch that a worker must send when it has nothing to train, for now or for good; `None` if
    /// nothing is left to send. Called again and again until then.
    fn rest(&mut self, trainer: &mut T) -> Result<Option<Leaving>, TrainError>;

    /// True if a residual (learned, not sent yet) remains when [`Emission::rest`] returns `None`. A worker that leaves
    /// the run then sends it in batches of its own.
    fn keeps_residual(&self) -> bool {
        false
    }

    /// Returns the emission's internal numbers for the worker's saved state, from which [`Emission::restore`]
    /// continues.
    fn state(&self) -> Vec<f64>;

    /// Continues from the numbers of [`Emission::state`] when a worker resumes from its saved state; invalid numbers
    /// are ignored.
    fn restore(&mut self, state: &[f64]);
}

/// Creates the rule by which one of `slots` workers sends weight changes, as the job's exchange strategy asks, for a
/// model of `weights` weights.
#[must_use]
pub fn of<T: Trainer>(job: &Job, weights: usize, slots: usize) -> Box<dyn Emission<T>> {
    match job.exchange {
        Exchange::Strom(threshold) | Exchange::Layers(PipelineSpec { threshold, .. }) => {
            Box::new(Strom::new(threshold, job.optimiser.rule, weights, slots))
        }
        Exchange::Rounds(rounds) => Box::new(InRounds::new(rounds, weights, slots)),
    }
}
