//! What leaves a worker, and when: the part of a strategy that is on the worker's side.
//!
//! A worker trains on its own weights; what these differ from the shared ones by is its residual. An emission decides how
//! much of the residual leaves as a batch after which step. Whatever it decides, replicas agree: they are sums of the
//! batches that left. A new emission is one file here, and one arm in [`of`].

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

/// What an emission knows of the step that comes next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NextStep {
    /// Its learning rate.
    pub learning_rate: f64,
    /// The node has enough to send: what would leave is to stay, if that can be.
    pub throttle: bool,
    /// The header of the next batch has no room for the cursors of another step, so a batch must leave after this one.
    pub must_leave: bool,
    /// It is the last of an epoch for this worker.
    pub ends_epoch: bool,
}

/// What an emission decides before a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Plan {
    /// Nothing leaves after it; a later batch counts its samples.
    Keep,
    /// A batch leaves after it.
    Leave {
        /// The device compares both copies at this size while it updates the weights, which spares a pass of its own.
        compare: Option<Tau>,
    },
}

/// What leaves as a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Leaving {
    pub payload: Payload,
    /// How far out the weights are that moved since the step was made.
    pub range: Range,
}

/// What leaves one worker, and when.
pub trait Emission<T> {
    /// How one of so many workers learns when this is how their updates come together.
    fn settings(&self, job: &Job, slots: usize) -> Settings;

    /// Whether a step can be made now after which nothing leaves.
    fn can_keep(&self) -> bool;

    /// Decides on the next step.
    fn plan(&mut self, next: NextStep) -> Plan;

    /// What leaves after a step that was planned so. `changes` are the changes that the device found by comparing; they are
    /// in the shared weights already.
    fn leave(&mut self, trainer: &mut T, compared: Option<Tau>, changes: Vec<u32>) -> Result<Leaving, TrainError>;

    /// Which part of the difference a worker lets out, where it waits for the others' rounds after a batch of its own.
    fn weighting(&self) -> Option<RoundWeighting> {
        None
    }

    /// Whether a step was made after which this worker goes on from others' means, though nothing leaves.
    fn passes(&mut self) -> bool {
        false
    }

    /// The next batch is to hold this contribution, by the losses of all.
    fn agree(&mut self, _contribution: Contribution) {}

    /// The others' rounds are in the weights, or are not waited for; so many workers make the next one together.
    fn go_on(&mut self, _workers: u32) {}

    /// What still has to leave when there is nothing to train, for now or for good. It is asked until there is nothing.
    fn rest(&mut self, trainer: &mut T) -> Result<Option<Leaving>, TrainError>;

    /// Whether a residual stays when nothing is left to say, which a worker that leaves has to let out by itself.
    fn keeps_residual(&self) -> bool {
        false
    }

    /// Its few numbers, for another to go on from.
    fn state(&self) -> Vec<f64>;

    /// Goes on from another's numbers; those that make no sense are passed over.
    fn restore(&mut self, state: &[f64]);
}

/// The emission that a job asks for, for a model of so many weights and one of so many workers.
#[must_use]
pub fn of<T: Trainer>(job: &Job, weights: usize, slots: usize) -> Box<dyn Emission<T>> {
    match job.exchange {
        Exchange::Strom(threshold) | Exchange::Layers(PipelineSpec { threshold, .. }) => {
            Box::new(Strom::new(threshold, job.optimiser.rule, weights, slots))
        }
        Exchange::Rounds(rounds) => Box::new(InRounds::new(rounds, weights, slots)),
    }
}
