//! The loop of a worker that holds a stage of a network only: one leads its pipeline, and the others follow.

use std::collections::VecDeque;
use std::time::Duration;

use protocol::batch::CURSORS_MAX;
use protocol::cursor::CursorAdvance;
use protocol::measured::Scores;
use protocol::wire::flow::Lead;

use super::ending::Ending;
use super::{Next, StepControl, Training, TrainingError};
use crate::pipeline::{LED_CURSORS_MAX, PipelineEvent};
use crate::trainer::{TrainError, Trainer};

/// How long a leader calls its pipeline together before it leaves the rest to other pipelines. Nodes that are gone are given
/// up sooner: these are there, and a worker of theirs may be opening large data.
const GIVEN_UP_AFTER: Duration = Duration::from_mins(5);

/// Minibatches that were chosen before the one before them is done, in their order.
#[derive(Default)]
pub(super) struct Upcoming {
    chosen: VecDeque<ChosenMinibatch>,
    /// No more are chosen, so that there is a moment at which nothing is under way.
    pauses: bool,
}

/// A minibatch that was chosen ahead.
struct ChosenMinibatch {
    indices: Vec<u32>,
    cursors: Vec<CursorAdvance>,
    /// How many batches were in the weights then.
    seen: u64,
}

/// What comes next for a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// It chooses its next minibatch.
    Own,
    /// The leader of its pipeline has chosen one.
    Led,
    /// Its pipeline is not whole, or leads nothing yet.
    None,
    /// There is nothing to follow any more.
    Over,
}

impl<T: Trainer> Training<T> {
    /// What comes next. A follower that is told to stop goes on as long as it is led: others wait for its layers.
    pub(super) fn choice_in_pipeline(&mut self) -> Result<Choice, TrainingError> {
        let is_ending = self.is_ending();
        let Some(pipeline) = self.trainer.pipeline() else {
            return Ok(Choice::Own);
        };
        // What was chosen and could not be trained is still to be, unless others have done so.
        if !pipeline.is_whole() && !self.plan.is_in_arrears() {
            self.chosen = false;
            self.upcoming.chosen.clear();
        }
        let may_end = is_ending || self.plan.is_complete();
        if pipeline.leads() {
            if pipeline.is_whole() || may_end {
                return Ok(Choice::Own);
            }
            // It was started again when they had ended, and what it made last had reached nobody.
            if pipeline.is_over() {
                tracing::warn!(
                    event = "pipeline_ended",
                    "the other workers of this pipeline have ended: this worker does not train its remaining samples"
                );
                let others_train_it = self.identity.slots > 1;
                self.ending = if others_train_it { Ending::GaveUp } else { Ending::Stop };
                return Ok(Choice::None);
            }
            pipeline.join()?;
            // Where somebody is missing others know, and take its samples: it may come back, or another in its place.
            if self.stands_alone {
                pipeline.stop_joining();
            }
            // Else they cannot know that this pipeline makes nothing: all its nodes are there.
            if self.identity.slots > 1 && pipeline.joining_for() > GIVEN_UP_AFTER {
                tracing::warn!(
                    event = "pipeline_given_up",
                    "this pipeline cannot be completed: its remaining samples are left to other pipelines"
                );
                self.ending = Ending::GaveUp;
            }
            return Ok(Choice::None);
        }
        if let Some(lead) = pipeline.next_lead() {
            self.indices.clone_from(&lead.samples);
            self.cursors.clone_from(&lead.cursors);
            // Its optimiser counts the leader's steps, whenever it came.
            self.steps = lead.step.saturating_sub(1);
            return Ok(Choice::Led);
        }
        // What is done here need not be done where it was chosen, nor the other way round: who leads says when there is no
        // more, or the node does.
        Ok(match (pipeline.is_whole(), pipeline.is_over(), is_ending) {
            (_, true, _) | (false, _, true) => Choice::Over,
            _ => Choice::None,
        })
    }

    /// The learning rate and the norm for the next step. The leader's rate is the pipeline's; and each stage's gradient is
    /// clipped by itself, to its share of the norm: the whole one would take a round trip in every step.
    pub(super) fn pipeline_rate_and_clip(&mut self) -> (f64, Option<f64>) {
        let (rate, clip) = self.rate_and_clip();
        let Some(pipeline) = self.trainer.pipeline() else {
            return (rate, clip);
        };
        let rate = pipeline.next_lead().map_or(rate, |lead| lead.learning_rate);
        (rate, clip.map(|norm| norm / f64::from(pipeline.stages()).sqrt()))
    }

    /// The next minibatch that a pipeline may have begun, if there is one.
    pub(super) fn take_ahead(&mut self) -> bool {
        let Some(next) = self.upcoming.chosen.pop_front() else {
            return false;
        };
        (self.indices, self.cursors) = (next.indices, next.cursors);
        self.begun_at = Some(next.seen);
        true
    }

    /// Chooses a minibatch. One that a pipeline is to train may come to nothing.
    pub(super) fn choose_for_pipeline(&mut self, cursors_max: usize) -> bool {
        let is_one = self.choose(cursors_max);
        if is_one && self.is_in_pipeline() {
            self.plan.add_outstanding(&self.cursors);
        }
        is_one
    }

