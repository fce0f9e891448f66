//! What trains may be in a lane.

use protocol::measured::Scores;

use super::{Lane, LaneWord};
use crate::train_error::TrainError;

/// Whatever trains, and may hold a portion of a network only.
pub trait InLane {
    /// Its part in a lane, if it has one.
    fn lane(&mut self) -> Option<&mut Lane> {
        None
    }

    /// A word of the lane has come between two steps.
    fn hear(&mut self, _word: LaneWord) -> Result<(), TrainError> {
        Ok(())
    }

    /// How good the shared weights of the whole lane are on held-out samples, where this worker leads one.
    fn measure(&mut self) -> Result<Option<Scores>, TrainError> {
        Ok(None)
    }
}
