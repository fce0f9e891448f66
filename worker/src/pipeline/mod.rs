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

mod in_pipeline;
#[cfg(test)]
mod tests;
mod transport;

use std::collections::VecDeque;
use std::time::Duration;

use protocol::batch::CURSORS_MAX;
use protocol::job::{IN_FLIGHT_MAX, MICRO_MAX, MINIBATCH_MAX};
use protocol::rng::splitmix64;
use protocol::wire::flow::{Flow, FlowBody, FlowHead, Lead, StageAddress};

use crate::train_error::TrainError;
pub use in_pipeline::InPipeline;
pub(crate) use transport::StageInput;
pub use transport::{PipelineEvent, PipelineTransport};

/// How long a leader waits for the answer to a call when it has heard that somebody has not, to its first call, and at most to
/// a later one.
const JOIN_SOON: Duration = Duration::from_millis(50);
const JOIN_EVERY: Duration = Duration::from_millis(500);
const JOIN_EVERY_MAX: Duration = Duration::from_secs(8);

/// How long a worker waits for others at a time.
const WAIT: Duration = Duration::from_secs(1);

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
    transport: Box<dyn PipelineTransport>,
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
    /// Activations and gradients that arrived before this worker started the minibatch they belong to.
    early: VecDeque<(StageInput, Flow)>,
    /// Messages for a minibatch that the leader has not announced to this worker yet; other stages received the announcement
    /// earlier.
    unannounced: VecDeque<(StageInput, Flow)>,
    /// The leader has no further ones.
    over: bool,
    /// This worker makes no further steps, and only helps to measure.
    closed: bool,
    /// What the leader tells of its next minibatch and of those after it.
    announced: Vec<Lead>,
}

