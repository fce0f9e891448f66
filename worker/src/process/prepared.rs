//! A job that is ready to train: its data is open and the shapes of its model are known.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use protocol::job::Job;
use protocol::job::augment::Augment;
use protocol::job::data::{DataInfo, DataSpec};
use protocol::job::model::{Layout, Partition, PipelineStage, Shape, initial_counts};
use protocol::rng::splitmix64;
use protocol::sentence::sentence;
use protocol::weights::lattice::weight_of;
use protocol::wire::attach::Assignment;
use protocol::wire::flow::PipelineAssignment;

use super::Options;
use crate::backend::cpu::{CpuModuleTrainer, CpuStageTrainer, CpuTrainer};
#[cfg(feature = "cuda")]
use crate::backend::cuda::{CudaStageTrainer, CudaTrainer, Gpu};
use crate::backend::device::Device;
use crate::backend::speed;
use crate::dataset::{Answers, Dataset};
use crate::evaluate::Evaluator;
use crate::machine::parallel::Threads;
use crate::model::measuring;
use crate::model_file::UntrainedTensor;
use crate::model_file::first_weights::{self, FirstWeights};
use crate::module::{self, CheckedNetwork, CodeFolders, Module, ModuleData, ModuleFailure, OpenModule, Rows};
use crate::pipeline::Pipeline;
use crate::stage::{HoldsStage, Membership};
use crate::task::job_layout;
use crate::task::objective::{Objective, Task};
use crate::trainer::{StateError, TrainError, Trainer};
use crate::training::state_file::{self, StateFileError};
use crate::training::thread::{self, TrainingThread};
use crate::training::{Identity, StageTraining, State, Training, TrainingError};

pub(super) struct Prepared {
    pub(super) job: Job,
    /// Training samples, and the samples on which the model is evaluated while training.
    pub(super) dataset: Arc<Dataset>,
    /// Test samples that the run's result is measured on, if evaluations while training use validation samples instead.
    tested: Option<Arc<Dataset>>,
    pub(super) layout: Layout,
    /// Module that is the model, instead of layers that Tau computes itself.
    module: Option<OpenModule>,
    /// SHA-256 of the code of the module.
    code: Option<[u8; 32]>,
    pub(super) device: Device,
    pub(super) threads: Threads,
    /// Measured computing speed of this worker, by which nodes decide where to cut the network into stages; 0 unless
    /// they need it.
    speed: u64,
    /// Initial weights of the run, if they come from a model file or a module rather than from the seed. The worker
    /// sends them to its node, which returns them as part of its ledger (the exact integer weights).
    first: Mutex<Option<FirstWeights>>,
}

impl Prepared {
    /// Takes the initial weights that come from a model file, to send them to the node; `None` if there are none or
    /// they are taken.
    pub(super) fn take_first(&self) -> Option<FirstWeights> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Opens the data and fits the model to it; an error is one sentence.
    pub(super) fn open(job: &Job, options: &Options) -> Result<Self, String> {
        let root = Some(options.data_root.as_path());
        let reads = || Dataset::open(&job.data, job.seed, root).map_err(|error| sentence(&error));
        let read = (job.data != DataSpec::Module).then(reads).transpose()?;
        let code = job.model.module().map(|file| {
            let input = read.as_ref().map(|dataset| dataset.input);
            load_module(file, input, job.seed, options)
        });
        let code = code.transpose()?;
        let dataset = match (read, &code) {
            (Some(dataset), _) => dataset,
            (None, Some(code)) => {
                let ModuleData { classes, test, hash } = code.data().map_err(|error| error.to_string())?;
                Dataset::of_module(classes, test, hash)
            }
            (None, None) => return Err("only a module has data of its own: name a file with --model py:FILE".into()),
        };
        let (dataset, tested) = dataset
            .with_validation(job.validation_share(), job.seed)
            .map_err(|error| sentence(&error))?;
        let job = &job.for_data(dataset.input);
        let mut sealed = None;
        let (module, layout, own) = if let Some((code, file)) = code.zip(job.model.module()) {
            job_layout::check(job, &dataset).map_err(|error| sentence(&error))?;
            let (module, layout, counts) = open_module(Arc::clone(&code), file, &dataset, options.threads)?;
            sealed = Some(code.seal().map_err(|error| error.to_string())?);
            (Some(module), layout, Some(counts))
        } else {
            let layout = job_layout::layout_for(job, &dataset).map_err(|error| sentence(&error))?;
            (None, layout, None)
        };
        let first = if job.from.is_some() {
            let initial = || own.unwrap_or_else(|| initial_counts(&layout, job.seed));
            first_weights::open(job, &layout, initial, root).map_err(|error| sentence(&error))?
        } else {
            own.map(|counts| FirstWeights {
                counts,
                afresh: Vec::new(),
            })
        };
        // Nodes that decide where to cut the network need to know the speed.
        let speed = if job.exchange.leaves_cut_open() {
            speed::measure(&options.device, options.threads)
        } else {
            0
        };
        Ok(Self {
            speed,
            first: Mutex::new(first),
            job: job.clone(),
            dataset: Arc::new(dataset),
            tested: tested.map(Arc::new),
            layout,
            module,
            code: sealed,
            device: options.device.clone(),
            threads: options.threads,
        })
    }

