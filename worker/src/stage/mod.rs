//! A stage of a network at work: computes the layers that one worker of a pipeline holds, on any device.
//!
//! A [`StageModel`] computes the gradient of its own weights piece by piece: activations come from the workers of the
//! layers before, gradients from those after, and each call of [`StageModel::advance`] processes one of them. It never
//! waits, and its messages lie in the outbox of its [`Pipeline`].

mod fake;
mod gathering;
mod holds_stage;
mod layers;
mod measuring;
mod minibatch;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::sync::Arc;

use protocol::job::Job;
use protocol::job::augment::Augment;
use protocol::job::model::{LayerRange, Partition, PipelineStage, StageSlice};
use protocol::stats::measured::Scores;
use protocol::wire::flow::{Flow, FlowBody, Lead};

use crate::dataset::{Answers, Dataset};
use crate::model::ops::MeanLoss;
use crate::model::ops::matmul::WriteMode;
use crate::pipeline::{Heard, Pipeline, PipelineEvent};
use crate::task::objective::{Objective, ObjectiveError, Task};
use crate::trainer::gradient_source::{GradientSource, step_key};
use crate::trainer::{PipelineViolation, TrainError};
pub use fake::FakeStageTrainer;
use gathering::Gathering;
pub use holds_stage::HoldsStage;
pub use layers::{Layers, Returned};
use measuring::Measuring;
use minibatch::{MinibatchProgress, Piece};

/// The settings and the pipeline place that a worker needs to be a member of a pipeline.
pub struct Membership {
    /// Dataset and objective of the training.
    pub task: Task,
    /// Objective of evaluations.
    pub eval_objective: Objective,
    /// Partition of the network into stages.
    pub partition: Partition,
    /// The worker's part in the pipeline.
    pub pipeline: Pipeline,
    /// Number of micro-batches that a minibatch is cut into.
    pub micro_batches: usize,
    /// Seed of dropout in the minibatches that this worker leads.
    pub dropout_seed: u64,
}

impl Membership {
    /// Returns the stage of the network that this worker holds.
    #[must_use]
    pub fn stage(&self) -> PipelineStage {
        self.partition.stage(usize::from(self.pipeline.stage()))
    }

    /// Creates the membership of a worker for a job on this data, with a placeholder dropout seed.
    pub(crate) fn of_job(
        job: &Job,
        dataset: &Arc<Dataset>,
        partition: Partition,
        pipeline: Pipeline,
    ) -> Result<Self, ObjectiveError> {
        Ok(Self {
            task: Task::of_job(job, Arc::clone(dataset))?,
            eval_objective: Objective::for_evaluation(job, &dataset.target),
            partition,
            pipeline,
            micro_batches: job.exchange.pipelines().map_or(1, |spec| spec.micro.into()),
            dropout_seed: 1,
        })
    }
}

/// The progress of a stage in one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advance {
    /// A piece was computed, and there may be more to compute.
    Worked,
    /// Nothing can be computed before another message comes.
    Waits,
    /// The gradient of the present minibatch, or the evaluation, is complete.
    Done,
}

/// The arrays of a stage's weights, in the form of its device.
pub struct StageArrays<'a, L: Layers> {
    /// The worker's own weights.
    pub own: &'a L::Weights,
    /// The shared weights.
    pub shared: &'a L::Shared,
    /// Receives the gradient.
    pub gradient: &'a mut L::Gradient,
}

/// The stage of a network that one worker computes, and the worker's part in the pipeline.
pub struct StageModel<L: Layers> {
    pipeline: Pipeline,
    stage: PipelineStage,
    /// All layer ranges of the network.
    layer_ranges: Vec<LayerRange>,
    /// Largest number of values per sample that pass between two workers.
    widest: usize,
    /// The slices of layer ranges that this worker holds, in order.
    slices: Vec<L>,
    /// Events that have come since all micro-batches of the present minibatch came back.
    held: VecDeque<PipelineEvent>,
    /// The minibatch whose gradient is being computed.
    progress: Option<MinibatchProgress>,
    /// Collects activations from the workers of a layer range until all pieces for a micro-batch have come.
    forward: Gathering<(u64, u16, u8)>,
    /// Collects output gradients from the workers of a layer range until all pieces for a micro-batch have come.
    backward: Gathering<(u64, u16, u8)>,
    /// Activations and gradients that this worker made for its own next layer range, not processed yet.
    own: VecDeque<Piece>,
    /// Activations and gradients that have come from other workers and are not processed yet.
    received: VecDeque<Piece>,
    /// Activations and gradients of later minibatches, which cannot be processed yet.
    later: Vec<Piece>,
    /// The evaluation that passes through the pipeline.
    measuring: Measuring<L::Weights>,
    dataset: Arc<Dataset>,
    augment: Augment,
    loss: MeanLoss,
    /// Objective of evaluations.
    eval_objective: Objective,
    /// Number of micro-batches that a minibatch is cut into.
    micro_batches: usize,
    /// Seed of dropout in the minibatches that this worker leads.
    seed: u64,
    /// Weight gradients that no other worker waits for, in the order in which they are written.
    deferred: VecDeque<DeferredGradient<L::Deferred>>,
}

