#[cfg(feature = "cuda")]
mod on_gpu;
mod scripted;

use std::sync::mpsc::{Receiver, Sender, channel};

use protocol::job::model::{Layout, initial_counts};
use protocol::job::{Job, JobDraft};

use super::*;
use crate::backend::cpu::{CpuStageTrainer, CpuTrainer};
#[cfg(feature = "cuda")]
use crate::backend::device::Precision;
use crate::backend::replica::Replica;
use crate::backend::{Array, Backend};
use crate::machine::parallel::Threads;
use crate::model::ops::{self, Parameters, from_rows};
use crate::model::program::{ImageOrder, Program};
use crate::task::augmentation;
use crate::task::job_layout::layout_for;
use crate::trainer::{StepControl, Trainer};
use dfdx::prelude::Cpu;
use protocol::wire::flow::{Flow, FlowBody, FlowHead, StageAddress};

/// The channels between the workers of a pipeline in one process, as one worker holds them.
struct Wires {
    to: Vec<Sender<Flow>>,
    own: Receiver<Flow>,
}

impl Wires {
    /// Sends the messages that a worker has for the others of its pipeline.
    fn send<T: HoldsStage>(&self, trainer: &mut T) {
        for flow in trainer.stage_mut().pipeline_mut().take_outbox() {
            // Encodes and decodes the message, as between machines.
            let flow = Flow::decode(&flow.encode().unwrap()).unwrap();
            // The receiver may be done and have ended.
            let _ = self.to[usize::from(flow.head.to)].send(flow);
        }
    }

    /// Sends a worker's messages, and waits for the next message to it.
    fn listen<T: HoldsStage>(&self, trainer: &mut T) {
        self.send(trainer);
        let flow = self.own.recv().unwrap();
        trainer.stage_mut().hear(PipelineEvent::Flow(flow));
    }

    /// Computes a worker's part of the present minibatch until its gradient is complete.
    fn compute<T: HoldsStage>(&self, trainer: &mut T) {
        loop {
            match trainer.advance().unwrap() {
                Advance::Worked => self.send(trainer),
                Advance::Waits => self.listen(trainer),
                Advance::Done => return,
            }
        }
    }

    /// Advances an evaluation until it is done or, where another worker leads it, this worker has nothing to do for it.
    fn evaluate<T: HoldsStage>(&self, trainer: &mut T) {
        loop {
            match trainer.advance_evaluation().unwrap() {
                Advance::Worked => self.send(trainer),
                Advance::Waits if trainer.stage().judged().is_some() => self.listen(trainer),
                Advance::Waits | Advance::Done => return,
            }
        }
    }
}

fn dataset() -> Arc<Dataset> {
    static DATA: std::sync::OnceLock<Arc<Dataset>> = std::sync::OnceLock::new();
    let open = || Arc::new(Dataset::open(&"builtin:mnist".parse().unwrap(), 1, None).unwrap());
    Arc::clone(DATA.get_or_init(open))
}

fn job(model: &str, optimiser: &str, groups: usize, micro: usize) -> Job {
    job_ahead(model, optimiser, groups, micro, 0)
}

fn job_ahead(model: &str, optimiser: &str, groups: usize, micro: usize, in_flight: usize) -> Job {
    job_of(
        model,
        optimiser,
        &format!("groups={groups},micro={micro},ahead={in_flight}"),
    )
}

fn job_of(model: &str, optimiser: &str, cut: &str) -> Job {
    JobDraft {
        model: Some(model.into()),
        optimiser: Some(optimiser.into()),
        exchange: Some(format!("layers:{cut}")),
        ..JobDraft::default()
    }
    .resolve()
    .unwrap()
}

fn control(job: &Job, step: u64) -> StepControl {
    StepControl {
        rule: job.optimiser.rule,
        learning_rate: 0.05,
        weight_decay: 0.0,
        clip: None,
        look_ahead: 0.0,
        turns: 1,
        step,
        compare: None,
    }
}

/// Returns the samples of a step; their number is no multiple of the micro-batches.
fn samples(step: u64) -> Vec<u32> {
    (0..30 + step as u32 % 3)
        .map(|at| (at * 7919 + step as u32 * 31) % 60_000)
        .collect()
}

const SEED: u64 = 11;

/// Trains a job without a pipeline, for comparison. Returns the worker's own weights after these steps, the losses of
/// all steps, and the layout.
fn alone(job: &Job, data: &Arc<Dataset>, steps: u64) -> (Vec<f32>, Vec<f32>, Layout) {
    let layout = layout_for(job, data).unwrap();
    let task = Task::of_job(job, Arc::clone(data)).unwrap();
    let counts = initial_counts(&layout, job.seed);
    let mut trainer = CpuTrainer::new(task, &layout, &counts, job.optimiser.rule, SEED, Threads(1)).unwrap();
    let losses = (1..=steps).map(|step| {
        let report = trainer.step(&samples(step), control(job, step), &mut Vec::new());
        report.unwrap().loss
    });
    let losses = losses.collect();
    let own = trainer.backend().read(Array::Own).unwrap().into_owned();
    (own, losses, layout)
}

