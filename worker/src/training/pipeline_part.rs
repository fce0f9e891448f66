//! A worker's part in a pipeline, as far as its loop goes: one worker leads its pipeline, and the others follow.

use std::time::Duration;

use protocol::batch::CURSORS_MAX;
use protocol::wire::flow::Lead;

use super::ending::Ending;
use super::minibatches::{Minibatch, Minibatches};
use crate::pipeline::{LED_CURSORS_MAX, Pipeline};
use crate::train_error::TrainError;
use crate::trainer::StepControl;

/// The time for which a leader calls its pipeline together before it leaves the remaining samples to other pipelines. Nodes
/// that are gone are given up sooner: these are there, and a worker of theirs may be opening large data.
const GIVEN_UP_AFTER: Duration = Duration::from_mins(5);

/// A worker's role in training the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// It holds the whole network.
    Alone,
    /// It holds the first stage of a pipeline and chooses the minibatches.
    Leader,
    /// It holds another stage.
    Follower,
}

impl Role {
    pub(super) fn of(pipeline: Option<&mut Pipeline>) -> Self {
        match pipeline {
            None => Self::Alone,
            Some(pipeline) if pipeline.leads() => Self::Leader,
            Some(_) => Self::Follower,
        }
    }

    /// The number of cursors that a minibatch may move.
    pub(super) fn cursors_max(self) -> usize {
        match self {
            Self::Alone => CURSORS_MAX,
            Self::Leader | Self::Follower => LED_CURSORS_MAX,
        }
    }
}

/// The source of a worker's next minibatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// The worker chooses it.
    Own,
    /// The leader of its pipeline has chosen it.
    Led,
    /// The pipeline is not whole, or leads nothing yet.
    None,
    /// There is nothing to follow any more.
    Over,
}

/// A worker's part in a pipeline, if it has one.
#[derive(Debug)]
pub(super) struct PipelinePart {
    pub(super) role: Role,
    /// Some worker of the pipeline is missing, so that other pipelines take its samples.
    pub(super) stands_alone: bool,
    /// No minibatch is begun ahead, so that there is a moment at which nothing is under way.
    pub(super) pauses: bool,
}

impl PipelinePart {
    pub(super) fn new(role: Role) -> Self {
        Self {
            role,
            stands_alone: false,
            pauses: false,
        }
    }

    /// Calls the workers of a pipeline that is not whole, which this worker leads. Returns how it ends if it calls in vain;
    /// where `has_others`, other pipelines train its remaining samples.
    pub(super) fn call(&self, pipeline: &mut Pipeline, has_others: bool) -> Result<Option<Ending>, TrainError> {
        // The leader was started again when the others had ended, and what it made last had reached nobody.
        if pipeline.is_over() {
            tracing::warn!(
                event = "pipeline_ended",
                "the other workers of this pipeline have ended: this worker does not train its remaining samples"
            );
            return Ok(Some(if has_others { Ending::GaveUp } else { Ending::Stop }));
        }
        pipeline.join()?;
        // Where a worker is missing others know, and take its samples: it may come back, or another in its place.
        if self.stands_alone {
            pipeline.stop_joining();
        }
        // Else they cannot know that this pipeline makes nothing: all its nodes are there.
        if has_others && pipeline.joining_for() > GIVEN_UP_AFTER {
            tracing::warn!(
                event = "pipeline_given_up",
                "this pipeline cannot be completed: its remaining samples are left to other pipelines"
            );
            return Ok(Some(Ending::GaveUp));
        }
        Ok(None)
    }

    /// Returns whether a follower goes on, by its pipeline's state. One that is told to stop goes on as long as it is led:
    /// others wait for its layers. Samples that are done here need not be done where they were chosen, nor the other way
    /// round: the leader says when there are no more, or the node does.
    pub(super) fn follow(pipeline: &Pipeline, is_ending: bool) -> Choice {
        if pipeline.is_over() || is_ending && !pipeline.is_whole() {
            Choice::Over
        } else {
            Choice::None
        }
    }

    /// The number of minibatches that a pipeline may have begun before the present one is done.
    pub(super) fn begun_ahead(&self, pipeline: &Pipeline) -> usize {
        if self.pauses { 0 } else { pipeline.in_flight() }
    }
}

/// What the others of a pipeline have to know of a step, and of those after it that can be begun before it is done.
pub(super) fn leads(control: &StepControl, minibatches: &Minibatches) -> Vec<Lead> {
    let lead = |(step, minibatch): (u64, &Minibatch)| Lead {
        step,
        learning_rate: control.learning_rate,
        samples: minibatch.indices.clone(),
        cursors: minibatch.cursors.clone(),
        ..Lead::default()
    };
    let all = std::iter::once(minibatches.present()).chain(minibatches.upcoming());
    (control.step..).zip(all).map(lead).collect()
}
