//! Simulated workers: once seated, they make batches until all samples are trained or the run is stopped, and save the
//! model.

use std::collections::BTreeSet;
use std::sync::Arc;

use protocol::ids::{NodeId, OriginId, RunId};
use protocol::job::{Job, JobDraft, RoundTopology, RoundWeighting};
use protocol::log::batch::{Batch, Header, OriginStatus, Payload, RoundPhase};
use protocol::log::bundle::Bundle;
use protocol::log::cursor::{CursorAdvance, ShardId};
use protocol::rng::splitmix64;
use protocol::stats::measured::{Evaluation, Scores};
use protocol::stats::named::NamedNumbers;
use protocol::weights::changes::change;
use protocol::weights::dense::Dense;
use protocol::weights::digest::Digest;
use protocol::weights::lattice::Tau;
use protocol::weights::sums::Sums;
use protocol::wire::attach::{Assignment, FromWorker, GoOn, Missing, ToWorker};
use protocol::wire::flow::Flow;
use protocol::wire::frame::Kind;
use worker::pipeline::PipelineEvent;
use worker::training::ToTraining;

use super::node::{Disk, Ending, Round, Training, WEIGHTS, Worker, digest};
use super::world::{Due, World};
use crate::planted::{Bug, planted};
use crate::run::{RunEvent, Ticket, WorkerKey};
use crate::run_exchange::RunExchangeEvent;

/// Maximum number of samples that a throttled worker of the simulation counts in one batch.
const THROTTLED_MAX: u32 = 8;

impl World {
    pub(super) fn finish(&mut self, at: NodeId, worker: WorkerKey, counts: &[i32], save: bool) {
        let digest = Some(digest(counts));
        self.worker_says(at, worker, 20, FromWorker::Finished { digest });
        let node = self.nodes.get_mut(&at).unwrap();
        let Some(run) = node.exchange.as_ref().map(|open| open.run).filter(|_| save) else {
            return;
        };
        let orders = node.workers.get(&worker).map_or(0, |worker| worker.orders);
        let delay = 40 + self.random.below(200);
        self.after(
            delay,
            Due::Write {
                at,
                key: worker,
                orders,
                run,
                scores: Some(Scores {
                    accuracy: Some(0.5),
                    loss: 1.0,
                    mae: None,
                    named: NamedNumbers::NONE,
                }),
            },
        );
    }

    pub(super) fn write_model(
        &mut self,
        at: NodeId,
        key: WorkerKey,
        orders: u64,
        (run, scores): (RunId, Option<Scores>),
    ) {
        let node = self.nodes.get_mut(&at).unwrap();
        let saved = match node.disk {
            Disk::Sound => {
                node.models.insert(run);
                Ok(scores)
            }
            Disk::Full => Err("the disk is full".into()),
            Disk::Hung => {
                let due = Due::Write {
                    at,
                    key,
                    orders,
                    run,
                    scores,
                };
                return self.after(500, due);
            }
        };
        let message = FromWorker::SavedModel { run, saved };
        self.after(
            1,
            Due::Worker {
                at,
                key,
                orders,
                message,
            },
        );
    }

    /// Handles, in place of a simulated worker, a message that its node's exchange sends to it.
    pub(super) fn tell_worker(&mut self, at: NodeId, key: WorkerKey, message: ToWorker) {
        let is_stage = self.layers.is_some();
        let Some(worker) = self.nodes.get_mut(&at).unwrap().workers.get_mut(&key) else {
            return;
        };
        match message {
            ToWorker::Counts(piece) => worker.counts.extend(piece),
            ToWorker::Sums(piece) => worker.sums.extend(piece),
            ToWorker::Begin(assignment) => {
                assert_eq!(
                    worker.prepared,
                    Some(assignment.run),
                    "{at} seats a worker that has not opened the data"
                );
                let counts = std::mem::take(&mut worker.counts);
                self.made.insert(assignment.origin, vec![Digest::default()]);
                if is_stage {
                    self.seat_stage(at, key, &assignment, counts);
                } else {
                    self.seat(at, key, &assignment, counts);
                }
            }
            ToWorker::Save { path } => {
                let training = worker.training.as_ref();
                let sequence = training.map(|training| training.sequence);
                self.worker_says(at, key, 5, FromWorker::Saved { sequence, path });
            }
            message if is_stage => self.tell_stage_worker(at, key, message),
            message => self.tell_training(at, key, message),
        }
    }

