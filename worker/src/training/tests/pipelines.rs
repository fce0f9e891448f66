//! Tests of whole workers of a pipeline, each in its own thread, with messages that are carried between them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel};
use std::time::Duration;

use protocol::job::split::SHARDS_PER_SLOT;
use protocol::log::cursor::{CursorAdvance, ShardId};

use protocol::job::model::Partition;
use protocol::stats::measured::Moment;
use protocol::wire::attach::SaveOrder;
use protocol::wire::flow::{Flow, FlowBody, FlowHead, StageAddress};

use super::*;
use crate::backend::cpu::CpuStageTrainer;
use crate::pipeline::{Pipeline, PipelineEvent};
use crate::stage::{HoldsStage, Membership};
use crate::training::StageTraining;
use crate::training::thread::{TrainingThread, start_stage};

const PATIENCE: Duration = Duration::from_secs(30);

/// Training threads of the workers of one test pipeline, with the messages that do not go from one of them to another.
struct Workers {
    inbound: Vec<SyncSender<ToTraining>>,
    told: Receiver<(usize, FromTraining)>,
    tell: Sender<(usize, FromTraining)>,
    job: Job,
    dataset: Arc<Dataset>,
    layout: Layout,
    /// True if messages between the workers are no longer carried; the test receives them instead.
    cut: Arc<AtomicBool>,
    _folder: tempfile::TempDir,
}

impl Workers {
    fn new(groups: usize, change: impl FnOnce(&mut JobDraft)) -> Self {
        Self::cut(&format!("groups={groups},micro=2"), change)
    }

    fn cut(cut: &str, change: impl FnOnce(&mut JobDraft)) -> Self {
        let (folder, dataset) = points(4000);
        let job = job(|draft| {
            draft.model = Some("dense 8, relu, dense 7, relu, dense 6, relu, dense 2".into());
            draft.exchange = Some(format!("layers:{cut}"));
            change(draft);
        });
        let layout = Layout::new(&job.model, dataset.input, 2).unwrap();
        let (tell, told) = channel();
        let mut workers = Self {
            inbound: Vec::new(),
            told,
            tell,
            job,
            dataset: Arc::new(dataset),
            layout,
            cut: Arc::default(),
            _folder: folder,
        };
        let stages = workers.job.exchange.pipelines().unwrap().stages().unwrap();
        let threads: Vec<TrainingThread> = (0..stages).map(|stage| workers.start(stage)).collect();
        workers.inbound = threads.iter().map(|thread| thread.inbound.clone()).collect();
        for (stage, thread) in threads.into_iter().enumerate() {
            workers.carry(stage, thread);
        }
        workers
    }

    fn start(&self, group: usize) -> TrainingThread {
        let (job, dataset, layout) = (self.job.clone(), Arc::clone(&self.dataset), self.layout.clone());
        start_stage(Threads(1), move || training(&job, &dataset, &layout, group)).unwrap()
    }

    /// Carries a worker's pipeline messages to the other workers until its thread is gone.
    fn carry(&mut self, group: usize, thread: TrainingThread) {
        let (inbound, tell, cut) = (self.inbound.clone(), self.tell.clone(), Arc::clone(&self.cut));
        drop(thread.inbound);
        std::thread::spawn(move || {
            while let Some(message) = thread.outbound.recv() {
                match message {
                    FromTraining::Flow(flow) if !cut.load(Ordering::Relaxed) => {
                        let to = usize::from(flow.head.to);
                        let _ = inbound[to].send(ToTraining::Pipeline(PipelineEvent::Flow(flow)));
                    }
                    message => {
                        let _ = tell.send((group, message));
                    }
                }
            }
        });
    }

    /// Returns the number of weights that a worker holds.
    fn stage_weights(&self, stage: usize) -> usize {
        let partition = Partition::new(self.layout.clone(), self.job.exchange.pipelines().unwrap());
        partition.unwrap().stage(stage).layout.weights
    }

    fn next(&self) -> (usize, FromTraining) {
        self.told.recv_timeout(PATIENCE).expect("the pipeline has stalled")
    }

    /// Waits for a message, but not for ever: a waiting worker may keep sending others.
    fn wait_for(&self, is_it: impl Fn(usize, &FromTraining) -> bool) {
        let start = std::time::Instant::now();
        loop {
            let (group, message) = self.next();
            if is_it(group, &message) {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "the expected message did not come");
        }
    }

