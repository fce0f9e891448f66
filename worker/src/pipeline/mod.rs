//! A pipeline: workers that hold the layers of one network together and train as one.
//!
//! ```text
//!  stage 0, which leads       stage 1                    stage 2, which judges
//!  Lead: a minibatch ─────────▶ ───────────────────────────▶
//!  There: activations, micro-batch 0 ▶ There ─────────────────────▶ There
//!  There: micro-batch 1 ─────────────▶ There ─────────────────────▶ loss and gradients of micro-batch 0
//!                 gradients ◀───── Back ◀────────────────────── Back: micro-batch 0
//! ```
//!
//! The first stage's worker chooses samples as any worker does, and the others follow. Each adds up the gradient of its own
//! weights over the micro-batches of a minibatch, updates them and lets changes out to those that hold the same in other pipelines. Its
//! node takes messages from worker to worker.
//!
//! Whatever breaks, a pipeline begins anew with another *attempt*: the leader calls until the last one answers, and then leads
//! the minibatch again that was under way. A worker whose pipeline is broken waits, and loses nothing of its own.

mod in_pipeline;
mod line;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use protocol::batch::CURSORS_MAX;
use protocol::job::{AHEAD_MAX, MICRO_MAX, MINIBATCH_MAX};
use protocol::rng::splitmix64;
use protocol::wire::flow::{Flow, FlowHead, FlowWord, Lead, Place};

use crate::train_error::TrainError;
pub use in_pipeline::InPipeline;
pub(crate) use line::Content;
pub use line::{Line, PipelineMessage};

/// How long a leader waits for the answer to a call when it has heard that somebody has not, to its first call, and at most to
/// a later one.
const CALL_SOON: Duration = Duration::from_millis(50);
const CALL_EVERY: Duration = Duration::from_millis(500);
const CALL_EVERY_MAX: Duration = Duration::from_secs(8);

/// How long a worker waits for others at a time.
const WAIT: Duration = Duration::from_secs(1);

/// The most cursors that a minibatch moves. Who is led may have kept those of others, up to three quarters of what a batch takes.
pub(crate) const LED_CURSORS_MAX: usize = CURSORS_MAX / 4;

/// A worker's part in its pipeline.
pub struct Pipeline {
    place: Place,
    /// How many stages there are.
    stages: u8,
    /// How many minibatches may be begun before the one before them is done.
    ahead: usize,
    line: Box<dyn Line>,
    /// How many samples there are to learn from: no honest leader names others.
    samples: usize,
    /// What it belongs to now; 0 before it has heard a call, and when the pipeline is broken.
    attempt: u64,
    /// The leader has heard the last one's answer.
    whole: bool,
    /// How many attempts this leader has made, when it made the last one, and what makes them its own.
    calls: u64,
    called: Option<Duration>,
    /// Since when it calls in vain.
    calls_since: Option<Duration>,
    /// How long it waits for an answer before it calls again: longer each time, since the way may be long.
    pause: Duration,
    own: u64,
    /// The minibatches that the leader has begun and this worker is not through with, in their order.
    begun: VecDeque<Lead>,
    /// The last that was begun in this attempt, and the last that is done.
    newest: u64,
    done: u64,
    /// What came of them before this worker began with them.
    early: VecDeque<(Content, Flow)>,
    /// What came from others before the leader's word that it has begun: they have heard it sooner.
    unled: VecDeque<(Content, Flow)>,
    /// The leader has no further ones.
    over: bool,
    /// This worker makes no further steps, and only helps to measure.
    closed: bool,
    /// What the leader tells of its next minibatch and of those after it.
    told: Vec<Lead>,
}

