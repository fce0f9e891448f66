//! Tests of results that may round differently on devices, but must be close: losses, gradients, optimisers, trained
//! models.

use std::sync::Arc;

use protocol::job::data::DataSpec;
use protocol::job::model::{Activation, Layout};
use protocol::job::optimiser::{Optimiser, Rule};
use protocol::weights::lattice::Tau;
use protocol::weights::sums::Sums;
use worker::backend::device::Precision;
use worker::dataset::Dataset;
use worker::evaluate::{Evaluator, evaluate};
use worker::machine::parallel::Threads;
use worker::model::measuring::{Bits, measure};
use worker::task::objective::{Distance, Objective, Task};
use worker::trainer::{StepControl, Trainer};

use super::{
    ALL_LAYERS, Device, MLP, Pair, control, distance, minibatch, mnist, pair, pair_on, residual, rules, start,
};

/// Compares the gradients of two minibatches, one of them small.
fn compare_gradients<D: Device>(model: &str, pair: &mut Pair<D>, samples_max: u32) {
    for samples in [&minibatch(1)[..], &minibatch(2)[..5]] {
        let samples: Vec<u32> = samples.iter().map(|sample| sample % samples_max).collect();
        // Without a τ everything stays in the residual, and with a rate of 1 that is the gradient.
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
        // Makes both devices compute the second gradient at the same weights.
        let state = pair.cpu.state().unwrap();
        pair.device.restore(state).unwrap();
    }
}

/// Returns a model in which each activation follows a dense layer.
fn all_activations() -> String {
    let layers = Activation::ALL.map(|activation| format!("dense 14, {activation}, "));
    layers.concat() + "dense 10"
}

pub(crate) fn gradients_of_all_layers_are_the_cpus<D: Device>() {
    let all_activations = all_activations();
    let models = [
        MLP,
        &all_activations,
        "dense 64, sigmoid, dense 32, gelu, dense 10, relu",
        "relu, flatten, dense 10",
        "conv 6 5x5, relu, maxpool 2, conv 9 3x3 stride 2 pad 1, relu, flatten, dense 10",
        "conv 4 3x3 pad 2, tanh, avgpool 3, gelu, conv 5 2x2, maxpool 3, flatten, dense 20, relu, dense 10",
        "maxpool 3, conv 3 4x4 stride 3, relu, avgpool 2, flatten, dense 10",
        "conv 1 7x7, avgpool 4, flatten, dense 10",
        "conv 10 5x5, relu, avgpool 24, flatten",
        "dense 33, relu, dense 33, relu, dense 33, relu, dense 10",
        "dense 30, silu, batchnorm, leakyrelu 0.1, dense 24, layernorm, relu, dense 12, groupnorm 3, dense",
        "conv 6 3x3 stride 3 nobias, batchnorm, relu, conv 6 3x3 nobias, relu, groupnorm 2, silu, conv 4 1x1, layernorm, globalavgpool, dense",
        "conv 4 5x5 stride 2 nobias, batchnorm, relu, residual [ conv 4 3x3 pad 1 nobias, batchnorm, relu, conv 4 3x3 pad 1 nobias, batchnorm ], relu, residual [ conv 8 3x3 stride 2 pad 1 nobias, batchnorm, relu, conv 8 3x3 pad 1 nobias, batchnorm ], relu, globalavgpool, dense",
        "residual [ conv 1 3x3 pad 1, relu ], residual [ residual [ conv 3 1x1, relu ], gelu ], flatten, residual [ layernorm, dense 40, relu ], dense",
        "conv 2 5x5 stride 4, flatten, layernorm, residual [ dense 72, tanh ], relu, dense",
    ];
    for model in models {
        let Some(mut pair) = pair::<D>(model, Rule::Sgd) else {
            return;
        };
        compare_gradients(model, &mut pair, 60_000);
    }
}