    /// Hands a worker a frame from its node: a batch, a bundle (a sum of several batches) or a pipeline's message.
    pub(super) fn deliver(&mut self, at: NodeId, key: WorkerKey, kind: Kind, contents: &[u8]) {
        let open = self.nodes[&at].exchange.as_ref().unwrap();
        let weights = open.ledger().weight_count();
        let Some(worker) = self.nodes.get_mut(&at).unwrap().workers.get_mut(&key) else {
            return;
        };
        match (kind, &mut worker.training) {
            (Kind::Batch, Some(training)) => {
                let batch = Batch::decode(contents, weights).unwrap();
                batch.payload.apply_to_counts(&mut training.counts).unwrap();
            }
            (Kind::Bundle, Some(training)) => {
                let bundle = Bundle::decode(contents, weights).unwrap();
                bundle.dense.apply_to_counts(&mut training.counts).unwrap();
            }
            (Kind::Batch, None) => {
                let batch = Batch::decode(contents, weights).unwrap();
                self.tell_stage(at, key, ToTraining::Apply(Arc::new(batch)));
            }
            (Kind::Flow, None) => {
                let flow = Flow::decode(contents).unwrap();
                self.tell_stage(at, key, ToTraining::Pipeline(PipelineEvent::Flow(flow)));
            }
            (kind, _) => panic!("{at} hands a worker a frame of kind {kind:?}"),
        }
    }

    fn seat(&mut self, at: NodeId, key: WorkerKey, assignment: &Assignment, counts: Vec<i32>) {
        let worker = self.nodes.get_mut(&at).unwrap().workers.get_mut(&key).unwrap();
        worker.training = Some(Training {
            origin: assignment.origin,
            sequence: 0,
            counts: if counts.is_empty() { vec![0; WEIGHTS] } else { counts },
            round: Round {
                newest: assignment.round,
                ..Round::default()
            },
            uncounted: 0,
            counted: 0,
            starved: false,
            idle: 0,
            ending: Ending::Nothing,
            closed: false,
            is_paused: false,
            on_target: None,
        });
    }

    fn tell_training(&mut self, at: NodeId, key: WorkerKey, message: ToWorker) {
        let worker = self.nodes.get_mut(&at).unwrap().workers.get_mut(&key).unwrap();
        let Some(training) = &mut worker.training else {
            return;
        };
        training.ending = match (message, training.ending) {
            (ToWorker::Jump(_), ending) => {
                let sums = Sums::checked(std::mem::take(&mut worker.sums), WEIGHTS).unwrap();
                sums.apply_to_counts(&mut training.counts).unwrap();
                ending
            }
            (ToWorker::Pause(is_paused), ending) => {
                training.is_paused = is_paused;
                ending
            }
            (ToWorker::GoOn(order), _) => return self.leave_round(at, key, order),
            (ToWorker::Evaluate(_), _) => {
                let reached = self.random.below(30) == 0;
                return self.evaluate(at, key, reached);
            }
            (ToWorker::Finish { save }, _) => {
                let counts = training.counts.clone();
                return self.finish(at, key, &counts, save.is_some());
            }
            (ToWorker::Stop | ToWorker::StandBy, Ending::GoBack) | (ToWorker::GoBack(_), Ending::StandBy) => {
                Ending::GoBack
            }
            (ToWorker::StandBy, Ending::Nothing) => Ending::StandBy,
            (ToWorker::Stop | ToWorker::StandBy, _) => Ending::Stop,
            (ToWorker::Leave, Ending::Nothing) => Ending::Leave,
            (_, ending) => ending,
        };
    }

