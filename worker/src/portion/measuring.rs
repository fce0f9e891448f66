//! Held-out samples on their way through a lane, with the shared weights of all its workers.

use dfdx::prelude::Cpu;
use protocol::batch::BATCH_BYTES_MAX;
use protocol::measured::Scores;
use protocol::wire::flow::{Flow, FlowWord, Judged, Measured};

use super::PortionModel;
use crate::dataset::Answers;
use crate::evaluate::Evaluation;
use crate::lane::Content;
use crate::ops::Parameters;
use crate::ops::loss::{self, Errors, Judgement};
use crate::predict::MINIBATCH;
use crate::train_error::TrainError;

/// Minibatches of held-out samples that are under way at a time.
const UNDER_WAY_MAX: usize = 4;

impl PortionModel {
    /// Sends all held-out samples through the lane, and hears how they are judged.
    pub(super) fn measure_all(&mut self, shared: &[f32]) -> Result<Scores, TrainError> {
        let parameters = self.weights_to_measure(shared)?;
        let count = self.dataset.test.len();
        let samples: Vec<u32> = (0..count as u32).collect();
        // A message holds so many rows.
        let rows = (BATCH_BYTES_MAX / 2 / (size_of::<f32>() * self.layers.widest.max(1))).clamp(1, MINIBATCH);
        let minibatches: Vec<&[u32]> = samples.chunks(rows).collect();
        let mut all = Judgement::default();
        let mut judged = 0;
        for (number, minibatch) in minibatches.iter().enumerate() {
            let mut inputs = Vec::new();
            self.dataset
                .test
                .gather(minibatch, &mut inputs, &mut Answers::default());
            let outputs = self.layers.forward(&parameters, inputs)?;
            let measured = Measured {
                samples: minibatch.to_vec(),
                first: number == 0,
                last: number + 1 == minibatches.len(),
            };
            self.lane.send(1, FlowWord::Measure(measured), &outputs)?;
            while number + 1 - judged >= UNDER_WAY_MAX {
                all.add(&self.hear_judged()?);
                judged += 1;
            }
        }
        while judged < minibatches.len() {
            all.add(&self.hear_judged()?);
            judged += 1;
        }
        Ok(Evaluation::of(&self.judged_by, &all, count).scores())
    }

    /// A copy of the shared weights, in place of memory that a minibatch needs and an evaluation does not.
    fn weights_to_measure(&mut self, shared: &[f32]) -> Result<Parameters, TrainError> {
        self.sum = Vec::new();
        Ok(Parameters::new(&Cpu::default(), shared.to_vec())?)
    }

    fn hear_judged(&mut self) -> Result<Judgement, TrainError> {
        match self.lane.wait()?.0 {
            Content::Judged(judged) => Ok(from_wire(&judged)),
            _ => Err(self.lane.lost()),
        }
    }

    /// Hands held-out samples on, or judges them where the network ends.
    pub(super) fn measure_on(&mut self, measured: &Measured, flow: &Flow, shared: &[f32]) -> Result<(), TrainError> {
        if measured.first {
            self.measured_with = Some(self.weights_to_measure(shared)?);
        }
        let is_held_out = |&sample: &u32| (sample as usize) < self.dataset.test.len();
        let held_out = !measured.samples.is_empty() && measured.samples.iter().all(is_held_out);
        let (before, _) = self.layers.portion.borders();
        let numbers = flow.numbers(measured.samples.len() * before).ok();
        let (Some(parameters), Some(numbers), true) = (&self.measured_with, numbers, held_out) else {
            return self.lose_lane();
        };
        let outputs = self.layers.forward(parameters, numbers)?;
        if measured.last {
            self.measured_with = None;
        }
        if !self.lane.is_last() {
            let next = self.lane.group() + 1;
            return self.lane.send(next, FlowWord::Measure(measured.clone()), &outputs);
        }
        let mut answers = Answers::default();
        self.dataset.test.answers().gather(&measured.samples, &mut answers);
        let judgement = loss::judge(&self.judged_by, &outputs, &answers);
        self.lane.say(0, FlowWord::Judged(to_wire(&judgement)))
    }
}

fn to_wire(judgement: &Judgement) -> Judged {
    let of = |errors: &Errors| [errors.squared, errors.absolute, errors.sum, errors.squares];
    Judged {
        loss: judgement.loss,
        correct: judgement.correct as u64,
        errors: judgement.errors.iter().map(of).collect(),
    }
}

fn from_wire(judged: &Judged) -> Judgement {
    let of = |&[squared, absolute, sum, squares]: &[f64; 4]| Errors {
        squared,
        absolute,
        sum,
        squares,
    };
    Judgement {
        loss: judged.loss,
        // No more than there can be samples.
        correct: judged.correct.min(u64::from(u32::MAX)) as usize,
        errors: judged.errors.iter().map(of).collect(),
    }
}
