//! Simulated pipelines: a worker that holds a stage runs the product's own training loop, over layers that compute
//! nothing and check that the values that meet belong together.

use std::sync::Arc;
use std::time::Duration;

use protocol::ids::{NodeId, RunId};
use protocol::job::model::{Layout, Partition};
use protocol::job::{Job, JobDraft};
use protocol::log::batch::Batch;
use protocol::weights::digest::Digest;
use protocol::weights::sums::Sums;
use protocol::wire::attach::{Assignment, FromWorker, ToWorker};
use protocol::wire::control::Phase;
use protocol::wire::flow::{FlowBody, PipelineAssignment, StageAddress};
use worker::dataset::Dataset;
use worker::pipeline::{Pipeline, PipelineEvent};
use worker::stage::FakeStageTrainer;
use worker::stage::HoldsStage;
use worker::training::{FromTraining, Identity, StageProgress, StageTraining, ToTraining};

use super::node::Node;
use super::world::{Due, World};
use crate::run::{RunEvent, WorkerKey};
use crate::run_exchange::RunExchangeEvent;

/// Number of test samples of every simulated data set.
const TEST_SAMPLES: usize = 9;
/// Maximum number of times that a worker's training loop is advanced between two ticks of the simulation's clock.
const PIECES_MAX: u64 = 40;

/// The job of a simulation in which networks are cut into stages, and the data that these train on.
pub(super) struct Layers {
    job: Job,
    dataset: Arc<Dataset>,
}

impl Layers {
    /// Makes the job and the data: networks cut into these stages, and this many training samples.
    pub(super) fn new(cut: &str, samples: u64) -> Self {
        let draft = JobDraft {
            exchange: Some(format!("layers:{cut}")),
            model: Some("dense 4, tanh, dense 6, tanh, dense 4, tanh, dense".into()),
            optimiser: Some("sgd:0.05".into()),
            minibatch: Some(4),
            tau: Some(0.001),
            epochs: Some(1),
            ..JobDraft::default()
        };
        Self {
            job: draft.resolve().unwrap(),
            dataset: Arc::new(Dataset::fake(samples as usize, TEST_SAMPLES).unwrap()),
        }
    }

    /// Limits the number of training samples of later runs.
    pub(super) fn limit(&mut self, samples: usize) {
        let samples = samples.min(self.dataset.train.len());
        self.dataset = Arc::new(Dataset::fake(samples, TEST_SAMPLES).unwrap());
    }

    /// Number of training samples, all of which a complete run has trained.
    pub(super) fn samples(&self) -> u64 {
        self.dataset.train.len() as u64
    }

    pub(super) fn job(&self) -> Job {
        self.job.clone()
    }

    pub(super) fn data(&self) -> protocol::job::data::DataInfo {
        self.dataset.info()
    }

    /// Number of stages that a network is cut into.
    pub(super) fn stages(&self) -> usize {
        self.job.exchange.stages()
    }

    /// The digest of the first weights of a whole network.
    pub(super) fn first_digest(&self) -> Digest {
        partition(&self.job, &self.data()).first_digest(self.job.seed)
    }
}

fn partition(job: &Job, data: &protocol::job::data::DataInfo) -> Partition {
    let layout = Layout::new(&job.model, data.input, data.target.outputs()).unwrap();
    Partition::new(layout, job.exchange.pipelines().unwrap()).unwrap()
}

/// A simulated worker that holds a stage of a network.
pub(super) struct StageWorker {
    training: StageTraining<FakeStageTrainer>,
    /// True if the worker was told by its node or by the pipeline's leader that it may end.
    may_end: bool,
    is_closed: bool,
}

impl Node {
    fn stages(&self) -> impl Iterator<Item = &StageWorker> {
        self.workers.values().filter_map(|worker| worker.stage.as_ref())
    }

    /// Returns true if this node trains its stage in a run, and none of its workers is about to end.
    fn trains_stage(&self, run: RunId) -> bool {
        let is_open = self
            .exchange
            .as_ref()
            .is_some_and(|open| open.run == run && !open.core.seats().is_empty());
        let status = self.core.status(Duration::ZERO);
        let trains = status.is_some_and(|status| status.phase == Phase::Training);
        let hangs = self.workers.values().any(|worker| worker.hangs);
        let mut ending = self.stages().filter(|stage| !stage.leads() && stage.may_end);
        self.runs() && is_open && trains && !hangs && ending.next().is_none()
    }
}

