//! A worker's part in a lane: it computes the gradient of its own layers, and everything else comes from the others.

mod layers;
mod measuring;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use protocol::augment::Augment;
use protocol::measured::Scores;
use protocol::model::{Layout, Partition, Portion};
use protocol::optimiser::Rule;
use protocol::rng::splitmix64;
use protocol::wire::flow::{Flow, FlowWord, Lead};

use crate::backend::cpu::{CpuBackend, Slopes};
use crate::backend::replica::{Replica, step_key};
use crate::dataset::{Answers, Dataset};
use crate::lane::{Content, Lane, LaneWord};
use crate::learning::muon::Parts;
use crate::objective::{Objective, Task};
use crate::ops::{MeanLoss, Parameters, Threads};
use crate::train_error::TrainError;
use crate::views;
use layers::{Layers, Returned};

/// Trains a portion of a network on the CPU.
pub type PortionTrainer = Replica<CpuBackend<PortionModel>>;

/// The layers of one group, and the way to the others.
pub struct PortionModel {
    lane: Lane,
    layers: Layers,
    dataset: Arc<Dataset>,
    augment: Augment,
    loss: MeanLoss,
    /// What a trained model is judged by.
    judged_by: Objective,
    /// Into how many parts a minibatch is cut.
    parts: usize,
    /// What decides dropout in the minibatches that this worker leads.
    seed: u64,
    /// The gradients of parts, added up.
    sum: Vec<f32>,
    /// The weights that an evaluation is made with, while one passes through.
    measured_with: Option<Parameters>,
}

/// What is known of a minibatch on its way back.
struct Way<'a> {
    parameters: &'a Parameters,
    gradient: &'a mut Vec<f32>,
    lead: &'a Lead,
    /// Parts that have come back.
    done: usize,
    loss: f32,
}

impl PortionModel {
    /// The layers of this worker's group.
    pub fn new(
        task: Task,
        judged_by: Objective,
        partition: &Partition,
        lane: Lane,
        parts: usize,
        threads: Threads,
    ) -> Self {
        let Task {
            dataset,
            objective,
            augment,
        } = task;
        Self {
            layers: Layers::new(partition, usize::from(lane.group()), threads),
            lane,
            dataset,
            augment,
            loss: MeanLoss {
                objective,
                answers: Answers::default(),
            },
            judged_by,
            parts: parts.max(1),
            seed: 0,
            sum: Vec::new(),
            measured_with: None,
        }
    }

    /// Begins the minibatches that this worker is to lead and has not begun yet.
    fn lead(&mut self, parameters: &Parameters) -> Result<(), TrainError> {
        for told in self.lane.take_told() {
            let lead = Lead {
                key: step_key(self.seed, told.step),
                parts: self.parts.min(told.samples.len()).max(1) as u16,
                ..told
            };
            self.lane.begin(lead.clone())?;
            self.send_there(&lead, parameters)?;
        }
        Ok(())
    }

    /// Cuts a minibatch, and sends all parts on their way.
    fn send_there(&mut self, lead: &Lead, parameters: &Parameters) -> Result<(), TrainError> {
        let step = lead.step;
        for part in 0..lead.parts {
            let (own, key) = (part_of(lead, part), part_key(lead, part));
            let inputs = views::gathered(&self.dataset, self.augment, own, key, &mut self.loss.answers);
            let outputs = self.layers.there((step, part), parameters, key, inputs)?;
            self.lane.send(1, FlowWord::There { step, part }, outputs)?;
        }
        Ok(())
    }

    /// Gives up what is under way, between two steps. Who waits for an answer is told that there is none.
    fn lose_lane(&mut self) -> Result<(), TrainError> {
        self.layers.clear();
        match self.lane.lost() {
            TrainError::LaneBroken => Ok(()),
            error => Err(error),
        }
    }

