//! A pipeline: workers that hold the layers of one network together and train as one worker.
//!
//! ```text
//!  stage 0, which leads            stage 1                stage 2, which computes the loss
//!  Lead: a minibatch ────────────▶ ─────────────────────▶
//!  Forward: micro-batch 0 ───────▶ Forward ─────────────▶ Forward
//!  Forward: micro-batch 1 ───────▶ Forward ─────────────▶ loss and gradients of micro-batch 0
//!               gradients ◀─────── Backward ◀──────────── Backward: micro-batch 0
//! ```
//!
//! The first stage's worker, the leader, chooses samples as any worker does, and the others follow. Each worker adds up
//! the gradient of its own weights over the micro-batches of a minibatch, updates them and emits changes to the workers
//! that hold the same stage in other pipelines. The nodes carry messages from worker to worker.
//!
//! A broken pipeline begins anew with another *generation*: the leader calls the others until the last stage answers,
//! and then leads the interrupted minibatch again. A worker whose pipeline is broken waits, and loses nothing of its
//! own.
//!
//! [`Pipeline`] contains no arithmetic: it knows which workers belong to which generation, and which minibatches are
//! begun. It is pure: it takes events, and its messages lie in an outbox until the caller sends them. Activations and
//! gradients are the task of [`crate::stage`], and steps that of [`crate::training`].

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

/// Time after which a pipeline's leader asks the other workers again to join, when one of them has reported that it
/// does not take part.
const JOIN_SOON: Duration = Duration::from_millis(50);
/// Time after which a leader repeats its first request to the other workers of its pipeline to join.
const JOIN_EVERY: Duration = Duration::from_millis(500);
/// Longest time between two requests of a leader to join its pipeline; the time doubles with each request.
const JOIN_EVERY_MAX: Duration = Duration::from_secs(8);

/// Largest number of shards (parts of the samples) that one minibatch of a pipeline may take samples from, as batches
/// count samples by a cursor for each shard. A follower may already hold cursors of other minibatches, up to three
/// quarters of what a batch takes.
pub(crate) const LED_CURSORS_MAX: usize = CURSORS_MAX / 4;

/// One worker's part in its pipeline (workers that each hold a stage of one network): the protocol by which they join,
/// and the minibatches in flight.
pub struct Pipeline {
    place: StageAddress,
    stages: u8,
    /// Number of minibatches that a pipeline's leader may begin besides the oldest one in flight.
    in_flight: usize,
    /// Number of training samples in the data; a minibatch that names other samples is refused.
    samples: usize,
    /// Generation of the pipeline (one joining of its workers) that this worker belongs to; 0 before the first request
    /// to join, and for a follower whose pipeline is broken.
    generation: u64,
    /// True once the pipeline's last stage has answered the leader's request to join.
    whole: bool,
    /// Number of pipeline generations (attempts to join the workers) that this leader has started.
    joins: u64,
    /// Time at which this leader last asked the other workers of its pipeline to join.
    last_join: Option<Duration>,
    /// Time since which this leader has asked the others to join without an answer; `None` if it does not ask.
    joining_since: Option<Duration>,
    /// Time that a leader waits for an answer before it repeats its request to the other workers to join the pipeline.
    /// It doubles with each request, since the answer passes through all stages.
    pause: Duration,
    /// Seed of the generation numbers that this leader draws for its pipeline, so that two leaders never start the same
    /// generation.
    own: u64,
    /// Minibatches that the leader has begun and this worker has not completed, in their order.
    begun: VecDeque<Lead>,
    /// Step number of the newest minibatch that the leader has begun in the pipeline's present generation.
    newest: u64,
    /// Step number of the last minibatch that this worker has completed.
    done: u64,
    /// Messages for a minibatch that the leader has not announced to this worker yet; other stages received the
    /// announcement earlier.
    unannounced: VecDeque<Flow>,
    /// True once the pipeline's leader has said that there are no further minibatches.
    over: bool,
    /// True once this worker makes no further steps, and only helps with evaluations.
    closed: bool,
    /// Messages to other workers of the pipeline, in the order in which they are to be sent.
    outbox: Vec<Flow>,
}