/// Returns a dataset with two rows of each of this many classes.
fn many_classes(classes: usize) -> Arc<Dataset> {
    let folder = tempfile::tempdir().unwrap();
    let row = |at: usize| format!("{},{},{},{:05}", at % 7, at % 11, at * at % 13, at % classes);
    let rows: Vec<String> = (0..2 * classes).map(row).collect();
    std::fs::write(folder.path().join("rows.csv"), rows.join("\n")).unwrap();
    let spec: DataSpec = format!(
        "csv:{}?test=0.01&target=class",
        folder.path().join("rows.csv").display()
    )
    .parse()
    .unwrap();
    Arc::new(Dataset::open(&spec, 1, None).unwrap())
}

pub(crate) fn losses_over_any_number_of_classes_are_the_cpus<D: Device>() {
    for classes in [7, 128, 300, 8192, 9000] {
        let dataset = many_classes(classes);
        let (found, samples) = (dataset.target.outputs(), dataset.train.len() as u32);
        let model = format!("dense 12, relu, dense {found}");
        let Some(mut pair) = pair_on::<D>(dataset, &model, Rule::Sgd) else {
            return;
        };
        compare_gradients(&model, &mut pair, samples);
    }
}

/// Returns rows with one of two classes, or with two numbers.
fn rows_of(last: impl Fn(usize) -> String, options: &str) -> Arc<Dataset> {
    let folder = tempfile::tempdir().unwrap();
    let row = |at: usize| format!("{},{},{},{}", at % 7, at % 11, at * at % 13, last(at));
    let rows: Vec<String> = (0..300).map(row).collect();
    let path = folder.path().join("rows.csv");
    std::fs::write(&path, format!("a,b,c,d,e\n{}", rows.join("\n"))).unwrap();
    let spec: DataSpec = format!("csv:{}?{options}&test=0.01", path.display()).parse().unwrap();
    Arc::new(Dataset::open(&spec, 1, None).unwrap())
}

pub(crate) fn losses_of_all_kinds_are_the_cpus<D: Device>() {
    let kinds = rows_of(
        |at| format!("{},{}", at % 5, ["no", "yes"][usize::from(at % 3 == 0)]),
        "label=e",
    );
    let numbers = rows_of(|at| format!("{}.5,{}.25", at * 3 % 101, at * 7 % 57), "label=d,e");
    let classes = |smoothing, weights: Option<[f32; 2]>| Objective::Classes {
        smoothing,
        weights: weights.map(|weights| weights.as_slice().into()),
    };
    let distance = |distance| Objective::Numbers {
        distance,
        units: [1.0, 1.0].into(),
    };
    for (dataset, model, objective) in [
        (&kinds, "dense 9, relu, dense", classes(0.2, Some([0.5, 2.0]))),
        (&kinds, "dense 9, relu, dense 1", classes(0.0, None)),
        (&kinds, "dense 9, relu, dense 1", classes(0.1, Some([3.0, 0.3]))),
        (&numbers, "dense 9, relu, dense", distance(Distance::Squared)),
        (&numbers, "dense 9, relu, dense", distance(Distance::Absolute)),
        (&numbers, "dense 9, relu, dense", distance(Distance::Huber)),
    ] {
        let task = Task {
            objective,
            ..Task::from(Arc::clone(dataset))
        };
        let Some(mut pair) = pair_on::<D>(task, model, Rule::Sgd) else {
            return;
        };
        compare_gradients(model, &mut pair, 290);
    }
}

pub(crate) fn varied_images_are_the_cpus<D: Device>() {
    for augment in ["flip", "crop=3", "flip,crop=5"] {
        let task = Task {
            augment: augment.parse().unwrap(),
            ..Task::from(mnist())
        };
        let Some(mut pair) = pair_on::<D>(task, "conv 4 5x5 stride 2, relu, flatten, dense", Rule::Sgd) else {
            return;
        };
        compare_gradients(augment, &mut pair, 60_000);
    }
}

