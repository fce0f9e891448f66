//! The training loop of a worker that holds a stage of a network, from its place in the run to the saved stage.
//!
//! The loop is pure: it takes events, does one piece of work per call, and its messages lie in an outbox until the
//! caller takes them. One worker of a pipeline leads and chooses minibatches as any worker does; the others follow.

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

/// Time for which a leader asks the workers of its pipeline to join before it leaves the remaining samples to other
/// pipelines. Nodes that are gone are given up sooner; the nodes of this pipeline are present, and a worker may be
/// opening large data.
const GIVEN_UP_AFTER: Duration = Duration::from_mins(5);
/// Time after which a follower that is told to stop no longer waits for its pipeline's leader, if no message comes. The
/// leader is told to stop, too, and gives up the minibatch in flight, but not an evaluation. A dead leader's last call
/// may arrive after the event that it is gone, so the wait must end.
const LEADER_ENDS_WITHIN: Duration = Duration::from_secs(10);
/// Longest time for which a worker of a pipeline waits for messages before it looks at the time again.
const WAIT: Duration = Duration::from_secs(1);
/// Interval at which a leader with a pending order to finish asks its pipeline to join, for the evaluation before the
/// end.
const CALL_AGAIN: Duration = Duration::from_millis(100);
/// Largest number of messages that wait while a minibatch is computed. If more come, the minibatch is given up.
const WAITING_MAX: usize = 1 << 10;

/// Outcome of one call of a pipeline worker's training loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageProgress {
    /// Outcome of a loop call: work was done, and there may be more.
    Worked,
    /// Outcome of a loop call: there is nothing to do before the next event, for this time at most.
    Waits(Duration),
}

/// Training of a worker that holds one stage of a network, in a pipeline with other workers.
pub struct StageTraining<T> {
    pub(super) learner: Learner<T>,
    minibatches: Minibatches,
    /// True if a worker of this pipeline is missing: then the pipeline trains nothing, and other pipelines train its
    /// samples.
    stands_alone: bool,
    /// True if the leader has begun its present minibatch, which is neither done nor lost.
    has_led: bool,
    throttle: Throttle,
    /// Messages to the training thread that wait until the present minibatch is done, because the weights must not
    /// change before.
    waiting: VecDeque<ToTraining>,
    /// Moment (samples and time of the run) of an evaluation that was ordered and waits until no minibatch of the
    /// pipeline is in flight.
    measure_due: Option<Moment>,
    /// Moment (samples and time of the run) for which the evaluation that now passes through the pipeline was ordered.
    measuring: Option<Moment>,
    /// Orders to finish the run, each of which may wait for an evaluation of the pipeline.
    finishes: VecDeque<Finish>,
    /// Start of the time in which a follower (a worker that does not lead its pipeline) that was told to stop has heard
    /// nothing from its pipeline. After a limit it gives up waiting for its leader.
    stopping_since: Option<Duration>,
    is_closed: bool,
    /// Messages from the training thread that are to be sent, in their order.
    outbox: Vec<FromTraining>,
}

impl<T: Trainer + HoldsStage> StageTraining<T> {
    /// Creates the training of a pipeline worker at the start of a run, on samples of these classes.
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

    /// Continues in the middle of a run: `cursors` are the samples done, and the trainer's weights already contain this
    /// many batches and samples.
    pub fn resume(&mut self, cursors: &Cursors, batches: u64, samples: u64) {
        self.learner.resume(cursors, batches, samples);
    }

    /// Continues from a saved state; call this before the first step. A state that does not fit is refused and has no
    /// effect.
    pub fn restore(&mut self, state: State) -> Result<(), StateError> {
        self.learner.restore(state)
    }

    pub fn trainer(&self) -> &T {
        &self.learner.trainer
    }

    pub fn origin(&self) -> OriginId {
        self.learner.identity.origin
    }

    /// Takes the messages of the training thread that are to be sent.
    pub fn take_outbox(&mut self) -> Vec<FromTraining> {
        std::mem::take(&mut self.outbox)
    }