    pub(super) fn train_all(&mut self, at: NodeId) {
        let Some(open) = &self.nodes[&at].exchange else {
            return;
        };
        let total = open.core.plan().data.train;
        let done = open.ledger().cursors().samples_done();
        let complete = done >= total;
        let keys: Vec<WorkerKey> = open.core.seats().keys().copied().collect();
        let (run, takes_over) = (open.run, open.takes_over);
        for key in keys {
            let idle = self.random.below(3) > 0;
            let throttles = self.in_rounds.is_none() && self.random.below(2) == 0;
            // Samples that a worker has trained and not yet counted in a batch are not available to the others.
            let in_hands = if takes_over { 0 } else { self.uncounted(run) };
            let goes_idle = self.in_rounds.is_some() && self.may_idle && self.random.below(300) == 0;
            let node = self.nodes.get_mut(&at).unwrap();
            let Some(worker) = node.workers.get_mut(&key).filter(|worker| !worker.hangs) else {
                continue;
            };
            let Some(training) = worker.training.as_mut().filter(|training| !training.closed) else {
                continue;
            };
            training.idle = training.idle.saturating_sub(1);
            let waits = training.ending == Ending::Nothing && !complete && (training.round.waits || training.idle > 0);
            if training.ending == Ending::StandBy || waits {
                continue;
            }
            let back = training.on_target.take_if(|_| training.ending == Ending::GoBack);
            let stop = training.ending != Ending::Nothing;
            let leaves = training.ending == Ending::Leave;
            let last = back.is_none() && (complete || stop);
            if !last && back.is_none() && (training.is_paused || idle) {
                continue;
            }
            if !last && back.is_none() && self.in_rounds.is_none() {
                let has_more = done + in_hands < total;
                if !self.train_one(at, key, has_more, throttles) {
                    continue;
                }
            }
            let worker = self.nodes.get_mut(&at).unwrap().workers.get_mut(&key);
            let Some(training) = worker.and_then(|worker| worker.training.as_mut()) else {
                continue;
            };
            training.closed = last;
            let round_phase = match self.in_rounds.filter(|_| !last && back.is_none()) {
                Some(_) if goes_idle && !training.round.due => {
                    training.idle = 100;
                    training.round.returns = true;
                    RoundPhase::Idle
                }
                Some(shares) => training.round.next(shares),
                None => RoundPhase::Contributes,
            };
            let payload = match back {
                Some(counts) => Payload::Sums(Sums::between(&training.counts, &counts).unwrap()),
                None if last || round_phase == RoundPhase::Announces => Payload::default(),
                // Batches of bundled rounds are dense.
                None if self.in_rounds.is_some() => dense_steps(training.sequence),
                None => one_step(training.sequence),
            };
            training.sequence += 1;
            // A batch of a round is of one sample; any other batch counts all samples that were held back.
            let samples = if self.in_rounds.is_some() {
                1
            } else {
                std::mem::take(&mut training.uncounted)
            };
            training.counted += samples;
            let counted = training.counted;
            let round = training.round.number;
            payload.apply_to_counts(&mut training.counts).unwrap();
            let (origin, sequence) = (training.origin, training.sequence);
            let sums = self.made.get_mut(&origin).unwrap();
            sums.push(*sums.last().unwrap() + payload.digest());
            let bytes = batch(
                run,
                origin,
                sequence,
                (samples, counted),
                &payload,
                OriginStatus {
                    last,
                    stop: last && stop && !leaves,
                    round_phase,
                    round,
                },
            );
            self.exchange(at, RunExchangeEvent::Batch { worker: key, bytes });
            if last {
                self.run(at, RunEvent::Worker(key, FromWorker::Stats(Box::default())));
                self.run(at, RunEvent::Worker(key, FromWorker::Closed { residual_norm: 0.0 }));
            }
        }
    }