    /// What the others of the pipeline have to know of a step, and of those after it that can be begun before it is done.
    pub(super) fn tell_pipeline(&mut self, control: &StepControl) {
        let Some(in_flight) = self
            .trainer
            .pipeline()
            .filter(|pipeline| pipeline.leads())
            .map(|pipeline| pipeline.in_flight())
        else {
            return;
        };
        self.choose_ahead(if self.upcoming.pauses { 0 } else { in_flight });
        let lead = |step, samples: &[u32], cursors: &[CursorAdvance]| Lead {
            step,
            learning_rate: control.learning_rate,
            samples: samples.to_vec(),
            cursors: cursors.to_vec(),
            ..Lead::default()
        };
        let first = lead(control.step, &self.indices, &self.cursors);
        let rest = (control.step + 1..).zip(&self.upcoming.chosen);
        let rest = rest.map(|(step, next)| lead(step, &next.indices, &next.cursors));
        let leads = std::iter::once(first).chain(rest).collect();
        if let Some(pipeline) = self.trainer.pipeline() {
            pipeline.tell(leads);
        }
    }

    /// Chooses minibatches after the present one, until there are so many. Their batches come after its own.
    fn choose_ahead(&mut self, most: usize) {
        while self.upcoming.chosen.len() < most {
            let taken: usize = self.upcoming.chosen.iter().map(|next| next.cursors.len()).sum();
            let left = self.pending.cursors_left().saturating_sub(taken + self.cursors.len());
            let cursors_max = self.cursors_max().min(left);
            let (indices, cursors) = (std::mem::take(&mut self.indices), std::mem::take(&mut self.cursors));
            let is_one = cursors_max > 0 && self.choose_for_pipeline(cursors_max);
            let next = ChosenMinibatch {
                indices: std::mem::replace(&mut self.indices, indices),
                cursors: std::mem::replace(&mut self.cursors, cursors),
                seen: self.batches_applied,
            };
            if !is_one {
                return;
            }
            self.upcoming.chosen.push_back(next);
        }
    }

    /// Whether something was begun that is not done.
    pub fn is_under_way(&mut self) -> bool {
        self.trainer.pipeline().is_some_and(|pipeline| pipeline.is_under_way())
    }

    /// Whether to begin nothing ahead, so that there is a moment at which nothing is under way.
    pub fn rest(&mut self, pauses: bool) {
        self.upcoming.pauses = pauses;
    }

    /// The pipeline broke in the middle of a step, which has moved nothing here. Who leads makes it again.
    pub(super) fn led_in_vain(&mut self) -> Next {
        self.steps -= 1;
        self.chosen = self.trainer.pipeline().is_some_and(|pipeline| pipeline.leads());
        Next::Waiting
    }

    /// How many cursors a minibatch may move.
    pub(super) fn cursors_max(&mut self) -> usize {
        match self.trainer.pipeline() {
            Some(_) => LED_CURSORS_MAX,
            None => CURSORS_MAX,
        }
    }

    /// What was chosen is trained. A follower's plan has chosen nothing, and learns what is done as from another's batches.
    pub(super) fn follow_plan(&mut self) {
        match self.trainer.pipeline() {
            Some(pipeline) if pipeline.leads() => self.plan.settle(&self.cursors),
            Some(_) => self.plan.observe(self.identity.origin, &self.cursors),
            None => {}
        }
    }

    /// How many samples a step is told to have trained: those of a pipeline count once.
    pub(super) fn counted_samples(&mut self) -> usize {
        match self.trainer.pipeline() {
            Some(pipeline) if !pipeline.leads() => 0,
            _ => self.indices.len(),
        }
    }

    /// A message of the pipeline has come between two steps.
    pub fn hear(&mut self, message: PipelineEvent) -> Result<(), TrainingError> {
        Ok(self.trainer.hear(message)?)
    }

    /// How good the weights of the whole pipeline are; none where this worker does not lead a whole one.
    pub fn measure(&mut self) -> Result<Option<Scores>, TrainingError> {
        if self
            .trainer
            .pipeline()
            .is_none_or(|pipeline| !pipeline.leads() || !pipeline.is_whole())
        {
            return Ok(None);
        }
        match self.trainer.measure() {
            Err(TrainError::PipelineBroken) => Ok(None),
            measured => Ok(measured?),
        }
    }

    /// Whether it is for this worker to say that the run is to end. Those that are led only follow.
    pub(super) fn may_say_stop(&mut self) -> bool {
        let leads = self.trainer.pipeline().is_none_or(|pipeline| pipeline.leads());
        leads && !matches!(self.ending, Ending::GaveUp | Ending::Leaving(_))
    }

    /// Whether this worker holds a stage of a network only.
    pub fn is_in_pipeline(&mut self) -> bool {
        self.trainer.pipeline().is_some()
    }

    /// Whether this worker leads a pipeline.
    pub fn leads_pipeline(&mut self) -> bool {
        self.trainer.pipeline().is_some_and(|pipeline| pipeline.leads())
    }

    /// Whether this worker leads a pipeline that is not whole, so that it calls.
    pub fn calls(&mut self) -> Result<bool, TrainingError> {
        match self.trainer.pipeline() {
            Some(pipeline) if pipeline.leads() && !pipeline.is_whole() => {
                pipeline.join()?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}
