//! Every device against the reference, which is the CPU with one thread: what must agree to the bit does, and what may round
//! otherwise is close.
//!
//! The CPU with two threads is such a device, so that the tests themselves are tested everywhere. GPUs need the feature
//! `cuda`, and a GPU: where there is none their tests say so and pass.

use std::sync::Arc;

use protocol::changes::word;
use protocol::data::DataSpec;
use protocol::lattice::Tau;
use protocol::model::{Layout, initial_counts};
use protocol::optimiser::{Optimiser, Rule};
use protocol::rng::CounterRng;
use protocol::sums::Sums;
use worker::backend::cpu::CpuTrainer;
use worker::dataset::Dataset;
use worker::device::Precision;
use worker::ops::Threads;
use worker::trainer::{StepControl, Trainer, TrainerState};

const MINIBATCH: usize = 48;
const MLP: &str = "dense 61, relu, dense 40, tanh, dense 10";

/// What a trainer begins with.
struct Start {
    dataset: Arc<Dataset>,
    layout: Layout,
    counts: Vec<i32>,
    rule: Rule,
}

impl Start {
    fn cpu(&self, threads: usize) -> CpuTrainer {
        let Self {
            dataset,
            layout,
            counts,
            rule,
        } = self;
        CpuTrainer::new(Arc::clone(dataset), layout, counts, *rule, 1, Threads(threads)).unwrap()
    }
}

/// A device that is held against the reference.
trait Device {
    type Trainer: Trainer;

    /// A trainer on it; none where there is no such device.
    fn trainer(start: &Start, precision: Precision) -> Option<Self::Trainer>;
}

/// The CPU with two threads.
struct TwoThreads;

impl Device for TwoThreads {
    type Trainer = CpuTrainer;

    fn trainer(start: &Start, _: Precision) -> Option<CpuTrainer> {
        Some(start.cpu(2))
    }
}

/// The first GPU.
#[cfg(feature = "cuda")]
struct FirstGpu;

#[cfg(feature = "cuda")]
impl Device for FirstGpu {
    type Trainer = worker::backend::cuda::CudaTrainer;