    /// Whether these are the numbers of a part that is under way. Others are not kept.
    fn is_sound(&self, content: &Content, flow: &Flow) -> bool {
        let (before, after) = self.layers.portion.borders();
        let (step, part, features) = match *content {
            Content::There { step, part } => (step, part, before),
            Content::Back { step, part, .. } => (step, part, after),
            Content::Measure(_) | Content::Judged(_) => return false,
        };
        let lead = self.lane.begun(step).filter(|lead| part < lead.parts);
        lead.is_some_and(|lead| flow.numbers.len() == part_of(lead, part).len() * features * size_of::<f32>())
    }

    /// Takes part in a minibatch until all its parts have been here and back.
    fn follow(&mut self, way: &mut Way<'_>) -> Result<(), TrainError> {
        while way.done < usize::from(way.lead.parts) {
            let (content, flow) = self.lane.wait()?;
            let (before, after) = self.layers.portion.borders();
            let numbers = |lead: &Lead, part: u16, features: usize| {
                let samples = (part < lead.parts).then(|| part_of(lead, part).len())?;
                flow.numbers(samples * features).ok()
            };
            match content {
                Content::There { step, part } if step == way.lead.step => match numbers(way.lead, part, before) {
                    Some(inputs) => self.go_there(way, part, inputs)?,
                    None => return Err(self.lane.lost()),
                },
                // One that was begun ahead.
                Content::There { step, part } => match self.lane.begun(step).cloned() {
                    Some(lead) if let Some(inputs) = numbers(&lead, part, before) => {
                        self.pass_on(&lead, part, way.parameters, inputs)?;
                    }
                    _ => return Err(self.lane.lost()),
                },
                Content::Back { step, part, loss }
                    if step == way.lead.step
                        && let Some(slopes) = numbers(way.lead, part, after) =>
                {
                    let memory = std::mem::take(way.gradient);
                    match self.layers.back((step, part), slopes, loss, memory)? {
                        Some(returned) => self.returned(way, part, returned)?,
                        None => return Err(self.lane.lost()),
                    }
                }
                // The leader asks for nothing else meanwhile.
                _ => return Err(self.lane.lost()),
            }
        }
        Ok(())
    }

    /// A part goes through these layers, and on.
    fn go_there(&mut self, way: &mut Way<'_>, part: u16, inputs: Vec<f32>) -> Result<(), TrainError> {
        if self.lane.is_last() {
            return self.judge(way, part, inputs);
        }
        self.pass_on(way.lead, part, way.parameters, inputs)
    }

    fn pass_on(&mut self, lead: &Lead, part: u16, parameters: &Parameters, inputs: Vec<f32>) -> Result<(), TrainError> {
        // Where the network ends, parts come one by one, and go back at once.
        if self.lane.is_last() {
            return Err(self.lane.lost());
        }
        let step = lead.step;
        let outputs = self
            .layers
            .there((step, part), parameters, part_key(lead, part), inputs)?;
        let next = self.lane.group() + 1;
        self.lane.send(next, FlowWord::There { step, part }, outputs)
    }

    /// The last layers turn a part round.
    fn judge(&mut self, way: &mut Way<'_>, part: u16, inputs: Vec<f32>) -> Result<(), TrainError> {
        let own = part_of(way.lead, part);
        self.dataset.train.answers().gather(own, &mut self.loss.answers);
        let memory = std::mem::take(way.gradient);
        let key = part_key(way.lead, part);
        let returned = self.layers.judge(way.parameters, key, inputs, &self.loss, memory)?;
        self.returned(way, part, returned)
    }

    /// A part has come back: its gradient is added up, and its slopes go on.
    fn returned(&mut self, way: &mut Way<'_>, part: u16, returned: Returned) -> Result<(), TrainError> {
        let Returned { loss, slopes, gradient } = returned;
        if !self.lane.leads() {
            let before = self.lane.group() - 1;
            let step = way.lead.step;
            self.lane.send(before, FlowWord::Back { step, part, loss }, &slopes)?;
        }
        *way.gradient = gradient;
        way.done += 1;
        if way.lead.parts == 1 {
            way.loss = loss;
            return Ok(());
        }
        let share = part_of(way.lead, part).len() as f32 / way.lead.samples.len() as f32;
        way.loss += share * loss;
        for (sum, slope) in self.sum.iter_mut().zip(&*way.gradient) {
            *sum += share * slope;
        }
        Ok(())
    }

