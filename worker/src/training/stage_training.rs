//! The training of a worker that holds a stage of a network: its loop over the minibatches of a pipeline, from its place in the
//! run to the saved stage.
//!
//! Pure: it hears events, does one piece of work a call, and what it tells lies in its outbox until the caller takes it. One
//! worker of a pipeline leads and chooses minibatches as any worker does; the others follow.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use protocol::ids::OriginId;
use protocol::job::Job;
use protocol::log::batch::OriginStatus;
use protocol::log::cursor::Cursors;
use protocol::stats::measured::{Evaluation, Moment, Scores};
use protocol::wire::flow::Lead;

use super::ending::Ending;
use super::finish::Finish;
use super::learner::Learner;
use super::messages::{FromTraining, StepTime, ToTraining};
use super::minibatches::{Minibatch, Minibatches};
use super::throttle::Throttle;
use super::{FOR_EVER, Identity, LOOK_AGAIN, Next, State, Step, TrainingError};
use crate::emission::Plan;
use crate::pipeline::planted::{Bug, planted};
use crate::pipeline::{LED_CURSORS_MAX, Pipeline, PipelineEvent};
use crate::stage::{Advance, HoldsStage};
use crate::trainer::{StateError, Trainer};

/// The time for which a leader calls its pipeline together before it leaves the remaining samples to other pipelines. Nodes
/// that are gone are given up sooner: these are there, and a worker of theirs may be opening large data.
const GIVEN_UP_AFTER: Duration = Duration::from_mins(5);
/// How long a follower that is told to stop waits for its leader while it hears nothing of its pipeline. The leader is told so,
/// too, and gives up the minibatch that is under way, but not an evaluation. A call of a leader that is gone may have come on a
/// longer way than the word that it is gone.
const LEADER_ENDS_WITHIN: Duration = Duration::from_secs(10);
/// How long a worker waits for others at a time.
const WAIT: Duration = Duration::from_secs(1);
/// How often a leader with an unanswered order looks after it.
const CALL_AGAIN: Duration = Duration::from_millis(100);
/// The most messages that wait while a minibatch is computed. If more come, the minibatch is given up for them.
const WAITING_MAX: usize = 1 << 10;

/// How far a worker has come by one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageProgress {
    /// There may be more to do.
    Worked,
    /// There is nothing to do before the next event, or for this time.
    Waits(Duration),
}

/// The training of a worker that holds a stage of a network.
pub struct StageTraining<T> {
    pub(super) learner: Learner<T>,
    minibatches: Minibatches,
    /// Some worker of the pipeline is missing, so that other pipelines take its samples.
    stands_alone: bool,
    /// The leader has begun its present minibatch, which is neither done nor lost.
    has_led: bool,
    throttle: Throttle,
    /// Messages that wait until the present minibatch is done: the weights stay as they are until then.
    waiting: VecDeque<ToTraining>,
    /// An evaluation that waits for a moment at which nothing of the pipeline is under way.
    measure_due: Option<Moment>,
    /// The evaluation that passes through the pipeline, and the moment that it is of.
    measuring: Option<Moment>,
    /// Orders to finish that wait to be carried out.
    finishes: VecDeque<Finish>,
    /// Since when a follower that is told to stop has waited for its leader and heard nothing of its pipeline.
    stopping_since: Option<Duration>,
    is_closed: bool,
    /// What is to be told, in its order.
    outbox: Vec<FromTraining>,
}

impl<T: Trainer + HoldsStage> StageTraining<T> {
    /// Training from the start of a run, on samples of these classes.
    pub fn new(
        trainer: T,
        job: &Job,
        classes: Arc<[u32]>,
        identity: Identity,
        now: Duration,
    ) -> Result<Self, TrainingError> {
        let mut training = Self {
            learner: Learner::new(trainer, job, classes, identity, now)?,
            minibatches: Minibatches::of_pipeline(),
            stands_alone: false,
            has_led: false,
            throttle: Throttle::default(),
            waiting: VecDeque::new(),
            measure_due: None,
            measuring: None,
            finishes: VecDeque::new(),
            stopping_since: None,
            is_closed: false,
            outbox: Vec::new(),
        };
        training.send_flows();
        Ok(training)
    }

    /// Goes on from a ledger in the middle of a run: which samples are done, and how many batches and samples the
    /// trainer's weights already hold.
    pub fn resume(&mut self, cursors: &Cursors, batches: u64, samples: u64) {
        self.learner.resume(cursors, batches, samples);
    }