impl Pipeline {
    /// A worker that has just come, under a name of its own.
    pub fn new(
        (place, stages, ahead): (Place, u8, u8),
        own: u64,
        samples: usize,
        line: Box<dyn Line>,
    ) -> Result<Self, TrainError> {
        let pipeline = Self {
            place,
            stages,
            ahead: usize::from(ahead.min(AHEAD_MAX)),
            line,
            samples,
            attempt: 0,
            whole: false,
            calls: 0,
            called: None,
            calls_since: None,
            pause: CALL_EVERY,
            own,
            begun: VecDeque::new(),
            newest: 0,
            done: 0,
            early: VecDeque::new(),
            unled: VecDeque::new(),
            over: false,
            closed: false,
            told: Vec::new(),
        };
        // Whoever was here before may be waited for.
        if !pipeline.leads() {
            pipeline.say(0, FlowWord::Lost)?;
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
        self.whole || !self.leads() && self.attempt != 0
    }

    /// Whether the leader has said that there are no further minibatches.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Nobody can be called who would hear it.
    pub fn calls_nobody(&mut self) {
        self.calls_since = None;
    }

    /// For how long the others are called in vain.
    pub fn calls_for(&self) -> Duration {
        let since = self.calls_since;
        since.map_or(Duration::ZERO, |at| self.line.now().saturating_sub(at))
    }

    /// Calls the others, if that is due.
    pub fn call(&mut self) -> Result<(), TrainError> {
        let now = self.line.now();
        self.calls_since.get_or_insert(now);
        if let Some(at) = self.called {
            if now.saturating_sub(at) < self.pause {
                return Ok(());
            }
            self.pause = (2 * self.pause).min(CALL_EVERY_MAX);
        }
        self.called = Some(now);
        self.calls += 1;
        self.attempt = splitmix64(self.own ^ self.calls).max(1);
        self.whole = false;
        self.say(1, FlowWord::Call)
    }

    /// The leader's next step, for the others, and those that it may begin before that is done: numbers, rates and samples.
    pub fn tell(&mut self, leads: Vec<Lead>) {
        self.told = leads;
    }

    /// What was told and is not begun, to be begun now.
    pub(crate) fn take_told(&mut self) -> Vec<Lead> {
        let mut told = std::mem::take(&mut self.told);
        told.retain(|lead| self.begun(lead.step).is_none());
        told
    }

    /// The leader begins a minibatch.
    pub(crate) fn begin(&mut self, lead: Lead) -> Result<(), TrainError> {
        self.say_to_all(&FlowWord::Lead(Box::new(lead.clone())))?;
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
    pub fn ahead(&self) -> usize {
        self.ahead
    }

    /// Whether a minibatch is under way.
    pub fn is_under_way(&self) -> bool {
        !self.begun.is_empty()
    }

    /// A minibatch that was begun.
    pub(crate) fn begun(&self, step: u64) -> Option<&Lead> {
        self.begun.iter().find(|lead| lead.step == step)
    }

    pub(crate) fn attempt(&self) -> u64 {
        self.attempt
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
        if self.leads() && self.attempt != 0 {
            self.say_to_all(&FlowWord::End { done: self.done })?;
            if !self.whole {
                self.release()?;
            }
        }
        Ok(())
    }

    fn say_to_all(&self, word: &FlowWord) -> Result<(), TrainError> {
        (1..self.stages).try_for_each(|stage| self.say(stage, word.clone()))
    }

    pub(crate) fn say(&self, to: u8, word: FlowWord) -> Result<(), TrainError> {
        self.line.send(Flow::word(self.head(to, self.attempt, word)))
    }

    pub(crate) fn send(&self, to: u8, word: FlowWord, numbers: &[f32]) -> Result<(), TrainError> {
        self.line.send(Flow::with(self.head(to, self.attempt, word), numbers))
    }

    fn head(&self, to: u8, attempt: u64, word: FlowWord) -> FlowHead {
        FlowHead {
            pipeline: self.place.pipeline,
            to,
            from: self.place.stage,
            attempt,
            word,
        }
    }

    /// Gives up what is under way.
    fn break_off(&mut self) {
        self.whole = false;
        self.begun.clear();
        self.early.clear();
        self.unled.clear();
        if !self.leads() {
            self.attempt = 0;
        }
    }

    /// Gives up what is under way, and lets the leader know: it may wait for this worker. The error says what has become of
    /// the minibatch.
    pub(crate) fn lost(&mut self) -> TrainError {
        // Said once: it may be the way to the leader that is broken.
        let was_led = self.attempt != 0;
        self.break_off();
        let told = match self.leads() {
            true => self.release(),
            false if was_led => self.say(0, FlowWord::Lost),
            false => Ok(()),
        };
        told.err().unwrap_or(TrainError::PipelineBroken)
    }

    /// A leader that makes no further steps does not call either. Somebody who is not through with the last one may wait for
    /// another who has given it up, and is told that this attempt is over.
    fn release(&self) -> Result<(), TrainError> {
        if self.closed && self.attempt != 0 {
            self.say_to_all(&FlowWord::Lost)?;
        }
        Ok(())
    }

    /// Takes note of a word. What holds numbers is for whoever computes. An error says that what is under way is over.
    pub(crate) fn hear(&mut self, word: PipelineMessage) -> Result<Option<(Content, Flow)>, TrainError> {
        let flow = match word {
            PipelineMessage::Flow(flow) => flow,
            PipelineMessage::Stopping if !self.leads() => return Ok(None),
            PipelineMessage::Broken | PipelineMessage::Stopping => return Err(self.lost()),
        };
        if flow.head.to != self.place.stage {
            return Ok(None);
        }
        match &flow.head.word {
            FlowWord::Call if !self.leads() => return self.answer(flow.head.attempt).map(|()| None),
            FlowWord::Lost if flow.head.attempt == 0 || self.leads() && flow.head.attempt == self.attempt => {
                if !self.leads() {
                    // The leader may have called already, and lead what is given up here.
                    return Err(self.lost());
                }
                self.break_off();
                self.release()?;
                // Somebody has come, or can be reached again: it is called soon. Who cannot reach the next one says so to every call.
                self.pause = CALL_SOON;
                return Err(TrainError::PipelineBroken);
            }
            FlowWord::Lost if flow.head.attempt != self.attempt => return Ok(None),
            FlowWord::Lost => {
                // The leader knows.
                self.break_off();
                return Err(TrainError::PipelineBroken);
            }
            &FlowWord::End { done } if !self.leads() => {
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
        if flow.head.attempt != self.attempt {
            // The leader waits for what nobody will answer.
            if !self.leads() {
                let lost = self.head(0, flow.head.attempt, FlowWord::Lost);
                self.line.send(Flow::word(lost))?;
            }
            return Ok(None);
        }
        let content = match flow.head.word.clone() {
            FlowWord::Here => {
                self.whole = true;
                self.calls_since = None;
                (self.called, self.pause) = (None, CALL_EVERY);
                return Ok(None);
            }
            // A leader that was started again may have lost what it had made last. Nobody makes it with it any more.
            FlowWord::Lead(_) if self.closed => {
                return self.say(0, FlowWord::End { done: self.done }).map(|()| None);
            }
            FlowWord::End { .. } if self.leads() => {
                self.over = true;
                return Err(self.lost());
            }
            FlowWord::Lead(lead) if self.begun.len() >= self.begun_max() || !self.is_sound(&lead) => {
                return Err(self.lost());
            }
            FlowWord::Lead(lead) => {
                let step = lead.step;
                self.newest = step;
                self.begun.push_back(*lead);
                // Another may lead than the one who had no more.
                self.over = false;
                let is_of_it = |(content, _): &(Content, Flow)| content.step() == Some(step);
                let (its, others) = self.unled.drain(..).partition(is_of_it);
                self.unled = others;
                self.early.extend::<VecDeque<_>>(its);
                Content::Begun { step }
            }
            FlowWord::There {
                step,
                micro_batch,
                layer_range,
            } => Content::There {
                step,
                micro_batch,
                layer_range,
            },
            FlowWord::Back {
                step,
                micro_batch,
                layer_range,
                loss,
            } => Content::Back {
                step,
                micro_batch,
                layer_range,
                loss,
            },
            FlowWord::Measure(measured) => Content::Measure(measured),
            FlowWord::Judged(judged) => Content::Judged(judged),
            FlowWord::Call | FlowWord::Lost | FlowWord::End { .. } => return Ok(None),
        };
        match content {
            Content::There { step, .. } | Content::Back { step, .. } if self.begun(step).is_none() => {
                self.keep_unled(step, (content, flow)).map(|()| None)
            }
            _ => Ok(Some((content, flow))),
        }
    }

    /// Keeps what has come of a minibatch that this worker has not heard of. Of what was given up something may still come.
    fn keep_unled(&mut self, step: u64, came: (Content, Flow)) -> Result<(), TrainError> {
        if self.leads() || step <= self.newest {
            return Ok(());
        }
        if self.unled.len() >= self.kept_max() {
            return Err(self.lost());
        }
        self.unled.push_back(came);
        Ok(())
    }

    /// The most minibatches that an honest leader has begun and this worker is not through with: those of the leader, and
    /// those that the leader is through with already.
    fn begun_max(&self) -> usize {
        2 * (1 + self.ahead)
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

    /// A new attempt: whatever was under way is over.
    fn answer(&mut self, attempt: u64) -> Result<(), TrainError> {
        let broke = self.is_under_way();
        self.break_off();
        self.attempt = attempt;
        self.newest = 0;
        if self.is_last() {
            self.say(0, FlowWord::Here)?;
        } else {
            self.say(self.place.stage + 1, FlowWord::Call)?;
        }
        if broke { Err(TrainError::PipelineBroken) } else { Ok(()) }
    }

    /// Keeps what has come for a minibatch between two steps.
    pub(crate) fn keep(&mut self, content: Content, flow: Flow) {
        if self.early.len() < self.kept_max() {
            self.early.push_back((content, flow));
        }
    }

    /// Lets a message wait that is for after the present step.
    pub(crate) fn put_back(&self, flow: Flow) {
        self.line.put_back(PipelineMessage::Flow(flow));
    }

    /// Waits for any word.
    #[cfg(test)]
    pub(crate) fn listen(&mut self) -> Result<PipelineMessage, TrainError> {
        loop {
            if let Some(word) = self.line.next(WAIT)? {
                return Ok(word);
            }
        }
    }

    /// Waits for what others compute.
    pub(crate) fn wait(&mut self) -> Result<(Content, Flow), TrainError> {
        loop {
            if let Some(came) = self.next_within(WAIT)? {
                return Ok(came);
            }
        }
    }

    /// What others have computed, if something has come.
    pub(crate) fn poll(&mut self) -> Result<Option<(Content, Flow)>, TrainError> {
        self.next_within(Duration::ZERO)
    }

    fn next_within(&mut self, limit: Duration) -> Result<Option<(Content, Flow)>, TrainError> {
        if let Some(early) = self.early.pop_front() {
            return Ok(Some(early));
        }
        match self.line.next(limit)? {
            Some(word) => self.hear(word),
            None => Ok(None),
        }
    }
}