impl Pipeline {
    /// Creates the pipeline part of a worker that has just started. A leader draws the numbers of its generations from
    /// the seed `own`.
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
        // The others may be waiting for this worker's predecessor.
        if !pipeline.leads() {
            pipeline.say(0, FlowBody::Reset);
        }
        pipeline
    }

    /// Takes the messages that are to be sent to other workers of the pipeline.
    pub fn take_outbox(&mut self) -> Vec<Flow> {
        std::mem::take(&mut self.outbox)
    }

    /// True if this worker holds the first stage and so leads the pipeline: it chooses the minibatches.
    pub fn leads(&self) -> bool {
        self.place.stage == 0
    }

    fn is_last(&self) -> bool {
        self.place.stage + 1 == self.stages
    }

    /// Returns the number of stages of the pipeline, over which the norm of a gradient is spread.
    pub fn stages(&self) -> u8 {
        self.stages
    }

    /// True if the pipeline is joined, so that this worker can lead minibatches or follow a leader.
    pub fn is_whole(&self) -> bool {
        self.whole || !self.leads() && self.generation != 0
    }

    /// True if the pipeline's leader has said that there are no further minibatches.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Resets the time that [`Pipeline::joining_for`] counts, because a worker of the pipeline is missing and cannot
    /// answer.
    pub fn stop_joining(&mut self) {
        self.joining_since = None;
    }

    /// Returns the time for which this leader has asked the other workers to join without an answer.
    pub fn joining_for(&self, now: Duration) -> Duration {
        let since = self.joining_since;
        since.map_or(Duration::ZERO, |at| now.saturating_sub(at))
    }

    /// Asks the pipeline's other workers to join a new generation, if it is time to ask again.
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

    /// Begins a minibatch as the pipeline's leader: announces it to all other stages.
    pub(crate) fn begin(&mut self, lead: Lead) {
        self.say_to_all(&FlowBody::Lead(Box::new(lead.clone())));
        self.newest = lead.step;
        self.begun.push_back(lead);
    }

    /// Marks the pipeline's oldest minibatch in flight as done by this worker.
    pub(crate) fn led(&mut self) {
        if let Some(lead) = self.begun.pop_front() {
            self.done = lead.step;
        }
    }

    /// Returns the number of minibatches that a pipeline's leader may begin besides the oldest one in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// True if a minibatch of the pipeline is in flight: begun by the leader and not completed by this worker.
    pub fn is_under_way(&self) -> bool {
        !self.begun.is_empty()
    }

    /// Returns the announcement of a step's minibatch, if the minibatch is in flight.
    pub(crate) fn begun(&self, step: u64) -> Option<&Lead> {
        self.begun.iter().find(|lead| lead.step == step)
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    pub(crate) fn stage(&self) -> u8 {
        self.place.stage
    }

    /// Returns the announcement of the oldest minibatch in flight, which this worker computes next.
    pub fn next_lead(&self) -> Option<&Lead> {
        self.begun.front()
    }

    /// Ends this worker's training steps. A leader tells each of the others directly, because a worker that should pass
    /// the message on may be gone.
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

    /// Gives up the minibatches in flight, and leaves the pipeline's generation until the leader calls again.
    fn break_off(&mut self) {
        self.whole = false;
        self.begun.clear();
        self.unannounced.clear();
        if !self.leads() {
            self.generation = 0;
        }
    }

    /// Gives up the minibatches in flight and tells the leader, which may be waiting for this worker.
    pub(crate) fn reset(&mut self) -> Heard {
        // Tells the leader only once: the path to the leader itself may be broken.
        let was_led = self.generation != 0;
        self.break_off();
        if self.leads() {
            self.release();
        } else if was_led {
            self.say(0, FlowBody::Reset);
        }
        Heard::Broken
    }

    /// Gives up the minibatches in flight because another worker sent a message that breaks the pipeline's protocol.
    pub(crate) fn refuse(&mut self, violation: PipelineViolation) -> Heard {
        note_refusal(violation);
        tracing::warn!(
            event = "pipeline_violation", pipeline = self.place.pipeline, stage = self.place.stage, %violation,
            "another worker of this pipeline broke its protocol; waiting for its leader to call again"
        );
        self.reset()
    }

    /// If this leader makes no further steps and so does not ask the others to join again, tells all stages that this
    /// generation of the pipeline is over: a worker that has not completed the last step may be waiting for another one
    /// that has given it up. Sends this only once, because each message to an unreachable worker comes back as the
    /// event that the pipeline is broken.
    fn release(&mut self) {
        if self.closed && self.generation != 0 {
            self.say_to_all(&FlowBody::Reset);
            self.generation = 0;
        }
    }

    /// Takes a pipeline event (a message, or the loss of another worker) and returns its consequence for this stage's
    /// computation.
    pub(crate) fn hear(&mut self, event: PipelineEvent) -> Heard {
        let flow = match event {
            PipelineEvent::Flow(flow) => flow,
            PipelineEvent::Stopping if !self.leads() => return Heard::Nothing,
            PipelineEvent::Broken | PipelineEvent::Stopping => return self.reset(),
        };
        // No generation has the number 0. A worker in no generation may only say that it waits for a call.
        let is_of_none = flow.head.generation == 0 && !matches!(flow.head.body, FlowBody::Reset);
        if flow.head.to != self.place.stage || is_of_none {
            return Heard::Nothing;
        }
        match &flow.head.body {
            FlowBody::Join if !self.leads() => return self.answer(flow.head.generation),
            FlowBody::Reset if flow.head.generation == 0 || self.leads() && flow.head.generation == self.generation => {
                if !self.leads() {
                    // The leader may have called already, and lead minibatches that are given up here.
                    return self.reset();
                }
                self.break_off();
                self.release();
                // A worker was started again or is reachable again, so it is called soon. A worker that cannot reach
                // the next stage says so after every call.
                self.pause = JOIN_SOON;
                return Heard::Broken;
            }
            FlowBody::Reset if flow.head.generation != self.generation => return Heard::Nothing,
            FlowBody::Reset => {
                // The leader sent this message, so it need not be told.
                self.break_off();
                return Heard::Broken;
            }
            &FlowBody::End { done } if !self.leads() => {
                self.over = true;
                // Drops minibatches that the leader has not completed. Those that it has completed are still trained
                // here, though no other worker waits for them.
                let broke = self.begun.front().is_some_and(|lead| lead.step > done);
                self.begun.retain(|lead| lead.step <= done);
                return if broke { Heard::Broken } else { Heard::Nothing };
            }
            _ => {}
        }
        if flow.head.generation != self.generation && !planted(Bug::MixesGenerations) {
            // Otherwise the leader waits for an answer that never comes.
            if !self.leads() {
                let lost = self.head(0, flow.head.generation, FlowBody::Reset);
                self.outbox.push(Flow::without_numbers(lost));
            }
            return Heard::Nothing;
        }
        // While a leader waits for the answer to its call, all other messages belong to work that it has given up.
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
            // A leader that was started again may lead minibatches that its predecessor had finished last. This worker
            // has ended and trains no more.
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

    /// Takes the leader's announcement of a minibatch, and the messages for it that have arrived before.
    fn follow(&mut self, lead: Lead) -> Heard {
        let step = lead.step;
        self.newest = step;
        self.begun.push_back(lead);
        // Another leader may have taken over from the one that had no more minibatches.
        self.over = false;
        let is_of_it = |flow: &Flow| flow.head.body.step() == Some(step);
        let (early, others) = self.unannounced.drain(..).partition(is_of_it);
        self.unannounced = others;
        Heard::Begun {
            step,
            early: early.into(),
        }
    }

    /// Keeps a message for a minibatch that the leader has not announced to this worker. Messages for a minibatch that
    /// was given up may still arrive, and are dropped.
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

    /// Returns the largest number of minibatches that can be begun by the leader and not completed by this worker, if
    /// the leader keeps to the protocol: those in flight at the leader, and as many that the leader has completed
    /// already.
    fn begun_max(&self) -> usize {
        2 * (1 + self.in_flight)
    }

    /// Returns the largest number of messages that are kept for minibatches in flight; a sender of more breaks the
    /// protocol.
    pub(crate) fn kept_max(&self) -> usize {
        usize::from(MICRO_MAX) * self.begun_max() * usize::from(self.stages)
    }

    /// True if the announced minibatch is valid for this job; other announcements break the protocol.
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

    /// Joins a new generation of the pipeline, which ends all work in flight, and passes the leader's request on or, at
    /// the last stage, answers it.
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
