//! A run of one node: a worker and an exchange in one process, joined by encoded batches as in a cluster.
//!
//! The worker trains on its own thread. Each of its batches is decoded here and applied to the exchange's ledger;
//! evaluation, stats and the saved model come from the ledger, and in the end the worker's weights must be the ledger's.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, TrySendError};
use std::time::{Duration, Instant};

use communicator::exchange::{Effect, Event, Exchange, Limits, OriginInfo};
use communicator::ledger::Ledger;
use communicator::usage::UsageMeter;
use protocol::ids::NodeId;
use protocol::job::Job;
use protocol::model::{Layout, initial_counts};
use protocol::rng::splitmix64;
use protocol::stats::{Finished, Line, StatsRecord};
use worker::backend::cpu::CpuTrainer;
use worker::dataset::Dataset;
use worker::evaluate::{Evaluation, Evaluator, evaluate};
use worker::model_file::{self, Metadata};
use worker::ops::Threads;
use worker::training::{Identity, Training};
use worker::training_thread::{self, Closing, FromTraining, ToTraining, TrainingThread};

use crate::failure::Failure;
use crate::out_folder::OutFolder;
use crate::tally::{Sums, Tally, ratio};
use crate::view::{Numbers, View};
use crate::{interrupt, output};

/// The longest wait for a batch before Ctrl-C, time limits and evaluations are looked at again.
const POLL: Duration = Duration::from_millis(50);
const STATS_EVERY: Duration = Duration::from_secs(1);
const NODE: &str = "local";

/// Everything a run of one node needs, checked.
pub(crate) struct Solo {
    pub(crate) job: Job,
    pub(crate) dataset: Arc<Dataset>,
    pub(crate) layout: Layout,
    pub(crate) threads: Threads,
    pub(crate) out: OutFolder,
}

/// Trains, evaluates and saves.
pub(crate) fn train(solo: &Solo, json: bool) -> Result<Finished, Failure> {
    let identity = Identity::alone(RandomState::new().hash_one(std::process::id()));
    let counts = initial_counts(&solo.layout, solo.job.seed);
    let exchange = start_exchange(identity, counts.clone());
    let thread = start_worker(solo, identity, counts)?;
    let mut run = Run::new(solo, identity, exchange, json)?;
    let closing = run.follow(&thread.outbound, &thread.inbound);
    // The thread has closed or failed, or its channel ends with `thread`: it does not outlive this function.
    let TrainingThread {
        outbound,
        inbound,
        thread,
    } = thread;
    drop((outbound, inbound));
    let crashed = thread.join().is_err();
    let closing = match closing {
        Err(_) if crashed => Err(Failure::Failed(
            "the training thread crashed; this is a fault in Tau, please report what it printed".into(),
        )),
        closing => closing,
    }?;
    run.finish(&closing)
}

/// The node's side: a ledger with one worker's origin, and nobody to exchange with.
fn start_exchange(identity: Identity, counts: Vec<i32>) -> Exchange {
    let me = NodeId(identity.run.0);
    let mut exchange = Exchange::new(me, Ledger::new(identity.run, counts), Limits::default());
    let origin = Event::Origin(OriginInfo {
        origin: identity.origin,
        home: me,
        slot: 0,
        ended: None,
    });
    // An origin's name asks for nothing to be done.
    exchange.handle(origin, &mut Vec::new());
    exchange
}

fn start_worker(solo: &Solo, identity: Identity, counts: Vec<i32>) -> Result<TrainingThread, Failure> {
    let (job, dataset, layout, threads) = (
        solo.job.clone(),
        Arc::clone(&solo.dataset),
        solo.layout.clone(),
        solo.threads,
    );
    training_thread::start(threads, move || {
        let rule = job.optimiser.rule;
        // Not the origin, which is drawn anew each time: the same job gives the same model.
        let dropout_seed = splitmix64(job.seed ^ splitmix64(identity.slot as u64));
        let trainer = CpuTrainer::new(Arc::clone(&dataset), &layout, &counts, rule, dropout_seed, threads)?;
        Training::new(trainer, &job, &dataset, identity)
    })
    .map_err(|error| Failure::Failed(format!("the training thread could not be started: {error}")))
}