impl StageWorker {
    fn leads(&self) -> bool {
        self.training.trainer().stage().pipeline().leads()
    }

    /// Returns true if the worker's pipeline has all its workers, or this worker has made its last batch.
    fn is_whole(&self) -> bool {
        self.is_closed || self.training.trainer().stage().pipeline().is_whole()
    }

    fn hear(&mut self, event: ToTraining, now: Duration) {
        self.may_end |= match &event {
            ToTraining::Stop | ToTraining::Leave => true,
            ToTraining::Pipeline(PipelineEvent::Flow(flow)) => matches!(flow.head.body, FlowBody::End { .. }),
            _ => false,
        };
        self.training
            .hear(event, now)
            .unwrap_or_else(|error| panic!("a worker of a stage fails: {error}"));
    }
}

impl World {
    /// The nodes that lead a pipeline whose workers are all running, but have not all joined it.
    pub(super) fn apart(&self) -> Vec<NodeId> {
        let alive = self.nodes.values().filter(|node| node.runs());
        let leaders = alive.filter(|node| {
            let Some(open) = &node.exchange else {
                return false;
            };
            let topology = open.topology();
            let Some(place) = topology.place(node.info.id).filter(|place| place.stage == 0) else {
                return false;
            };
            let mut stages = (0..topology.stages() as u8).map(|stage| StageAddress { stage, ..place });
            stages.all(|place| {
                let holder = topology.holder(place).and_then(|one| self.nodes.get(&one.node));
                holder.is_some_and(|holder| holder.trains_stage(open.run))
            }) && !node.stages().any(StageWorker::is_whole)
        });
        leaders.map(|node| node.info.id).collect()
    }

    /// Gives a worker its stage of a network, with these weights or, if they are empty, those that follow from the
    /// seed.
    pub(super) fn seat_stage(&mut self, at: NodeId, key: WorkerKey, assignment: &Assignment, counts: Vec<i32>) {
        let now = self.time();
        let layers = self.layers.as_ref().unwrap();
        let dataset = Arc::clone(&layers.dataset);
        let PipelineAssignment { place, pipelines, .. } = assignment.pipeline.unwrap();
        let job = &assignment.job;
        let partition = partition(job, &layers.data());
        let spec = *job.exchange.pipelines().unwrap();
        let counts = if counts.is_empty() {
            partition.stage(usize::from(place.stage)).initial_counts(job.seed)
        } else {
            counts
        };
        let pipeline = Pipeline::new(
            place,
            partition.len() as u8,
            spec.in_flight(pipelines as usize),
            assignment.origin.0,
            dataset.train.len(),
        );
        let trainer = FakeStageTrainer::new(job, &dataset, partition, pipeline, &counts).unwrap();
        let identity = Identity {
            run: assignment.run,
            origin: assignment.origin,
            slot: assignment.slot,
            slots: assignment.slots,
            founders: assignment.founders,
        };
        let classes = vec![0; dataset.train.len()].into();
        let mut training = StageTraining::new(trainer, job, classes, identity, now).unwrap();
        training.resume(&assignment.cursors, assignment.batches, assignment.samples);
        let worker = self.nodes.get_mut(&at).unwrap().workers.get_mut(&key).unwrap();
        worker.stage = Some(StageWorker {
            training,
            may_end: false,
            is_closed: false,
        });
    }

    /// Passes a message of a node's exchange to a worker of a stage.
    pub(super) fn tell_stage_worker(&mut self, at: NodeId, key: WorkerKey, message: ToWorker) {
        let event = match message {
            ToWorker::Jump(order) => {
                let worker = self.nodes.get_mut(&at).unwrap().workers.get_mut(&key).unwrap();
                let sums = std::mem::take(&mut worker.sums);
                let weights = self.nodes[&at].exchange.as_ref().unwrap().ledger().weight_count();
                ToTraining::Jump(Arc::new(Sums::checked(sums, weights).unwrap()), Arc::new(*order))
            }
            ToWorker::Pause(is_paused) => ToTraining::Pause(is_paused),
            ToWorker::Origin { origin, alive } => ToTraining::Origin { origin, alive },
            ToWorker::Slot { slot, alive } => ToTraining::Slot { slot, alive },
            ToWorker::Evaluate(moment) => ToTraining::Copy(moment),
            ToWorker::Stop => ToTraining::Stop,
            ToWorker::Leave => ToTraining::Leave,
            ToWorker::Finish { save } => ToTraining::Finish(save),
            ToWorker::PipelineBroken => ToTraining::Pipeline(PipelineEvent::Broken),
            other => panic!("{at} tells a worker of a stage {other:?}"),
        };
        self.tell_stage(at, key, event);
    }

