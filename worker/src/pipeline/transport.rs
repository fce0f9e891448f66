//! The way to the other workers of a pipeline, and what is heard on it.

use std::time::Duration;

use protocol::wire::flow::{EvalBatch, EvalTotals, Flow};

use crate::train_error::TrainError;

/// What a worker hears of its pipeline.
#[derive(Clone, Debug, PartialEq)]
pub enum PipelineEvent {
    /// From another of its workers.
    Flow(Flow),
    /// From its node: somebody cannot be reached, or was started again.
    Broken,
    /// From its node: the run is to end. Who leads need not wait for what is under way.
    Stopping,
}

/// The way to the other workers of a pipeline.
pub trait PipelineTransport {
    /// Sends something to one of them.
    fn send(&self, flow: Flow) -> Result<(), TrainError>;

    /// Waits for the next message of the pipeline for at most `limit`, and lets all other messages wait. `None` also if
    /// one of those has come.
    fn next(&self, limit: Duration) -> Result<Option<PipelineEvent>, TrainError>;

    /// Lets a message wait that has come in the middle of a step and is for after it.
    fn put_back(&self, message: PipelineEvent);

    /// The time since some moment.
    fn now(&self) -> Duration;
}

/// What numbers that have come are for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum StageInput {
    /// The leader has begun a minibatch.
    Begun { step: u64 },
    /// A micro-batch on its way there.
    Forward {
        step: u64,
        micro_batch: u16,
        layer_range: u8,
    },
    /// Its gradients, on their way back.
    Backward {
        step: u64,
        micro_batch: u16,
        layer_range: u8,
        loss: f32,
    },
    /// Evaluation samples.
    Measure(EvalBatch),
    /// What they were judged to be.
    EvalTotals(EvalTotals),
}

impl StageInput {
    /// The step of the minibatch that it belongs to.
    pub(crate) fn step(&self) -> Option<u64> {
        match *self {
            Self::Begun { step } | Self::Forward { step, .. } | Self::Backward { step, .. } => Some(step),
            Self::Measure(_) | Self::EvalTotals(_) => None,
        }
    }
}