/// The device that a worker of a pipeline computes on.
#[derive(Clone, Copy, PartialEq)]
enum On {
    Cpu,
    #[cfg(feature = "cuda")]
    Gpu(Precision),
}

/// Trains in a pipeline on CPUs, as [`in_a_pipeline_on`] does.
fn in_a_pipeline(job: &Job, data: &Arc<Dataset>, steps: u64) -> (Vec<f32>, Vec<f32>, Scores) {
    in_a_pipeline_on(&[On::Cpu], job, data, steps)
}

/// Trains in a pipeline whose workers compute on these devices in turn. Returns the own weights of all stages, put
/// together, the losses of all steps, and the scores of the shared weights, which are still the first ones.
fn in_a_pipeline_on(on: &[On], job: &Job, data: &Arc<Dataset>, steps: u64) -> (Vec<f32>, Vec<f32>, Scores) {
    let layout = layout_for(job, data).unwrap();
    let pipelines = *job.exchange.pipelines().unwrap();
    let stages = pipelines.stages().unwrap();
    let (to, own): (Vec<_>, Vec<_>) = (0..stages).map(|_| channel()).unzip();
    let workers: Vec<_> = (0u8..)
        .zip(own)
        .map(|(number, own)| {
            let on = on[usize::from(number) % on.len()];
            let (job, data, layout, to) = (job.clone(), Arc::clone(data), layout.clone(), to.clone());
            std::thread::spawn(move || {
                let partition = Partition::new(layout.clone(), &pipelines).unwrap();
                let place = StageAddress {
                    pipeline: 0,
                    stage: number,
                };
                let pipeline = Pipeline::new(place, stages as u8, pipelines.in_flight(1), 1, data.train.len());
                let wires = Wires { to, own };
                let stage = partition.stage(usize::from(number));
                let counts = stage.initial_counts(job.seed);
                let rule = job.optimiser.rule;
                // Only the leader's seed decides.
                let membership = Membership {
                    dropout_seed: if number == 0 { SEED } else { 99 },
                    ..Membership::of_job(&job, &data, partition, pipeline).unwrap()
                };
                let (own, losses, scores) = match on {
                    On::Cpu => {
                        let trainer = CpuStageTrainer::in_pipeline(membership, &counts, rule, Threads(1));
                        take_part(trainer.unwrap(), &wires, &job, steps)
                    }
                    #[cfg(feature = "cuda")]
                    On::Gpu(precision) => on_gpu::take_part(precision, membership, &wires, &counts, &job, steps),
                };
                (own, losses, scores, stage)
            })
        })
        .collect();
    drop(to);
    let mut whole = vec![0.0; layout.weights];
    let mut found = None;
    for worker in workers {
        let (own, losses, scores, stage) = worker.join().unwrap();
        for (tensor, place) in stage.tensors() {
            whole[place..][..tensor.elements()].copy_from_slice(&own[tensor.range()]);
        }
        found = found.or(scores.map(|scores| (losses, scores)));
    }
    let (losses, scores) = found.unwrap();
    (whole, losses, scores)
}

/// Trains as one worker of a test pipeline. Returns its own weights and, if it leads, the losses of all steps and the
/// scores.
fn take_part<B: Backend + HoldsStage>(
    mut trainer: Replica<B>,
    wires: &Wires,
    job: &Job,
    steps: u64,
) -> (Vec<f32>, Vec<f32>, Option<Scores>) {
    let (losses, scores) = if trainer.stage().pipeline().leads() {
        lead(&mut trainer, wires, job, steps)
    } else {
        follow(&mut trainer, wires, job);
        (Vec::new(), None)
    };
    wires.send(&mut trainer);
    let own = trainer.backend().read(Array::Own).unwrap().into_owned();
    (own, losses, scores)
}