impl Pipeline {
    /// A worker that has just come, under a name of its own.
    pub fn new(
        place: StageAddress,
        stages: u8,
        in_flight: u8,
        own: u64,
        samples: usize,
        transport: Box<dyn PipelineTransport>,
    ) -> Result<Self, TrainError> {
        let pipeline = Self {
            place,
            stages,
            in_flight: usize::from(in_flight.min(IN_FLIGHT_MAX)),
            transport,
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
            early: VecDeque::new(),
            unannounced: VecDeque::new(),
            over: false,
            closed: false,
            announced: Vec::new(),
        };
        // Whoever was here before may be waited for.
        if !pipeline.leads() {
            pipeline.say(0, FlowBody::Reset)?;
        }
        Ok(pipeline)
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
    pub fn joining_for(&self) -> Duration {
        let since = self.joining_since;
        since.map_or(Duration::ZERO, |at| self.transport.now().saturating_sub(at))
    }

    /// Calls the others, if that is due.
    pub fn join(&mut self) -> Result<(), TrainError> {
        let now = self.transport.now();
        self.joining_since.get_or_insert(now);
        if let Some(at) = self.last_join {
            if now.saturating_sub(at) < self.pause {
                return Ok(());
            }
            self.pause = (2 * self.pause).min(JOIN_EVERY_MAX);
        }
        self.last_join = Some(now);
        self.joins += 1;
        self.generation = splitmix64(self.own ^ self.joins).max(1);
        self.whole = false;
        self.say(1, FlowBody::Join)
    }

    /// The leader's next step, for the others, and those that it may begin before that is done: numbers, rates and samples.
    pub fn tell(&mut self, leads: Vec<Lead>) {
        self.announced = leads;
    }

    /// What was told and is not begun, to be begun now.
    pub(crate) fn take_announced(&mut self) -> Vec<Lead> {
        let mut told = std::mem::take(&mut self.announced);
        told.retain(|lead| self.begun(lead.step).is_none());
        told
    }

    /// The leader begins a minibatch.
    pub(crate) fn begin(&mut self, lead: Lead) -> Result<(), TrainError> {
        self.say_to_all(&FlowBody::Lead(Box::new(lead.clone())))?;
        self.newest = lead.step;
        self.begun.push_back(lead);
        Ok(())
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

    /// This worker makes no further steps. Who leads tells each of the others: one that should hand it on may be gone.
    pub fn close(&mut self) -> Result<(), TrainError> {
        self.closed = true;
        self.begun.clear();
        if self.leads() && self.generation != 0 {
            self.say_to_all(&FlowBody::End { done: self.done })?;
            if !self.whole {
                self.release()?;
            }
        }
        Ok(())
    }

    fn say_to_all(&self, message: &FlowBody) -> Result<(), TrainError> {
        (1..self.stages).try_for_each(|stage| self.say(stage, message.clone()))
    }

    pub(crate) fn say(&self, to: u8, body: FlowBody) -> Result<(), TrainError> {
        self.transport
            .send(Flow::without_numbers(self.head(to, self.generation, body)))
    }

    pub(crate) fn send(&self, to: u8, body: FlowBody, numbers: &[f32]) -> Result<(), TrainError> {
        self.transport
            .send(Flow::with(self.head(to, self.generation, body), numbers))
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
        self.early.clear();
        self.unannounced.clear();
        if !self.leads() {
            self.generation = 0;
        }
    }

    /// Gives up what is under way, and lets the leader know: it may wait for this worker. The error says what has become of
    /// the minibatch.
    pub(crate) fn reset(&mut self) -> TrainError {
        // Said once: it may be the way to the leader that is broken.
        let was_led = self.generation != 0;
        self.break_off();
        let told = match self.leads() {
            true => self.release(),
            false if was_led => self.say(0, FlowBody::Reset),
            false => Ok(()),
        };
        told.err().unwrap_or(TrainError::PipelineBroken)
    }

    /// A leader that makes no further steps does not call either. Somebody who is not through with the last one may wait for
    /// another who has given it up, and is told that this generation is over.
    fn release(&self) -> Result<(), TrainError> {
        if self.closed && self.generation != 0 {
            self.say_to_all(&FlowBody::Reset)?;
        }
        Ok(())
    }

    /// Takes note of a message. What holds numbers is for whoever computes. An error says that what is under way is
    /// over.
    pub(crate) fn hear(&mut self, message: PipelineEvent) -> Result<Option<(StageInput, Flow)>, TrainError> {
        let flow = match message {
            PipelineEvent::Flow(flow) => flow,
            PipelineEvent::Stopping if !self.leads() => return Ok(None),
            PipelineEvent::Broken | PipelineEvent::Stopping => return Err(self.reset()),
        };
        if flow.head.to != self.place.stage {
            return Ok(None);
        }
        match &flow.head.body {
            FlowBody::Join if !self.leads() => return self.answer(flow.head.generation).map(|()| None),
            FlowBody::Reset if flow.head.generation == 0 || self.leads() && flow.head.generation == self.generation => {
                if !self.leads() {
                    // The leader may have called already, and lead what is given up here.
                    return Err(self.reset());
                }
                self.break_off();
                self.release()?;
                // Somebody has come, or can be reached again: it is called soon. Who cannot reach the next one says so to
                // every call.
                self.pause = JOIN_SOON;
                return Err(TrainError::PipelineBroken);
            }
            FlowBody::Reset if flow.head.generation != self.generation => return Ok(None),
            FlowBody::Reset => {
                // The leader knows.
                self.break_off();
                return Err(TrainError::PipelineBroken);
            }
            &FlowBody::End { done } if !self.leads() => {
                self.over = true;
                // What was begun ahead is not gone on with; what others wait for no more may still be made here.
                let broke = self.begun.front().is_some_and(|lead| lead.step > done);
                self.begun.retain(|lead| lead.step <= done);
                return if broke {
                    Err(TrainError::PipelineBroken)
                } else {
                    Ok(None)
                };
            }
            _ => {}
        }
        if flow.head.generation != self.generation {
            // The leader waits for what nobody will answer.
            if !self.leads() {
                let lost = self.head(0, flow.head.generation, FlowBody::Reset);
                self.transport.send(Flow::without_numbers(lost))?;
            }
            return Ok(None);
        }
        let content = match flow.head.body.clone() {
            FlowBody::Ready => {
                self.whole = true;
                self.joining_since = None;
                (self.last_join, self.pause) = (None, JOIN_EVERY);
                return Ok(None);
            }
            // A leader that was started again may have lost what it had made last. Nobody makes it with it any more.
            FlowBody::Lead(_) if self.closed => {
                return self.say(0, FlowBody::End { done: self.done }).map(|()| None);
            }
            FlowBody::End { .. } if self.leads() => {
                self.over = true;
                return Err(self.reset());
            }
            FlowBody::Lead(lead) if self.begun.len() >= self.begun_max() || !self.is_sound(&lead) => {
                return Err(self.reset());
            }
            FlowBody::Lead(lead) => self.follow(*lead),
            FlowBody::Forward {
                step,
                micro_batch,
                layer_range,
            } => StageInput::Forward {
                step,
                micro_batch,
                layer_range,
            },
            FlowBody::Backward {
                step,
                micro_batch,
                layer_range,
                loss,
            } => StageInput::Backward {
                step,
                micro_batch,
                layer_range,
                loss,
            },
            FlowBody::Measure(measured) => StageInput::Measure(measured),
            FlowBody::EvalTotals(judged) => StageInput::EvalTotals(judged),
            FlowBody::Join | FlowBody::Reset | FlowBody::End { .. } => return Ok(None),
        };
        match content {
            StageInput::Forward { step, .. } | StageInput::Backward { step, .. } if self.begun(step).is_none() => {
                self.keep_unannounced(step, content, flow).map(|()| None)
            }
            _ => Ok(Some((content, flow))),
        }
    }

    /// Takes note of a minibatch that the leader has begun, and of what has come for it before.
    fn follow(&mut self, lead: Lead) -> StageInput {
        let step = lead.step;
        self.newest = step;
        self.begun.push_back(lead);
        // Another may lead than the one who had no more.
        self.over = false;
        let is_of_it = |(content, _): &(StageInput, Flow)| content.step() == Some(step);
        let (its, others) = self.unannounced.drain(..).partition(is_of_it);
        self.unannounced = others;
        self.early.extend::<VecDeque<_>>(its);
        StageInput::Begun { step }
    }

    /// Keeps what has come of a minibatch that this worker has not heard of. Of what was given up something may still come.
    fn keep_unannounced(&mut self, step: u64, content: StageInput, flow: Flow) -> Result<(), TrainError> {
        if self.leads() || step <= self.newest {
            return Ok(());
        }
        if self.unannounced.len() >= self.kept_max() {
            return Err(self.reset());
        }
        self.unannounced.push_back((content, flow));
        Ok(())
    }

    /// The most minibatches that an honest leader has begun and this worker is not through with: those of the leader, and
    /// those that the leader is through with already.
    fn begun_max(&self) -> usize {
        2 * (1 + self.in_flight)
    }

    /// The most messages of them that are kept.
    fn kept_max(&self) -> usize {
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
    fn answer(&mut self, generation: u64) -> Result<(), TrainError> {
        let broke = self.is_under_way();
        self.break_off();
        self.generation = generation;
        self.newest = 0;
        if self.is_last() {
            self.say(0, FlowBody::Ready)?;
        } else {
            self.say(self.place.stage + 1, FlowBody::Join)?;
        }
        if broke { Err(TrainError::PipelineBroken) } else { Ok(()) }
    }

    /// Keeps what has come for a minibatch between two steps.
    pub(crate) fn keep(&mut self, content: StageInput, flow: Flow) {
        if self.early.len() < self.kept_max() {
            self.early.push_back((content, flow));
        }
    }

    /// Lets a message wait that is for after the present step.
    pub(crate) fn put_back(&self, flow: Flow) {
        self.transport.put_back(PipelineEvent::Flow(flow));
    }

    /// Waits for any message.
    #[cfg(test)]
    pub(crate) fn listen(&mut self) -> Result<PipelineEvent, TrainError> {
        loop {
            if let Some(message) = self.transport.next(WAIT)? {
                return Ok(message);
            }
        }
    }

    /// Waits for what others compute.
    pub(crate) fn wait(&mut self) -> Result<(StageInput, Flow), TrainError> {
        loop {
            if let Some(came) = self.next_within(WAIT)? {
                return Ok(came);
            }
        }
    }

    /// What others have computed, if something has come.
    pub(crate) fn poll(&mut self) -> Result<Option<(StageInput, Flow)>, TrainError> {
        self.next_within(Duration::ZERO)
    }

    fn next_within(&mut self, limit: Duration) -> Result<Option<(StageInput, Flow)>, TrainError> {
        if let Some(early) = self.early.pop_front() {
            return Ok(Some(early));
        }
        match self.transport.next(limit)? {
            Some(message) => self.hear(message),
            None => Ok(None),
        }
    }
}
