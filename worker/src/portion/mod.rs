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
use protocol::model::{OwnStretch, Partition, Portion, Stretch};
use protocol::wire::flow::{Flow, Lead};

use crate::backend::slopes::{Slopes, step_key};
use crate::dataset::{Answers, Dataset};
use crate::lane::{Content, Lane, LaneWord};
use crate::objective::{Objective, Task};
use crate::ops::MeanLoss;
use crate::ops::matmul::Into;
use crate::train_error::TrainError;
use gathering::Gathering;
pub use layers::{Layers, Returned};
use measuring::Measuring;
use passing::Piece;

/// What a worker needs to be a member of a lane.
pub struct Membership {
    /// What is trained on which samples.
    pub task: Task,
    /// What a trained model is judged by.
    pub judged_by: Objective,
    /// How the network is divided.
    pub partition: Partition,
    /// The way to the others.
    pub lane: Lane,
    /// Into how many parts a minibatch is cut.
    pub parts: usize,
    /// What decides dropout in the minibatches that this worker leads.
    pub dropout_seed: u64,
}

impl Membership {
    /// What this worker holds of the network.
    #[must_use]
    pub fn portion(&self) -> Portion {
        self.partition.portion(usize::from(self.lane.portion()))
    }

    #[cfg(test)]
    pub(crate) fn of_job(job: &protocol::job::Job, dataset: &Arc<Dataset>, partition: Partition, lane: Lane) -> Self {
        Self {
            task: Task::of_job(job, Arc::clone(dataset)).unwrap(),
            judged_by: Objective::to_judge(job, &dataset.target),
            partition,
            lane,
            parts: job.exchange.lanes().unwrap().micro.into(),
            dropout_seed: 1,
        }
    }
}

/// What a worker holds of a network, and the way to the others.
pub struct PortionModel<L: Layers> {
    lane: Lane,
    portion: Portion,
    /// How the network is divided.
    stretches: Vec<Stretch>,
    /// Numbers of one sample that pass between two workers, at most.
    widest: usize,
    /// What this worker has of the stretches, in order.
    held: Vec<L>,
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
    measuring: Measuring<L::Weights>,
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
    owed: VecDeque<Owing<L::Owed>>,
}

/// A gradient that nobody waits for.
struct Owing<O> {
    /// Which of the stretches that are held here it is of.
    at: usize,
    owed: O,
    /// What becomes of what others have written.
    into: Into,
}

impl<L: Layers> PortionModel<L> {
    /// What this worker holds, with layers made for each stretch that it has a part of.
    pub fn new(
        membership: Membership,
        mut layers: impl FnMut(&Partition, &Portion, &OwnStretch) -> Result<L, TrainError>,
    ) -> Result<Self, TrainError> {
        let portion = membership.portion();
        let Membership {
            task,
            judged_by,
            partition,
            lane,
            parts,
            dropout_seed,
        } = membership;
        let Task {
            dataset,
            objective,
            augment,
        } = task;
        let own = portion.stretches.iter();
        let held: Result<_, _> = own.map(|own| layers(&partition, &portion, own)).collect();
        Ok(Self {
            held: held?,
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
            seed: dropout_seed,
            owed: VecDeque::new(),
        })
    }

    /// Begins the minibatches that this worker is to lead and has not begun yet.
    fn lead(&mut self, weights: &L::Weights) -> Result<(), TrainError> {
        for told in self.lane.take_told() {
            let lead = Lead {
                key: step_key(self.seed, told.step),
                parts: self.parts.min(told.samples.len()).max(1) as u16,
                ..told
            };
            self.lane.begin(lead.clone())?;
            self.send_there(&lead, weights)?;
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
        self.held.iter_mut().for_each(L::clear);
        self.there.clear();
        self.back.clear();
        self.own.clear();
        self.later.clear();
        self.owed.clear();
        self.measured_later.clear();
        self.measuring = Measuring::default();
    }
}

impl<L: Layers> Slopes for PortionModel<L> {
    type Weights = L::Weights;
    type Gradient = L::Gradient;
    type Loss = f32;
    type Shared = L::Shared;

    fn gradient(
        &mut self,
        weights: &L::Weights,
        samples: &[u32],
        _key: u64,
        gradient: &mut L::Gradient,
    ) -> Result<f32, TrainError> {
        let begun = self.lead(weights);
        let lead = begun.and_then(|()| self.lane.next_lead().cloned().ok_or(TrainError::LaneBroken));
        let loss = lead.and_then(|lead| {
            debug_assert_eq!(lead.samples, samples, "minibatches are done in their order");
            // There is room for as many parts as the job says.
            if usize::from(lead.parts) > self.parts {
                return Err(self.lane.lost());
            }
            self.minibatch(weights, &lead, gradient)
        });
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

    fn hear(&mut self, word: LaneWord, shared: &L::Shared) -> Result<(), TrainError> {
        let attempt = self.lane.attempt();
        let heard = self.lane.hear(word);
        // Nothing of another attempt is gone on with.
        if self.lane.attempt() != attempt {
            self.clear();
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

    fn measure(&mut self, shared: &L::Shared) -> Result<Option<Scores>, TrainError> {
        let measured = self.measure_all(shared);
        if measured.is_err() {
            self.clear();
        }
        measured.map(Some)
    }
}