/// The node's side of the run.
struct Run<'a> {
    solo: &'a Solo,
    identity: Identity,
    exchange: Exchange,
    evaluator: Evaluator,
    /// Samples after which the next evaluation is due.
    evaluate_at: u64,
    samples_total: u64,
    newest: Option<Evaluation>,
    tally: Tally,
    usage: UsageMeter,
    last_stats: Instant,
    stopping: bool,
    view: View,
    json: bool,
}

impl<'a> Run<'a> {
    fn new(solo: &'a Solo, identity: Identity, exchange: Exchange, json: bool) -> Result<Self, Failure> {
        let now = Instant::now();
        let samples = solo.dataset.train.len() as u64 * u64::from(solo.job.epochs);
        let evaluator = Evaluator::start(solo.layout.clone(), Arc::clone(&solo.dataset))
            .map_err(|error| Failure::Failed(format!("the evaluation thread could not be started: {error}")))?;
        let view = View::new(samples, json);
        view.say(&format!(
            "{}: {} training and {} held-out samples; {} weights; threads: {}",
            solo.job.data,
            solo.dataset.train.len(),
            solo.dataset.test.len(),
            solo.layout.weights,
            solo.threads.0
        ));
        Ok(Self {
            evaluate_at: solo.dataset.train.len() as u64,
            samples_total: samples,
            evaluator,
            newest: None,
            tally: Tally::new(),
            usage: UsageMeter::start(now),
            last_stats: now,
            stopping: false,
            view,
            solo,
            identity,
            exchange,
            json,
        })
    }