fn lead<B: Backend + HoldsStage>(
    trainer: &mut Replica<B>,
    wires: &Wires,
    job: &Job,
    steps: u64,
) -> (Vec<f32>, Option<Scores>) {
    let mut now = std::time::Duration::ZERO;
    while !trainer.stage().pipeline().is_whole() {
        now += std::time::Duration::from_millis(100);
        trainer.stage_mut().pipeline_mut().join(now);
        // The followers' first messages, and the last stage's answer.
        wires.listen(trainer);
    }
    let losses = (1..=steps).map(|step| {
        let control = control(job, step);
        let in_flight = trainer.stage().pipeline().in_flight() as u64;
        let leads = (step..=steps.min(step + in_flight)).map(|step| Lead {
            step,
            learning_rate: control.learning_rate,
            samples: samples(step),
            ..Lead::default()
        });
        trainer.stage_mut().lead(leads.collect());
        wires.compute(trainer);
        let report = trainer.step(&samples(step), control, &mut Vec::new());
        report.unwrap().loss
    });
    let losses = losses.collect();
    trainer.begin_evaluation().unwrap();
    wires.evaluate(trainer);
    let scores = trainer.stage_mut().take_scores();
    trainer.stage_mut().pipeline_mut().close();
    (losses, scores)
}

fn follow<B: Backend + HoldsStage>(trainer: &mut Replica<B>, wires: &Wires, job: &Job) {
    while !trainer.stage().pipeline().is_over() {
        wires.evaluate(trainer);
        if let Some(lead) = trainer.stage().pipeline().next_lead().cloned() {
            wires.compute(trainer);
            let report = trainer.step(&lead.samples, control(job, lead.step), &mut Vec::new());
            report.unwrap();
        } else {
            wires.listen(trainer);
        }
    }
}

const DENSE: &str =
    "dense 24, relu, dropout 0.2, dense 20, tanh, dense 16, relu, dropout 0.3, dense 12, relu, dense 10, relu, dense";
const CONVOLUTIONS: &str = "conv 4 3x3 pad 1, relu, maxpool 2, residual [ conv 6 3x3 pad 1, groupnorm 2, relu ], relu, conv 5 3x3, dropout 0.2, dense 9, silu, dense";

#[test]
fn a_pipeline_is_one_machine_to_the_bit() {
    let data = dataset();
    for model in [DENSE, CONVOLUTIONS] {
        for optimiser in ["muon", "sgd:0.05,momentum=0.9", "adam"] {
            let (own, losses, _) = alone(&job(model, optimiser, 2, 1), &data, 50);
            for groups in 2..=4 {
                let (pipeline, found, _) = in_a_pipeline(&job(model, optimiser, groups, 1), &data, 50);
                assert_eq!(losses, found, "{optimiser}, {groups} groups");
                assert!(pipeline == own, "{model}, {optimiser}, {groups} groups");
            }
        }
    }
}

#[test]
fn parts_of_a_minibatch_add_up_to_it() {
    let models = [DENSE, CONVOLUTIONS].map(smooth);
    let data = dataset();
    for model in &models {
        let (own, losses, _) = alone(&job(model, "sgd:0.05", 2, 1), &data, 50);
        for (groups, micro) in [(2, 2), (3, 4), (4, 7), (2, 64)] {
            let (pipeline, found, _) = in_a_pipeline(&job(model, "sgd:0.05", groups, micro), &data, 50);
            let off = (furthest(&own, &pipeline), furthest(&losses, &found));
            assert!(off.0 < 1e-5 && off.1 < 5e-5, "{model}: {groups}, {micro}: {off:?}");
        }
    }
}