    /// Creates an evaluator of the run's model on these samples, which belongs to one thread.
    pub(super) fn evaluator(&self, task: Task, threads: Threads) -> Evaluator {
        let module = self.module.as_ref().map(OpenModule::evaluating);
        Evaluator::new(&self.device, task, self.layout.clone(), threads).with_module(module, self.job.minibatch)
    }

    /// Returns the digest of the code of the run's module; `None` for a model of layers.
    pub(super) fn code(&self) -> Option<[u8; 32]> {
        self.code
    }

    /// Returns the tensors of a module with these weights that are saved with the model and were not trained; an error is
    /// one sentence.
    pub(super) fn untrained(&self, weights: &[f32]) -> Result<Vec<UntrainedTensor>, String> {
        let Some(module) = &self.module else {
            return Ok(Vec::new());
        };
        let network = module.evaluating();
        let mut network = network.lock().unwrap_or_else(PoisonError::into_inner);
        let train = &self.dataset.train;
        let observed = measuring::minibatches(train.len(), self.job.minibatch as usize);
        let settled = network.settle(weights, train, observed);
        let untrained = settled.and_then(|()| network.untrained(weights));
        untrained.map_err(|error| error.to_string())
    }

    /// Returns the measured computing speed of this worker, by which nodes decide where to cut the network; 0 unless
    /// they need it.
    pub(super) fn speed(&self) -> u64 {
        self.speed
    }

    pub(super) fn data(&self) -> DataInfo {
        let data = match &self.tested {
            None => self.dataset.info(),
            Some(tested) => DataInfo {
                train: self.dataset.train.len() as u64,
                validation: self.dataset.test.len() as u64,
                ..tested.info()
            },
        };
        DataInfo {
            code: self.code,
            ..data
        }
    }

    /// Returns a copy of this prepared run with another form of its job: the one in which all settings are decided that
    /// the user left to be decided.
    pub(super) fn with_job(&self, job: &Job) -> Self {
        Self {
            job: job.clone(),
            dataset: Arc::clone(&self.dataset),
            tested: self.tested.clone(),
            layout: self.layout.clone(),
            module: self.module.clone(),
            code: self.code,
            device: self.device.clone(),
            threads: self.threads,
            speed: self.speed,
            first: Mutex::new(None),
        }
    }

    /// Returns the task of measuring the run's result: its test samples with the objective of evaluations.
    pub(super) fn tested(&self) -> Task {
        let dataset = self.tested.as_ref().unwrap_or(&self.dataset);
        Task {
            dataset: Arc::clone(dataset),
            ..self.eval_task()
        }
    }

    /// Returns the task of evaluating the model while training: the evaluation samples with the objective of
    /// evaluations.
    pub(super) fn eval_task(&self) -> Task {
        Task {
            dataset: Arc::clone(&self.dataset),
            objective: Objective::for_evaluation(&self.job, &self.dataset.target),
            augment: Augment::default(),
        }
    }

    /// Returns the pipeline stage that the node has assigned to this worker, and the cut of the whole network; `None`
    /// if the job has no pipelines.
    pub(super) fn stage(
        &self,
        assigned: Option<PipelineAssignment>,
    ) -> Result<Option<(Partition, PipelineStage)>, String> {
        let (Some(PipelineAssignment { place, cut, .. }), Some(pipelines)) = (assigned, self.job.exchange.pipelines())
        else {
            return Ok(None);
        };
        let partition = job_layout::partition(&self.job, &pipelines.decided(cut), &self.layout);
        let partition = partition.map_err(|error| error.to_string())?;
        if usize::from(place.stage) >= partition.len() {
            return Err("the node assigned this worker a pipeline stage that does not exist".into());
        }
        let stage = partition.stage(usize::from(place.stage));
        Ok(Some((partition, stage)))
    }