/// Runs every kernel a few times, for tools that check every memory access of every thread.
pub(crate) fn every_kernel_runs<D: Device>() {
    for rule in rules() {
        let Some(mut pair) = pair::<D>(ALL_LAYERS, rule) else {
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
            let mut changes = Vec::new();
            pair.device.announce(&minibatch(step + 1), u64::from(step) + 1);
            pair.device.step(&minibatch(step), control, &mut changes).unwrap();
            pair.device.apply(&changes, tau).unwrap();
            pair.device.release(tau, &mut changes).unwrap();
        }
        let sums = Sums::checked(vec![(1, 500), (7, -3)], pair.layout.weights).unwrap();
        pair.device.jump(&sums).unwrap();
        assert!(pair.device.digest().unwrap().is_some());
        assert!(pair.device.residual_norm().unwrap() > 0.0);
    }
}

pub(crate) fn optimisers_do_what_the_cpus_do<D: Device>() {
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
            // Singular values that are hardly more than rounding errors become as large as the others.
            let most = if matches!(rule, Rule::Muon(_)) { 5e-2 } else { 1e-2 };
            assert!(apart < most, "{rule:?}: array {at} is apart by {apart}");
        }
        let (cpu, device) = (pair.cpu.residual_norm().unwrap(), pair.device.residual_norm().unwrap());
        assert!((cpu - device).abs() < 0.01 * cpu);
        let (cpu, device) = (pair.cpu.residual_quantile(0.01), pair.device.residual_quantile(0.01));
        let (cpu, device) = (cpu.unwrap(), device.unwrap());
        assert!((cpu - device).abs() < 0.05 * cpu, "{cpu} and {device}");
    }
}

pub(crate) fn every_layer_learns_in_both_precisions<D: Device>() {
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

pub(crate) fn evaluations_are_the_cpus<D: Device>() {
    let Some(device) = D::found() else {
        return;
    };
    let models = [
        "dense 40, dropout 0.5, relu, dense 10",
        "conv 4 5x5, relu, maxpool 2, flatten, dense 10",
        "conv 4 5x5 stride 2 nobias, batchnorm, relu, residual [ conv 8 3x3 stride 2 pad 1, batchnorm ], dense 20, batchnorm, dense",
    ];
    for model in models {
        let start = start(mnist(), model, Rule::Sgd);
        let mut trainer = start.cpu(1);
        for step in 1..30 {
            let control = control(Rule::Sgd, 0.1, Some(Tau::nearest(0.001)));
            trainer.step(&minibatch(step), control, &mut Vec::new()).unwrap();
        }
        let weights = trainer.copy_weights().unwrap();
        let layout: &Layout = &start.layout;
        let statistics = measure(layout, &weights, &start.task.dataset.train, Threads(1), Bits::Fixed).unwrap();
        let cpu = evaluate(
            layout,
            weights.clone(),
            statistics.clone(),
            &start.task.dataset.test,
            &start.task.objective,
            Threads(1),
            |_| true,
        )
        .unwrap();
        let mut evaluator = Evaluator::new(&device, start.task.clone(), layout.clone(), Threads(2));
        // The second time, everything lies on the device already and statistics are given.
        for given in [None, Some(statistics)] {
            let found = evaluator.evaluate(weights.clone(), given, &mut |_| true).unwrap();
            println!("{model}: {cpu:?} and {found:?}");
            assert_eq!(cpu.samples, found.samples);
            assert!((cpu.loss - found.loss).abs() < 1e-4 * cpu.loss);
            let accuracies = cpu.accuracy.zip(found.accuracy);
            assert!(accuracies.is_some_and(|(cpu, found)| (cpu - found).abs() < 5e-4));
        }
        let some = evaluator
            .evaluate(weights, None, &mut |so_far| so_far.samples < 1000)
            .unwrap();
        assert!((1000..5000).contains(&some.samples));
    }
}
