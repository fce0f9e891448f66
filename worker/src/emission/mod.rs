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
        /// The τ for which the device, while it updates the worker's own weights, also looks for differences of τ or
        /// more from the shared weights; this saves a separate pass. `None` if it compares nothing in this step.
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

    /// True if the worker may make its next step without sending a batch after it: the step's changes then stay in the
    /// residual. A worker does so while its node takes no batches.
    fn can_keep(&self) -> bool;

    fn plan(&mut self, next: NextStep) -> Plan;

    /// Makes the batch that the worker sends after a step for which [`Emission::plan`] returned [`Plan::Leave`]. If the
    /// device compared own and shared weights during the step, `compared` is the τ of that comparison, and `changes`
    /// are the changes that it found and already applied to the shared weights.
    fn leave(&mut self, trainer: &mut T, compared: Option<Tau>, changes: Vec<u32>) -> Result<Leaving, TrainError>;

    /// Returns the rule that decides which fraction of its changes each worker contributes to a round; `None` if a
    /// worker trains on after its batch without waiting for the other workers' batches of the round.
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

    /// Returns the numbers that this rule must remember when the worker saves its state; [`Emission::restore`] takes
    /// them back.
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