    /// Lets a worker go on that has waited in a round for other workers. Counts how often workers go on, and how often
    /// one does so although another worker has not reached the round.
    fn leave_round(&mut self, at: NodeId, key: WorkerKey, order: GoOn) {
        let run = self.nodes[&at].run();
        let others = self.nodes.values().filter(|node| node.runs() && node.run() == run);
        let workers = others
            .flat_map(|node| node.workers.values())
            .filter(|worker| !worker.hangs);
        let is_behind = |training: &Training| {
            let Training {
                round, ending, idle, ..
            } = training;
            let trains = *ending == Ending::Nothing && !training.closed && *idle == 0 && !round.returns;
            trains && (1..order.round).contains(&round.number)
        };
        let behind = workers.filter_map(|worker| worker.training.as_ref()).any(is_behind);
        self.unwaited.0 += u32::from(behind);
        self.unwaited.1 += 1;
        let worker = self.nodes.get_mut(&at).unwrap().workers.get_mut(&key);
        let training = worker.and_then(|worker| worker.training.as_mut());
        if let Some(training) = training.filter(|training| order.round == training.round.number) {
            training.round.newest = order.newest;
            training.round.waits = false;
            training.round.due = order.contribution.is_some();
        }
    }

    /// Lets a worker train a sample if `has_more` says that there is one. Returns true if the worker is to make a batch
    /// now: after each sample or, if it throttles, after several. When no samples are left, a batch counts those that
    /// the worker has trained but not counted yet; after that, the worker reports that it has none to train.
    fn train_one(&mut self, at: NodeId, key: WorkerKey, has_more: bool, throttles: bool) -> bool {
        let worker = self.nodes.get_mut(&at).unwrap().workers.get_mut(&key);
        let Some(training) = worker.and_then(|worker| worker.training.as_mut()) else {
            return false;
        };
        if has_more {
            training.uncounted += 1;
            let keeps = throttles && training.uncounted < THROTTLED_MAX;
            if std::mem::take(&mut training.starved) {
                self.worker_says(at, key, 1, FromWorker::Fed);
            }
            return !keeps;
        }
        if training.uncounted > 0 && !planted(Bug::KeepsLastCursors) {
            return true;
        }
        if !std::mem::replace(&mut training.starved, true) {
            let missing = vec![Missing { slot: 0, samples: 1 }];
            self.worker_says(at, key, 1, FromWorker::Starved(missing));
        }
        false
    }

    /// Number of samples of a run that workers of live nodes have trained and not yet counted in a batch.
    fn uncounted(&self, run: RunId) -> u64 {
        let nodes = self.nodes.values().filter(|node| node.alive);
        let open = nodes.filter(|node| node.exchange.as_ref().is_some_and(|open| open.run == run));
        let trainings = open
            .flat_map(|node| node.workers.values())
            .filter_map(|worker| worker.training.as_ref());
        trainings.map(|training| u64::from(training.uncounted)).sum()
    }

    /// Tells a node's workers to train samples that other workers have taken but cannot deliver, because they hang or
    /// are cut off. Panics if a running worker has reported that it has no samples to train, but keeps some that it
    /// trained and did not count in a batch.
    pub(super) fn take_over(&mut self, at: NodeId, slots: &BTreeSet<usize>) {
        let waits = |worker: &Worker| {
            let training = worker.training.as_ref().filter(|_| !worker.hangs);
            training.is_some_and(|training| training.starved && training.uncounted > 0)
        };
        let mut running = self.nodes.values().filter(|node| node.runs());
        assert!(
            self.may_stall || !running.any(|node| node.workers.values().any(waits)),
            "node {at} takes over samples that another worker has trained but not sent"
        );
        if let Some(open) = &mut self.nodes.get_mut(&at).unwrap().exchange {
            open.takes_over = !slots.is_empty();
        }
    }

    /// Lets a worker measure its weights and report scores, which reach the target if `reached` is true.
    pub(super) fn evaluate(&mut self, at: NodeId, key: WorkerKey, reached: bool) {
        let delay = 20 + self.random.below(1500);
        let Some(run) = self.nodes[&at].exchange.as_ref().map(|open| open.run) else {
            return;
        };
        let worker = self.nodes.get_mut(&at).unwrap().workers.get_mut(&key);
        let Some(training) = worker.and_then(|worker| worker.training.as_mut()) else {
            return;
        };
        if reached {
            training.on_target = Some(training.counts.clone());
        }
        let (accuracy, loss) = match (self.goal, reached) {
            (Goal::Accuracy, reached) => (Some(if reached { 0.95 } else { 0.5 }), 1.0),
            (Goal::Loss, reached) => (None, if reached { 0.25 } else { 1.0 }),
            (Goal::Both, reached) => (Some(0.95), if reached { 0.25 } else { 1.0 }),
        };
        let evaluation = Evaluation {
            accuracy,
            loss,
            ..Evaluation::default()
        };
        self.say(&format!(
            "node {at} measures an accuracy of {accuracy:?} and a loss of {loss}"
        ));
        self.worker_says(at, key, delay, FromWorker::Evaluated { run, evaluation });
    }

