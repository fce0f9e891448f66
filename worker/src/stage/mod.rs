//! A worker's part in a pipeline: it computes the gradient of its own neurons, and everything else comes from the others.

mod gathering;
mod layers;
mod measuring;
mod minibatch;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use protocol::augment::Augment;
use protocol::measured::Scores;
use protocol::model::{LayerRange, Partition, PipelineStage, StageSlice};
use protocol::wire::flow::{Flow, Lead};

use crate::backend::gradient_source::{GradientSource, step_key};
use crate::dataset::{Answers, Dataset};
use crate::objective::{Objective, Task};
use crate::ops::MeanLoss;
use crate::ops::matmul::WriteMode;
use crate::pipeline::{Pipeline, PipelineEvent, StageInput};
use crate::train_error::TrainError;
use gathering::Gathering;
pub use layers::{Layers, Returned};
use measuring::Measuring;
use minibatch::Piece;

/// What a worker needs to be a member of a pipeline.
pub struct Membership {
    /// What is trained on which samples.
    pub task: Task,
    /// What a trained model is judged by.
    pub eval_objective: Objective,
    /// How the network is divided.
    pub partition: Partition,
    /// The way to the others.
    pub pipeline: Pipeline,
    /// Into how many micro-batches a minibatch is cut.
    pub micro_batches: usize,
    /// What decides dropout in the minibatches that this worker leads.
    pub dropout_seed: u64,
}

impl Membership {
    /// What this worker holds of the network.
    #[must_use]
    pub fn stage(&self) -> PipelineStage {
        self.partition.stage(usize::from(self.pipeline.stage()))
    }

    #[cfg(test)]
    pub(crate) fn of_job(
        job: &protocol::job::Job,
        dataset: &Arc<Dataset>,
        partition: Partition,
        pipeline: Pipeline,
    ) -> Self {
        Self {
            task: Task::of_job(job, Arc::clone(dataset)).unwrap(),
            eval_objective: Objective::for_evaluation(job, &dataset.target),
            partition,
            pipeline,
            micro_batches: job.exchange.pipelines().unwrap().micro.into(),
            dropout_seed: 1,
        }
    }
}

/// What a worker holds of a network, and the way to the others.
pub struct StageModel<L: Layers> {
    pipeline: Pipeline,
    stage: PipelineStage,
    /// How the network is divided.
    layer_ranges: Vec<LayerRange>,
    /// Numbers of one sample that pass between two workers, at most.
    widest: usize,
    /// What this worker has of the layer ranges, in order.
    slices: Vec<L>,
    /// What has come of micro-batches, for whole layer ranges to go there and back.
    forward: Gathering<(u64, u16, u8)>,
    backward: Gathering<(u64, u16, u8)>,
    /// Pieces that this worker has made for itself.
    own: VecDeque<Piece>,
    /// Pieces that belong to a later minibatch than can be gone on with now.
    later: Vec<Piece>,
    /// Evaluation samples that came in the middle of a minibatch.
    measured_later: Vec<Flow>,
    /// What an evaluation is made with, while one passes through.
    measuring: Measuring<L::Weights>,
    dataset: Arc<Dataset>,
    augment: Augment,
    loss: MeanLoss,
    /// What a trained model is judged by.
    eval_objective: Objective,
    /// Into how many micro-batches a minibatch is cut.
    micro_batches: usize,
    /// What decides dropout in the minibatches that this worker leads.
    seed: u64,
    /// Gradients that nobody waits for, in the order in which they are to be written.
    deferred: VecDeque<DeferredGradient<L::Deferred>>,
}

/// A gradient that nobody waits for.
struct DeferredGradient<O> {
    /// Which of the layer ranges that are held here it is of.
    at: usize,
    deferred: O,
    /// What becomes of what others have written.
    write_mode: WriteMode,
}