    /// Goes on from what a worker had alone; to be called before the first step. A state that does not fit is refused and has
    /// no effect.
    pub fn restore(&mut self, state: State) -> Result<(), StateError> {
        self.learner.restore(state)
    }

    /// The trainer, for questions between steps.
    pub fn trainer(&self) -> &T {
        &self.learner.trainer
    }

    /// The worker's origin.
    pub fn origin(&self) -> OriginId {
        self.learner.identity.origin
    }

    /// Takes what is to be told.
    pub fn take_outbox(&mut self) -> Vec<FromTraining> {
        std::mem::take(&mut self.outbox)
    }

    /// Takes note of an event. While a minibatch is computed all but the pipeline's own messages wait.
    pub fn hear(&mut self, event: ToTraining, now: Duration) -> Result<(), TrainingError> {
        match event {
            ToTraining::Pipeline(event) => self.hear_pipeline(event, now),
            // A leader need not wait for what is under way.
            ToTraining::Stop if self.is_computing() && self.leads() => {
                self.hear_pipeline(PipelineEvent::Stopping, now);
                self.waiting.push_back(ToTraining::Stop);
            }
            event if self.is_computing() || !self.waiting.is_empty() => {
                self.waiting.push_back(event);
                if self.waiting.len() == WAITING_MAX && self.is_computing() {
                    self.hear_pipeline(PipelineEvent::Broken, now);
                }
            }
            event => self.take(event, now)?,
        }
        Ok(())
    }

    /// Whether there is room for further events. If not, the present minibatch is given up or goes on without any, and there is
    /// room soon.
    pub fn has_room(&self) -> bool {
        self.waiting.len() < WAITING_MAX
    }

    /// Does one piece of work, if there is any. Where `is_full` too many batches are on their way out.
    pub fn advance(&mut self, now: Duration, is_full: bool) -> Result<StageProgress, TrainingError> {
        let progress = self.advance_once(now, is_full);
        self.note_lost_minibatch();
        self.send_flows();
        progress
    }

    fn advance_once(&mut self, now: Duration, is_full: bool) -> Result<StageProgress, TrainingError> {
        if self.is_computing() {
            return self.compute(now, is_full);
        }
        while let Some(event) = self.waiting.pop_front() {
            self.take(event, now)?;
        }
        while let Some(saved) = self.learner.answer_save(self.is_closed, false)? {
            self.outbox.push(saved);
        }
        // Evaluation samples go through between two steps, also where another worker leads.
        if self.advance_evaluation(now)? {
            self.stopping_since = None;
            return Ok(StageProgress::Worked);
        }
        if self.is_closed {
            return self.finish(now);
        }
        if self.evaluates() {
            return Ok(StageProgress::Waits(WAIT));
        }
        if self.begin_evaluation()? {
            return Ok(StageProgress::Worked);
        }
        if self.throttle.should_wait(now, is_full, self.learner.can_throttle()) {
            return Ok(StageProgress::Waits(LOOK_AGAIN));
        }
        if self.leads() {
            self.lead(now)
        } else {
            self.follow(now, is_full)
        }
    }

    fn pipeline(&self) -> &Pipeline {
        self.learner.trainer.stage().pipeline()
    }

    fn pipeline_mut(&mut self) -> &mut Pipeline {
        self.learner.trainer.stage_mut().pipeline_mut()
    }

    /// Whether this worker chooses the minibatches of its pipeline.
    fn leads(&self) -> bool {
        self.pipeline().leads()
    }

    /// Whether the gradient of a minibatch is being computed.
    fn is_computing(&self) -> bool {
        self.has_led || self.learner.trainer.stage().is_computing()
    }

    fn hear_pipeline(&mut self, event: PipelineEvent, now: Duration) {
        if matches!(event, PipelineEvent::Flow(_)) {
            self.stopping_since = None;
        }
        let judged = self.judged();
        self.learner.trainer.stage_mut().hear(event);
        self.note_lost_minibatch();
        self.note_evaluation(judged, now);
    }

    /// Takes note of a minibatch that was lost with the pipeline: it is led again.
    fn note_lost_minibatch(&mut self) {
        if self.has_led && !self.pipeline().is_under_way() {
            self.has_led = false;
            self.minibatches.failed();
        }
    }

