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

/// Thread time since the last step, divided into training and exchange.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTime {
    /// Time of loading, forward and backward pass, clipping, and a plain optimiser's pass.
    pub training: Duration,
    /// Thread time since the last step that was not training, waits included.
    pub exchange: Duration,
    /// Part of `exchange` (the time that is not training) in which the worker waited for the rounds of other workers.
    pub waited: Duration,
}

/// Message to the thread that trains.
#[derive(Clone, Debug)]
pub enum ToTraining {
    /// Order to the training thread: apply another worker's batch.
    Apply(Arc<Batch>),
    /// Order to the training thread: apply one batch of each of several other workers, as one sum (a bundle).
    ApplyBundle(Arc<Bundle>),
    /// Order to the training thread: apply the sum of many batches, to catch up.
    Jump(Arc<Sums>, Arc<JumpOrder>),
    /// Order to the training thread: send no batches for now, because the node has enough to send (`true`), or send
    /// them again (`false`).
    Pause(bool),
    /// Message to the training thread: an origin (one life of another worker) no longer emits batches, or does so
    /// again.
    Origin {
        origin: OriginId,
        /// True if the origin (one life of another worker) emits batches; false if it is dead or out of reach.
        alive: bool,
    },
    /// Message to the training thread: a slot (a share of the samples) has lost its worker, or has one again.
    Slot {
        slot: usize,
        /// True if the slot (a share of the samples) has a worker.
        alive: bool,
    },
    /// Order to the training thread: go on in a round, because all workers that this one waits for have reached the
    /// same point of it.
    GoOn(GoOn),
    /// Order to the training thread: go on after a sequential averaging step, from the mean of this many workers'
    /// differences, if there is a sum of them.
    GoOnPassing(Option<Arc<(Dense, u32)>>),
    /// Order to the training thread: send a copy of the shared weights, to be evaluated as those of this moment.
    Copy(Moment),
    /// Order to the training thread: send a copy of the run's last weights. Once they are evaluated, the order how to
    /// end goes to this channel.
    CopyLast(Moment, SyncSender<ToTraining>),
    /// Order to the training thread: send the worker's own state (residual and optimiser state), which is saved in this
    /// file.
    Save(PathBuf),
    /// Order to the training thread: take no further step, and end the worker's stream of batches (its origin).
    Stop,
    /// Order to the training thread: leave the run, which goes on. Take no further step, send what was learned, and end
    /// the stream of batches.
    Leave,
    /// Order to the training thread: take no further step, but leave the stream of batches open for a later order.
    StandBy,
    /// Order to the training thread: move the weights back to these earlier ones, and end the stream of batches.
    GoBack(Vec<f32>),
    /// Order to the training thread, after all batches have come: report the digest of the weights once the stream of
    /// batches has ended, and send the weights if they are to be saved.
    Finish(Option<SaveOrder>),
    /// Message to the training thread: an event in the pipeline that this worker belongs to.
    Pipeline(PipelineEvent),
}

/// Message from the thread that trains.
#[derive(Debug)]
pub enum FromTraining {
    /// Message from the training thread: a step was made.
    Step {
        /// Batch that leaves with the step, in encoded form; `None` if none left.
        encoded: Option<Vec<u8>>,
        step: Step,
        /// Thread time since the last step, divided into training and exchange.
        time: StepTime,
    },
    /// Message from the training thread: the worker has reached a sequential averaging step. The bytes are its encoded
    /// difference from the shared weights, to which its node adds those of the workers before it.
    Prefix(Vec<u8>),
    /// Message from the training thread to another worker of the pipeline.
    Flow(Flow),
    /// Message from the training thread: scores of the weights of the whole pipeline at a moment.
    Measured(Evaluation),
    /// Message from the training thread: the worker has had nothing to train for a while. It waits for these samples,
    /// which other workers have.
    Starved(Vec<Missing>),
    /// Message from the training thread: the worker has samples to train again.
    Fed,
    /// Message from the training thread, once per second: the norm of the residual, learned and not sent yet.
    ResidualNorm(f64),
    /// Message from the training thread: a copy of the shared weights for an evaluation at this moment; the evaluation
    /// may be skipped.
    Weights(Vec<f32>, Moment),
    /// Message from the training thread: a copy of the shared weights for an evaluation that must not be skipped. With
    /// a channel, these are the run's last weights, and the result decides how training ends: the order goes to that
    /// channel.
    WeightsInTurn(Vec<f32>, Moment, Option<SyncSender<ToTraining>>),
    /// Message from the training thread: the worker's own state (residual and optimiser state), as it was after its
    /// last reported batch.
    State {
        path: PathBuf,
        /// Worker's own state to be saved; `None` if its stream of batches has ended.
        state: Option<Box<State>>,
    },
    /// Message from the training thread: the worker's stream of batches has ended, because training is complete or was
    /// stopped. Other workers' batches are still applied.
    Closed(Closing),
    /// Message from the training thread: all batches are applied. This answers [`ToTraining::Finish`].
    Finished {
        /// Digest (checksum of a replica) recomputed from the weights; `None` if one of them is not a possible value of
        /// a shared weight.
        digest: Option<Digest>,
        /// Order to save the final model, with its weights; `None` if this worker does not save it.
        save: Option<(SaveOrder, Vec<f32>)>,
        /// Scores of the whole model with the final weights, if this worker holds a pipeline stage and the pipeline
        /// could be evaluated.
        scores: Option<Scores>,
    },
    Failed(TrainingError),
}

/// End of a worker's stream of batches (its origin): the closing batch and the dropped residual.
#[derive(Clone, Debug)]
pub struct Closing {
    /// Encoded batch that ends the worker's stream of batches.
    pub encoded: Vec<u8>,
    /// Norm of the residual at the end: the part of the learned difference that has never left, and is dropped now.
    pub residual_norm: f64,
}
