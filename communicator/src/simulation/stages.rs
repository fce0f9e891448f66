//! Pipelines in the simulation: a worker that holds a stage of a network runs the product's own loop, over layers that compute
//! nothing and check that the numbers that meet belong together.

use std::sync::Arc;
use std::time::Duration;

use protocol::ids::{NodeId, OriginId, RunId};
use protocol::job::model::{Layout, Partition};
use protocol::job::{Job, JobDraft};
use protocol::log::batch::Batch;
use protocol::stats::measured::Moment;
use protocol::weights::digest::Digest;
use protocol::wire::attach::{FromWorker, JumpOrder, SaveOrder};
use protocol::wire::control::Phase;
use protocol::wire::flow::{Flow, FlowBody, StageAddress};
use worker::dataset::Dataset;
use worker::pipeline::{self, Pipeline};
use worker::stage::FakeStageTrainer;
use worker::stage::HoldsStage;
use worker::training::{FromTraining, Identity, StageProgress, StageTraining, ToTraining};

use super::node::Node;
use super::world::{Due, World};
use crate::exchange::{Event, Jump};
use crate::pipeline::{PipelineEffect, PipelineEvent};
use crate::run::{RunEvent, Saving, WorkerKey};
use protocol::wire::link::Message;

/// Test samples of every simulated data set.
const TEST_SAMPLES: usize = 9;
/// Pieces of work that a worker does between two ticks, at most.
const PIECES_MAX: u64 = 40;

/// How networks are cut in a world, and what is trained on.
pub(super) struct Layers {
    job: Job,
    dataset: Arc<Dataset>,
}

impl Layers {
    /// Networks that are cut like this, and so many training samples.
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

    /// Leaves so many training samples for the next runs.
    pub(super) fn limit(&mut self, samples: usize) {
        let samples = samples.min(self.dataset.train.len());
        self.dataset = Arc::new(Dataset::fake(samples, TEST_SAMPLES).unwrap());
    }

    /// The samples of a run that trains all of them.
    pub(super) fn samples(&self) -> u64 {
        self.dataset.train.len() as u64
    }

    pub(super) fn job(&self) -> Job {
        self.job.clone()
    }

    pub(super) fn data(&self) -> protocol::job::data::DataInfo {
        self.dataset.info()
    }

    /// The number of stages that a network is cut into.
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

/// A worker that holds a stage of a network.
pub(super) struct StageWorker {
    training: StageTraining<FakeStageTrainer>,
    /// Its batches count. Those of a worker that was seated at the end, to measure, do not.
    counts: bool,
    /// It was told that it may end: by its node, or by its leader.
    may_end: bool,
    is_closed: bool,
}

impl Node {
    fn stages(&self) -> impl Iterator<Item = &StageWorker> {
        self.workers.values().filter_map(|worker| worker.stage.as_ref())
    }

