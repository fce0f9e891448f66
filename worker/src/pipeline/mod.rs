//! A pipeline: workers that hold the layers of one network together and train as one.
//!
//! ```text
//!  stage 0, which leads            stage 1                stage 2, which computes the loss
//!  Lead: a minibatch ────────────▶ ─────────────────────▶
//!  Forward: micro-batch 0 ───────▶ Forward ─────────────▶ Forward
//!  Forward: micro-batch 1 ───────▶ Forward ─────────────▶ loss and gradients of micro-batch 0
//!               gradients ◀─────── Backward ◀──────────── Backward: micro-batch 0
//! ```
//!
//! The first stage's worker chooses samples as any worker does, and the others follow. Each adds up the gradient of its own
//! weights over the micro-batches of a minibatch, updates them and lets changes out to those that hold the same in other
//! pipelines. Its node takes messages from worker to worker.
//!
//! Whatever breaks, a pipeline begins anew with another *generation*: the leader calls until the last one answers, and then
//! leads the minibatch again that was under way. A worker whose pipeline is broken waits, and loses nothing of its own.
//!
//! [`Pipeline`] is the part of this that knows no numbers: who belongs to which generation, and which minibatches are begun. It
//! is pure: it hears events, and what it says lies in its outbox until the caller sends it. The numbers are the business of
//! [`crate::stage`], and the steps that of [`crate::training`].

mod event;
pub mod planted;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use protocol::job::{IN_FLIGHT_MAX, MICRO_MAX, MINIBATCH_MAX};
use protocol::log::batch::CURSORS_MAX;
use protocol::rng::splitmix64;
use protocol::wire::flow::{Flow, FlowBody, FlowHead, Lead, StageAddress};

pub(crate) use event::Heard;
pub use event::PipelineEvent;
use planted::{Bug, note_refusal, planted};

use crate::trainer::PipelineViolation;

/// How long a leader waits for the answer to a call when it has heard that somebody has not, to its first call, and at most to
/// a later one.
const JOIN_SOON: Duration = Duration::from_millis(50);
const JOIN_EVERY: Duration = Duration::from_millis(500);
const JOIN_EVERY_MAX: Duration = Duration::from_secs(8);

/// The most cursors that a minibatch moves. Who is led may have kept those of others, up to three quarters of what a batch
/// takes.
pub(crate) const LED_CURSORS_MAX: usize = CURSORS_MAX / 4;

/// A worker's part in its pipeline.
pub struct Pipeline {
    place: StageAddress,
    /// How many stages there are.
    stages: u8,
    /// How many minibatches may be begun before the one before them is done.
    in_flight: usize,
    /// How many samples there are to learn from: no honest leader names others.
    samples: usize,
    /// What it belongs to now; 0 before it has heard a call, and when the pipeline is broken.
    generation: u64,
    /// The leader has heard the last one's answer.
    whole: bool,
    /// How many generations this leader has made, when it made the last one, and what makes them its own.
    joins: u64,
    last_join: Option<Duration>,
    /// Since when it calls in vain.
    joining_since: Option<Duration>,
    /// How long it waits for an answer before it calls again: longer each time, since the way may be long.
    pause: Duration,
    own: u64,
    /// The minibatches that the leader has begun and this worker is not through with, in their order.
    begun: VecDeque<Lead>,
    /// The last that was begun in this generation, and the last that is done.
    newest: u64,
    done: u64,
    /// Messages for a minibatch that the leader has not announced to this worker yet; other stages received the announcement
    /// earlier.
    unannounced: VecDeque<Flow>,
    /// The leader has no further ones.
    over: bool,
    /// This worker makes no further steps, and only helps to measure.
    closed: bool,
    /// Messages that are to be sent, in their order.
    outbox: Vec<Flow>,
}

