//! What a worker hears of its pipeline, and what follows from it.

use protocol::wire::flow::Flow;

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
        early: Vec<Flow>,
    },
    /// Numbers have come that can be computed with.
    Input(Flow),
}
