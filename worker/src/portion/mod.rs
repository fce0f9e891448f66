//! A worker's part in a lane: it computes the gradient of its own neurons, and everything else comes from the others.

mod gathering;
mod layers;
mod measuring;
mod passing;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use protocol::augment::Augment;
use protocol::measured::Scores;
use protocol::model::{Layout, Partition, Portion, Stretch};
use protocol::optimiser::Rule;
use protocol::wire::flow::{Flow, Lead};

use crate::backend::cpu::{CpuBackend, Slopes};
use crate::backend::replica::{Replica, step_key};
use crate::dataset::{Answers, Dataset};
use crate::lane::{Content, Lane, LaneWord};
use crate::learning::muon::Parts;
use crate::objective::{Objective, Task};
use crate::ops::matmul::Into;
use crate::ops::{MeanLoss, Owed, Parameters, Threads};
use crate::train_error::TrainError;
use gathering::Gathering;
use layers::Layers;
use measuring::Measuring;
use passing::Piece;

/// Trains a portion of a network on the CPU.
pub type PortionTrainer = Replica<CpuBackend<PortionModel>>;

/// What a worker holds of a network, and the way to the others.
pub struct PortionModel {
    lane: Lane,
    portion: Portion,
    /// How the network is divided.
    stretches: Vec<Stretch>,
    /// Numbers of one sample that pass between two workers, at most.
    widest: usize,
    /// What this worker has of the stretches, in order.
    held: Vec<Layers>,
    /// What has come of parts, for whole stretches to go there and back.
    there: Gathering<(u64, u16, u8)>,
    back: Gathering<(u64, u16, u8)>,
    /// Pieces that this worker has made for itself.
    own: VecDeque<Piece>,
    /// Pieces that belong to a later minibatch than can be gone on with now.
    later: Vec<Piece>,
    /// Held-out samples that came in the middle of a minibatch.
    measured_later: Vec<Flow>,
    /// What an evaluation is made with, while one passes through.
    measuring: Measuring,
    dataset: Arc<Dataset>,
    augment: Augment,
    loss: MeanLoss,
    /// What a trained model is judged by.
    judged_by: Objective,
    /// Into how many parts a minibatch is cut.
    parts: usize,
    /// What decides dropout in the minibatches that this worker leads.
    seed: u64,
    /// Gradients that nobody waits for, in the order in which they are to be written.
    owed: VecDeque<(Owed, Into)>,
}

impl PortionModel {
    /// What this worker holds.
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
        let portion = partition.portion(usize::from(lane.portion()));
        let own = portion.stretches.iter();
        Self {
            held: own.map(|own| Layers::new(partition, &portion, own, threads)).collect(),
            stretches: partition.stretches().to_vec(),
            widest: partition.widest(),
            portion,
            there: Gathering::default(),
            back: Gathering::default(),
            own: VecDeque::new(),
            later: Vec::new(),
            measured_later: Vec::new(),
            measuring: Measuring::default(),
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
            owed: VecDeque::new(),
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

    /// Gives up what is under way, between two steps. Who waits for an answer is told that there is none.
    fn lose_lane(&mut self) -> Result<(), TrainError> {
        self.clear();
        match self.lane.lost() {
            TrainError::LaneBroken => Ok(()),
            error => Err(error),
        }
    }

    /// Forgets what is under way.
    fn clear(&mut self) {
        self.held.iter_mut().for_each(Layers::clear);
        self.there.clear();
        self.back.clear();
        self.own.clear();
        self.later.clear();
        self.owed.clear();
        self.measured_later.clear();
        self.measuring = Measuring::default();
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
        let portion = model.portion.clone();
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
            self.minibatch(parameters, &lead, gradient)
        });
        // Whatever became of it, memory stays what it was.
        gradient.resize(weights, 0.0);
        if loss.is_ok() {
            self.lane.led();
            for flow in std::mem::take(&mut self.measured_later) {
                self.lane.put_back(flow);
            }
        } else {
            self.clear();
        }
        loss
    }

    fn lane(&mut self) -> Option<&mut Lane> {
        Some(&mut self.lane)
    }

    fn hear(&mut self, word: LaneWord, shared: &[f32]) -> Result<(), TrainError> {
        let attempt = self.lane.attempt();
        let heard = self.lane.hear(word);
        // What was being measured is measured anew.
        if self.lane.attempt() != attempt {
            self.measuring = Measuring::default();
        }
        match heard {
            Ok(Some((Content::Measure(measured), flow))) => self.measure_on(measured, &flow, shared),
            Ok(Some((content, flow))) if self.is_sound(&content, &flow) => {
                self.lane.keep(content, flow);
                Ok(())
            }
            Ok(Some(_)) => self.lose_lane(),
            Ok(None) => Ok(()),
            // What is broken between two steps is called together again.
            Err(TrainError::LaneBroken) => {
                self.clear();
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn measure(&mut self, shared: &[f32]) -> Result<Option<Scores>, TrainError> {
        let measured = self.measure_all(shared);
        if measured.is_err() {
            self.clear();
        }
        measured.map(Some)
    }
}