    /// Starts the thread that trains, from the weights of the node's ledger (`counts`) or, if there are none, from the
    /// job's initial weights.
    pub(super) fn start(
        &self,
        assignment: &Assignment,
        stage: Option<&(Partition, PipelineStage)>,
        counts: Vec<i32>,
    ) -> Result<TrainingThread, String> {
        let weights = stage.map_or(self.layout.weights, |(_, stage)| stage.layout.weights);
        let counts = match (stage, counts.is_empty() && !self.job.begins_with_told_weights()) {
            (_, false) => counts,
            (None, true) => initial_counts(&self.layout, self.job.seed),
            (Some((_, stage)), true) => stage.initial_counts(self.job.seed),
        };
        if counts.len() != weights {
            return Err("the node's ledger has another number of weights than this worker's model".into());
        }
        let identity = Identity {
            run: assignment.run,
            origin: assignment.origin,
            slot: assignment.slot,
            slots: assignment.slots,
            founders: assignment.founders,
        };
        // The seed does not follow from the origin, which is drawn anew each time: the same job on one node gives the
        // same model.
        let dropout_seed = splitmix64(self.job.seed ^ splitmix64(identity.slot as u64));
        let start = Start {
            dataset: Arc::clone(&self.dataset),
            weights,
            identity,
            assignment: assignment.clone(),
        };
        let (layout, rule) = (self.layout.clone(), self.job.optimiser.rule);
        let (threads, minibatch) = (self.threads, self.job.minibatch as usize);
        if let (Some((partition, _)), Some(assigned), Some(pipelines)) =
            (stage.cloned(), assignment.pipeline, self.job.exchange.pipelines())
        {
            let in_flight = pipelines.decided(assigned.cut).in_flight(assigned.pipelines as usize);
            let pipeline = Pipeline::new(
                assigned.place,
                partition.len() as u8,
                in_flight,
                assignment.origin.0,
                self.dataset.train.len(),
            );
            let membership = Membership::of_job(&self.job, &self.dataset, partition, pipeline);
            let membership = Membership {
                dropout_seed,
                ..membership.map_err(|error| error.to_string())?
            };
            let started = match self.device {
                Device::Cpu => thread::start_stage(threads, move || {
                    let trainer = CpuStageTrainer::in_pipeline(membership, &counts, rule, threads)?;
                    start.stage_training(trainer)
                }),
                #[cfg(feature = "cuda")]
                Device::Cuda { ordinal, precision, .. } => {
                    let part = (self.job.step_samples() as usize).div_ceil(membership.micro_batches);
                    thread::start_stage(threads, move || {
                        let gpu = Gpu::open(ordinal, precision).map_err(TrainError::from)?;
                        let trainer = CudaStageTrainer::in_pipeline(gpu, membership, &counts, rule, part)?;
                        start.stage_training(trainer)
                    })
                }
            };
            return started.map_err(|error| format!("the training thread could not be started: {error}"));
        }
        let task = Task::of_job(&self.job, Arc::clone(&self.dataset)).map_err(|error| error.to_string())?;
        let started = match self.device {
            Device::Cpu => match self.module.clone() {
                Some(module) => thread::start(threads, assignment.paced, move || {
                    let network = module.network(threads).map_err(TrainError::from)?;
                    let trainer =
                        CpuModuleTrainer::of_network(network, task, &layout, &counts, rule, dropout_seed, threads)?;
                    start.training(trainer.in_minibatches_of(minibatch))
                }),
                None => thread::start(threads, assignment.paced, move || {
                    let trainer = CpuTrainer::new(task, &layout, &counts, rule, dropout_seed, threads)?;
                    start.training(trainer.in_minibatches_of(minibatch))
                }),
            },
            #[cfg(feature = "cuda")]
            Device::Cuda { ordinal, precision, .. } => {
                // On a GPU the samples of a step are one minibatch, which has the same gradient and takes more memory.
                let minibatch = self.job.step_samples() as usize;
                thread::start(threads, assignment.paced, move || {
                    let gpu = Gpu::open(ordinal, precision).map_err(TrainError::from)?;
                    let trainer = CudaTrainer::new(gpu, task, &layout, &counts, rule, minibatch, dropout_seed)?;
                    start.training(trainer)
                })
            }
        };
        started.map_err(|error| format!("the training thread could not be started: {error}"))
    }
}

