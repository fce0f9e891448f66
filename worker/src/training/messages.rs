//! What a training loop is told, and what it tells.

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

/// Thread time since the last step, by what it was spent on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTime {
    /// Loading, forward, backward, clipping and what a plain optimiser would take.
    pub training: Duration,
    /// All else, waits included.
    pub exchange: Duration,
    /// The part of that in which others' rounds were waited for.
    pub waited: Duration,
}

/// What is told to the training thread.
#[derive(Clone, Debug)]
pub enum ToTraining {
    /// Another origin's batch.
    Apply(Arc<Batch>),
    /// Batches of several other origins, as one.
    ApplyBundle(Arc<Bundle>),
    /// What came other than as batches.
    Jump(Arc<Sums>, Arc<JumpOrder>),
    /// Whether the worker is throttled.
    Pause(bool),
    /// An origin that sends no batches any more, or does so again.
    Origin {
        origin: OriginId,
        /// Whether it goes on with what it began.
        alive: bool,
    },
    /// A slot that has lost its worker, or has one again.
    Slot {
        slot: usize,
        /// Whether it has one.
        alive: bool,
    },
    /// All others that are waited for have come to this worker's round.
    GoOn(GoOn),
    /// Go on with the pass, from the mean of so many workers' differences if there is one.
    GoOnPassing(Option<Arc<(Dense, u32)>>),
    /// Hand out a copy of the weights, which are of this moment.
    Copy(Moment),
    /// The same where this worker stands by: it is told there how to end, once they are measured.
    CopyLast(Moment, SyncSender<ToTraining>),
    /// Hand out what this worker alone has, for a file.
    Save(PathBuf),
    /// Take no further step; close the origin.
    Stop,
    /// Take no further step; let out the residual and close the origin, while the run goes on.
    Leave,
    /// Take no further step; leave the origin open.
    StandBy,
    /// Move the weights back to these, and close the origin.
    GoBack(Vec<f32>),
    /// All batches have come: tell the digest once the origin is closed, and hand out the weights if they are to be saved.
    Finish(Option<SaveOrder>),
    /// A message of the pipeline that this worker is in.
    Pipeline(PipelineEvent),
}

/// What the training thread tells.
#[derive(Debug)]
pub enum FromTraining {
    /// A step was made.
    Step {
        /// The batch as it goes on the wire, if one left.
        encoded: Option<Vec<u8>>,
        /// What the step did.
        step: Step,
        /// Where the thread's time went, since the step before.
        time: StepTime,
    },
    /// It has come to a pass: what it adds, as the contents of a frame.
    Prefix(Vec<u8>),
    /// Something for another worker of the pipeline.
    Flow(Flow),
    /// How good the weights of the whole pipeline were at a moment.
    Measured(Evaluation),
    /// It has had nothing to train for a while, and waits for these samples.
    Starved(Vec<Missing>),
    /// It trains again.
    Fed,
    /// The norm of the residual, now and then.
    ResidualNorm(f64),
    /// A copy of the weights, between two steps.
    Weights(Vec<f32>, Moment),
    /// The same where this worker evaluates by itself: none of them is passed over. With them, where one that stands by is to be
    /// told how to end.
    WeightsInTurn(Vec<f32>, Moment, Option<SyncSender<ToTraining>>),
    /// What this worker alone has, as it was after the last batch told.
    State {
        /// The file that it is for.
        path: PathBuf,
        /// None if the origin is closed.
        state: Option<Box<State>>,
    },
    /// The origin is closed: all is trained, or the thread was stopped. Others' batches are still applied.
    Closed(Closing),
    /// All is applied.
    Finished {
        /// The digest recomputed from the weights; `None` if one has left the lattice.
        digest: Option<Digest>,
        /// The weights, where they are to be saved.
        save: Option<(SaveOrder, Vec<f32>)>,
        /// How good they are, where they are a stage and the pipeline could be asked.
        scores: Option<Scores>,
    },
    /// Training failed.
    Failed(TrainingError),
}

/// What remains to be said when an origin closes.
#[derive(Clone, Debug)]
pub struct Closing {
    /// The batch that closes it.
    pub encoded: Vec<u8>,
    /// The norm of what was never emitted and is dropped now.
    pub residual_norm: f64,
}