impl Pipeline {
    /// Creates the part of a worker that has just come, whose generations are `own`.
    #[must_use]
    pub fn new(place: StageAddress, stages: u8, in_flight: u8, own: u64, samples: usize) -> Self {
        let mut pipeline = Self {
            place,
            stages,
            in_flight: usize::from(in_flight.min(IN_FLIGHT_MAX)),
            samples,
            generation: 0,
            whole: false,
            joins: 0,
            last_join: None,
            joining_since: None,
            pause: JOIN_EVERY,
            own,
            begun: VecDeque::new(),
            newest: 0,
            done: 0,
            unannounced: VecDeque::new(),
            over: false,
            closed: false,
            outbox: Vec::new(),
        };
        // The worker that was here before may be waited for.
        if !pipeline.leads() {
            pipeline.say(0, FlowBody::Reset);
        }
        pipeline
    }

    /// Takes the messages that are to be sent.
    pub fn take_outbox(&mut self) -> Vec<Flow> {
        std::mem::take(&mut self.outbox)
    }

    /// Whether it chooses the minibatches.
    pub fn leads(&self) -> bool {
        self.place.stage == 0
    }

    fn is_last(&self) -> bool {
        self.place.stage + 1 == self.stages
    }

    /// Over how many stages the norm of a gradient is spread.
    pub fn stages(&self) -> u8 {
        self.stages
    }

    /// Whether a minibatch can be led, or be led by another.
    pub fn is_whole(&self) -> bool {
        self.whole || !self.leads() && self.generation != 0
    }

    /// Whether the leader has said that there are no further minibatches.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Nobody can be called who would hear it.
    pub fn stop_joining(&mut self) {
        self.joining_since = None;
    }

    /// For how long the others are called in vain.
    pub fn joining_for(&self, now: Duration) -> Duration {
        let since = self.joining_since;
        since.map_or(Duration::ZERO, |at| now.saturating_sub(at))
    }

    /// Calls the others, if that is due.
    pub fn join(&mut self, now: Duration) {
        self.joining_since.get_or_insert(now);
        if let Some(at) = self.last_join {
            if now.saturating_sub(at) < self.pause {
                return;
            }
            self.pause = (2 * self.pause).min(JOIN_EVERY_MAX);
        }
        self.last_join = Some(now);
        self.joins += 1;
        self.generation = splitmix64(self.own ^ self.joins).max(1);
        self.whole = false;
        self.say(1, FlowBody::Join);
    }

    /// The leader begins a minibatch.
    pub(crate) fn begin(&mut self, lead: Lead) {
        self.say_to_all(&FlowBody::Lead(Box::new(lead.clone())));
        self.newest = lead.step;
        self.begun.push_back(lead);
    }

    /// The first of the minibatches that were begun is done.
    pub(crate) fn led(&mut self) {
        if let Some(lead) = self.begun.pop_front() {
            self.done = lead.step;
        }
    }

    /// How many minibatches may be begun before the one before them is done.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Whether a minibatch is under way.
    pub fn is_under_way(&self) -> bool {
        !self.begun.is_empty()
    }

