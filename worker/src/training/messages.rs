//! The messages between a training loop and the rest of the worker.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use protocol::ids::OriginId;
use protocol::log::batch::Batch;
use protocol::log::bundle::Bundle;
use protocol::stats::measured::{Evaluation, Moment, Scores};
use protocol::weights::dense::Dense;
use protocol::weights::digest::Digest;
use protocol::weights::sums::Sums;
use protocol::wire::attach::{GoOn, JumpOrder, Missing, SaveOrder};
use protocol::wire::flow::Flow;

use super::{State, Step, TrainingError};
use crate::pipeline::PipelineEvent;

/// Thread time since the last step, divided by its purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTime {
    /// Time of loading, forward and backward pass, clipping, and a plain optimiser's pass.
    pub training: Duration,
    /// All other time, waits included.
    pub exchange: Duration,
    /// The part of `exchange` in which the worker waited for other workers' rounds.
    pub waited: Duration,
}

/// A message to the training thread.
#[derive(Clone, Debug)]
pub enum ToTraining {
    /// Apply another origin's batch.
    Apply(Arc<Batch>),
    /// Apply a bundle of several other origins' batches.
    ApplyBundle(Arc<Bundle>),
    /// Apply the sum of many batches.
    Jump(Arc<Sums>, Arc<JumpOrder>),
    /// Throttle the worker, or stop throttling it.
    Pause(bool),
    /// An origin no longer emits batches, or does so again.
    Origin {
        origin: OriginId,
        /// True if the origin emits batches.
        alive: bool,
    },
    /// A slot has lost its worker, or has one again.
    Slot {
        slot: usize,
        /// True if the slot has a worker.
        alive: bool,
    },
    /// Continue in a round: all workers that the barrier waits for have reached the same point of it.
    GoOn(GoOn),
    /// Continue after a sequential averaging step, from the mean of this many workers' differences if there is a sum of
    /// them.
    GoOnPassing(Option<Arc<(Dense, u32)>>),
    /// Send a copy of the shared weights for an evaluation at this moment.
    Copy(Moment),
    /// Send a copy of the last weights. Once they are evaluated, the order how to end goes to this channel.
    CopyLast(Moment, SyncSender<ToTraining>),
    /// Send the worker's own state, which is saved in this file.
    Save(PathBuf),
    /// Take no further step, and close the origin, the worker's stream of batches.
    Stop,
    /// Take no further step; emit the residual and close the origin, while the run goes on.
    Leave,
    /// Take no further step, but leave the origin, the worker's stream of batches, open.
    StandBy,
    /// Move the weights back to these, and close the origin.
    GoBack(Vec<f32>),
    /// All batches have come: report the digest once the origin is closed, and send the weights if they are to be
    /// saved.
    Finish(Option<SaveOrder>),
    /// A message for the pipeline that this worker is in.
    Pipeline(PipelineEvent),
}

/// A message from the training thread.
#[derive(Debug)]
pub enum FromTraining {
    /// A step was made.
    Step {
        /// The batch in its encoded form, if one left.
        encoded: Option<Vec<u8>>,
        /// The record of the step.
        step: Step,
        /// Thread time since the last step.
        time: StepTime,
    },
    /// The worker has reached a sequential averaging step. This is its prefix, the sum of differences that it
    /// contributes, as the contents of a frame.
    Prefix(Vec<u8>),
    /// A message for another worker of the pipeline.
    Flow(Flow),
    /// Scores of the weights of the whole pipeline at a moment.
    Measured(Evaluation),
    /// The worker has had nothing to train for a while, and waits for these samples.
    Starved(Vec<Missing>),
    /// The worker has samples to train again.
    Fed,
    /// The norm of the residual, reported once per second.
    ResidualNorm(f64),
    /// A copy of the shared weights for an evaluation at this moment; the evaluation may be skipped.
    Weights(Vec<f32>, Moment),
    /// A copy of the shared weights for an evaluation that must not be skipped. With a channel, these are the last
    /// weights, and the result decides how training ends: the order goes to that channel.
    WeightsInTurn(Vec<f32>, Moment, Option<SyncSender<ToTraining>>),
    /// The worker's own state, as it was after its last reported batch.
    State {
        /// The file to write.
        path: PathBuf,
        /// `None` if the origin is closed.
        state: Option<Box<State>>,
    },
    /// The origin is closed: training is complete or was stopped. Other workers' batches are still applied.
    Closed(Closing),
    /// All batches are applied. This answers [`ToTraining::Finish`].
    Finished {
        /// The digest recomputed from the weights; `None` if a weight has left the lattice.
        digest: Option<Digest>,
        /// The order to save and the weights, if this worker saves them.
        save: Option<(SaveOrder, Vec<f32>)>,
        /// Scores of the weights, if these are a stage and its pipeline could be evaluated.
        scores: Option<Scores>,
    },
    Failed(TrainingError),
}

/// The end of an origin: its closing batch and its dropped residual.
#[derive(Clone, Debug)]
pub struct Closing {
    /// The encoded batch that closes the origin.
    pub encoded: Vec<u8>,
    /// Norm of the residual: changes that were learned, have never left, and are dropped now.
    pub residual_norm: f64,
}