/// A weight gradient whose computation is deferred, because no other worker waits for it.
struct DeferredGradient<O> {
    /// Index of its layer range among those that this worker holds.
    at: usize,
    deferred: O,
    /// Says if the result replaces the gradient array or is added to it.
    write_mode: WriteMode,
}

impl<L: Layers> StageModel<L> {
    /// Creates the stage of a worker, with the layers that `layers` makes for each of its layer ranges.
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
            held: VecDeque::new(),
            progress: None,
            forward: Gathering::default(),
            backward: Gathering::default(),
            own: VecDeque::new(),
            received: VecDeque::new(),
            later: Vec::new(),
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

    pub fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// The worker's part in the pipeline, to call the others or to close it.
    pub fn pipeline_mut(&mut self) -> &mut Pipeline {
        &mut self.pipeline
    }

    /// Begins those of these minibatches that this worker, as the leader, has not begun yet.
    pub fn lead(&mut self, leads: Vec<Lead>) {
        for lead in leads {
            if self.pipeline.begun(lead.step).is_none() {
                let lead = Lead {
                    key: step_key(self.seed, lead.step),
                    micro_batches: self.micro_batches.min(lead.samples.len()).max(1) as u16,
                    ..lead
                };
                self.own.push_back(Piece::samples(lead.step, 0));
                self.pipeline.begin(lead);
            }
        }
    }

    /// True if the gradient of a minibatch is being computed, or is complete and not taken.
    pub fn is_computing(&self) -> bool {
        self.progress.is_some()
    }

    /// Takes an event, after which the present minibatch may be given up. But once all its micro-batches have come
    /// back, other workers count the minibatch as trained: events are then held until the step is made.
    pub fn hear(&mut self, event: PipelineEvent) {
        if self.progress.as_ref().is_some_and(MinibatchProgress::is_back) {
            return self.hold(event);
        }
        let generation = self.pipeline.generation();
        let heard = self.pipeline.hear(event);
        // Pieces of another generation are dropped.
        if self.pipeline.generation() != generation {
            self.clear();
        }
        match heard {
            Heard::Nothing | Heard::Joined => {}
            Heard::Broken => self.clear(),
            Heard::Begun { step, early } => {
                if self.slice_of(0).is_some() {
                    self.received.push_back(Piece::samples(step, 0));
                }
                for flow in &early {
                    self.receive(flow);
                }
            }
            Heard::Input(flow) => match &flow.head.body {
                FlowBody::Measure(samples) => self.receive_measured(samples.clone(), flow),
                FlowBody::EvalTotals(totals) if self.measuring.judge(totals) => {}
                FlowBody::EvalTotals(_) => self.refuse(PipelineViolation::Numbers),
                _ => self.receive(&flow),
            },
        }
    }

    /// Holds an event until the step is made. If more events come than belong to the minibatches in flight, the
    /// pipeline is given up after the step, and further events are dropped.
    fn hold(&mut self, event: PipelineEvent) {
        match self.held.len().cmp(&self.pipeline.kept_max()) {
            Ordering::Less => self.held.push_back(event),
            Ordering::Equal => self.held.push_back(PipelineEvent::Broken),
            Ordering::Greater => {}
        }
    }

    /// Takes the events that were held during the step.
    pub fn take_held(&mut self) -> VecDeque<PipelineEvent> {
        std::mem::take(&mut self.held)
    }

    /// Keeps a piece that has come, or gives the pipeline up if it cannot be for this worker.
    fn receive(&mut self, flow: &Flow) {
        match self.read(flow) {
            None => self.refuse(PipelineViolation::Numbers),
            Some(_) if self.received.len() + self.later.len() >= self.pipeline.kept_max() => {
                self.refuse(PipelineViolation::TooMany);
            }
            Some(piece) => self.received.push_back(piece),
        }
    }