    /// Takes note of an evaluation that has gone on since this many minibatches of it were judged, or was lost with the
    /// pipeline.
    fn note_evaluation(&mut self, judged_before: Option<u32>, now: Duration) {
        let judged = self.judged();
        if judged == judged_before {
            return;
        }
        if judged.is_none() {
            self.measuring = None;
        }
        if let Some(finish) = self.finishes.front_mut() {
            match judged {
                Some(_) => finish.advanced(now),
                None => finish.broke(now),
            }
        }
    }

    /// Moves what the pipeline has to say into the outbox.
    fn send_flows(&mut self) {
        let flows = self.pipeline_mut().take_outbox();
        self.outbox.extend(flows.into_iter().map(FromTraining::Flow));
    }

    /// The leader goes on to its next minibatch, or to its end.
    fn lead(&mut self, now: Duration) -> Result<StageProgress, TrainingError> {
        let is_whole = self.pipeline().is_whole();
        // A minibatch that was chosen and could not be trained is still to be, unless others have done so.
        if !is_whole && !self.learner.plan.is_in_arrears() {
            self.minibatches.forget();
        }
        let ends = self.learner.is_ending() || self.learner.plan.is_complete();
        if !is_whole && !ends {
            if let Some(ending) = self.call(now) {
                self.learner.ending = ending;
                return Ok(StageProgress::Worked);
            }
            return Ok(StageProgress::Waits(WAIT));
        }
        let cursors_max = LED_CURSORS_MAX.min(self.learner.pending.cursors_left());
        if self.learner.is_ending() || !self.minibatches.advance(&mut self.learner.plan, cursors_max) {
            return self.pause();
        }
        let in_flight = match self.measure_due {
            // Nothing is begun ahead, so that there is a moment at which nothing is under way.
            Some(_) => 0,
            None => self.pipeline().in_flight(),
        };
        self.minibatches.choose_ahead(
            &mut self.learner.plan,
            in_flight,
            LED_CURSORS_MAX,
            self.learner.pending.cursors_left(),
            self.learner.applied.batches(),
        );
        let leads = self.next_leads();
        self.learner.trainer.stage_mut().lead(leads);
        self.has_led = true;
        Ok(StageProgress::Worked)
    }

    /// Returns what the others of the pipeline have to know of the next step, and of those after it that can be begun before
    /// it is done.
    fn next_leads(&self) -> Vec<Lead> {
        let (learning_rate, _) = self.learner.rate_and_clip();
        let lead = |(step, minibatch): (u64, &Minibatch)| Lead {
            step,
            learning_rate,
            samples: minibatch.indices.clone(),
            cursors: minibatch.cursors.clone(),
            ..Lead::default()
        };
        let all = std::iter::once(self.minibatches.present()).chain(self.minibatches.upcoming());
        (self.learner.counters.steps + 1..).zip(all).map(lead).collect()
    }

    /// Calls the workers of a pipeline that is not whole. Returns how the leader ends if it calls in vain.
    fn call(&mut self, now: Duration) -> Option<Ending> {
        let has_others = self.learner.identity.slots > 1;
        // The leader was started again when the others had ended, and what it made last had reached nobody.
        if self.pipeline().is_over() {
            tracing::warn!(
                event = "pipeline_ended",
                "the other workers of this pipeline have ended: this worker does not train its remaining samples"
            );
            return Some(if has_others { Ending::GaveUp } else { Ending::Stop });
        }
        let stands_alone = self.stands_alone;
        let pipeline = self.pipeline_mut();
        pipeline.join(now);
        // Where a worker is missing others know, and take its samples: it may come back, or another in its place.
        if stands_alone {
            pipeline.stop_joining();
        }
        // Else they cannot know that this pipeline makes nothing: all its nodes are there.
        if has_others && pipeline.joining_for(now) > GIVEN_UP_AFTER {
            tracing::warn!(
                event = "pipeline_given_up",
                "this pipeline cannot be completed: its remaining samples are left to other pipelines"
            );
            return Some(Ending::GaveUp);
        }
        None
    }

    /// A follower goes on with the minibatch that its leader has begun, or waits for one. One that is told to stop goes on as
    /// long as it is led: others wait for its layers. Samples that are done here need not be done where they were chosen, nor
    /// the other way round: the leader says when there are no more, or the node does.
    fn follow(&mut self, now: Duration, is_full: bool) -> Result<StageProgress, TrainingError> {
        if planted(Bug::EndsUntold) && self.learner.plan.is_complete() {
            return self.pause();
        }
        if self.pipeline().next_lead().is_some() {
            self.stopping_since = None;
            return self.compute(now, is_full);
        }
        if self.learner.is_ending() {
            let since = *self.stopping_since.get_or_insert(now);
            if now.saturating_sub(since) > LEADER_ENDS_WITHIN {
                self.learner.trainer.stage_mut().reset();
            }
        }
        if self.pipeline().is_over() || self.learner.is_ending() && !self.pipeline().is_whole() {
            return self.pause();
        }
        Ok(StageProgress::Waits(WAIT))
    }

