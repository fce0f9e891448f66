//! The thread that reports the training thread's work to the node: batches, statistics once a second, evaluations, the
//! end.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use protocol::ids::RunId;
use protocol::job::Keep;
use protocol::job::model::PipelineStage;
use protocol::sentence::sentence;
use protocol::stats::measured::{Moment, Scores};
use protocol::stats::{WorkerStats, record_interval};
use protocol::weights::digest::Digest;
use protocol::weights::lattice::{Range, count_of};
use protocol::wire::attach::{FailureCause, FromWorker, SaveOrder};
use protocol::wire::frame::Kind;

use super::evaluating::Evaluating;
use super::files::Files;
use super::measured_weights::MeasuredWeights;
use super::prepared::Prepared;
use super::socket::Writer;
use crate::model::measuring::{Bits, measure};
use crate::model_file::{self, Metadata, Numbers};
use crate::trainer::TrainError;
use crate::training::state_file;
use crate::training::thread::Outbound;
use crate::training::{FromTraining, State, Step, StepTime, TrainingError};

const STATS_EVERY: Duration = Duration::from_secs(1);
/// One in this many evaluations of a run with a target accuracy is completed and its result reported. The others end as
/// soon as the target is clearly missed.
const REPORTED_IN: u32 = 4;

pub(super) struct Reporter {
    thread: JoinHandle<()>,
}

impl Reporter {
    pub(super) fn start(
        run: RunId,
        prepared: Arc<Prepared>,
        stage: Option<PipelineStage>,
        outbound: Outbound,
        writer: Writer,
        files: Files,
        kept: MeasuredWeights,
    ) -> io::Result<Self> {
        let reporting = Reporting {
            run,
            prepared,
            stage: stage.map(Arc::new),
            writer,
            stats: WorkerStats::default(),
            begun: Instant::now(),
            told: Instant::now(),
            evaluating: None,
            evaluations: 0,
            kept,
            files,
        };
        let thread = std::thread::Builder::new()
            .name("reporter".into())
            // The thread that reads the socket notices when it is closed.
            .spawn(move || drop(reporting.run(&outbound)))?;
        Ok(Self { thread })
    }

    /// Waits until every message of the training thread, which has ended, is reported.
    pub(super) fn join(self) {
        let _ = self.thread.join();
    }
}

struct Reporting {
    run: RunId,
    prepared: Arc<Prepared>,
    stage: Option<Arc<PipelineStage>>,
    writer: Writer,
    stats: WorkerStats,
    begun: Instant,
    told: Instant,
    /// Thread that evaluates weights; `None` before the first evaluation.
    evaluating: Option<Evaluating>,
    evaluations: u32,
    kept: MeasuredWeights,
    files: Files,
}

impl Reporting {
    fn run(mut self, outbound: &Outbound) -> io::Result<()> {
        while let Some(message) = outbound.recv() {
            match message {
                FromTraining::Step { encoded, step, time } => {
                    if let Some(encoded) = &encoded {
                        self.writer.write(Kind::Batch, encoded)?;
                    }
                    self.count(&step, time, encoded.is_some());
                    if self.told.elapsed() >= record_interval(self.begun.elapsed(), STATS_EVERY) {
                        self.tell_stats()?;
                    }
                }
                FromTraining::Prefix(contents) => self.writer.write(Kind::Prefix, &contents)?,
                FromTraining::Flow(flow) => {
                    let contents = flow.encode().map_err(io::Error::other)?;
                    self.writer.write(Kind::Flow, &contents)?;
                }
                FromTraining::Measured(evaluation) => {
                    let run = self.run;
                    self.writer.message(&FromWorker::Evaluated { run, evaluation })?;
                }
                FromTraining::Starved(missing) => self.writer.message(&FromWorker::Starved(missing))?,
                FromTraining::Fed => self.writer.message(&FromWorker::Fed)?,
                FromTraining::ResidualNorm(norm) => self.stats.residual_norm = norm,
                FromTraining::Weights(weights, moment) => self.evaluate(weights, moment)?,
                FromTraining::WeightsInTurn(weights, moment, answer) => {
                    self.evaluator()?.ask_in_turn(weights, moment, answer);
                }
                FromTraining::State { path, state } => self.save_state(path, state)?,
                FromTraining::Closed(closing) => {
                    self.writer.write(Kind::Batch, &closing.encoded)?;
                    self.stats.residual_norm = closing.residual_norm;
                    self.tell_stats()?;
                    self.writer.message(&FromWorker::Closed {
                        residual_norm: closing.residual_norm,
                    })?;
                }
                FromTraining::Finished { digest, save, scores } => {
                    self.writer.message(&FromWorker::Finished { digest })?;
                    if let Some((order, weights)) = save {
                        self.save_model(order, weights, digest, scores)?;
                    }
                }
                FromTraining::Failed(error) => {
                    let cause = match &error {
                        TrainingError::Train(TrainError::Module(_)) => FailureCause::Code,
                        TrainingError::Train(TrainError::Device(_)) => FailureCause::Worker,
                        TrainingError::Train(_) => FailureCause::Diverged,
                        _ => FailureCause::Worker,
                    };
                    self.writer.message(&FromWorker::Failed {
                        reason: error.to_string(),
                        cause,
                    })?;
                }
            }
        }
        Ok(())
    }