    /// Lets the first worker of a node measure its weights and report that they reach the target.
    pub(super) fn reach_target(&mut self, at: NodeId) {
        self.evaluate_first(at, true);
    }

    /// Lets the first worker of a node measure its weights and report that they do not reach the target.
    pub(super) fn miss_target(&mut self, at: NodeId) {
        self.evaluate_first(at, false);
    }

    fn evaluate_first(&mut self, at: NodeId, reached: bool) {
        let open = self.nodes[&at].exchange.as_ref();
        if let Some(key) = open.and_then(|open| Some(*open.core.seats().first_key_value()?.0)) {
            self.evaluate(at, key, reached);
        }
    }

    /// Makes a new ticket: the key by which the reply to a client's request is recognised.
    pub(super) fn ticket(&mut self) -> Ticket {
        Ticket(self.number())
    }
}

/// Makes a payload (the content of a batch) that moves one weight by the smallest possible distance, 2^-20.
fn one_step(sequence: u64) -> Payload {
    Payload::Steps {
        tau: Tau::ONE_STEP,
        changes: vec![change((sequence % WEIGHTS as u64) as u32, true)],
    }
}

/// Makes a payload (the content of a batch) that moves each weight by up to three steps of 2^-20 up or down.
fn dense_steps(sequence: u64) -> Payload {
    let steps = (0..WEIGHTS as u64).map(|weight| (splitmix64(sequence ^ weight << 40) % 7) as i32 - 3);
    Dense::checked(0, steps.collect(), WEIGHTS).map_or_else(Payload::default, Payload::Dense)
}

/// Encodes a batch of some samples, after which its origin has counted `counted` samples in all.
fn batch(
    run: RunId,
    origin: OriginId,
    sequence: u64,
    (samples, counted): (u32, u32),
    payload: &Payload,
    status: OriginStatus,
) -> Arc<[u8]> {
    let advance = CursorAdvance {
        shard: ShardId {
            epoch: 0,
            shard: origin.0 as u32,
        },
        done: counted,
    };
    let cursors = if samples > 0 { vec![advance] } else { Vec::new() };
    let header = Header {
        run,
        origin,
        sequence,
        seen: 0,
        digest: payload.digest(),
        cursors,
        samples,
        loss: 0.0,
        status,
    };
    let mut frame = Vec::new();
    header.encode(payload, &mut frame).unwrap();
    frame.into()
}

/// Target that a simulated run ends at.
#[derive(Clone, Copy, Debug)]
pub(super) enum Goal {
    Accuracy,
    /// A loss, of a model without an accuracy.
    Loss,
    Both,
}

pub(super) fn job(in_rounds: Option<RoundWeighting>, way: RoundTopology, goal: Goal, is_module: bool) -> Job {
    let shares = in_rounds.map(|shares| match shares {
        RoundWeighting::Mean => "mean",
        RoundWeighting::Weighted => "weighted",
        RoundWeighting::Best => "best",
        RoundWeighting::First => "first",
    });
    let draft = JobDraft {
        model: is_module.then(|| "py:net.py".into()),
        exchange: shares.map(|shares| format!("{way}:every=1,{shares}")),
        epochs: Some(1),
        target_accuracy: matches!(goal, Goal::Accuracy | Goal::Both).then_some(0.9),
        target_loss: matches!(goal, Goal::Loss | Goal::Both).then_some(0.5),
        ..JobDraft::default()
    };
    draft.resolve().unwrap()
}
