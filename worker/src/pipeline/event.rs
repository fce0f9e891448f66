//! The events of a pipeline that reach a worker, and their consequences.

use protocol::wire::flow::Flow;

/// Event in the pipeline (workers that each hold a stage of one network) that a worker belongs to.
#[derive(Clone, Debug, PartialEq)]
pub enum PipelineEvent {
    Flow(Flow),
    /// Pipeline event: the node cannot reach another worker of the pipeline, or another worker was started again.
    Broken,
    /// Pipeline event: the run is about to end. A leader need not wait for the minibatches in flight.
    Stopping,
}

/// Consequence of a pipeline event for a worker's computation of its stage.
#[derive(Debug, PartialEq)]
pub(crate) enum Heard {
    Nothing,
    /// Consequence of a pipeline event: the worker has joined a new generation of its pipeline, and no minibatch was in
    /// flight.
    Joined,
    /// Consequence of a pipeline event: all minibatches in flight are given up.
    Broken,
    /// Consequence of a pipeline event: the leader has begun a minibatch.
    Begun {
        /// Step number of the minibatch that the leader has begun.
        step: u64,
        /// Activations or gradients that arrived before the leader's announcement of the minibatch they belong to.
        early: Vec<Flow>,
    },
    /// Consequence of a pipeline event: activations or gradients have arrived for a minibatch or an evaluation.
    Input(Flow),
}