    fn count(&mut self, step: &Step, time: StepTime, emitted: bool) {
        let stats = &mut self.stats;
        stats.batches += u64::from(emitted);
        stats.throttled += u64::from(step.throttled);
        stats.samples += step.samples as u64;
        stats.changes += step.changes as u64;
        stats.loss += f64::from(step.loss) * step.samples as f64;
        stats.training += time.training;
        stats.directions += step.directions;
        stats.exchange += time.exchange;
        stats.waited += time.waited;
        stats.gpu += step.gpu.time;
        // A batch that leaves without a step has no measurement.
        if step.gpu.memory > 0 {
            stats.gpu_memory = step.gpu.memory;
        }
        if let Some(tau) = step.tau {
            stats.tau = f64::from(tau.value());
        }
        stats.staleness = step.staleness;
        stats.alarmed |= step.range == Range::Alarm;
    }

    fn tell_stats(&mut self) -> io::Result<()> {
        self.told = Instant::now();
        self.writer.message(&FromWorker::Stats(Box::new(self.stats)))
    }

    /// Has weights evaluated in the background, so that batches go on. With a target accuracy, most evaluations only
    /// decide if the target is reached, and end without a result as soon as it is clearly missed, unless the job
    /// compares evaluations with each other.
    fn evaluate(&mut self, weights: Vec<f32>, moment: Moment) -> io::Result<()> {
        let job = &self.prepared.job;
        let is_compared = job.patience.is_some() || job.keep == Keep::Best;
        let must_tell = is_compared || self.evaluations.is_multiple_of(REPORTED_IN);
        let target = job.target_accuracy.filter(|_| !must_tell);
        if self.evaluator()?.ask(weights, moment, target) {
            self.evaluations += 1;
        }
        Ok(())
    }

    /// Returns the thread that evaluates weights, which is started at the first call.
    fn evaluator(&mut self) -> io::Result<&Evaluating> {
        let evaluating = match self.evaluating.take() {
            Some(evaluating) => evaluating,
            None => Evaluating::start(
                self.run,
                Arc::clone(&self.prepared),
                self.writer.clone(),
                self.kept.clone(),
            )?,
        };
        Ok(self.evaluating.insert(evaluating))
    }

    /// Writes the worker's own state (residual and optimiser state) to a file in the background, and tells the node
    /// between which two batches the state was taken.
    fn save_state(&self, path: PathBuf, state: Option<Box<State>>) -> io::Result<()> {
        let Some(state) = state else {
            return self.writer.message(&FromWorker::Saved { sequence: None, path });
        };
        let (sequence, file) = (state.sequence, path.clone());
        let tell = |ready: bool| {
            self.writer.message(&FromWorker::Saved {
                sequence: ready.then_some(sequence),
                path: path.clone(),
            })
        };
        self.files.replace(&path, tell, move || {
            if let Err(error) = state_file::save(&file, &state) {
                tracing::error!(
                    event = "worker_state_save_failed",
                    "this worker's state could not be saved: {}",
                    sentence(&error)
                );
            }
        })
    }

    /// Writes the run's final model, or this worker's stage of it, to a file in the background. Measures a whole model
    /// on the test samples, and reports the outcome to the node.
    fn save_model(
        &self,
        order: SaveOrder,
        weights: Vec<f32>,
        digest: Option<Digest>,
        scores: Option<Scores>,
    ) -> io::Result<()> {
        let (run, stage) = (self.run, self.stage.clone());
        let (prepared, writer, path) = (Arc::clone(&self.prepared), self.writer.clone(), order.path.clone());
        let write = move || {
            digest
                .ok_or_else(|| "the model is not saved, because a weight is not a multiple of 2^-20 below 16".into())
                .and_then(|digest| match stage {
                    Some(stage) => save_stage(&prepared, &stage, &weights, &order).map(|()| scores),
                    None => save_and_measure(&prepared, weights, digest, &order).map(Some),
                })
        };
        let tell = move |saved| drop(writer.message(&FromWorker::SavedModel { run, saved }));
        match self.files.write(&path, write, tell) {
            Ok(()) => Ok(()),
            Err(reason) => {
                let saved = Err(reason);
                self.writer.message(&FromWorker::SavedModel { run, saved })
            }
        }
    }
}

/// Writes the pipeline stage that this worker holds to a file. The digest in the file is this stage's part of the whole
/// model's digest.
fn save_stage(prepared: &Prepared, stage: &PipelineStage, weights: &[f32], order: &SaveOrder) -> Result<(), String> {
    let counts: Option<Vec<i32>> = weights.iter().map(|&weight| count_of(weight)).collect();
    let digest = counts.map(|counts| stage.digest(&counts)).unwrap_or_default();
    let known = prepared.dataset.known();
    let metadata = Metadata::of_stage(&prepared.job, known, &order.frontier, stage, digest);
    let numbers = Numbers {
        layout: &stage.layout,
        weights,
        statistics: &[],
        untrained: &[],
    };
    model_file::save(&order.path, numbers, &metadata).map_err(|error| sentence(&error))
}

fn save_and_measure(
    prepared: &Prepared,
    weights: Vec<f32>,
    digest: Digest,
    order: &SaveOrder,
) -> Result<Scores, String> {
    let Prepared {
        job,
        dataset,
        layout,
        threads,
        ..
    } = prepared;
    let untrained = prepared.untrained(&weights)?;
    let metadata = Metadata::new(job, dataset.known(), &order.frontier, digest);
    let metadata = metadata.of_module(prepared.code(), &untrained);
    let statistics =
        measure(layout, &weights, &dataset.train, *threads, Bits::Fixed).map_err(|error| error.to_string())?;
    let numbers = Numbers {
        layout,
        weights: &weights,
        statistics: &statistics,
        untrained: &untrained,
    };
    model_file::save(&order.path, numbers, &metadata).map_err(|error| sentence(&error))?;
    let mut evaluator = prepared.evaluator(prepared.tested(), *threads);
    let found = evaluator
        .evaluate(weights, Some(statistics), &mut |_| true)
        .map_err(|error| error.to_string())?;
    Ok(found.scores())
}