impl<L: Layers> StageModel<L> {
    /// What this worker holds, with layers made for each layer range that it has a part of.
    pub fn new(
        membership: Membership,
        mut layers: impl FnMut(&Partition, &PipelineStage, &StageSlice) -> Result<L, TrainError>,
    ) -> Result<Self, TrainError> {
        let stage = membership.stage();
        let Membership {
            task,
            eval_objective,
            partition,
            pipeline,
            micro_batches,
            dropout_seed,
        } = membership;
        let Task {
            dataset,
            objective,
            augment,
        } = task;
        let own = stage.layer_ranges.iter();
        let held: Result<_, _> = own.map(|own| layers(&partition, &stage, own)).collect();
        Ok(Self {
            slices: held?,
            layer_ranges: partition.layer_ranges().to_vec(),
            widest: partition.widest(),
            stage,
            forward: Gathering::default(),
            backward: Gathering::default(),
            own: VecDeque::new(),
            later: Vec::new(),
            measured_later: Vec::new(),
            measuring: Measuring::default(),
            pipeline,
            dataset,
            augment,
            loss: MeanLoss {
                objective,
                answers: Answers::default(),
            },
            eval_objective,
            micro_batches: micro_batches.max(1),
            seed: dropout_seed,
            deferred: VecDeque::new(),
        })
    }

    /// Begins the minibatches that this worker is to lead and has not begun yet.
    fn lead(&mut self, weights: &L::Weights) -> Result<(), TrainError> {
        for told in self.pipeline.take_announced() {
            let lead = Lead {
                key: step_key(self.seed, told.step),
                micro_batches: self.micro_batches.min(told.samples.len()).max(1) as u16,
                ..told
            };
            self.pipeline.begin(lead.clone())?;
            self.send_forward(&lead, weights)?;
        }
        Ok(())
    }

    /// Gives up what is under way, between two steps. Who waits for an answer is told that there is none.
    fn lose_pipeline(&mut self) -> Result<(), TrainError> {
        self.clear();
        match self.pipeline.reset() {
            TrainError::PipelineBroken => Ok(()),
            error => Err(error),
        }
    }

    /// Forgets what is under way.
    fn clear(&mut self) {
        self.slices.iter_mut().for_each(L::clear);
        self.forward.clear();
        self.backward.clear();
        self.own.clear();
        self.later.clear();
        self.deferred.clear();
        self.measured_later.clear();
        self.measuring = Measuring::default();
    }
}

impl<L: Layers> GradientSource for StageModel<L> {
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
        let lead = begun.and_then(|()| self.pipeline.next_lead().cloned().ok_or(TrainError::PipelineBroken));
        let loss = lead.and_then(|lead| {
            debug_assert_eq!(
                lead.samples, samples,
                "the minibatch to train is not the first one in flight"
            );
            // There is room for as many micro-batches as the job says.
            if usize::from(lead.micro_batches) > self.micro_batches {
                return Err(self.pipeline.reset());
            }
            self.minibatch(weights, &lead, gradient)
        });
        if loss.is_ok() {
            self.pipeline.led();
            for flow in std::mem::take(&mut self.measured_later) {
                self.pipeline.put_back(flow);
            }
        } else {
            self.clear();
        }
        loss
    }

    fn pipeline(&mut self) -> Option<&mut Pipeline> {
        Some(&mut self.pipeline)
    }

    fn hear(&mut self, message: PipelineEvent, shared: &L::Shared) -> Result<(), TrainError> {
        let generation = self.pipeline.generation();
        let heard = self.pipeline.hear(message);
        // Nothing of another generation is gone on with.
        if self.pipeline.generation() != generation {
            self.clear();
        }
        match heard {
            Ok(Some((StageInput::Measure(measured), flow))) => self.measure_on(measured, &flow, shared),
            Ok(Some((content, flow))) if self.is_sound(&content, &flow) => {
                self.pipeline.keep(content, flow);
                Ok(())
            }
            Ok(Some(_)) => self.lose_pipeline(),
            Ok(None) => Ok(()),
            // What is broken between two steps is called together again.
            Err(TrainError::PipelineBroken) => {
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
