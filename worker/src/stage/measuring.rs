//! Evaluation samples on their way through a pipeline, with the shared weights of all its workers.

use std::collections::VecDeque;

use protocol::batch::BATCH_BYTES_MAX;
use protocol::measured::Scores;
use protocol::wire::flow::{EvalBatch, EvalTotals, Flow, FlowBody};

use super::gathering::{Gathering, side_by_side};
use super::{Layers, StageModel};
use crate::dataset::Answers;
use crate::evaluate::Evaluation;
use crate::ops::loss::{self, Errors, EvalSums};
use crate::pipeline::StageInput;
use crate::predict::MINIBATCH;
use crate::train_error::TrainError;

/// Minibatches of evaluation samples that are under way at a time.
const UNDER_WAY_MAX: usize = 4;

/// An evaluation that passes through.
pub(super) struct Measuring<W> {
    /// A copy of the shared weights.
    with: Option<W>,
    /// What has come of minibatches, for whole layer ranges.
    forward: Gathering<(u32, u8)>,
    /// What this worker has made for itself.
    own: VecDeque<(EvalBatch, Vec<f32>)>,
}

impl<W> Default for Measuring<W> {
    fn default() -> Self {
        Self {
            with: None,
            forward: Gathering::default(),
            own: VecDeque::new(),
        }
    }
}

impl<L: Layers> StageModel<L> {
    /// Sends all evaluation samples through the pipeline, and hears how they are judged.
    pub(super) fn measure_all(&mut self, shared: &L::Shared) -> Result<Scores, TrainError> {
        self.measure_with(shared)?;
        let count = self.dataset.test.len();
        let samples: Vec<u32> = (0..count as u32).collect();
        // A message holds so many rows.
        let rows = (BATCH_BYTES_MAX / 2 / (size_of::<f32>() * self.widest.max(1))).clamp(1, MINIBATCH);
        let minibatches: Vec<&[u32]> = samples.chunks(rows).collect();
        let mut all = EvalSums::default();
        let mut judged = 0;
        for (number, minibatch) in (0u32..).zip(&minibatches) {
            let measured = EvalBatch {
                number,
                layer_range: 0,
                samples: minibatch.to_vec(),
                last: number as usize + 1 == minibatches.len(),
            };
            for holder in self.layer_ranges[0].owners().skip(1) {
                self.pipeline.say(holder as u8, FlowBody::Measure(measured.clone()))?;
            }
            let inputs = self.test_inputs(&measured);
            self.measure_layer_range(measured, inputs)?;
            while number as usize + 1 - judged >= UNDER_WAY_MAX {
                all.add(&self.receive_eval_sums()?);
                judged += 1;
            }
        }
        while judged < minibatches.len() {
            all.add(&self.receive_eval_sums()?);
            judged += 1;
        }
        self.measuring = Measuring::default();
        Ok(Evaluation::of(&self.eval_objective, &all, count).scores())
    }

    /// Copies the shared weights.
    fn measure_with(&mut self, shared: &L::Shared) -> Result<(), TrainError> {
        self.measuring.with = Some(self.slices[0].copied(shared)?);
        Ok(())
    }

    /// Evaluation samples, as they are.
    fn test_inputs(&self, measured: &EvalBatch) -> Vec<f32> {
        let mut inputs = Vec::new();
        let test = &self.dataset.test;
        test.gather(&measured.samples, &mut inputs, &mut Answers::default());
        inputs
    }

    /// Goes on with an evaluation that this worker has begun until some samples are judged.
    fn receive_eval_sums(&mut self) -> Result<EvalSums, TrainError> {
        loop {
            let judged = if let Some((measured, numbers)) = self.measuring.own.pop_front() {
                self.measure_piece(measured, self.stage.number, numbers, None)?
            } else {
                match self.pipeline.wait()? {
                    (StageInput::EvalTotals(judged), _) => return Ok(from_wire(&judged)),
                    (StageInput::Measure(measured), flow) => self.measure_flow(measured, &flow, None)?,
                    _ => return Err(self.pipeline.reset()),
                }
            };
            if let Some(judged) = judged {
                return Ok(judged);
            }
        }
    }

    /// Takes part in another's evaluation. Who waits for what cannot be done is told.
    pub(super) fn measure_on(
        &mut self,
        measured: EvalBatch,
        flow: &Flow,
        shared: &L::Shared,
    ) -> Result<(), TrainError> {
        let result = self.measure_flow(measured, flow, Some(shared)).and_then(|_| {
            while let Some((measured, numbers)) = self.measuring.own.pop_front() {
                self.measure_piece(measured, self.stage.number, numbers, Some(shared))?;
            }
            Ok(())
        });
        match result {
            Err(TrainError::PipelineBroken) => {
                self.clear();
                Ok(())
            }
            result => result,
        }
    }

    /// Evaluation samples have come, as they are or as another worker has made them.
    fn measure_flow(
        &mut self,
        measured: EvalBatch,
        flow: &Flow,
        shared: Option<&L::Shared>,
    ) -> Result<Option<EvalSums>, TrainError> {
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
            return Err(self.pipeline.reset());
        };
        self.measure_piece(measured, from, numbers, shared)
    }

    /// Goes on with a piece of an evaluation, as soon as all of it is there. Where it comes here first, the weights of this
    /// moment are copied.
    fn measure_piece(
        &mut self,
        measured: EvalBatch,
        from: usize,
        numbers: Vec<f32>,
        shared: Option<&L::Shared>,
    ) -> Result<Option<EvalSums>, TrainError> {
        let inputs = if let Some(before) = self.before(measured.layer_range) {
            let shares = before.shares().to_vec();
            let from = from - before.owners().start;
            let key = (measured.number, measured.layer_range);
            match self.measuring.forward.take(key, from, shares.len(), numbers) {
                None => return Ok(None),
                Some(pieces) => side_by_side(pieces, &shares),
            }
        } else {
            self.test_inputs(&measured)
        };
        if let Some(shared) = shared
            && measured.number == 0
            && self.slice_of(measured.layer_range) == Some(0)
        {
            self.measure_with(shared)?;
        }
        self.measure_layer_range(measured, inputs)
    }

    /// Evaluation samples go through a layer range, and on, or are judged where the network ends; that is told to whoever
    /// leads.
    fn measure_layer_range(&mut self, measured: EvalBatch, inputs: Vec<f32>) -> Result<Option<EvalSums>, TrainError> {
        let (Some(weights), Some(at)) = (&self.measuring.with, self.slice_of(measured.layer_range)) else {
            return Err(self.pipeline.reset());
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
                        .send(to as u8, FlowBody::Measure(measured.clone()), &outputs)?;
                }
            }
            return Ok(None);
        }
        let mut answers = Answers::default();
        self.dataset.test.answers().gather(&measured.samples, &mut answers);
        let sums = loss::eval_sums(&self.eval_objective, &outputs, &answers);
        if self.pipeline.leads() {
            return Ok(Some(sums));
        }
        self.pipeline.say(0, FlowBody::EvalTotals(to_wire(&sums)))?;
        Ok(None)
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
        // No more than there can be samples.
        correct: judged.correct.min(u64::from(u32::MAX)) as usize,
        errors: judged.errors.iter().map(of).collect(),
    }
}
