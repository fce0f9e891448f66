//! The way to the other workers of a lane.

use std::time::Duration;

use protocol::wire::flow::Flow;

use crate::train_error::TrainError;

/// What a worker hears of its lane.
#[derive(Clone, Debug, PartialEq)]
pub enum LaneWord {
    /// From another of its workers.
    Flow(Flow),
    /// From its node: somebody cannot be reached, or was started again.
    Broken,
    /// From its node: the run is to end. Who leads need not wait for what is under way.
    Stopping,
}

/// The way to the other workers of a lane.
pub trait Line {
    /// Sends something to one of them.
    fn send(&self, flow: Flow) -> Result<(), TrainError>;

    /// Waits so long for the next word of the lane, and lets all other words wait. None also if one of those has come.
    fn next(&self, limit: Duration) -> Result<Option<LaneWord>, TrainError>;

    /// Lets a word wait that has come in the middle of a step and is for after it.
    fn put_back(&self, word: LaneWord);

    /// The time since some moment.
    fn now(&self) -> Duration;
}
