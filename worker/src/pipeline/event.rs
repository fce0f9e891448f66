//! What a worker hears of its pipeline, and what follows from it.

use protocol::wire::flow::{EvalBatch, EvalTotals, Flow};

/// What a worker hears of its pipeline.
#[derive(Clone, Debug, PartialEq)]
pub enum PipelineEvent {
    /// A message of another worker of the pipeline.
    Flow(Flow),
    /// The node cannot reach another worker of the pipeline, or that one was started again.
    Broken,
    /// The run is to end. A leader need not wait for what is under way.
    Stopping,
}

/// What follows from an event for the numbers of a stage.
#[derive(Debug, PartialEq)]
pub(crate) enum Heard {
    /// Nothing.
    Nothing,
    /// The worker belongs to a new generation. Nothing was under way.
    Joined,
    /// What was under way is over.
    Broken,
    /// The leader has begun a minibatch, some of whose numbers came before that.
    Begun {
        /// The number of the minibatch's step.
        step: u64,
        /// The numbers that came before.
        early: Vec<(StageInput, Flow)>,
    },
    /// Numbers have come that can be computed with.
    Input(StageInput, Flow),
}

/// What numbers that have come are for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum StageInput {
    /// A micro-batch of a minibatch that has begun: its samples go through the first layers.
    Begun { step: u64, micro_batch: u16 },
    /// A micro-batch on its way forward.
    Forward {
        step: u64,
        micro_batch: u16,
        layer_range: u8,
    },
    /// The gradients of a micro-batch, on their way backward.
    Backward {
        step: u64,
        micro_batch: u16,
        layer_range: u8,
        loss: f32,
    },
    /// Evaluation samples.
    Measure(EvalBatch),
    /// How evaluation samples were predicted.
    EvalTotals(EvalTotals),
}

impl StageInput {
    /// The step of the minibatch that the numbers belong to.
    pub(crate) fn step(&self) -> Option<u64> {
        match *self {
            Self::Begun { step, .. } | Self::Forward { step, .. } | Self::Backward { step, .. } => Some(step),
            Self::Measure(_) | Self::EvalTotals(_) => None,
        }
    }
}