    /// Goes on with the gradient of the present minibatch.
    fn compute(&mut self, now: Duration, is_full: bool) -> Result<StageProgress, TrainingError> {
        let advanced = self.learner.trainer.advance();
        match advanced.map_err(|error| self.learner.blame(error))? {
            Advance::Worked => Ok(StageProgress::Worked),
            Advance::Waits => Ok(StageProgress::Waits(WAIT)),
            Advance::Done => self.step(now, is_full).map(|()| StageProgress::Worked),
        }
    }

    /// Makes the step whose gradient is complete.
    fn step(&mut self, now: Duration, is_full: bool) -> Result<(), TrainingError> {
        let Some(lead) = self.pipeline().next_lead().cloned() else {
            return Ok(());
        };
        // The optimiser counts the leader's steps, whenever this worker came.
        self.learner.counters.steps = lead.step;
        let batches = self.learner.applied.batches();
        let begun_at = if self.leads() {
            self.minibatches.take_begun_at()
        } else {
            None
        };
        self.learner.counters.seen = begun_at.unwrap_or(batches);
        // The leader's rate counts; and each stage's gradient is clipped by itself, to its part of the norm: the whole one
        // would take a round trip in every step.
        let (_, clip) = self.learner.rate_and_clip();
        let clip = clip.map(|norm| norm / f64::from(self.pipeline().stages()).sqrt());
        let throttle = self.throttle.is_on(is_full) && self.learner.can_throttle();
        let plan = self.learner.plan_step(lead.learning_rate, throttle, &lead.cursors);
        let compare = match plan {
            Plan::Keep => None,
            Plan::Leave { compare } => compare,
        };
        let control = self.learner.control(lead.learning_rate, clip, compare);
        let report = self
            .learner
            .trainer
            .step(&lead.samples, control, &mut self.learner.changes)
            .map_err(|error| self.learner.blame(error))?;
        self.has_led = false;
        self.learner.pending.add(&lead.cursors, lead.samples.len(), report.loss);
        // The samples of a pipeline count once.
        let samples = if self.leads() {
            self.learner.plan.settle(&lead.cursors);
            lead.samples.len()
        } else {
            // A follower's plan has chosen nothing, and learns what is done as from another's batches.
            self.learner.plan.observe(self.learner.identity.origin, &lead.cursors);
            0
        };
        let mut step = self.learner.step_of(&report, samples, throttle);
        let encoded = match plan {
            Plan::Keep => None,
            Plan::Leave { .. } => {
                let changes = std::mem::take(&mut self.learner.changes);
                let left = self.learner.leave(compare, changes)?;
                step.left(&left);
                let mut encoded = Vec::new();
                self.learner
                    .write_batch(left.payload, OriginStatus::default(), &mut encoded)?;
                Some(encoded)
            }
        };
        self.tell_step(step, encoded);
        for event in self.learner.trainer.stage_mut().take_held() {
            self.hear_pipeline(event, now);
        }
        self.outbox.extend(self.learner.check(now)?);
        Ok(())
    }

    fn tell_step(&mut self, step: Step, encoded: Option<Vec<u8>>) {
        self.throttle.count_step(encoded.is_some());
        let time = StepTime {
            training: step.training_time,
            ..StepTime::default()
        };
        self.outbox.push(FromTraining::Step { encoded, step, time });
    }

    /// There is nothing to train, for now or for good.
    fn pause(&mut self) -> Result<StageProgress, TrainingError> {
        let mut encoded = Vec::new();
        match self.learner.pause(0, &mut encoded)? {
            Next::Done => return self.close(),
            Next::Emitted(step) => self.tell_step(step, Some(encoded)),
            _ => return Ok(StageProgress::Waits(WAIT)),
        }
        Ok(StageProgress::Worked)
    }