    /// Stops carrying messages, so that the leader waits in the middle of a minibatch.
    fn cut_in_a_step(&self) {
        self.wait_for(|group, message| group == 0 && matches!(message, FromTraining::Step { .. }));
        self.cut.store(true, Ordering::Relaxed);
        self.wait_for(|_, message| matches!(message, FromTraining::Flow(_)));
    }

    fn tell_all(&self, message: &ToTraining) {
        for inbound in &self.inbound {
            inbound.send(message.clone()).unwrap();
        }
    }

    /// Waits until all workers have ended their streams of batches. Returns the number of samples that their batches
    /// count.
    fn closed(&self) -> usize {
        let (mut closed, mut samples) = (0, 0);
        while closed < self.inbound.len() {
            match self.next().1 {
                FromTraining::Closed(_) => closed += 1,
                FromTraining::Step { step, .. } => samples += step.samples,
                FromTraining::ResidualNorm(_) => {}
                other => panic!("{other:?}"),
            }
        }
        samples
    }
}

/// Creates the training of one worker of a test pipeline.
fn training(
    job: &Job,
    dataset: &Arc<Dataset>,
    layout: &Layout,
    stage: usize,
) -> Result<StageTraining<CpuStageTrainer>, TrainingError> {
    let pipelines = *job.exchange.pipelines().unwrap();
    let partition = Partition::new(layout.clone(), &pipelines).unwrap();
    let place = StageAddress {
        pipeline: 0,
        stage: stage as u8,
    };
    let pipeline = Pipeline::new(
        place,
        partition.len() as u8,
        pipelines.in_flight(1),
        5,
        dataset.train.len(),
    );
    let counts = partition.stage(stage).initial_counts(job.seed);
    let membership = Membership::of_job(job, dataset, partition, pipeline).unwrap();
    let trainer = CpuStageTrainer::in_pipeline(membership, &counts, job.optimiser.rule, Threads(1))?;
    let identity = Identity::alone(1 + stage as u64);
    StageTraining::new(trainer, job, dataset.train.classes(), identity, Duration::ZERO)
}

/// Workers of one test pipeline without threads: the test carries their messages at times that it sets.
struct Carried {
    workers: Vec<StageTraining<CpuStageTrainer>>,
    now: Duration,
    told: Vec<FromTraining>,
    _folder: tempfile::TempDir,
}

impl Carried {
    /// Creates a test pipeline of two workers that have joined.
    fn joined() -> Self {
        let (folder, dataset) = points(4000);
        let job = job(|draft| draft.exchange = Some("layers:groups=2".into()));
        let (layout, dataset) = (layout(&job, &dataset), Arc::new(dataset));
        let mut carried = Self {
            workers: (0..2)
                .map(|stage| training(&job, &dataset, &layout, stage).unwrap())
                .collect(),
            now: Duration::ZERO,
            told: Vec::new(),
            _folder: folder,
        };
        while !carried.workers[0].trainer().stage().pipeline().is_whole() {
            carried.carry(Duration::ZERO);
        }
        carried
    }

    fn hear(&mut self, stage: usize, event: ToTraining) {
        self.workers[stage].hear(event, self.now).unwrap();
    }

    /// Lets all workers do their pending work, and carries their messages, which takes the time `takes`.
    fn carry(&mut self, takes: Duration) {
        let mut flows = Vec::new();
        for worker in &mut self.workers {
            while worker.advance(self.now, false).unwrap() == StageProgress::Worked {}
            for message in worker.take_outbox() {
                match message {
                    FromTraining::Flow(flow) => flows.push(flow),
                    other => self.told.push(other),
                }
            }
        }
        self.now += takes;
        for flow in flows {
            self.hear(flow.head.to.into(), ToTraining::Pipeline(PipelineEvent::Flow(flow)));
        }
    }

    /// Carries the workers' messages, which takes the time `takes` each round, until one is sent that `is_it` accepts.
    fn carry_until(&mut self, takes: Duration, is_it: impl Fn(&FromTraining) -> bool) -> FromTraining {
        for _ in 0..100 {
            if let Some(at) = self.told.iter().position(&is_it) {
                return self.told.swap_remove(at);
            }
            self.carry(takes);
        }
        panic!("the expected message did not come: {:?}", self.told);
    }
}

#[test]
fn a_measurement_at_the_end_takes_as_long_as_it_goes_on() {
    let mut carried = Carried::joined();
    for stage in 0..2 {
        carried.hear(stage, ToTraining::Stop);
    }
    carried.hear(0, finish(true));
    let takes = Duration::from_secs(25);
    let finished = carried.carry_until(takes, |told| matches!(told, FromTraining::Finished { .. }));
    assert!(matches!(finished, FromTraining::Finished { scores: Some(_), .. }));
    assert!(carried.now > Duration::from_secs(80), "{:?}", carried.now);
}