fn furthest(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Returns the model without dropout, since micro-batches and slices drop other values, and with smooth activations: a
/// sum that is rounded differently may lie on the other side of a kink.
fn smooth(model: &str) -> String {
    let kept = model.replace("dropout 0.2, ", "").replace("dropout 0.3, ", "");
    kept.replace("relu", "tanh").replace("maxpool", "avgpool")
}

#[test]
fn slices_of_layers_add_up_to_them() {
    let data = dataset();
    for model in [DENSE, CONVOLUTIONS].map(smooth) {
        let (own, losses, _) = alone(&job(&model, "sgd:0.05", 2, 1), &data, 50);
        for cut in [
            "groups=1,slices=2,micro=1",
            "groups=1,slices=3,micro=4,ahead=0",
            "groups=2,slices=2,micro=1",
            "groups=2,slices=2,micro=3,ahead=0",
            "groups=2,slices=4,micro=7,ahead=0",
        ] {
            let (pipeline, found, _) = in_a_pipeline(&job_of(&model, "sgd:0.05", cut), &data, 50);
            let off = (furthest(&own, &pipeline), furthest(&losses, &found));
            assert!(off.0 < 1e-5 && off.1 < 5e-5, "{model}: {cut}: {off:?}");
        }
    }
}

/// Trains on one machine as a pipeline with `in_flight` minibatches in flight should: the first layers use the weights
/// of as many steps ago, forward and backward. Returns the own weights.
fn with_old_first_layers(job: &Job, data: &Arc<Dataset>, steps: usize, in_flight: usize) -> Vec<f32> {
    let layout = layout_for(job, data).unwrap();
    let pipelines = job.exchange.pipelines().unwrap();
    let first = Partition::new(layout.clone(), pipelines)
        .unwrap()
        .stage(0)
        .layout
        .weights;
    let network = ops::network(Program::new(&layout, ImageOrder::BySample), Threads(1));
    let Task { objective, .. } = Task::of_job(job, Arc::clone(data)).unwrap();
    let answers = Answers::default();
    let mut loss = MeanLoss { objective, answers };
    let counts = initial_counts(&layout, job.seed);
    let mut weights: Vec<f32> = counts.into_iter().map(protocol::weights::lattice::weight_of).collect();
    let mut before = Vec::new();
    for step in 1..=steps as u64 {
        before.push(weights[..first].to_vec());
        // A minibatch begins when the one that is `in_flight` before it is next.
        let seen = before.len().saturating_sub(1 + in_flight);
        let mixed = [&before[seen][..], &weights[first..]].concat();
        let parameters = Parameters::new(&Cpu::default(), mixed).unwrap();
        let samples = samples(step);
        let inputs = augmentation::gathered(data, Augment::default(), &samples, 0, &mut loss.answers);
        let rows = from_rows(&Cpu::default(), samples.len(), data.train.features(), inputs).unwrap();
        let pass = ops::Pass::new(parameters.clone(), 0, ops::Statistics::Minibatch);
        let lent = parameters.lend_gradient(vec![0.0; weights.len()]).unwrap();
        let descent = network.descend(&loss, &pass, rows, lent).unwrap();
        let gradient = parameters.take_gradient(descent.gradients).unwrap();
        for (weight, gradient) in weights.iter_mut().zip(gradient) {
            *weight -= 0.05 * gradient;
        }
    }
    weights
}

/// Checks, for a network cut into two groups of layers, that gradients belong to the weights they were computed at: the
/// second group trains each minibatch with the newest weights, and the first has begun it some steps before.
fn assert_gradients_belong_to_their_weights(on: &[On]) {
    let data = dataset();
    let model = "dense 24, tanh, dense 16, tanh, dense";
    for in_flight in 0..=3 {
        let job = job_ahead(model, "sgd:0.05", 2, 1, in_flight);
        let (pipeline, _, _) = in_a_pipeline_on(on, &job, &data, 50);
        let expected = |in_flight| with_old_first_layers(&job, &data, 50, in_flight);
        assert!(
            furthest(&pipeline, &expected(in_flight)) < 1e-5,
            "{in_flight} in_flight"
        );
        assert!(
            furthest(&pipeline, &expected(in_flight + 1)) > 1e-4,
            "{in_flight} in_flight"
        );
    }
}

#[test]
fn gradients_belong_to_the_weights_that_a_minibatch_went_with() {
    assert_gradients_belong_to_their_weights(&[On::Cpu]);
}

fn assert_learned(losses: &[f32], cut: &str) {
    let mean = |losses: &[f32]| losses.iter().sum::<f32>() / losses.len() as f32;
    assert_eq!(losses.len(), 60);
    assert!(mean(&losses[50..]) < mean(&losses[..10]), "{cut}: {losses:?}");
}

#[test]
fn minibatches_that_are_begun_ahead_are_all_trained() {
    let data = dataset();
    for cut in [
        "groups=2,micro=4,ahead=1",
        "groups=3,micro=4,ahead=1",
        "groups=4,micro=2,ahead=4",
        "groups=3,micro=64,ahead=2",
        "groups=1,slices=2,micro=4,ahead=1",
        "groups=3,slices=2,micro=2,ahead=4",
        "groups=2,slices=3,micro=1,ahead=2",
    ] {
        let (_, losses, _) = in_a_pipeline(&job_of(DENSE, "adam", cut), &data, 60);
        assert_learned(&losses, cut);
    }
}

#[test]
fn a_pipeline_measures_what_one_machine_does() {
    let data = dataset();
    for cut in ["groups=3,micro=2", "groups=1,slices=2", "groups=2,slices=3,ahead=0"] {
        let job = job_of(CONVOLUTIONS, "adam", cut);
        let layout = layout_for(&job, &data).unwrap();
        let weights: Vec<f32> = initial_counts(&layout, job.seed)
            .into_iter()
            .map(protocol::weights::lattice::weight_of)
            .collect();
        let judged = Objective::for_evaluation(&job, &data.target);
        let one = crate::evaluate::evaluate(&layout, weights, Vec::new(), &data.test, &judged, Threads(1), |_| true);
        let (_, _, pipeline) = in_a_pipeline(&job, &data, 2);
        let one = one.unwrap().scores();
        assert_eq!(pipeline.accuracy, one.accuracy, "{cut}");
        // Samples are added up in another order.
        assert!(
            (pipeline.loss - one.loss).abs() < 1e-9 * one.loss,
            "{cut}: {pipeline:?} {one:?}"
        );
    }
}