    /// Gives up all work in flight because another worker broke the protocol.
    fn refuse(&mut self, violation: PipelineViolation) {
        self.pipeline.refuse(violation);
        self.clear();
    }

    /// Gives up all work in flight, and tells other workers, which may be waiting for an answer.
    pub fn reset(&mut self) {
        self.pipeline.reset();
        self.clear();
    }

    /// Advances the gradient of the oldest minibatch in flight by one piece of work. Returns an error if the device
    /// fails; a broken pipeline is no error, and leaves no work in flight.
    pub fn advance(&mut self, arrays: StageArrays<'_, L>) -> Result<Advance, TrainError> {
        let advanced = match self.progress.take() {
            Some(mut progress) => {
                let advanced = self.advance_minibatch(&mut progress, arrays);
                self.progress = Some(progress);
                advanced
            }
            None => self.begin_next(),
        };
        self.unless_broken(advanced)
    }

    /// Advances an evaluation by one piece of work, between two minibatches. Returns [`Advance::Done`] at the leader,
    /// once all evaluation samples are counted.
    pub fn advance_evaluation(&mut self, shared: &L::Shared) -> Result<Advance, TrainError> {
        let advanced = self.advance_measuring(shared);
        self.unless_broken(advanced)
    }

    /// Gives the pipeline up if a piece of work broke its protocol.
    fn unless_broken(&mut self, advanced: Result<Advance, TrainError>) -> Result<Advance, TrainError> {
        match advanced {
            Err(TrainError::Violation(violation)) => {
                self.refuse(violation);
                Ok(Advance::Worked)
            }
            advanced => advanced,
        }
    }

    /// Begins to compute the oldest minibatch in flight, if there is one.
    fn begin_next(&mut self) -> Result<Advance, TrainError> {
        let Some(lead) = self.pipeline.next_lead() else {
            return Ok(Advance::Waits);
        };
        // Memory suffices for the number of micro-batches in the job.
        if usize::from(lead.micro_batches) > self.micro_batches {
            return Err(PipelineViolation::Minibatch.into());
        }
        self.progress = Some(MinibatchProgress::new(lead.clone(), self.slices.len()));
        self.own.extend(self.later.drain(..));
        Ok(Advance::Worked)
    }

    /// Takes the mean loss of the present minibatch, if its gradient is complete, and ends the minibatch.
    fn take_loss(&mut self) -> Option<f32> {
        let progress = self.progress.take_if(|progress| progress.is_done())?;
        self.pipeline.led();
        self.forward.retain(|&(step, ..)| step > progress.step());
        self.backward.retain(|&(step, ..)| step > progress.step());
        Some(progress.loss())
    }

    /// Begins an evaluation of the whole pipeline with the present shared weights, as the leader.
    pub fn begin_evaluation(&mut self, shared: &L::Shared) -> Result<(), TrainError> {
        self.measuring.begin(self.slices[0].copied(shared)?);
        Ok(())
    }

    /// Number of evaluation minibatches that are counted; `None` unless this worker leads an evaluation.
    pub fn judged(&self) -> Option<u32> {
        self.measuring.judged()
    }

    /// Takes the scores of a completed evaluation.
    pub fn take_scores(&mut self) -> Option<Scores> {
        let count = self.dataset.test.len();
        self.measuring.take_scores(&self.eval_objective, count)
    }

    /// Forgets all work in flight.
    fn clear(&mut self) {
        self.slices.iter_mut().for_each(L::clear);
        self.progress = None;
        self.forward.clear();
        self.backward.clear();
        self.own.clear();
        self.received.clear();
        self.later.clear();
        self.deferred.clear();
        self.measuring = Measuring::default();
    }
}

impl<L: Layers> GradientSource for StageModel<L> {
    type Weights = L::Weights;
    type Gradient = L::Gradient;
    type Loss = f32;
    type Shared = L::Shared;

    /// Returns the loss; [`StageModel::advance`] has written the gradient already.
    fn gradient(
        &mut self,
        _weights: &L::Weights,
        _samples: &[u32],
        _key: u64,
        _gradient: &mut L::Gradient,
    ) -> Result<f32, TrainError> {
        self.take_loss()
            .ok_or_else(|| TrainError::Device("the gradient of this stage is not complete".into()))
    }
}