    /// Takes a message to the training thread. While a minibatch is computed, all but the pipeline's own messages wait.
    pub fn hear(&mut self, event: ToTraining, now: Duration) -> Result<(), TrainingError> {
        match event {
            ToTraining::Pipeline(event) => self.hear_pipeline(event, now),
            // A leader need not wait for the minibatch in flight.
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

    /// True if there is room for further messages to the training thread. If not, the present minibatch is given up or
    /// completed without further messages, which makes room.
    pub fn has_room(&self) -> bool {
        self.waiting.len() < WAITING_MAX
    }

    /// Does one piece of work (a part of a minibatch, an evaluation or the end), if there is any. `is_full` says that
    /// too many batches are queued.
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
        // Evaluation samples pass between two steps, also where another worker leads.
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

    /// True if this worker chooses the minibatches of its pipeline.
    fn leads(&self) -> bool {
        self.pipeline().leads()
    }

    /// True if the gradient of a minibatch is being computed, so that the weights must not change.
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

    /// Marks a minibatch that was lost with a broken pipeline, so that the leader begins it again.
    fn note_lost_minibatch(&mut self) {
        if self.has_led && !self.pipeline().is_under_way() {
            self.has_led = false;
            self.minibatches.failed();
        }
    }

    /// Records that an evaluation has advanced, or was lost with the pipeline. `judged_before` is the number of its
    /// minibatches that were counted before.
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

    /// Queues the messages to other workers of the pipeline for sending.
    fn send_flows(&mut self) {
        let flows = self.pipeline_mut().take_outbox();
        self.outbox.extend(flows.into_iter().map(FromTraining::Flow));
    }

    /// Begins the pipeline leader's next minibatch, or ends its training.
    fn lead(&mut self, now: Duration) -> Result<StageProgress, TrainingError> {
        let is_whole = self.pipeline().is_whole();
        // Keeps chosen minibatches that are still to be trained; forgets them once others have trained their samples.
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
            // Begins no further minibatch, so that none is in flight when the evaluation begins.
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

    /// Returns the leader's announcements of its next minibatch, and of those after it that may be begun before it is
    /// done.
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

    /// Asks the workers of a broken pipeline to join again. Returns the leader's way to end if that has failed for too
    /// long.
    fn call(&mut self, now: Duration) -> Option<Ending> {
        let has_others = self.learner.identity.slots > 1;
        // The leader was started again after the others had ended, and its last minibatches had reached no other
        // worker.
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
        // If a worker is missing, other pipelines know it and take its samples; it or a successor may come back.
        if stands_alone {
            pipeline.stop_joining();
        }
        // If all nodes are there, other pipelines cannot know that this one makes no progress.
        if has_others && pipeline.joining_for(now) > GIVEN_UP_AFTER {
            tracing::warn!(
                event = "pipeline_given_up",
                "this pipeline cannot be completed: its remaining samples are left to other pipelines"
            );
            return Some(Ending::GaveUp);
        }
        None
    }

    /// Goes on with the leader's minibatch, or waits for one, as a follower. A follower that is told to stop goes on as
    /// long as it is led, because others wait for its layers. It does not end when its samples are done, since the
    /// leader may know of others: the leader says when there are no more, or the node does.
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

    /// Advances the gradient of the present minibatch by a piece of work; makes the training step once the gradient is
    /// complete.
    fn compute(&mut self, now: Duration, is_full: bool) -> Result<StageProgress, TrainingError> {
        let advanced = self.learner.trainer.advance();
        match advanced.map_err(|error| self.learner.blame(error))? {
            Advance::Worked => Ok(StageProgress::Worked),
            Advance::Waits => Ok(StageProgress::Waits(WAIT)),
            Advance::Done => self.step(now, is_full).map(|()| StageProgress::Worked),
        }
    }

    /// Makes the training step of this pipeline stage, whose gradient is complete.
    fn step(&mut self, now: Duration, is_full: bool) -> Result<(), TrainingError> {
        let Some(lead) = self.pipeline().next_lead().cloned() else {
            return Ok(());
        };
        // The optimiser uses the leader's step number, whenever this worker came.
        self.learner.counters.steps = lead.step;
        let batches = self.learner.applied.batches();
        let begun_at = if self.leads() {
            self.minibatches.take_begun_at()
        } else {
            None
        };
        self.learner.counters.seen = begun_at.unwrap_or(batches);
        // The leader's rate counts. Each stage clips its own gradient to its part of the norm, because the norm of the
        // whole gradient would take a round trip in every step.
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
        // The samples of a pipeline count once, at the leader.
        let samples = if self.leads() {
            self.learner.plan.settle(&lead.cursors);
            lead.samples.len()
        } else {
            // A follower's plan has chosen nothing, and learns of done samples as from another origin's batch.
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

    /// Handles the case that there is nothing to train, for now or for good: sends a batch that counts steps not
    /// counted yet, waits, or ends the worker's stream of batches.
    fn pause(&mut self) -> Result<StageProgress, TrainingError> {
        let mut encoded = Vec::new();
        match self.learner.pause(0, &mut encoded)? {
            Next::Done => return self.close(),
            Next::Emitted(step) => self.tell_step(step, Some(encoded)),
            _ => return Ok(StageProgress::Waits(WAIT)),
        }
        Ok(StageProgress::Worked)
    }

    /// Ends this worker's stream of batches (its origin): the worker makes no further steps, and only helps with
    /// evaluations.
    fn close(&mut self) -> Result<StageProgress, TrainingError> {
        // A follower never ends the run.
        let closing = self.learner.close(0, self.leads())?;
        self.pipeline_mut().close();
        self.outbox.push(FromTraining::Closed(closing));
        self.is_closed = true;
        Ok(StageProgress::Worked)
    }

    /// Returns the number of evaluation minibatches whose results are counted; `None` if this worker leads no
    /// evaluation.
    fn judged(&self) -> Option<u32> {
        self.learner.trainer.stage().judged()
    }

    /// True if this worker leads an evaluation of its pipeline now.
    fn evaluates(&self) -> bool {
        self.judged().is_some()
    }

    /// Begins the evaluation that is due, if this worker leads a whole pipeline with no minibatch in flight. Returns
    /// true if it has begun.
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

    /// Advances a pipeline evaluation by one piece of work. Returns false if there was nothing to do.
    fn advance_evaluation(&mut self, now: Duration) -> Result<bool, TrainingError> {
        let judged = self.judged();
        let advanced = self.learner.trainer.advance_evaluation()?;
        match advanced {
            Advance::Done => self.end_evaluation()?,
            Advance::Worked | Advance::Waits => self.note_evaluation(judged, now),
        }
        Ok(advanced != Advance::Waits)
    }

    /// Reports the scores of a completed evaluation, or answers the order to finish that waits for them.
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

    /// Answers orders to finish the run: all batches have come. More may come nevertheless, and another order after
    /// them. A leader evaluates its pipeline first; if that breaks, it asks the pipeline to join and tries again,
    /// within limits.
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
            // Late results of a cancelled evaluation must not count in the next one. An evaluation that another worker
            // leads may still pass through.
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