/// Runs the code of the module that a job trains, for samples of this shape or, without one, for its own; an error is one
/// sentence.
fn load_module(file: &Path, input: Option<Shape>, seed: u64, options: &Options) -> Result<Arc<dyn Module>, String> {
    if options.device != Device::Cpu {
        return Err(format!(
            "{} is Python code, which trains on CPUs only: use --device cpu",
            file.display()
        ));
    }
    let folders = CodeFolders {
        root: Some(&options.data_root),
        own: options.own_folder.as_deref(),
    };
    module::load(options.modules.as_deref(), file, folders, input, seed).map_err(|error| sentence(&error))
}

/// Makes a loaded module ready to train, and tries it on two samples, so that most mistakes in its code are found before
/// the run begins; an error is one sentence.
fn open_module(
    code: Arc<dyn Module>,
    file: &Path,
    dataset: &Dataset,
    threads: Threads,
) -> Result<(OpenModule, Layout, Vec<i32>), String> {
    let opened = module::open(code, file, dataset.target.info(), threads);
    let (module, layout, counts) = opened.map_err(|error| sentence(&error))?;
    let weights: Vec<f32> = counts.iter().copied().map(weight_of).collect();
    let tried = module
        .network(threads)
        .and_then(|network| try_out(network, &module, &weights, dataset));
    tried.map_err(|error| error.to_string())?;
    Ok((module, layout, counts))
}

/// Trains and evaluates a module on two samples and makes the tensors that are saved, and moves no weight.
fn try_out(
    mut network: CheckedNetwork,
    module: &OpenModule,
    weights: &[f32],
    dataset: &Dataset,
) -> Result<(), ModuleFailure> {
    let evaluates = module.evaluating();
    let mut evaluates = evaluates.lock().unwrap_or_else(PoisonError::into_inner);
    let samples = [0, dataset.train.len() as u32 - 1];
    evaluates.settle(weights, &dataset.train, [samples.to_vec()])?;
    let mut gradient = vec![0.0; weights.len()];
    if let Some(positions) = dataset.train.positions_at(&samples) {
        network.step(weights, &positions, 0, &mut gradient)?;
        let first = 0..dataset.test.len().min(2) as u32;
        let tests = dataset.test.positions_at(&first.collect::<Vec<u32>>());
        if let Some(tests) = tests {
            evaluates.measure(weights, &tests)?;
        }
        return evaluates.untrained(weights).map(drop);
    }
    let (mut inputs, mut answers) = (Vec::new(), Answers::default());
    dataset.train.gather(&samples, &mut inputs, &mut answers);
    let rows = Rows {
        values: &inputs,
        samples: samples.len(),
    };
    let outputs = network.forward(weights, rows, 0)?;
    network.backward(rows.samples, &vec![0.0; outputs.len()], &mut gradient)?;
    evaluates.infer(weights, rows)?;
    evaluates.untrained(weights).map(drop)
}

/// The inputs from which a training thread builds its training loop, on any device.
struct Start {
    dataset: Arc<Dataset>,
    weights: usize,
    identity: Identity,
    assignment: Assignment,
}

impl Start {
    fn training<T: Trainer>(self, trainer: T) -> Result<Training<T>, TrainingError> {
        let begin = &self.assignment;
        let mut training = Training::new(trainer, &begin.job, &self.dataset, self.identity)?;
        training.resume(&begin.cursors, begin.batches, begin.samples);
        training.join_rounds(begin.round, begin.workers);
        self.restore(|state| training.restore(state));
        Ok(training)
    }

    fn stage_training<T: Trainer + HoldsStage>(self, trainer: T) -> Result<StageTraining<T>, TrainingError> {
        let (begin, classes) = (&self.assignment, self.dataset.train.classes());
        let mut training = StageTraining::new(trainer, &begin.job, classes, self.identity, Duration::ZERO)?;
        training.resume(&begin.cursors, begin.batches, begin.samples);
        self.restore(|state| training.restore(state));
        Ok(training)
    }

    /// Restores the worker's own state (residual and optimiser state) from its file, if there is one. A failure is only
    /// logged: the worker can train without that state.
    fn restore(self, restore: impl FnOnce(State) -> Result<(), StateError>) {
        let Some(path) = self.assignment.restore else {
            return;
        };
        let restored = state_file::load(&path, self.weights)
            .and_then(|state| restore(state).map_err(|source| StateFileError::Unfit { file: path, source }));
        if let Err(error) = restored {
            tracing::warn!(
                event = "worker_state_restore_failed",
                "this worker starts without its saved residual and optimiser state: {}",
                sentence(&error)
            );
        }
    }
}