    /// Closes the origin: this worker makes no further steps, and only helps to measure.
    fn close(&mut self) -> Result<StageProgress, TrainingError> {
        // A follower never says that the run is to end.
        let closing = self.learner.close(0, self.leads())?;
        self.pipeline_mut().close();
        self.outbox.push(FromTraining::Closed(closing));
        self.is_closed = true;
        Ok(StageProgress::Worked)
    }

    /// The minibatches that are judged of the evaluation that this worker waits for, if it waits for one.
    fn judged(&self) -> Option<u32> {
        self.learner.trainer.stage().judged()
    }

    /// Whether this worker waits for an evaluation.
    fn evaluates(&self) -> bool {
        self.judged().is_some()
    }

    /// Begins the evaluation that is due, if this worker leads a whole pipeline and nothing of it is under way. Returns whether
    /// it has.
    fn begin_evaluation(&mut self) -> Result<bool, TrainingError> {
        if self.measure_due.is_none() || self.pipeline().is_under_way() {
            return Ok(false);
        }
        let moment = self.measure_due.take();
        let begins = self.leads() && self.pipeline().is_whole();
        if begins {
            self.learner.trainer.begin_evaluation()?;
            self.measuring = moment;
        }
        Ok(begins)
    }

    /// Goes on with an evaluation. Returns whether something was done for it.
    fn advance_evaluation(&mut self, now: Duration) -> Result<bool, TrainingError> {
        let judged = self.judged();
        let advanced = self.learner.trainer.advance_evaluation()?;
        match advanced {
            Advance::Done => self.end_evaluation()?,
            Advance::Worked | Advance::Waits => self.note_evaluation(judged, now),
        }
        Ok(advanced != Advance::Waits)
    }

    /// Tells the scores of an evaluation that is done, or keeps them for the answer that waits for them.
    fn end_evaluation(&mut self) -> Result<(), TrainingError> {
        let Some(scores) = self.learner.trainer.stage_mut().take_scores() else {
            return Ok(());
        };
        match self.measuring.take() {
            Some(moment) => {
                let evaluation = Evaluation::of(moment, scores);
                self.outbox.push(FromTraining::Measured(evaluation));
                Ok(())
            }
            None => match self.finishes.pop_front() {
                Some(finish) => self.answer(finish, Some(scores)),
                None => Ok(()),
            },
        }
    }

    /// Answers orders to finish: all batches have come. More may come nevertheless, and the order again. A pipeline is measured
    /// first; if it breaks, it is called together and measured again, within limits.
    fn finish(&mut self, now: Duration) -> Result<StageProgress, TrainingError> {
        while let Some(finish) = self.finishes.front() {
            if self.leads() && finish.measures(now) {
                if self.evaluates() {
                    return Ok(StageProgress::Waits(WAIT));
                }
                if !self.pipeline().is_whole() {
                    self.pipeline_mut().join(now);
                    return Ok(StageProgress::Waits(CALL_AGAIN));
                }
                self.learner.trainer.begin_evaluation()?;
                self.note_evaluation(None, now);
                return Ok(StageProgress::Worked);
            }
            // What still comes of an evaluation must not count in the next one. One that another worker leads may still pass
            // through.
            if self.evaluates() {
                self.learner.trainer.stage_mut().reset();
            }
            if let Some(finish) = self.finishes.pop_front() {
                self.answer(finish, None)?;
            }
        }
        Ok(StageProgress::Waits(FOR_EVER))
    }

    fn answer(&mut self, finish: Finish, scores: Option<Scores>) -> Result<(), TrainingError> {
        self.outbox.push(self.learner.finished(finish.order, scores)?);
        Ok(())
    }

    fn take(&mut self, event: ToTraining, now: Duration) -> Result<(), TrainingError> {
        if let ToTraining::Slot { slot, alive } = event
            && slot == self.learner.identity.slot
        {
            self.stands_alone = !alive;
        }
        match event {
            ToTraining::Pause(is_paused) => self.throttle.pause(is_paused),
            ToTraining::Copy(moment) => self.measure_due = Some(moment),
            ToTraining::CopyLast(moment, answer) => {
                let weights = self.learner.trainer.copy_weights()?;
                self.outbox
                    .push(FromTraining::WeightsInTurn(weights, moment, Some(answer)));
            }
            ToTraining::Finish(order) => {
                if order.is_some() {
                    self.finishes.retain(|finish| finish.order.is_none());
                }
                self.finishes.push_back(Finish::new(order, now));
            }
            ToTraining::Pipeline(event) => self.hear_pipeline(event, now),
            event => self.learner.hear(event)?,
        }
        Ok(())
    }
}
