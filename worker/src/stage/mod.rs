//! A stage of a network at work: the layers that one worker of a pipeline holds, on any device.
//!
//! A [`StageModel`] computes the gradient of its own weights piece by piece: activations come from the workers of the layers
//! before, gradients from those after, and each call of [`StageModel::advance`] goes on with one of them. It waits for nothing,
//! and what it sends lies in the outbox of its [`Pipeline`].

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

/// What a worker needs to be a member of a pipeline.
pub struct Membership {
    /// What is trained on which samples.
    pub task: Task,
    /// What a trained model is judged by.
    pub eval_objective: Objective,
    /// How the network is divided.
    pub partition: Partition,
    /// The worker's part in the pipeline.
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

    /// What a worker needs for a job on this data, with no seed of its own.
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

/// How far a stage has come by one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advance {
    /// Something was computed, and there may be more to compute.
    Worked,
    /// Nothing can be computed before another message comes.
    Waits,
    /// The gradient of the present minibatch is complete.
    Done,
}

/// The arrays of a stage's weights, as its device has them.
pub struct StageArrays<'a, L: Layers> {
    /// The worker's own weights.
    pub own: &'a L::Weights,
    /// The shared weights.
    pub shared: &'a L::Shared,
    /// Where the gradient is written.
    pub gradient: &'a mut L::Gradient,
}

/// What a worker holds of a network, and its part in the pipeline.
pub struct StageModel<L: Layers> {
    pipeline: Pipeline,
    stage: PipelineStage,
    /// How the network is divided.
    layer_ranges: Vec<LayerRange>,
    /// Numbers of one sample that pass between two workers, at most.
    widest: usize,
    /// What this worker has of the layer ranges, in order.
    slices: Vec<L>,
    /// Events that have come since the present minibatch came back.
    held: VecDeque<PipelineEvent>,
    /// The minibatch whose gradient is being computed.
    progress: Option<MinibatchProgress>,
    /// What has come of micro-batches, for whole layer ranges to go there and back.
    forward: Gathering<(u64, u16, u8)>,
    backward: Gathering<(u64, u16, u8)>,
    /// Pieces that this worker has made for itself.
    own: VecDeque<Piece>,
    /// Pieces that have come from other workers.
    received: VecDeque<Piece>,
    /// Pieces that belong to a later minibatch than can be gone on with now.
    later: Vec<Piece>,
    /// Evaluation samples that pass through.
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

    /// The worker's part in the pipeline.
    pub fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// The worker's part in the pipeline, to call the others or to close it.
    pub fn pipeline_mut(&mut self) -> &mut Pipeline {
        &mut self.pipeline
    }

    /// Begins the minibatches that this worker is to lead and has not begun yet.
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

    /// Whether the gradient of a minibatch is being computed, or computed and not taken.
    pub fn is_computing(&self) -> bool {
        self.progress.is_some()
    }

    /// Takes note of an event. A minibatch that is being computed may be over after it; but not one that has come back, since
    /// others count it as trained: then the event is held until the step is made.
    pub fn hear(&mut self, event: PipelineEvent) {
        if self.progress.as_ref().is_some_and(MinibatchProgress::is_back) {
            return self.hold(event);
        }
        let generation = self.pipeline.generation();
        let heard = self.pipeline.hear(event);
        // Nothing of another generation is gone on with.
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

    /// Holds an event until the step is made. The pipeline is given up then if more come than belong to the minibatches in
    /// flight, and the rest of them is not kept.
    fn hold(&mut self, event: PipelineEvent) {
        match self.held.len().cmp(&self.pipeline.kept_max()) {
            Ordering::Less => self.held.push_back(event),
            Ordering::Equal => self.held.push_back(PipelineEvent::Broken),
            Ordering::Greater => {}
        }
    }

    /// Takes the events that were held, to be heard after the step.
    pub fn take_held(&mut self) -> VecDeque<PipelineEvent> {
        std::mem::take(&mut self.held)
    }

    /// Keeps numbers that have come, or gives the pipeline up if they cannot be for this worker.
    fn receive(&mut self, flow: &Flow) {
        match self.read(flow) {
            None => self.refuse(PipelineViolation::Numbers),
            Some(_) if self.received.len() + self.later.len() >= self.pipeline.kept_max() => {
                self.refuse(PipelineViolation::TooMany);
            }
            Some(piece) => self.received.push_back(piece),
        }
    }

    /// Gives up what is under way because another worker has sent what no honest one sends.
    fn refuse(&mut self, violation: PipelineViolation) {
        self.pipeline.refuse(violation);
        self.clear();
    }

    /// Gives up what is under way. Other workers that wait for an answer are told that there is none.
    pub fn reset(&mut self) {
        self.pipeline.reset();
        self.clear();
    }

    /// Goes on with the gradient of the first minibatch that the leader has begun, by one piece of work. A failure of the device
    /// is an error; what breaks the pipeline is not, and leaves nothing under way.
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

    /// Goes on with an evaluation between two minibatches, by one piece of work. It is done where a leader has heard of all
    /// evaluation samples.
    pub fn advance_evaluation(&mut self, shared: &L::Shared) -> Result<Advance, TrainError> {
        let advanced = self.advance_measuring(shared);
        self.unless_broken(advanced)
    }

    /// Gives the pipeline up if a piece of work broke it.
    fn unless_broken(&mut self, advanced: Result<Advance, TrainError>) -> Result<Advance, TrainError> {
        match advanced {
            Err(TrainError::Violation(violation)) => {
                self.refuse(violation);
                Ok(Advance::Worked)
            }
            advanced => advanced,
        }
    }

    /// Begins with the first minibatch that the leader has begun, if there is one.
    fn begin_next(&mut self) -> Result<Advance, TrainError> {
        let Some(lead) = self.pipeline.next_lead() else {
            return Ok(Advance::Waits);
        };
        // There is room for as many micro-batches as the job says.
        if usize::from(lead.micro_batches) > self.micro_batches {
            return Err(PipelineViolation::Minibatch.into());
        }
        self.progress = Some(MinibatchProgress::new(lead.clone(), self.slices.len()));
        self.own.extend(self.later.drain(..));
        Ok(Advance::Worked)
    }

    /// Takes the loss of the minibatch whose gradient is complete.
    fn take_loss(&mut self) -> Option<f32> {
        let progress = self.progress.take_if(|progress| progress.is_done())?;
        self.pipeline.led();
        self.forward.retain(|&(step, ..)| step > progress.step());
        self.backward.retain(|&(step, ..)| step > progress.step());
        Some(progress.loss())
    }

    /// Has the whole pipeline measured, which this worker leads, with the shared weights of this moment.
    pub fn begin_evaluation(&mut self, shared: &L::Shared) -> Result<(), TrainError> {
        self.measuring.begin(self.slices[0].copied(shared)?);
        Ok(())
    }

    /// The number of evaluation minibatches that are judged, where this worker has the whole pipeline measured.
    pub fn judged(&self) -> Option<u32> {
        self.measuring.judged()
    }

    /// Takes the scores of an evaluation that is done.
    pub fn take_scores(&mut self) -> Option<Scores> {
        let count = self.dataset.test.len();
        self.measuring.take_scores(&self.eval_objective, count)
    }

    /// Forgets what is under way.
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

    /// The gradient is where [`StageModel::advance`] has written it.
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