/// Tests that late results of a given-up evaluation do not count in the next one.
#[test]
fn a_measurement_that_is_given_up_leaves_nothing_to_the_next() {
    let measured = |gives_up: bool| {
        let mut carried = Carried::joined();
        for stage in 0..2 {
            carried.hear(stage, ToTraining::Stop);
        }
        if gives_up {
            carried.hear(0, finish(true));
            carried.carry(Duration::ZERO);
            carried.hear(0, finish(false));
            while carried.workers[0].advance(carried.now, false).unwrap() == StageProgress::Worked {}
        }
        carried.hear(0, finish(true));
        let is_measured = |told: &FromTraining| matches!(told, FromTraining::Finished { scores: Some(_), .. });
        match carried.carry_until(Duration::from_millis(500), is_measured) {
            FromTraining::Finished { scores, .. } => scores,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(measured(true), measured(false));
}

#[test]
fn a_follower_that_is_told_to_stop_takes_part_in_the_evaluation_that_is_under_way() {
    let mut carried = Carried::joined();
    carried.hear(0, ToTraining::Copy(Moment::default()));
    for stage in 0..2 {
        carried.hear(stage, ToTraining::Stop);
    }
    let takes = Duration::from_secs(4);
    carried.carry_until(takes, |told| matches!(told, FromTraining::Measured(_)));
    for _ in 0..2 {
        carried.carry_until(takes, |told| matches!(told, FromTraining::Closed(_)));
    }
}

/// Returns a batch of another worker that counts all samples, so that nothing is left to train.
fn all_the_rest() -> Batch {
    let mut batch = foreign(&[], Tau::nearest(0.001), 1, 0);
    let all = |shard| CursorAdvance {
        shard: ShardId { epoch: 0, shard },
        done: u32::MAX,
    };
    batch.header.cursors = (0..SHARDS_PER_SLOT).map(all).collect();
    batch
}

/// Lets a worker do all pending work at a moment. Returns its closing batch, if its stream of batches has ended.
fn advance(training: &mut StageTraining<CpuStageTrainer>, now: Duration) -> Option<Batch> {
    while training.advance(now, false).unwrap() == StageProgress::Worked {}
    let weights = training.trainer().weights();
    training.take_outbox().into_iter().find_map(|told| match told {
        FromTraining::Closed(closing) => Some(Batch::decode(&closing.encoded, weights).unwrap()),
        _ => None,
    })
}

#[test]
fn a_pipeline_that_never_comes_together_leaves_the_rest_to_others() {
    // If a worker is missing, other pipelines know it, and a successor may come.
    for (slots, missing, ends) in [(1, false, false), (2, false, true), (2, true, false)] {
        let (_folder, dataset) = points(400);
        let job = job(|draft| draft.exchange = Some("layers:groups=2".into()));
        let layout = layout(&job, &dataset);
        let mut leads = training(&job, &Arc::new(dataset), &layout, 0).unwrap();
        leads.learner.identity.slots = slots;
        let slot = leads.learner.identity.slot;
        leads
            .hear(ToTraining::Slot { slot, alive: !missing }, Duration::ZERO)
            .unwrap();
        for minutes in [0, 1, 4] {
            assert_eq!(advance(&mut leads, Duration::from_mins(minutes)), None);
        }
        let closing = advance(&mut leads, Duration::from_mins(6));
        assert_eq!(
            closing.is_some(),
            ends,
            "{slots} pipelines, with a worker missing: {missing}"
        );
        assert!(
            closing.is_none_or(|closing| !closing.header.status.stop),
            "the run must go on"
        );
    }
}

/// Tests that a follower in a pipeline ends when told: its sample plan may be complete before the leader's is, because
/// its step is done before the leader's.
#[test]
fn who_is_led_ends_when_told_and_not_before() {
    let (_folder, dataset) = points(400);
    let job = job(|draft| {
        draft.exchange = Some("layers:groups=2".into());
        draft.epochs = Some(1);
    });
    let layout = layout(&job, &dataset);
    let mut led = training(&job, &Arc::new(dataset), &layout, 1).unwrap();
    let rest = ToTraining::Apply(Arc::new(all_the_rest()));
    led.hear(rest, Duration::ZERO).unwrap();
    assert!(led.learner.plan.is_complete());
    assert_eq!(advance(&mut led, Duration::ZERO), None);
    led.hear(ToTraining::Stop, Duration::ZERO).unwrap();
    let closing = advance(&mut led, Duration::ZERO).expect("a follower that is told to stop must close");
    assert!(closing.header.status.last && !closing.header.status.stop);
}

/// Tests that a follower does not wait for ever if a dead leader's call arrives after the event that the leader is
/// gone.
#[test]
fn a_follower_that_is_told_to_stop_does_not_wait_for_good_for_a_leader_that_is_gone() {
    let (_folder, dataset) = points(400);
    let job = job(|draft| draft.exchange = Some("layers:groups=2".into()));
    let layout = layout(&job, &dataset);
    let mut led = training(&job, &Arc::new(dataset), &layout, 1).unwrap();
    let join = FlowHead {
        pipeline: 0,
        to: 1,
        from: 0,
        generation: 7,
        body: FlowBody::Join,
    };
    let join = PipelineEvent::Flow(Flow::without_numbers(join));
    led.hear(ToTraining::Pipeline(join), Duration::ZERO).unwrap();
    led.hear(ToTraining::Stop, Duration::ZERO).unwrap();
    assert_eq!(advance(&mut led, Duration::ZERO), None, "the leader has the last word");
    assert_eq!(advance(&mut led, Duration::from_secs(9)), None);
    let closing = advance(&mut led, Duration::from_secs(11));
    assert!(closing.is_some_and(|closing| closing.header.status.last));
}

#[test]
fn a_pipeline_trains_its_epochs_ends_and_is_measured() {
    for (cut, stages) in [
        ("groups=2,micro=2", 2),
        ("groups=4,micro=2", 4),
        ("groups=1,slices=2", 2),
        ("groups=2,slices=3,micro=2", 6),
        ("groups=2,slices=2,micro=1", 4),
    ] {
        let workers = Workers::cut(cut, |draft| draft.epochs = Some(3));
        let train = workers.dataset.train.len();
        assert_eq!(workers.closed(), 3 * train, "each sample of a pipeline must count once");
        workers.tell_all(&finish(true));
        let mut found = Vec::new();
        for _ in 0..stages {
            match workers.next() {
                (group, FromTraining::Finished { digest, save, scores }) => {
                    assert!(digest.is_some() && save.is_some());
                    assert_eq!(scores.is_some(), group == 0, "only the leader must report scores");
                    found.extend(scores);
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(found[0].accuracy > Some(0.95), "{cut}: {found:?}");
    }
}

/// Returns the order to save the model, with or without an evaluation of the whole pipeline before.
fn finish(with_pipeline: bool) -> ToTraining {
    ToTraining::Finish(Some(SaveOrder {
        path: "model".into(),
        frontier: Frontier::default(),
        with_pipeline,
    }))
}

#[test]
fn a_pipeline_that_breaks_while_it_is_measured_is_measured_again() {
    let workers = Workers::new(3, |draft| draft.epochs = Some(1));
    workers.closed();
    workers.cut.store(true, Ordering::Relaxed);
    workers.inbound[0].send(finish(true)).unwrap();
    // The first evaluation, or the call for it, does not reach the other workers.
    workers.wait_for(|group, message| group == 0 && matches!(message, FromTraining::Flow(_)));
    workers.cut.store(false, Ordering::Relaxed);
    workers.inbound[0]
        .send(ToTraining::Pipeline(PipelineEvent::Broken))
        .unwrap();
    workers.wait_for(|group, message| group == 0 && matches!(message, FromTraining::Finished { scores: Some(_), .. }));
}

#[test]
fn a_leader_that_calls_in_vain_saves_when_it_is_told_to_do_without() {
    let workers = Workers::new(2, |draft| draft.epochs = Some(1));
    workers.closed();
    workers.cut.store(true, Ordering::Relaxed);
    workers.inbound[0]
        .send(ToTraining::Pipeline(PipelineEvent::Broken))
        .unwrap();
    workers.inbound[0].send(finish(true)).unwrap();
    workers.wait_for(|group, message| group == 0 && matches!(message, FromTraining::Flow(_)));
    workers.inbound[0].send(finish(false)).unwrap();
    workers.wait_for(|group, message| {
        let saved = matches!(message, FromTraining::Finished { scores: None, .. });
        assert!(
            group != 0 || saved || matches!(message, FromTraining::Flow(_)),
            "{message:?}"
        );
        group == 0 && saved
    });
}

#[test]
fn a_pipeline_that_is_stopped_ends_together_wherever_the_word_comes_first() {
    for (first, cut) in (0..4).zip(["groups=3", "groups=3", "groups=3,micro=1", "groups=2,slices=2"]) {
        let workers = Workers::cut(cut, |draft| draft.epochs = Some(100_000));
        while !matches!(workers.next(), (0, FromTraining::Step { .. })) {}
        workers.inbound[first].send(ToTraining::Stop).unwrap();
        workers.tell_all(&ToTraining::Stop);
        workers.closed();
    }
}

#[test]
fn a_pipeline_that_breaks_goes_on_with_the_same_minibatch() {
    for cut in ["groups=3,micro=2", "groups=2,slices=2,micro=2"] {
        let workers = Workers::cut(cut, |draft| draft.epochs = Some(2));
        let train = workers.dataset.train.len();
        let all = workers.inbound.len();
        let (mut closed, mut samples, mut broken) = (0, 0, 0);
        while closed < all {
            match workers.next() {
                (stage, FromTraining::Closed(_)) => {
                    closed += 1;
                    if stage == 0 {
                        // The nodes stop the followers: a break after the leader's last step costs a follower its own,
                        // so that its sample plan stays incomplete.
                        workers.tell_all(&ToTraining::Stop);
                    }
                }
                (stage, FromTraining::Step { step, .. }) => {
                    samples += step.samples;
                    if stage == 0 && samples / 500 > broken {
                        broken += 1;
                        let _ = workers.inbound[broken % all].send(ToTraining::Pipeline(PipelineEvent::Broken));
                    }
                }
                (_, FromTraining::ResidualNorm(_)) => {}
                other => panic!("{other:?}"),
            }
        }
        assert!(broken > 3);
        assert_eq!(samples, 2 * train, "every sample must count once per epoch");
    }
}

#[test]
fn a_leader_whose_pipeline_is_gone_ends_when_others_have_trained_what_it_had_chosen() {
    let workers = Workers::new(2, |draft| draft.epochs = Some(1));
    workers.cut_in_a_step();
    workers.inbound[0]
        .send(ToTraining::Apply(Arc::new(all_the_rest())))
        .unwrap();
    workers.inbound[0]
        .send(ToTraining::Pipeline(PipelineEvent::Broken))
        .unwrap();
    workers.wait_for(|group, message| group == 0 && matches!(message, FromTraining::Closed(_)));
}

#[test]
fn a_leader_that_waits_for_a_pipeline_that_says_nothing_can_be_stopped() {
    let workers = Workers::new(2, |draft| draft.epochs = Some(100_000));
    workers.cut_in_a_step();
    workers.inbound[0].send(ToTraining::Stop).unwrap();
    workers.wait_for(|group, message| group == 0 && matches!(message, FromTraining::Closed(_)));
}

/// Tests a restarted leader that has lost its last minibatches when the others have ended already.
#[test]
fn a_leader_that_comes_back_to_a_pipeline_that_has_ended_ends() {
    let workers = Workers::new(2, |draft| draft.epochs = Some(1));
    workers.closed();
    let thread = workers.start(0);
    let (inbound, follower) = (thread.inbound.clone(), workers.inbound[1].clone());
    // Messages to the dead leader go to its successor.
    let carried = std::thread::spawn(move || {
        while let Some(message) = thread.outbound.recv() {
            match message {
                FromTraining::Flow(flow) => {
                    let _ = follower.send(ToTraining::Pipeline(PipelineEvent::Flow(flow)));
                }
                FromTraining::Closed(closing) => return closing,
                FromTraining::ResidualNorm(_) => {}
                other => panic!("{other:?}"),
            }
        }
        panic!("the leader ended without closing its origin");
    });
    workers.cut.store(true, Ordering::Relaxed);
    let start = std::time::Instant::now();
    while !carried.is_finished() {
        assert!(
            start.elapsed() < PATIENCE,
            "the leader keeps calling a pipeline that has ended"
        );
        if let Ok((1, FromTraining::Flow(flow))) = workers.told.recv_timeout(Duration::from_millis(10)) {
            let _ = inbound.send(ToTraining::Pipeline(PipelineEvent::Flow(flow)));
        }
    }
    let closing = carried.join().unwrap();
    let batch = Batch::decode(&closing.encoded, workers.stage_weights(0)).unwrap();
    assert!(
        batch.header.status.stop,
        "the last batch of the leader must stop the run"
    );
}