    /// A minibatch that was begun.
    pub(crate) fn begun(&self, step: u64) -> Option<&Lead> {
        self.begun.iter().find(|lead| lead.step == step)
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    pub(crate) fn stage(&self) -> u8 {
        self.place.stage
    }

    /// The first of the minibatches that the leader has begun.
    pub fn next_lead(&self) -> Option<&Lead> {
        self.begun.front()
    }

    /// This worker makes no further steps. A leader tells each of the others: one that should hand it on may be gone.
    pub fn close(&mut self) {
        self.closed = true;
        self.begun.clear();
        if self.leads() && self.generation != 0 {
            self.say_to_all(&FlowBody::End { done: self.done });
            if !self.whole {
                self.release();
            }
        }
    }

    fn say_to_all(&mut self, message: &FlowBody) {
        for stage in 1..self.stages {
            self.say(stage, message.clone());
        }
    }

    pub(crate) fn say(&mut self, to: u8, body: FlowBody) {
        let head = self.head(to, self.generation, body);
        self.outbox.push(Flow::without_numbers(head));
    }

    pub(crate) fn send(&mut self, to: u8, body: FlowBody, numbers: &[f32]) {
        let head = self.head(to, self.generation, body);
        self.outbox.push(Flow::with(head, numbers));
    }

    fn head(&self, to: u8, generation: u64, body: FlowBody) -> FlowHead {
        FlowHead {
            pipeline: self.place.pipeline,
            to,
            from: self.place.stage,
            generation,
            body,
        }
    }

    /// Gives up what is under way.
    fn break_off(&mut self) {
        self.whole = false;
        self.begun.clear();
        self.unannounced.clear();
        if !self.leads() {
            self.generation = 0;
        }
    }

    /// Gives up what is under way, and lets the leader know: it may wait for this worker.
    pub(crate) fn reset(&mut self) -> Heard {
        // Said once: it may be the way to the leader that is broken.
        let was_led = self.generation != 0;
        self.break_off();
        if self.leads() {
            self.release();
        } else if was_led {
            self.say(0, FlowBody::Reset);
        }
        Heard::Broken
    }

    /// Gives up what is under way because another worker has sent what no honest one sends.
    pub(crate) fn refuse(&mut self, violation: PipelineViolation) -> Heard {
        note_refusal(violation);
        tracing::warn!(
            event = "pipeline_violation", pipeline = self.place.pipeline, stage = self.place.stage, %violation,
            "another worker of this pipeline broke its protocol; waiting for its leader to call again"
        );
        self.reset()
    }

    /// Tells all that this generation is over, where a leader makes no further steps and so does not call either: a worker that
    /// is not through with the last step may wait for another that has given it up. Said once: where a worker cannot be reached,
    /// each message to it is answered by the word that the pipeline is broken.
    fn release(&mut self) {
        if self.closed && self.generation != 0 {
            self.say_to_all(&FlowBody::Reset);
            self.generation = 0;
        }
    }

    /// Takes note of an event.
    pub(crate) fn hear(&mut self, event: PipelineEvent) -> Heard {
        let flow = match event {
            PipelineEvent::Flow(flow) => flow,
            PipelineEvent::Stopping if !self.leads() => return Heard::Nothing,
            PipelineEvent::Broken | PipelineEvent::Stopping => return self.reset(),
        };
        // No generation has the number 0: a worker of none says that it waits for a call, and nothing else.
        let is_of_none = flow.head.generation == 0 && !matches!(flow.head.body, FlowBody::Reset);
        if flow.head.to != self.place.stage || is_of_none {
            return Heard::Nothing;
        }
        match &flow.head.body {
            FlowBody::Join if !self.leads() => return self.answer(flow.head.generation),
            FlowBody::Reset if flow.head.generation == 0 || self.leads() && flow.head.generation == self.generation => {
                if !self.leads() {
                    // The leader may have called already, and lead what is given up here.
                    return self.reset();
                }
                self.break_off();
                self.release();
                // Another worker has come, or can be reached again: it is called soon. One that cannot reach the next says so
                // to every call.
                self.pause = JOIN_SOON;
                return Heard::Broken;
            }
            FlowBody::Reset if flow.head.generation != self.generation => return Heard::Nothing,
            FlowBody::Reset => {
                // The leader knows.
                self.break_off();
                return Heard::Broken;
            }
            &FlowBody::End { done } if !self.leads() => {
                self.over = true;
                // What was begun ahead is not gone on with; what others wait for no more may still be made here.
                let broke = self.begun.front().is_some_and(|lead| lead.step > done);
                self.begun.retain(|lead| lead.step <= done);
                return if broke { Heard::Broken } else { Heard::Nothing };
            }
            _ => {}
        }
        if flow.head.generation != self.generation && !planted(Bug::MixesGenerations) {
            // The leader waits for what nobody will answer.
            if !self.leads() {
                let lost = self.head(0, flow.head.generation, FlowBody::Reset);
                self.outbox.push(Flow::without_numbers(lost));
            }
            return Heard::Nothing;
        }
        // Until the last worker answers its call, a leader has given up all that may still come.
        let is_of_the_call = matches!(flow.head.body, FlowBody::Ready | FlowBody::End { .. });
        if self.leads() && !self.whole && !is_of_the_call {
            return Heard::Nothing;
        }
        match &flow.head.body {
            FlowBody::Ready if self.leads() => {
                self.whole = true;
                self.joining_since = None;
                (self.last_join, self.pause) = (None, JOIN_EVERY);
                Heard::Nothing
            }
            // A leader that was started again may have lost what it had made last. Nobody makes it with it any more.
            FlowBody::Lead(_) if self.closed => {
                self.say(0, FlowBody::End { done: self.done });
                Heard::Nothing
            }
            FlowBody::End { .. } if self.leads() => {
                self.over = true;
                self.reset()
            }
            FlowBody::Lead(_) if self.begun.len() >= self.begun_max() => self.refuse(PipelineViolation::TooMany),
            FlowBody::Lead(lead) if self.leads() || flow.head.from != 0 || !self.is_sound(lead) => {
                self.refuse(PipelineViolation::Minibatch)
            }
            FlowBody::Lead(lead) => self.follow(Lead::clone(lead)),
            &(FlowBody::Forward { step, .. } | FlowBody::Backward { step, .. }) if self.begun(step).is_none() => {
                self.keep_unannounced(step, flow)
            }
            FlowBody::Forward { .. } | FlowBody::Backward { .. } | FlowBody::Measure(_) | FlowBody::EvalTotals(_) => {
                Heard::Input(flow)
            }
            FlowBody::Join | FlowBody::Ready | FlowBody::Reset | FlowBody::End { .. } => Heard::Nothing,
        }
    }

    /// Takes note of a minibatch that the leader has begun, and of what has come for it before.
    fn follow(&mut self, lead: Lead) -> Heard {
        let step = lead.step;
        self.newest = step;
        self.begun.push_back(lead);
        // Another may lead than the one that had no more.
        self.over = false;
        let is_of_it = |flow: &Flow| flow.head.body.step() == Some(step);
        let (early, others) = self.unannounced.drain(..).partition(is_of_it);
        self.unannounced = others;
        Heard::Begun {
            step,
            early: early.into(),
        }
    }

    /// Keeps what has come of a minibatch that this worker has not heard of. Of what was given up something may still come.
    fn keep_unannounced(&mut self, step: u64, flow: Flow) -> Heard {
        if self.leads() || step <= self.newest {
            return Heard::Nothing;
        }
        if self.unannounced.len() >= self.kept_max() {
            return self.refuse(PipelineViolation::TooMany);
        }
        self.unannounced.push_back(flow);
        Heard::Nothing
    }

    /// The most minibatches that an honest leader has begun and this worker is not through with: those of the leader, and
    /// those that the leader is through with already.
    fn begun_max(&self) -> usize {
        2 * (1 + self.in_flight)
    }

    /// The most messages of them that are kept.
    pub(crate) fn kept_max(&self) -> usize {
        usize::from(MICRO_MAX) * self.begun_max() * usize::from(self.stages)
    }

    /// Whether a minibatch can be one of this job.
    fn is_sound(&self, lead: &Lead) -> bool {
        let known = lead.samples.iter().all(|&sample| (sample as usize) < self.samples);
        let is_new = lead.step > self.newest;
        let micro_batches = (1..=lead.samples.len().min(MICRO_MAX.into())).contains(&usize::from(lead.micro_batches));
        known
            && is_new
            && micro_batches
            && lead.samples.len() <= MINIBATCH_MAX as usize
            && lead.cursors.len() <= LED_CURSORS_MAX
            && lead.learning_rate.is_finite()
    }

    /// A new generation: whatever was under way is over.
    fn answer(&mut self, generation: u64) -> Heard {
        let broke = self.is_under_way();
        self.break_off();
        self.generation = generation;
        self.newest = 0;
        if self.is_last() {
            self.say(0, FlowBody::Ready);
        } else {
            self.say(self.place.stage + 1, FlowBody::Join);
        }
        if broke { Heard::Broken } else { Heard::Joined }
    }
}
