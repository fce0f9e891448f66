//! The events of a pipeline that reach a worker, and their consequences.

use protocol::wire::flow::Flow;

/// An event in a worker's pipeline.
#[derive(Clone, Debug, PartialEq)]
pub enum PipelineEvent {
    Flow(Flow),
    /// The node cannot reach another worker of the pipeline, or another worker was started again.
    Broken,
    /// The run is about to end. A leader need not wait for the minibatches in flight.
    Stopping,
}

/// The consequence of an event for the computation of a stage.
#[derive(Debug, PartialEq)]
pub(crate) enum Heard {
    Nothing,
    /// The worker belongs to a new generation, and no minibatch was in flight.
    Joined,
    /// All minibatches in flight are given up.
    Broken,
    /// The leader has begun a minibatch.
    Begun {
        /// Step of the minibatch.
        step: u64,
        /// Activations or gradients of the minibatch that arrived before.
        early: Vec<Flow>,
    },
    /// Activations or gradients have arrived for a minibatch or an evaluation.
    Input(Flow),
}