    fn minibatch(&mut self, parameters: &Parameters, lead: &Lead, gradient: &mut Vec<f32>) -> Result<f32, TrainError> {
        let mut way = Way {
            parameters,
            gradient,
            lead,
            done: 0,
            loss: 0.0,
        };
        self.follow(&mut way)?;
        let loss = way.loss;
        if lead.parts > 1 {
            std::mem::swap(gradient, &mut self.sum);
        }
        Ok(loss)
    }
}

/// The samples of a part.
fn part_of(lead: &Lead, part: u16) -> &[u32] {
    let (all, parts) = (lead.samples.len(), usize::from(lead.parts.max(1)));
    let border = |part: usize| all * part / parts;
    &lead.samples[border(usize::from(part))..border(usize::from(part) + 1)]
}

/// What decides dropout in a part: in a minibatch that is not cut, what would on one machine.
fn part_key(lead: &Lead, part: u16) -> u64 {
    if lead.parts == 1 {
        lead.key
    } else {
        splitmix64(lead.key ^ u64::from(part))
    }
}

impl PortionTrainer {
    /// A trainer of the portion that a worker holds, whose copies both are the given weights.
    pub fn in_lane(
        model: PortionModel,
        whole: &Layout,
        counts: &[i32],
        rule: Rule,
        dropout_seed: u64,
        threads: Threads,
    ) -> Result<Self, TrainError> {
        let portion: Portion = model.layers.portion.clone();
        let model = PortionModel {
            seed: dropout_seed,
            ..model
        };
        let parts = |muon| Parts::new(whole, muon).of_portion(&portion);
        let backend = CpuBackend::of(model, &portion.layout, counts, rule, parts, threads)?;
        Self::on(backend, rule, dropout_seed)
    }
}

impl Slopes for PortionModel {
    fn gradient(
        &mut self,
        parameters: &Parameters,
        samples: &[u32],
        _key: u64,
        gradient: &mut Vec<f32>,
    ) -> Result<f32, TrainError> {
        let weights = parameters.values().len();
        let begun = self.lead(parameters);
        let lead = begun.and_then(|()| self.lane.next_lead().cloned().ok_or(TrainError::LaneBroken));
        let loss = lead.and_then(|lead| {
            debug_assert_eq!(lead.samples, samples, "minibatches are done in their order");
            self.sum.clear();
            self.sum.resize(if lead.parts > 1 { weights } else { 0 }, 0.0);
            self.minibatch(parameters, &lead, gradient)
        });
        // Whatever became of it, memory stays what it was.
        gradient.resize(weights, 0.0);
        if loss.is_ok() {
            self.lane.led();
        } else {
            self.layers.clear();
        }
        loss
    }

    fn lane(&mut self) -> Option<&mut Lane> {
        Some(&mut self.lane)
    }

    fn hear(&mut self, word: LaneWord, shared: &[f32]) -> Result<(), TrainError> {
        match self.lane.hear(word) {
            Ok(Some((Content::Measure(measured), flow))) => self.measure_on(&measured, &flow, shared),
            Ok(Some((content, flow))) if self.is_sound(&content, &flow) => {
                self.lane.keep(content, flow);
                Ok(())
            }
            Ok(Some(_)) => self.lose_lane(),
            Ok(None) => Ok(()),
            // What is broken between two steps is called together again.
            Err(TrainError::LaneBroken) => {
                self.layers.clear();
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn measure(&mut self, shared: &[f32]) -> Result<Option<Scores>, TrainError> {
        self.measure_all(shared).map(Some)
    }
}
