//! Evaluation of a pipeline: sends evaluation samples through all stages, with the shared weights of all workers.

use std::collections::VecDeque;

use protocol::log::batch::BATCH_BYTES_MAX;
use protocol::stats::measured::Scores;
use protocol::wire::flow::{EvalBatch, EvalTotals, Flow, FlowBody};

use super::gathering::{Gathering, side_by_side};
use super::{Advance, Layers, StageModel};
use crate::dataset::Answers;
use crate::model::evaluation::Evaluation;
use crate::model::evaluation::MINIBATCH;
use crate::model::ops::loss::{self, Errors, EvalSums};
use crate::task::objective::Objective;
use crate::trainer::{PipelineViolation, TrainError};

/// Largest number of evaluation minibatches that go through a pipeline at the same time.
const UNDER_WAY_MAX: usize = 4;

/// The progress and the totals of a pipeline evaluation, kept by the worker that leads it.
#[derive(Default)]
struct Leading {
    /// First evaluation sample that was not sent through the pipeline, and the number of its minibatch.
    next: (usize, u32),
    /// Number of evaluation minibatches whose results have come back and are counted.
    judged: u32,
    sums: EvalSums,
}

/// State at one worker of an evaluation that passes through its pipeline.
pub(super) struct Measuring<W> {
    /// Copy of the stage's shared weights that an evaluation of the pipeline is made with; `None` before it begins
    /// here.
    with: Option<W>,
    leading: Option<Leading>,
    /// Collects activations from the workers of a layer range until all pieces for an evaluation minibatch have come.
    forward: Gathering<(u32, u8)>,
    /// Evaluation activations that this worker has made for its own next layers.
    own: VecDeque<(EvalBatch, Vec<f32>)>,
    /// Evaluation samples and activations that have come from other workers of the pipeline.
    received: VecDeque<(EvalBatch, Flow)>,
}

impl<W> Default for Measuring<W> {
    fn default() -> Self {
        Self {
            with: None,
            leading: None,
            forward: Gathering::default(),
            own: VecDeque::new(),
            received: VecDeque::new(),
        }
    }
}

impl<W> Measuring<W> {
    /// Begins an evaluation as the leader, with a copy of the shared weights.
    pub(super) fn begin(&mut self, with: W) {
        *self = Self {
            with: Some(with),
            leading: Some(Leading::default()),
            ..Self::default()
        };
    }

    /// Returns the number of evaluation minibatches whose results are counted; `None` if this worker leads no
    /// evaluation.
    pub(super) fn judged(&self) -> Option<u32> {
        self.leading.as_ref().map(|leading| leading.judged)
    }

    /// Adds the results of an evaluation minibatch to the totals. Returns false if this worker waits for none.
    pub(super) fn judge(&mut self, totals: &EvalTotals) -> bool {
        self.add(&from_wire(totals))
    }

    fn add(&mut self, sums: &EvalSums) -> bool {
        let Some(leading) = self.leading.as_mut().filter(|leading| leading.judged < leading.next.1) else {
            return false;
        };
        leading.sums.add(sums);
        leading.judged += 1;
        true
    }

    /// True if the results of all `count` evaluation samples are counted.
    fn is_done(&self, count: usize) -> bool {
        let is_done = |leading: &Leading| leading.next.0 == count && leading.judged == leading.next.1;
        self.leading.as_ref().is_some_and(is_done)
    }

    /// Takes the scores of a pipeline evaluation on `count` samples, if the results of all are counted.
    pub(super) fn take_scores(&mut self, objective: &Objective, count: usize) -> Option<Scores> {
        if !self.is_done(count) {
            return None;
        }
        let Self { leading, .. } = std::mem::take(self);
        leading.map(|leading| Evaluation::of(objective, &leading.sums, count).scores())
    }
}

impl<L: Layers> StageModel<L> {
    /// Advances an evaluation of the whole pipeline by one piece of work, between two minibatches.
    pub(super) fn advance_measuring(&mut self, shared: &L::Shared) -> Result<Advance, TrainError> {
        if let Some((samples, numbers)) = self.measuring.own.pop_front() {
            self.measure_piece(samples, self.stage.number, numbers, shared)?;
        } else if let Some((samples, flow)) = self.measuring.received.pop_front() {
            self.measure_flow(samples, &flow, shared)?;
        } else if let Some(samples) = self.next_measured() {
            for holder in self.layer_ranges[0].owners().skip(1) {
                self.pipeline.say(holder as u8, FlowBody::Measure(samples.clone()));
            }
            let inputs = self.test_inputs(&samples);
            self.measure_layer_range(samples, inputs)?;
        } else if self.measuring.is_done(self.dataset.test.len()) {
            return Ok(Advance::Done);
        } else {
            return Ok(Advance::Waits);
        }
        Ok(Advance::Worked)
    }

    /// Returns the evaluation samples that the leader sends next; `None` if all are sent or too many are in flight.
    fn next_measured(&mut self) -> Option<EvalBatch> {
        // Limits the rows of one message.
        let rows = (BATCH_BYTES_MAX / 2 / (size_of::<f32>() * self.widest.max(1))).clamp(1, MINIBATCH);
        let count = self.dataset.test.len();
        let leading = self.measuring.leading.as_mut()?;
        let (first, number) = leading.next;
        if first == count || (number - leading.judged) as usize >= UNDER_WAY_MAX {
            return None;
        }
        let end = count.min(first + rows);
        leading.next = (end, number + 1);
        Some(EvalBatch {
            number,
            layer_range: 0,
            samples: (first as u32..end as u32).collect(),
            last: end == count,
        })
    }