    fn trainer(start: &Start, precision: Precision) -> Option<Self::Trainer> {
        use worker::backend::cuda::{CudaTrainer, Gpu, GpuError};
        let gpu = match Gpu::open(0, precision) {
            Ok(gpu) => gpu,
            Err(error @ (GpuError::NoDriver(_) | GpuError::NoLibrary(_) | GpuError::NoDevice { .. })) => {
                println!("skipped: {error}");
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        let Start {
            dataset,
            layout,
            counts,
            rule,
        } = start;
        Some(CudaTrainer::new(gpu, Arc::clone(dataset), layout, counts, *rule, MINIBATCH, 1).unwrap())
    }
}

/// Makes tests for each device.
macro_rules! on_every_device {
    ($($name:ident)*) => {
        mod two_threads {
            $(#[test] fn $name() { super::$name::<super::TwoThreads>() })*
        }

        #[cfg(feature = "cuda")]
        mod gpu {
            $(#[test] fn $name() { super::$name::<super::FirstGpu>() })*
        }
    };
}

on_every_device! {
    gradients_of_all_layers_are_the_cpus
    losses_over_any_number_of_classes_are_the_cpus
    every_kernel_runs
    optimisers_do_what_the_cpus_do
    given_equal_updates_the_same_words_leave
    a_thousand_batches_of_others_give_the_same_replica
    a_state_goes_on_to_the_bit
    what_is_no_number_and_what_leaves_the_range_is_reported
    every_layer_learns_in_both_precisions
}

/// The same model on the reference and on a device.
struct Pair<D: Device> {
    cpu: CpuTrainer,
    device: D::Trainer,
    layout: Layout,
}

fn start(dataset: Arc<Dataset>, model: &str, rule: Rule) -> Start {
    let layout = Layout::new(&model.parse().unwrap(), dataset.input, dataset.classes.len()).unwrap();
    let counts = initial_counts(&layout, 1);
    Start {
        dataset,
        layout,
        counts,
        rule,
    }
}

fn mnist() -> Arc<Dataset> {
    Arc::new(Dataset::open(&DataSpec::BuiltinMnist, 1, None).unwrap())
}

fn pair<D: Device>(model: &str, rule: Rule) -> Option<Pair<D>> {
    pair_on(mnist(), model, rule)
}

fn pair_on<D: Device>(dataset: Arc<Dataset>, model: &str, rule: Rule) -> Option<Pair<D>> {
    let start = start(dataset, model, rule);
    Some(Pair {
        device: D::trainer(&start, Precision::F32)?,
        cpu: start.cpu(1),
        layout: start.layout,
    })
}

fn control(rule: Rule, learning_rate: f64, tau: Option<Tau>) -> StepControl {
    StepControl {
        rule,
        learning_rate,
        clip: None,
        look_ahead: 0.0,
        step: 1,
        tau,
    }
}

fn minibatch(step: u32) -> Vec<u32> {
    (0..MINIBATCH as u32)
        .map(|at| (at * 977 + step * 131) % 60_000)
        .collect()
}

/// What a trainer's own weights differ by from the shared ones.
fn residual(trainer: &impl Trainer) -> Vec<f32> {
    trainer.state().unwrap().arrays.swap_remove(0)
}

/// The distance of two vectors, relative to their size.
fn distance(one: &[f32], other: &[f32]) -> f64 {
    let square = |value: f64| value * value;
    let apart: f64 = one.iter().zip(other).map(|(a, b)| square(f64::from(a - b))).sum();
    let size: f64 = one.iter().map(|a| square(f64::from(*a))).sum();
    (apart / size.max(1e-30)).sqrt()
}

fn assert_same_replica<D: Device>(pair: &Pair<D>) {
    let cpu = pair.cpu.copy_weights().unwrap();
    let device = pair.device.copy_weights().unwrap();
    assert!(cpu.iter().zip(&device).all(|(a, b)| a.to_bits() == b.to_bits()));
    assert_eq!(pair.cpu.digest().unwrap(), pair.device.digest().unwrap());
    assert!(pair.device.digest().unwrap().is_some());
}

/// Compares the gradients of two minibatches, one of them small.
fn compare_gradients<D: Device>(model: &str, pair: &mut Pair<D>, samples_max: u32) {
    for samples in [&minibatch(1)[..], &minibatch(2)[..5]] {
        let samples: Vec<u32> = samples.iter().map(|sample| sample % samples_max).collect();
        // Without a τ everything stays in the residual, and a rate of 1 makes that the gradient.
        let before = (residual(&pair.cpu), residual(&pair.device));
        let cpu = pair.cpu.step(&samples, control(Rule::Sgd, 1.0, None), &mut Vec::new());
        let device = pair
            .device
            .step(&samples, control(Rule::Sgd, 1.0, None), &mut Vec::new());
        let (cpu, device) = (cpu.unwrap().loss, device.unwrap().loss);
        assert!((cpu - device).abs() < 1e-4 * cpu, "{model}: loss {cpu} and {device}");
        let moved =
            |before: &[f32], after: &[f32]| -> Vec<f32> { after.iter().zip(before).map(|(a, b)| a - b).collect() };
        let cpu = moved(&before.0, &residual(&pair.cpu));
        let device = moved(&before.1, &residual(&pair.device));
        for tensor in &pair.layout.tensors {
            let apart = distance(&cpu[tensor.range()], &device[tensor.range()]);
            println!("{model}: {:?} apart by {apart:.1e}", tensor.range());
            assert!(apart < 2e-4, "{model}: the gradient of {tensor:?} is apart by {apart}");
        }
        // So that the second gradient is taken at one point.
        let state = pair.cpu.state().unwrap();
        pair.device.restore(state).unwrap();
    }
}

fn gradients_of_all_layers_are_the_cpus<D: Device>() {
    let models = [
        MLP,
        "dense 64, sigmoid, dense 32, gelu, dense 10, relu",
        "relu, flatten, dense 10",
        "conv 6 5x5, relu, maxpool 2, conv 9 3x3 stride 2 pad 1, relu, flatten, dense 10",
        "conv 4 3x3 pad 2, tanh, avgpool 3, gelu, conv 5 2x2, maxpool 3, flatten, dense 20, relu, dense 10",
        "maxpool 3, conv 3 4x4 stride 3, relu, avgpool 2, flatten, dense 10",
        "conv 1 7x7, avgpool 4, flatten, dense 10",
        "conv 10 5x5, relu, avgpool 24, flatten",
        "dense 33, relu, dense 33, relu, dense 33, relu, dense 10",
    ];
    for model in models {
        let Some(mut pair) = pair::<D>(model, Rule::Sgd) else {
            return;
        };
        compare_gradients(model, &mut pair, 60_000);
    }
}

/// Two rows of each of so many classes.
fn many_classes(classes: usize) -> Arc<Dataset> {
    let folder = tempfile::tempdir().unwrap();
    let row = |at: usize| format!("{},{},{},{:05}", at % 7, at % 11, at * at % 13, at % classes);
    let rows: Vec<String> = (0..2 * classes).map(row).collect();
    std::fs::write(folder.path().join("rows.csv"), rows.join("\n")).unwrap();
    let spec: DataSpec = format!("csv:{}?test=0.01", folder.path().join("rows.csv").display())
        .parse()
        .unwrap();
    Arc::new(Dataset::open(&spec, 1, None).unwrap())
}

fn losses_over_any_number_of_classes_are_the_cpus<D: Device>() {
    for classes in [7, 128, 300, 8192, 9000] {
        let dataset = many_classes(classes);
        let (found, samples) = (dataset.classes.len(), dataset.train.len() as u32);
        let model = format!("dense 12, relu, dense {found}");
        let Some(mut pair) = pair_on::<D>(dataset, &model, Rule::Sgd) else {
            return;
        };
        compare_gradients(&model, &mut pair, samples);
    }
}

/// Every kernel, a few times each: for tools that look at every access of every thread.
fn every_kernel_runs<D: Device>() {
    let model = "conv 3 3x3, relu, maxpool 2, conv 4 3x3, tanh, avgpool 2, flatten, dropout 0.2, dense 12, gelu, dense 11, sigmoid, relu, dense 10";
    for rule in rules() {
        let Some(mut pair) = pair::<D>(model, rule) else {
            return;
        };
        let tau = Tau::nearest(0.002);
        for step in 1..4 {
            let control = StepControl {
                clip: Some(0.5),
                step: u64::from(step),
                look_ahead: 1.0,
                ..control(rule, 0.05, Some(tau))
            };
            let mut words = Vec::new();
            pair.device.step(&minibatch(step), control, &mut words).unwrap();
            pair.device.begin(&minibatch(step + 1), u64::from(step) + 1).unwrap();
            pair.device.apply(&words, tau).unwrap();
            pair.device.release(tau, &mut words).unwrap();
        }
        let sums = Sums::checked(vec![(1, 500), (7, -3)], pair.layout.weights).unwrap();
        pair.device.shift(&sums).unwrap();
        assert!(pair.device.digest().unwrap().is_some());
        assert!(pair.device.residual_norm().unwrap() > 0.0);
    }
}

fn rules() -> Vec<Rule> {
    let texts = [
        "sgd:0.1",
        "sgd:0.1,momentum=0.9",
        "sgd:0.1,momentum=0.9,nesterov",
        "adagrad:0.1",
        "rmsprop:0.1",
        "adam:0.1",
    ];
    texts
        .iter()
        .map(|text| text.parse::<Optimiser>().unwrap().rule)
        .collect()
}

fn optimisers_do_what_the_cpus_do<D: Device>() {
    for rule in rules() {
        let Some(mut pair) = pair::<D>(MLP, rule) else {
            return;
        };
        for step in 1..6 {
            let control = StepControl {
                clip: Some(0.5),
                look_ahead: if rule.has_velocity() { 2.0 } else { 0.0 },
                step: u64::from(step),
                ..control(rule, 0.01, None)
            };
            pair.cpu.step(&minibatch(step), control, &mut Vec::new()).unwrap();
            pair.device.step(&minibatch(step), control, &mut Vec::new()).unwrap();
        }
        let (cpu, device) = (pair.cpu.state().unwrap(), pair.device.state().unwrap());
        assert_eq!(cpu.numbers, device.numbers);
        for (at, (cpu, device)) in cpu
            .arrays
            .iter()
            .zip(&device.arrays)
            .enumerate()
            .filter(|(at, _)| *at != 1)
        {
            let apart = distance(cpu, device);
            println!("{rule:?}: array {at} apart by {apart:.1e}");
            assert!(apart < 1e-2, "{rule:?}: array {at} is apart by {apart}");
        }
        let (cpu, device) = (pair.cpu.residual_norm().unwrap(), pair.device.residual_norm().unwrap());
        assert!((cpu - device).abs() < 0.01 * cpu);
        let (cpu, device) = (pair.cpu.residual_quantile(0.01), pair.device.residual_quantile(0.01));
        let (cpu, device) = (cpu.unwrap(), device.unwrap());
        assert!((cpu - device).abs() < 0.05 * cpu, "{cpu} and {device}");
    }
}

/// A state with random residuals, some of them many τ large, and some exactly at its border.
fn random_state(weights: usize, rule: Rule, tau: Tau, random: &mut CounterRng) -> TrainerState {
    let mut number = |scale: f32| (random.below(2_000_001) as f32 / 1e6 - 1.0) * scale;
    let residual = |at: usize, value: f32| match at % 97 {
        0 => tau.value() * 3.0,
        1 => -tau.value(),
        2 => value * 40.0,
        3 => 0.0,
        _ => value,
    };
    let mut arrays = vec![(0..weights).map(|at| residual(at, number(1.2 * tau.value()))).collect()];
    arrays.push(vec![0.0; weights]);
    for _ in 0..rule.state_arrays() {
        arrays.push((0..weights).map(|_| number(0.01).abs()).collect());
    }
    TrainerState {
        numbers: worker::trainer::Numbers {
            ahead: if rule.has_velocity() { 0.125 } else { 0.0 },
            turns: random.below(4),
        },
        arrays,
    }
}

fn given_equal_updates_the_same_words_leave<D: Device>() {
    // Large enough for turns, with a last block that is not full.
    let model = "dense 151, relu, dense 10";
    for rule in rules() {
        let Some(mut pair) = pair::<D>(model, rule) else {
            return;
        };
        let mut random = CounterRng::new(7, 0);
        for round in 0..8 {
            let tau = Tau::from_steps(1 + random.below(5000) as u32).unwrap();
            let state = random_state(pair.layout.weights, rule, tau, &mut random);
            pair.cpu.restore(state.clone()).unwrap();
            pair.device.restore(state).unwrap();
            let (mut cpu, mut device) = (Vec::new(), Vec::new());
            if round % 2 == 0 {
                pair.cpu.release(tau, &mut cpu).unwrap();
                pair.device.release(tau, &mut device).unwrap();
            } else {
                // A rate of nothing leaves the weights where they are, however gradients round.
                let control = StepControl {
                    look_ahead: 0.0,
                    ..control(rule, 0.0, Some(tau))
                };
                pair.cpu.step(&minibatch(round), control, &mut cpu).unwrap();
                pair.device.step(&minibatch(round), control, &mut device).unwrap();
                if rule.has_velocity() {
                    // Where they look ahead they move all the same, by a velocity that the gradient is part of.
                    continue;
                }
            }
            assert!(cpu.len() > 100);
            assert_eq!(cpu, device, "{rule:?}");
            assert_same_replica(&pair);
        }
    }
}

fn a_thousand_batches_of_others_give_the_same_replica<D: Device>() {
    let Some(mut pair) = pair::<D>("dense 151, relu, dense 10", Rule::Sgd) else {
        return;
    };
    let weights = pair.layout.weights as u64;
    let mut random = CounterRng::new(3, 0);
    for _ in 0..1000 {
        let tau = Tau::from_steps(1 + random.below(20_000) as u32).unwrap();
        let mut words: Vec<u32> = (0..random.below(3000))
            .map(|_| word(random.below(weights) as u32, true))
            .collect();
        words.sort_unstable();
        // All words of a weight have one sign.
        for word in &mut words {
            *word ^= (*word >> 1) % 2;
        }
        pair.cpu.apply(&words, tau).unwrap();
        pair.device.apply(&words, tau).unwrap();
    }
    assert_same_replica(&pair);
    let entries = (0..weights as u32)
        .step_by(3)
        .map(|index| (index, 5 - (index % 11) as i32));
    let sums = Sums::checked(entries.filter(|&(_, steps)| steps != 0).collect(), weights as usize).unwrap();
    pair.cpu.shift(&sums).unwrap();
    pair.device.shift(&sums).unwrap();
    assert_same_replica(&pair);
    // Their own weights went along.
    assert!(pair.device.residual_norm().unwrap() < 1e-2);
}

fn a_state_goes_on_to_the_bit<D: Device>() {
    for rule in rules() {
        let (Some(mut one), Some(mut other)) = (pair::<D>(MLP, rule), pair::<D>(MLP, rule)) else {
            return;
        };
        let tau = Tau::nearest(0.001);
        let step = |trainer: &mut D::Trainer, step: u32| {
            let mut words = Vec::new();
            let control = StepControl {
                step: u64::from(step),
                look_ahead: 2.0,
                ..control(rule, 0.01, Some(tau))
            };
            trainer.step(&minibatch(step), control, &mut words).unwrap();
            words
        };
        for at in 1..5 {
            let words = step(&mut one.device, at);
            other.device.apply(&words, tau).unwrap();
        }
        other.device.restore(one.device.state().unwrap()).unwrap();
        for at in 5..9 {
            let words = step(&mut one.device, at);
            assert!(!words.is_empty());
            assert_eq!(words, step(&mut other.device, at), "{rule:?}");
        }
        assert_eq!(one.device.digest().unwrap(), other.device.digest().unwrap());
    }
}

fn what_is_no_number_and_what_leaves_the_range_is_reported<D: Device>() {
    let Some(mut pair) = pair::<D>(MLP, Rule::Sgd) else {
        return;
    };
    let before = pair.device.digest().unwrap();
    let wild = control(Rule::Sgd, f64::from(f32::MAX), Some(Tau::ONE_STEP));
    let mut words = Vec::new();
    pair.device
        .step(&minibatch(1), StepControl { tau: None, ..wild }, &mut words)
        .unwrap();
    let error = pair.device.step(&minibatch(2), wild, &mut words).unwrap_err();
    assert!(error.to_string().contains("no longer a number"), "{error}");
    assert_eq!(pair.device.digest().unwrap(), before, "the shared weights have moved");

    let Some(mut pair) = self::pair::<D>(MLP, Rule::Sgd) else {
        return;
    };
    let tau = Tau::from_steps((1 << 24) - 1).unwrap();
    pair.device.apply(&[word(5, true)], tau).unwrap();
    // The CPU sees it at once, a GPU may at its next step.
    let second = pair.device.apply(&[word(5, true)], tau);
    let step = |_| {
        pair.device
            .step(&minibatch(1), control(Rule::Sgd, 0.1, None), &mut words)
    };
    let error = second.and_then(step).unwrap_err();
    assert!(error.to_string().contains("±16"), "{error}");
}

fn every_layer_learns_in_both_precisions<D: Device>() {
    let model = "conv 6 5x5, relu, maxpool 2, conv 9 3x3, gelu, avgpool 2, flatten, dropout 0.2, dense 30, tanh, dense 20, sigmoid, dense 10";
    for precision in [Precision::F32, Precision::Tf32] {
        let rule = "adam:0.01".parse::<Optimiser>().unwrap().rule;
        let Some(mut trainer) = D::trainer(&start(mnist(), model, rule), precision) else {
            return;
        };
        let mut losses = Vec::new();
        for step in 1..400 {
            let control = StepControl {
                step: u64::from(step),
                clip: Some(5.0),
                ..control(rule, 0.01, Some(Tau::nearest(0.003)))
            };
            losses.push(trainer.step(&minibatch(step), control, &mut Vec::new()).unwrap().loss);
        }
        let mean = |part: &[f32]| part.iter().sum::<f32>() / part.len() as f32;
        let (first, last) = (mean(&losses[..20]), mean(&losses[losses.len() - 20..]));
        println!("{precision:?}: loss {first} became {last}");
        assert!(last < 0.5 * first, "{precision:?}: loss {first} became {last}");
    }
}