    /// Whether this node trains its stage in a run that none of its workers has ended.
    fn trains_stage(&self, run: RunId) -> bool {
        let is_open = self
            .exchange
            .as_ref()
            .is_some_and(|open| open.run == run && !open.seated.is_empty());
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

    /// Whether its pipeline has come together, or has no more to do.
    fn is_whole(&self) -> bool {
        self.is_closed || self.training.trainer().stage().pipeline().is_whole()
    }

    fn hear(&mut self, event: ToTraining, now: Duration) {
        self.may_end |= match &event {
            ToTraining::Stop | ToTraining::Leave => true,
            ToTraining::Pipeline(pipeline::PipelineEvent::Flow(flow)) => matches!(flow.head.body, FlowBody::End { .. }),
            _ => false,
        };
        self.training
            .hear(event, now)
            .unwrap_or_else(|error| panic!("a worker of a stage fails: {error}"));
    }
}

impl World {
    /// The nodes that lead a pipeline whose workers are all there, but which has not come together.
    pub(super) fn apart(&self) -> Vec<NodeId> {
        let alive = self.nodes.values().filter(|node| node.runs());
        let leaders = alive.filter(|node| {
            let Some(open) = &node.exchange else {
                return false;
            };
            let topology = open.plan.topology();
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

    /// Seats a worker of a stage with the node's ledger. One that is seated at the end only helps to measure.
    pub(super) fn seat_stage(&mut self, at: NodeId, key: WorkerKey, slot: usize, only_measures: bool) {
        let (origin, now) = (OriginId(self.number()), self.time());
        let dataset = Arc::clone(&self.layers.as_ref().unwrap().dataset);
        let node = self.nodes.get_mut(&at).unwrap();
        let open = node.exchange.as_mut().unwrap();
        let Some(worker) = node.workers.get_mut(&key) else {
            return;
        };
        assert_eq!(
            worker.prepared,
            Some(open.run),
            "{at} seats a worker that has not opened the data"
        );
        let (plan, ledger) = (&open.plan, open.core.ledger());
        let place = plan.topology().place(at).unwrap();
        let spec = *plan.job.exchange.pipelines().unwrap();
        let partition = partition(&plan.job, &plan.data);
        let pipeline = Pipeline::new(
            place,
            partition.len() as u8,
            spec.in_flight(plan.topology().workers()),
            origin.0,
            dataset.train.len(),
        );
        let trainer = FakeStageTrainer::new(&plan.job, &dataset, partition, pipeline, ledger.counts()).unwrap();
        let identity = Identity {
            run: open.run,
            origin,
            slot,
            slots: plan.slots(),
            founders: plan.topology().workers(),
        };
        let classes = vec![0; dataset.train.len()].into();
        let mut training = StageTraining::new(trainer, &plan.job, classes, identity, now).unwrap();
        training.resume(ledger.cursors(), ledger.batches(), ledger.samples());
        let mut stage = StageWorker {
            training,
            counts: !only_measures,
            may_end: false,
            is_closed: false,
        };
        for &slot in open.pipeline.dead_slots() {
            stage.hear(ToTraining::Slot { slot, alive: false }, now);
        }
        for &origin in open.pipeline.dead_origins() {
            stage.hear(ToTraining::Origin { origin, alive: false }, now);
        }
        if only_measures {
            stage.hear(ToTraining::Stop, now);
        }
        worker.stage = Some(stage);
        open.seated.insert(key, origin);
        self.made.insert(origin, vec![Digest::default()]);
        if !only_measures {
            self.exchange(at, Event::Origin(super::working::origin_info(at, origin, slot, None)));
        }
    }

    /// Tells all workers of a node's stage something.
    pub(super) fn tell_stages(&mut self, at: NodeId, event: &ToTraining) {
        self.tell_stages_but(at, None, event);
    }

    /// Tells all workers of a node's stage something, but the one of an origin.
    pub(super) fn tell_stages_but(&mut self, at: NodeId, but: Option<OriginId>, event: &ToTraining) {
        let now = self.time();
        let node = self.nodes.get_mut(&at).unwrap();
        let Some(open) = &node.exchange else {
            return;
        };
        for (key, _) in open.seated.iter().filter(|(_, origin)| Some(**origin) != but) {
            if let Some(stage) = node.workers.get_mut(key).and_then(|worker| worker.stage.as_mut()) {
                stage.hear(event.clone(), now);
            }
        }
    }

    /// Tells one worker of a stage something.
    pub(super) fn tell_stage(&mut self, at: NodeId, key: WorkerKey, event: ToTraining) {
        let now = self.time();
        let worker = self.nodes.get_mut(&at).unwrap().workers.get_mut(&key);
        if let Some(stage) = worker.and_then(|worker| worker.stage.as_mut()) {
            stage.hear(event, now);
        }
    }

    /// A node's workers compute for a while.
    pub(super) fn compute_stages(&mut self, at: NodeId) {
        let Some(open) = &self.nodes[&at].exchange else {
            return;
        };
        let keys: Vec<WorkerKey> = open.seated.keys().copied().collect();
        let is_paused = open.core.should_pause();
        self.compare_origins(at);
        for key in keys {
            self.tell_stage(at, key, ToTraining::Pause(is_paused));
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
                let (told, counts) = (stage.training.take_outbox(), stage.counts);
                for told in told {
                    self.hear_stage(at, key, counts, told);
                }
                if progress != StageProgress::Worked {
                    break;
                }
            }
        }
    }

    /// A worker of a stage has told its node something.
    fn hear_stage(&mut self, at: NodeId, key: WorkerKey, counts: bool, told: FromTraining) {
        match told {
            FromTraining::Flow(flow) => {
                let bytes = flow.encode().unwrap().into();
                self.pipeline(at, PipelineEvent::FromWorker { worker: key, bytes });
            }
            FromTraining::Step {
                encoded: Some(encoded), ..
            } => self.hear_stage_batch(at, key, counts, encoded),
            FromTraining::Closed(closing) => {
                let worker = self.nodes.get_mut(&at).unwrap().workers.get_mut(&key);
                if let Some(stage) = worker.and_then(|worker| worker.stage.as_mut()) {
                    assert!(
                        stage.leads() || stage.may_end,
                        "a worker of {at} ends before it is told to"
                    );
                    stage.is_closed = true;
                }
                self.hear_stage_batch(at, key, counts, closing.encoded);
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

    /// A batch of a worker of a stage.
    fn hear_stage_batch(&mut self, at: NodeId, key: WorkerKey, counts: bool, encoded: Vec<u8>) {
        let Some(open) = self.nodes[&at].exchange.as_ref().filter(|_| counts) else {
            return;
        };
        let Some(&origin) = open.seated.get(&key) else {
            return;
        };
        let batch = Batch::decode(&encoded, open.core.ledger().weight_count()).unwrap();
        let sums = self.made.get_mut(&origin).unwrap();
        sums.push(*sums.last().unwrap() + batch.header.digest);
        self.exchange(at, Event::Local(encoded.into()));
    }

    /// Tells workers which origins emit no more batches.
    pub(super) fn compare_origins(&mut self, at: NodeId) {
        let Some(open) = self.nodes.get_mut(&at).and_then(|node| node.exchange.as_mut()) else {
            return;
        };
        let mut effects = Vec::new();
        open.pipeline.compare_origins(open.core.origins(), &mut effects);
        for effect in effects {
            self.carry_out_for_pipeline(at, effect);
        }
    }

    /// Carries out what a node's core of pipelines asks for.
    pub(super) fn carry_out_for_pipeline(&mut self, at: NodeId, effect: PipelineEffect) {
        match effect {
            PipelineEffect::Send { to, bytes } => self.transmit(at, to, Message::Flow(bytes)),
            PipelineEffect::Deliver(bytes) => {
                let flow = Flow::decode(&bytes).unwrap();
                self.tell_stages(at, &ToTraining::Pipeline(pipeline::PipelineEvent::Flow(flow)));
            }
            PipelineEffect::Broken => self.tell_stages(at, &ToTraining::Pipeline(pipeline::PipelineEvent::Broken)),
            PipelineEffect::Slot { slot, alive } => self.tell_stages(at, &ToTraining::Slot { slot, alive }),
            PipelineEffect::Origin { origin, alive } => self.tell_stages(at, &ToTraining::Origin { origin, alive }),
            PipelineEffect::HangUp(key) => {
                panic!("worker {key:?} of {at} addresses a stage that its pipeline does not have")
            }
        }
    }

    /// Hands the workers of a node's stage what came other than as batches.
    pub(super) fn jump_stages(&mut self, at: NodeId, jump: Jump) {
        let order = JumpOrder {
            origin: jump.origin,
            batches: jump.batches,
            samples: jump.samples,
            cursors: jump.cursors,
        };
        self.tell_stages(at, &ToTraining::Jump(Arc::new(jump.sums), Arc::new(order)));
    }

    /// Has a worker of a stage finish.
    pub(super) fn finish_stage(&mut self, at: NodeId, key: WorkerKey, save: Option<Saving>) {
        let open = self.nodes[&at].exchange.as_ref().unwrap();
        let order = save.map(|save| SaveOrder {
            path: "model".into(),
            frontier: open.core.ledger().frontier().clone(),
            with_pipeline: save.measures_pipeline,
        });
        self.tell_stage(at, key, ToTraining::Finish(order));
    }

    /// Has the first worker of a node's stage measure the whole pipeline.
    pub(super) fn evaluate_stage(&mut self, at: NodeId) {
        let open = self.nodes[&at].exchange.as_ref().unwrap();
        let moment = Moment {
            samples: open.core.ledger().samples(),
            seconds: 1.0,
        };
        if let Some(&key) = open.seated.keys().next() {
            self.tell_stage(at, key, ToTraining::Copy(moment));
        }
    }
}
