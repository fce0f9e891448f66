//! What trains may be in a pipeline.

use protocol::measured::Scores;

use super::{Pipeline, PipelineEvent};
use crate::train_error::TrainError;

/// Whatever trains, and may hold a stage of a network only.
pub trait InPipeline {
    /// Its part in a pipeline, if it has one.
    fn pipeline(&mut self) -> Option<&mut Pipeline> {
        None
    }

    /// A message of the pipeline has come between two steps.
    fn hear(&mut self, _message: PipelineEvent) -> Result<(), TrainError> {
        Ok(())
    }

    /// How good the shared weights of the whole pipeline are on evaluation samples, where this worker leads one.
    fn measure(&mut self) -> Result<Option<Scores>, TrainError> {
        Ok(None)
    }
}