    /// Takes batches until the worker closes its origin.
    fn follow(
        &mut self,
        outbound: &std::sync::mpsc::Receiver<FromTraining>,
        inbound: &std::sync::mpsc::SyncSender<ToTraining>,
    ) -> Result<Closing, Failure> {
        loop {
            match outbound.recv_timeout(POLL) {
                Ok(FromTraining::Batch { frame, step, time }) => {
                    self.apply(&frame)?;
                    self.tally.add(&step, time, frame.len(), Instant::now());
                }
                Ok(FromTraining::Closed(closing)) => {
                    self.apply(&closing.frame)?;
                    self.tally.total.bytes += closing.frame.len() as u64;
                    return Ok(closing);
                }
                Ok(FromTraining::Failed(error)) => return Err(Failure::work(error)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure::Failed("the training thread ended without a word".into()));
                }
            }
            self.look_at_evaluations()?;
            self.report()?;
            if !self.stopping && self.should_stop() {
                // A full channel is tried again after the next batch.
                self.stopping = !matches!(inbound.try_send(ToTraining::Stop), Err(TrySendError::Full(_)));
            }
        }
    }

    fn apply(&mut self, frame: &[u8]) -> Result<(), Failure> {
        self.handle(Event::Local(frame.into()))
    }

    fn handle(&mut self, event: Event) -> Result<(), Failure> {
        let mut effects = Vec::new();
        self.exchange.handle(event, &mut effects);
        for effect in effects {
            match effect {
                Effect::WorkerFault(reason) | Effect::Diverged(reason) => return Err(Failure::Failed(reason)),
                // There is nobody to send to, and no other worker to deliver to.
                _ => {}
            }
        }
        Ok(())
    }

    fn look_at_evaluations(&mut self) -> Result<(), Failure> {
        if let Some(result) = self.evaluator.poll() {
            let evaluation = result.map_err(Failure::work)?;
            self.newest = Some(evaluation);
            tracing::info!(accuracy = evaluation.accuracy, loss = evaluation.loss, "evaluated");
        }
        let ledger = self.exchange.ledger();
        let samples = self.tally.total.samples;
        // What is left after the last sample is evaluated when it is saved.
        if (self.evaluate_at..self.samples_total).contains(&samples) && self.evaluator.request(|| ledger.weights()) {
            self.evaluate_at += self.solo.dataset.train.len() as u64;
        }
        Ok(())
    }

    fn should_stop(&self) -> bool {
        let job = &self.solo.job;
        let reached = |target: f64| self.newest.is_some_and(|evaluation| evaluation.accuracy >= target);
        interrupt::asked()
            || job.target_accuracy.is_some_and(reached)
            || job.max_seconds.is_some_and(|seconds| self.tally.seconds() >= seconds)
    }

    /// Once a second: the bar, or a record.
    fn report(&mut self) -> Result<(), Failure> {
        let now = Instant::now();
        let elapsed = now - self.last_stats;
        if elapsed < STATS_EVERY {
            return Ok(());
        }
        self.last_stats = now;
        self.handle(Event::Tick)?;
        let weights = self.solo.layout.weights;
        let recent = std::mem::take(&mut self.tally.recent);
        let samples_per_second = recent.samples as f64 / elapsed.as_secs_f64();
        if self.json {
            output::line(&Line {
                event: "stats",
                record: &self.record(&recent, samples_per_second, now),
            });
        }
        self.view.show(
            self.tally.total.samples,
            Numbers {
                loss: recent.loss(),
                accuracy: self.newest.map(|evaluation| evaluation.accuracy),
                samples_per_second,
                tau: self.tally.tau,
                density: recent.density(weights),
            },
        );
        Ok(())
    }

    fn record(&mut self, recent: &Sums, samples_per_second: f64, now: Instant) -> StatsRecord {
        let usage = self.usage.read(now);
        StatsRecord {
            node: NODE.into(),
            run: self.identity.run.to_string(),
            state: if self.stopping { "settling" } else { "training" }.into(),
            samples_per_second,
            samples: self.tally.total.samples,
            loss: recent.loss(),
            accuracy: self.newest.map(|evaluation| evaluation.accuracy),
            tau: self.tally.tau,
            density: recent.density(self.solo.layout.weights),
            bytes_in: 0,
            bytes_out: self.tally.total.bytes,
            staleness: 0.0,
            frontier_lag: 0,
            digest: self.exchange.ledger().digest().to_string(),
            queue: 0,
            paused_share: 0.0,
            exchange_share: recent.exchange_share(),
            cpu: usage.cpu,
            memory_bytes: usage.memory_bytes,
            ..StatsRecord::default()
        }
    }

    /// Audits, evaluates and saves what the ledger holds.
    fn finish(self, closing: &Closing) -> Result<Finished, Failure> {
        let Self {
            solo,
            exchange,
            tally,
            view,
            ..
        } = self;
        let ledger = exchange.ledger();
        view.busy("evaluating and saving");
        let digest = ledger.audit().map_err(Failure::work)?;
        let weights = ledger.weights();
        let evaluation =
            evaluate(&solo.layout, weights.clone(), &solo.dataset.test, solo.threads, |_| {}).map_err(Failure::work)?;
        let dataset = &solo.dataset;
        let metadata = Metadata::new(
            &solo.job,
            dataset.input,
            &dataset.classes,
            &dataset.scaling,
            ledger.frontier(),
            digest,
        );
        let path = solo.out.make()?;
        model_file::save(&path, &solo.layout, &weights, &metadata).map_err(Failure::work)?;
        if tally.alarmed {
            view.say("a weight went beyond ±8: training is close to diverging; a lower learning rate would be safer");
        }
        view.say(&format!(
            "a residual of norm {:.3} was never emitted and is dropped",
            closing.residual_norm
        ));
        view.clear();
        let total = tally.total;
        // A single node counts as having one peer, to which its batches would have gone.
        let bytes_dense = total.batches * solo.layout.weights as u64 * size_of::<f32>() as u64;
        Ok(Finished {
            event: "finished",
            accuracy: evaluation.accuracy,
            loss: evaluation.loss,
            epochs: ratio(total.samples as f64, dataset.train.len() as f64),
            samples: total.samples,
            seconds: tally.seconds(),
            samples_per_second: ratio(total.samples as f64, tally.seconds()),
            nodes: 1,
            participants: vec![NODE.into()],
            missing: Vec::new(),
            replicas_agree: closing.digest == Some(digest),
            digest: digest.to_string(),
            bytes_sent: total.bytes,
            bytes_dense,
            compression: ratio(bytes_dense as f64, total.bytes as f64),
            density: total.density(solo.layout.weights),
            exchange_share: total.exchange_share(),
            model: path.display().to_string(),
        })
    }
}
