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

/// Settings that a worker needs to be a member of a pipeline: the task, the cut of the network, and the worker's place.
pub struct Membership {
    /// Dataset and objective of the training.
    pub task: Task,
    /// Loss that evaluations measure, which may differ from the training loss.
    pub eval_objective: Objective,
    /// Cut of the whole network into pipeline stages.
    pub partition: Partition,
    /// This worker's place in the pipeline and the protocol by which its workers join.
    pub pipeline: Pipeline,
    /// Number of micro-batches that a minibatch is cut into.
    pub micro_batches: usize,
    /// Seed of dropout in the minibatches that this worker leads.
    pub dropout_seed: u64,
}

impl Membership {
    #[must_use]
    pub fn stage(&self) -> PipelineStage {
        self.partition.stage(usize::from(self.pipeline.stage()))
    }

    /// Creates the membership of a worker in a pipeline, for a job on this data. The dropout seed is a placeholder, for
    /// the caller to replace.
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

/// Progress of a pipeline stage in one call of `advance`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advance {
    /// Progress of a stage: one piece of work was computed, and there may be more.
    Worked,
    /// Progress of a stage: nothing can be computed before another message comes.
    Waits,
    /// Progress of a stage: the gradient of the present minibatch, or the evaluation, is complete.
    Done,
}

/// Arrays that a pipeline stage computes with, in the form of its device.
pub struct StageArrays<'a, L: Layers> {
    /// Weights of the stage that the worker's optimiser moves and at which it computes gradients.
    pub own: &'a L::Weights,
    /// Weights of the stage that all workers with this stage share.
    pub shared: &'a L::Shared,
    /// Array that receives the gradient of the stage's weights.
    pub gradient: &'a mut L::Gradient,
}

/// The part of a network that one worker of a pipeline computes, and the worker's place in the pipeline.
pub struct StageModel<L: Layers> {
    pipeline: Pipeline,
    stage: PipelineStage,
    /// All layer ranges of the network: neighbouring layers that are computed without a message between workers.
    layer_ranges: Vec<LayerRange>,
    /// Largest number of values per sample that pass between two workers.
    widest: usize,
    /// This worker's parts of the network's layer ranges, in order.
    slices: Vec<L>,
    /// Pipeline events that have come since all micro-batches of the present minibatch came back; handled after the
    /// step.
    held: VecDeque<PipelineEvent>,
    /// The training minibatch whose gradient is being computed; `None` between minibatches.
    progress: Option<MinibatchProgress>,
    /// Collects the activations of micro-batches, of which each worker with the same layers sends a part, until all
    /// parts have come.
    forward: Gathering<(u64, u16, u8)>,
    /// Collects the gradients of micro-batches, which each worker with the next layers sends, until all have come.
    backward: Gathering<(u64, u16, u8)>,
    /// Activations and gradients that this worker made for its own next layers, not processed yet.
    own: VecDeque<Piece>,
    /// Activations and gradients that have come from other workers and are not processed yet.
    received: VecDeque<Piece>,
    /// Activations and gradients of later minibatches, kept until their minibatch is begun.
    later: Vec<Piece>,
    /// State of the evaluation that passes through the pipeline, if there is one.
    measuring: Measuring<L::Weights>,
    dataset: Arc<Dataset>,
    augment: Augment,
    loss: MeanLoss,
    /// Loss that evaluations measure, which may differ from the training loss.
    eval_objective: Objective,
    /// Number of micro-batches into which each minibatch is cut.
    micro_batches: usize,
    /// Random seed of dropout in the minibatches that this worker leads.
    seed: u64,
    /// Weight gradients whose computation is postponed because no other worker waits for them, in the order in which
    /// they are written.
    deferred: VecDeque<DeferredGradient<L::Deferred>>,
}

/// A weight gradient whose computation is deferred, because no other worker waits for it.
struct DeferredGradient<O> {
    /// Index, among this worker's layer ranges, of the one whose weight gradient this is.
    at: usize,
    deferred: O,
    /// Says if the postponed weight gradient replaces the gradient array's contents or is added to them.
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

    /// Returns the worker's place in its pipeline, so that the caller can ask the others to join or close the pipeline.
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

    /// Handles a pipeline event, after which the present minibatch may be given up. But once all its micro-batches have
    /// come back, other workers count the minibatch as trained: events are then held until the step is made.
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

    /// Takes the pipeline events that were held until the step was made.
    pub fn take_held(&mut self) -> VecDeque<PipelineEvent> {
        std::mem::take(&mut self.held)
    }

    /// Keeps activations or gradients that have arrived until they are processed. If they cannot be meant for this
    /// worker, gives up the work in flight.
    fn receive(&mut self, flow: &Flow) {
        match self.read(flow) {
            None => self.refuse(PipelineViolation::Numbers),
            Some(_) if self.received.len() + self.later.len() >= self.pipeline.kept_max() => {
                self.refuse(PipelineViolation::TooMany);
            }
            Some(piece) => self.received.push_back(piece),
        }
    }

    /// Gives up all work in flight because another worker of the pipeline broke the protocol.
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

    /// Advances an evaluation of the whole pipeline by one piece of work, between two minibatches. Returns
    /// [`Advance::Done`] at the leader, once all evaluation samples are counted.
    pub fn advance_evaluation(&mut self, shared: &L::Shared) -> Result<Advance, TrainError> {
        let advanced = self.advance_measuring(shared);
        self.unless_broken(advanced)
    }

    /// If computing failed because another worker broke the pipeline's protocol, gives up the work in flight and
    /// returns no error; returns all other results unchanged.
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

    /// Returns the number of evaluation minibatches whose results are counted; `None` unless this worker leads an
    /// evaluation.
    pub fn judged(&self) -> Option<u32> {
        self.measuring.judged()
    }

    /// Takes the scores of a completed pipeline evaluation; `None` while it is incomplete.
    pub fn take_scores(&mut self) -> Option<Scores> {
        let count = self.dataset.test.len();
        self.measuring.take_scores(&self.eval_objective, count)
    }

    /// Forgets all minibatches and evaluations in flight at this stage.
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

    /// Returns the mean loss of the minibatch; [`StageModel::advance`] has written the gradient already.
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