    /// Keeps a message of an evaluation (samples or their activations) until the present training minibatch is done.
    pub(super) fn receive_measured(&mut self, samples: EvalBatch, flow: Flow) {
        if self.measuring.received.len() < self.pipeline.kept_max() {
            self.measuring.received.push_back((samples, flow));
        } else {
            self.refuse(PipelineViolation::TooMany);
        }
    }

    /// Returns the inputs of an evaluation minibatch from the worker's own data.
    fn test_inputs(&self, measured: &EvalBatch) -> Vec<f32> {
        let mut inputs = Vec::new();
        let test = &self.dataset.test;
        test.gather(&measured.samples, &mut inputs, &mut Answers::default());
        inputs
    }

    /// Processes a message of an evaluation: samples, or their activations.
    fn measure_flow(&mut self, measured: EvalBatch, flow: &Flow, shared: &L::Shared) -> Result<(), TrainError> {
        let is_test_sample = |&sample: &u32| (sample as usize) < self.dataset.test.len();
        let test_inputs = !measured.samples.is_empty() && measured.samples.iter().all(is_test_sample);
        let from = usize::from(flow.head.from);
        let width = match measured.layer_range {
            0 => Some(0),
            layer_range => self
                .before(layer_range)
                .and_then(|before| before.share(from))
                .map(|share| share.len()),
        };
        let numbers = width.and_then(|width| flow.numbers(measured.samples.len() * width).ok());
        let (Some(numbers), Some(_), true) = (numbers, self.slice_of(measured.layer_range), test_inputs) else {
            return Err(PipelineViolation::Numbers.into());
        };
        self.measure_piece(measured, from, numbers, shared)
    }

    /// Processes a worker's activations for an evaluation minibatch, once those of all workers with the same layers
    /// have come. Each worker copies its shared weights when the first minibatch reaches its first layers.
    fn measure_piece(
        &mut self,
        measured: EvalBatch,
        from: usize,
        numbers: Vec<f32>,
        shared: &L::Shared,
    ) -> Result<(), TrainError> {
        let inputs = if let Some(before) = self.before(measured.layer_range) {
            let shares = before.shares().to_vec();
            let from = from - before.owners().start;
            let key = (measured.number, measured.layer_range);
            let Some(pieces) = self.measuring.forward.take(key, from, shares.len(), numbers)? else {
                if self.measuring.forward.len() > UNDER_WAY_MAX * self.slices.len() {
                    return Err(PipelineViolation::TooMany.into());
                }
                return Ok(());
            };
            // The next evaluation counts from 0 again.
            self.measuring.forward.retain(|&of| of != key);
            side_by_side(pieces, &shares)
        } else {
            self.test_inputs(&measured)
        };
        if !self.pipeline.leads() && measured.number == 0 && self.slice_of(measured.layer_range) == Some(0) {
            self.measuring.with = Some(self.slices[0].copied(shared)?);
        }
        self.measure_layer_range(measured, inputs)
    }

    /// Runs an evaluation minibatch through this worker's part of some layers and sends the outputs on. At the end of
    /// the network, computes the totals and sends them to the leader.
    fn measure_layer_range(&mut self, measured: EvalBatch, inputs: Vec<f32>) -> Result<(), TrainError> {
        let (Some(weights), Some(at)) = (&self.measuring.with, self.slice_of(measured.layer_range)) else {
            return Err(PipelineViolation::Numbers.into());
        };
        let outputs = self.slices[at].infer(weights, inputs)?;
        if measured.last && at + 1 == self.slices.len() {
            self.measuring.with = None;
        }
        if !self.is_last(measured.layer_range) {
            let layer_range = measured.layer_range + 1;
            let measured = EvalBatch {
                layer_range,
                ..measured
            };
            for to in self.layer_ranges[usize::from(layer_range)].owners() {
                if to == self.stage.number {
                    self.measuring.own.push_back((measured.clone(), outputs.clone()));
                } else {
                    self.pipeline
                        .send(to as u8, FlowBody::Measure(measured.clone()), &outputs);
                }
            }
            return Ok(());
        }
        let mut answers = Answers::default();
        self.dataset.test.answers().gather(&measured.samples, &mut answers);
        let sums = loss::eval_sums(&self.eval_objective, &outputs, &answers);
        if !self.pipeline.leads() {
            self.pipeline.say(0, FlowBody::EvalTotals(to_wire(&sums)));
        } else if !self.measuring.add(&sums) {
            return Err(PipelineViolation::Numbers.into());
        }
        Ok(())
    }
}

fn to_wire(sums: &EvalSums) -> EvalTotals {
    let of = |errors: &Errors| [errors.squared, errors.absolute, errors.sum, errors.squares];
    EvalTotals {
        loss: sums.loss,
        correct: sums.correct as u64,
        errors: sums.errors.iter().map(of).collect(),
    }
}

fn from_wire(judged: &EvalTotals) -> EvalSums {
    let of = |&[squared, absolute, sum, squares]: &[f64; 4]| Errors {
        squared,
        absolute,
        sum,
        squares,
    };
    EvalSums {
        loss: judged.loss,
        // Cut to the largest number of samples that there can be.
        correct: judged.correct.min(u64::from(u32::MAX)) as usize,
        errors: judged.errors.iter().map(of).collect(),
    }
}