    /// Passes an event to the training loop of a worker of a stage.
    pub(super) fn tell_stage(&mut self, at: NodeId, key: WorkerKey, event: ToTraining) {
        let now = self.time();
        let worker = self.nodes.get_mut(&at).unwrap().workers.get_mut(&key);
        if let Some(stage) = worker.and_then(|worker| worker.stage.as_mut()) {
            stage.hear(event, now);
        }
    }

    /// Advances the training loop of each of a node's workers, up to a random number of times.
    pub(super) fn compute_stages(&mut self, at: NodeId) {
        let Some(open) = &self.nodes[&at].exchange else {
            return;
        };
        let keys: Vec<WorkerKey> = open.core.seats().keys().copied().collect();
        for key in keys {
            for _ in 0..self.random.below(PIECES_MAX) {
                let now = self.time();
                let worker = self.nodes.get_mut(&at).unwrap().workers.get_mut(&key);
                let stage = worker
                    .filter(|worker| !worker.hangs)
                    .and_then(|worker| worker.stage.as_mut());
                let Some(stage) = stage else {
                    break;
                };
                let progress = stage.training.advance(now, false);
                let progress = progress.unwrap_or_else(|error| panic!("a worker of a stage of {at} fails: {error}"));
                for told in stage.training.take_outbox() {
                    self.hear_stage(at, key, told);
                }
                if progress != StageProgress::Worked {
                    break;
                }
            }
        }
    }

    /// Handles the messages that come from the training loop of a worker of a stage.
    fn hear_stage(&mut self, at: NodeId, key: WorkerKey, told: FromTraining) {
        match told {
            FromTraining::Flow(flow) => {
                let bytes = flow.encode().unwrap().into();
                self.exchange(at, RunExchangeEvent::Flow { worker: key, bytes });
            }
            FromTraining::Step {
                encoded: Some(encoded), ..
            } => self.hear_stage_batch(at, key, encoded),
            FromTraining::Closed(closing) => {
                let worker = self.nodes.get_mut(&at).unwrap().workers.get_mut(&key);
                if let Some(stage) = worker.and_then(|worker| worker.stage.as_mut()) {
                    assert!(
                        stage.leads() || stage.may_end,
                        "a worker of {at} ends before it is told to"
                    );
                    stage.is_closed = true;
                }
                self.hear_stage_batch(at, key, closing.encoded);
                self.run(at, RunEvent::Worker(key, FromWorker::Stats(Box::default())));
                self.run(at, RunEvent::Worker(key, FromWorker::Closed { residual_norm: 0.0 }));
            }
            FromTraining::Measured(evaluation) => {
                if let Some(run) = self.nodes[&at].exchange.as_ref().map(|open| open.run) {
                    self.worker_says(at, key, 1, FromWorker::Evaluated { run, evaluation });
                }
            }
            FromTraining::Finished { digest, save, scores } => {
                self.worker_says(at, key, 20, FromWorker::Finished { digest });
                let node = &self.nodes[&at];
                let orders = node.workers.get(&key).map_or(0, |worker| worker.orders);
                if let Some(run) = node.exchange.as_ref().map(|open| open.run).filter(|_| save.is_some()) {
                    let delay = 40 + self.random.below(200);
                    let due = Due::Write {
                        at,
                        key,
                        orders,
                        run,
                        scores,
                    };
                    self.after(delay, due);
                }
            }
            FromTraining::Failed(error) => panic!("a worker of a stage of {at} fails: {error}"),
            _ => {}
        }
    }

    /// Passes a batch of a worker of a stage to its node's exchange.
    fn hear_stage_batch(&mut self, at: NodeId, key: WorkerKey, encoded: Vec<u8>) {
        let Some(open) = &self.nodes[&at].exchange else {
            return;
        };
        let Batch { header, .. } = Batch::decode(&encoded, open.ledger().weight_count()).unwrap();
        let sums = self.made.get_mut(&header.origin).unwrap();
        sums.push(*sums.last().unwrap() + header.digest);
        let bytes = encoded.into();
        self.exchange(at, RunExchangeEvent::Batch { worker: key, bytes });
    }
}
