//! The loop of a worker that holds a portion of a network only: one leads its lane, and the others follow.

use protocol::batch::CURSORS_MAX;
use protocol::measured::Scores;

use super::{Next, StepControl, Training, TrainingError};
use crate::lane::LaneWord;
use crate::trainer::{TrainError, Trainer};

/// What comes next for a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// It chooses its next minibatch.
    Own,
    /// The leader of its lane has chosen one.
    Led,
    /// Its lane is not whole, or leads nothing yet.
    None,
    /// There is nothing to follow any more.
    Over,
}

impl<T: Trainer> Training<T> {
    /// What comes next. A follower that is told to stop goes on as long as it is led: others wait for its layers.
    pub(super) fn choice_in_lane(&mut self) -> Result<Choice, TrainingError> {
        let is_ending = self.is_ending();
        let Some(lane) = self.trainer.lane() else {
            return Ok(Choice::Own);
        };
        // What was chosen and could not be trained is still to be, unless others have done so.
        self.chosen &= self.plan.is_in_arrears();
        let may_end = is_ending || self.plan.is_complete();
        if lane.leads() {
            if lane.is_whole() || may_end {
                return Ok(Choice::Own);
            }
            lane.call()?;
            return Ok(Choice::None);
        }
        if let Some(lead) = lane.next_lead() {
            self.indices.clone_from(&lead.samples);
            self.cursors.clone_from(&lead.cursors);
            // Its optimiser counts the leader's steps, whenever it came.
            self.steps = lead.step.saturating_sub(1);
            return Ok(Choice::Led);
        }
        // What is done here need not be done where it was chosen: who leads says when there is no more, or the node does.
        let is_led = lane.is_whole() && !lane.is_over();
        let may_end = is_ending || lane.is_over() && may_end;
        Ok(match (is_led, may_end) {
            (false, true) => Choice::Over,
            _ => Choice::None,
        })
    }

    /// The learning rate and the norm for the next step. The leader's rate is the lane's; and each portion's gradient is clipped
    /// by itself, to its share of the norm: the whole one would take a round trip in every step.
    pub(super) fn lane_rate_and_clip(&mut self) -> (f64, Option<f64>) {
        let (rate, clip) = self.rate_and_clip();
        let Some(lane) = self.trainer.lane() else {
            return (rate, clip);
        };
        let rate = lane.next_lead().map_or(rate, |lead| lead.learning_rate);
        (rate, clip.map(|norm| norm / f64::from(lane.groups()).sqrt()))
    }

    /// What the others of the lane have to know of a step.
    pub(super) fn tell_lane(&mut self, control: &StepControl) {
        if let Some(lane) = self.trainer.lane()
            && lane.leads()
        {
            lane.tell(control.step, control.learning_rate, &self.cursors);
        }
    }

    /// The lane broke in the middle of a step, which has moved nothing here. Who leads makes it again.
    pub(super) fn led_in_vain(&mut self) -> Next {
        self.steps -= 1;
        if self.trainer.lane().is_some_and(|lane| lane.leads()) {
            self.chosen = true;
            self.plan.not_trained(&self.cursors);
        }
        Next::Waiting
    }

    /// How many cursors a minibatch may move. A lane's others may have some left to tell of, too.
    pub(super) fn cursors_max(&mut self) -> usize {
        match self.trainer.lane() {
            Some(_) => CURSORS_MAX / 2,
            None => CURSORS_MAX,
        }
    }

    /// What was chosen is trained. A follower's plan has chosen nothing, and learns what is done as from another's batches.
    pub(super) fn follow_plan(&mut self) {
        match self.trainer.lane() {
            Some(lane) if lane.leads() => self.plan.trained_at_last(),
            Some(_) => self.plan.observe(self.identity.origin, &self.cursors),
            None => {}
        }
    }

    /// How many samples a step is told to have trained: those of a lane count once.
    pub(super) fn counted_samples(&mut self) -> usize {
        match self.trainer.lane() {
            Some(lane) if !lane.leads() => 0,
            _ => self.indices.len(),
        }
    }

    /// A word of the lane has come between two steps.
    pub fn hear(&mut self, word: LaneWord) -> Result<(), TrainingError> {
        Ok(self.trainer.hear(word)?)
    }

    /// How good the weights of the whole lane are; none where this worker does not lead a whole one.
    pub fn measure(&mut self) -> Result<Option<Scores>, TrainingError> {
        if self.trainer.lane().is_none_or(|lane| !lane.leads() || !lane.is_whole()) {
            return Ok(None);
        }
        match self.trainer.measure() {
            Err(TrainError::LaneBroken) => Ok(None),
            measured => Ok(measured?),
        }
    }

    /// Whether it is for this worker to say that the run is to end. Those that are led only follow.
    pub(super) fn may_say_stop(&mut self) -> bool {
        self.trainer.lane().is_none_or(|lane| lane.leads())
    }

    /// Whether this worker holds a portion of a network only.
    pub fn is_in_lane(&mut self) -> bool {
        self.trainer.lane().is_some()
    }

    /// Whether this worker leads a lane that is not whole, so that it calls.
    pub fn calls(&mut self) -> Result<bool, TrainingError> {
        match self.trainer.lane() {
            Some(lane) if lane.leads() && !lane.is_whole() => {
                lane.call()?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}
