//! Tests of the interface to foreign code, with a module in Rust.

use std::path::Path;
use std::sync::Arc;

use protocol::job::{Job, JobDraft};

use super::native::Native;
use super::*;
use crate::backend::cpu::{CpuModuleTrainer, CpuTrainer};
use crate::dataset::Dataset;
use crate::evaluate::{evaluate, evaluate_module};
use crate::machine::parallel::Threads;
use crate::task::objective::Task;
use crate::trainer::Trainer;
use crate::training::{Identity, Next, Training};

/// Samples of two numbers, in ten classes.
const SAMPLES: (Shape, TargetInfo) = (Shape::Flat(2), TargetInfo::Classes(10));
const ONE: Threads = Threads(1);

/// Returns the rule that code must lie below a folder.
fn below(root: &Path) -> CodeFolders<'_> {
    CodeFolders {
        root: Some(root),
        own: None,
    }
}

/// Loads and opens `net.py` in this folder as a module, for samples that Tau reads or, without a shape, for its own.
fn opened_in(
    folder: &Path,
    host: &Native,
    input: Option<Shape>,
    target: TargetInfo,
) -> Result<(OpenModule, Layout, Vec<i32>), ModuleError> {
    let file = Path::new("net.py");
    let module = load(Some(host), file, below(folder), input, 1)?;
    open(module, file, target, ONE)
}

/// Writes a file with these contents and opens it as a module for [`SAMPLES`].
fn opened(contents: &str) -> Result<Layout, ModuleError> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("net.py"), contents).unwrap();
    let (input, target) = SAMPLES;
    opened_in(folder.path(), &Native::default(), Some(input), target).map(|(_, layout, _)| layout)
}

fn job(model: &str, optimiser: &str) -> Job {
    let draft = JobDraft {
        model: Some(model.into()),
        optimiser: Some(optimiser.into()),
        minibatch: Some(32),
        accumulate: Some(2),
        ..JobDraft::default()
    };
    draft.resolve().unwrap()
}

/// Makes 50 steps, and returns each batch that was emitted, with the weights at the end.
fn fifty_steps<T: Trainer>(trainer: T, job: &Job, dataset: &Dataset) -> (Vec<Vec<u8>>, Vec<f32>) {
    let mut training = Training::new(trainer, job, dataset, Identity::alone(7)).unwrap();
    let batch_of = |training: &mut Training<T>| {
        let mut encoded = Vec::new();
        let next = training.step(false, &mut encoded).unwrap();
        assert!(matches!(next, Next::Emitted(_)), "{next:?}");
        encoded
    };
    let batches = (0..50).map(|_| batch_of(&mut training)).collect();
    (batches, training.trainer().copy_weights().unwrap())
}

#[test]
fn a_module_in_rust_trains_as_the_same_layers_do_to_the_bit() {
    let dataset = Arc::new(Dataset::open(&"builtin:mnist".parse().unwrap(), 1, None).unwrap());
    let host = Native {
        data: Some(Arc::clone(&dataset)),
    };
    let root = tempfile::tempdir().unwrap();
    for (text, optimiser) in [
        ("dense 30, relu, dropout 0.3, dense", "muon"),
        (
            "conv 4 5x5 stride 2, batchnorm, relu, flatten, dense",
            "sgd:0.05,momentum=0.5",
        ),
        ("dense 20, gelu, layernorm, dense", "adam"),
    ] {
        std::fs::write(root.path().join("net.py"), format!("{MARK}\n{text}")).unwrap();
        let job = job(text, optimiser);
        let target = dataset.target.info();
        let (module, layout, counts) = opened_in(root.path(), &host, Some(dataset.input), target).unwrap();
        let own = Layout::new(&job.model, dataset.input, 10).unwrap();
        assert_eq!((layout.weights, layout.tensors.len()), (own.weights, own.tensors.len()));
        let rule = job.optimiser.rule;
        let task = || Task::of_job(&job, Arc::clone(&dataset)).unwrap();
        let network = module.network(ONE).unwrap();
        let foreign = CpuModuleTrainer::of_network(network, task(), &layout, &counts, rule, 5, ONE).unwrap();
        let native = CpuTrainer::new(task(), &own, &counts, rule, 5, ONE).unwrap();
        // The module with the same samples as its own computes the loss, too.
        let (own_module, _, _) = opened_in(root.path(), &host, None, TargetInfo::Module).unwrap();
        let code = load(Some(&host), Path::new("net.py"), below(root.path()), None, 1).unwrap();
        let ModuleData { classes, test, hash } = code.data().unwrap();
        let own_data = Arc::new(Dataset::of_module(classes, test, hash));
        let network = own_module.network(ONE).unwrap();
        let with_data = CpuModuleTrainer::of_network(network, Arc::clone(&own_data), &layout, &counts, rule, 5, ONE);
        let minibatch = job.minibatch as usize;
        let with_data = fifty_steps(with_data.unwrap().in_minibatches_of(minibatch), &job, &own_data);
        let foreign = fifty_steps(foreign.in_minibatches_of(minibatch), &job, &dataset);
        let native = fifty_steps(native.in_minibatches_of(minibatch), &job, &dataset);
        assert!(foreign.0 == native.0, "{text}: the batches differ");
        assert!(foreign.1 == native.1, "{text}: the weights differ");
        assert!(
            with_data == native,
            "{text}: with data of its own, batches or weights differ"
        );
        if own.measured() == 0 {
            let task = task();
            let weights = foreign.1;
            let expected = evaluate(
                &own,
                weights.clone(),
                Vec::new(),
                &dataset.test,
                &task.objective,
                ONE,
                |_| true,
            );
            let expected = expected.unwrap();
            for (module, dataset) in [(&module, &dataset), (&own_module, &own_data)] {
                let task = Task {
                    dataset: Arc::clone(dataset),
                    ..task.clone()
                };
                let network = module.evaluating();
                let mut network = network.lock().unwrap();
                let found = evaluate_module(&mut network, &weights, &task, 128, |_| true).unwrap();
                assert_eq!(
                    (found.accuracy, found.samples),
                    (expected.accuracy, expected.samples),
                    "{text}"
                );
                assert!((found.loss - expected.loss).abs() < 1e-9, "{text}: {found:?}");
            }
        }
    }
}

#[test]
fn mistakes_are_named_before_anything_is_run() {
    let error = |contents: &str| opened(contents).unwrap_err().to_string();
    assert!(error("dense 10").contains("write '# tau: model' as its first line"));
    assert!(error(&format!("{}{MARK}\ndense 10", "\n".repeat(MARK_WITHIN))).contains("as its first line"));
    assert!(error(&format!("{MARK}\n{}", " ".repeat(1 << 20))).contains("more than 1048576 bytes"));
    assert!(error(&format!("{MARK}\ndense x")).contains("not 'x'"));
    assert_eq!(
        opened(&format!("#!/usr/bin/env python3\n {MARK} \ndense 10"))
            .unwrap()
            .weights,
        30
    );
    let folder = tempfile::tempdir().unwrap();
    let none = load(None, Path::new("net.py"), below(folder.path()), None, 1);
    assert!(none.err().unwrap().to_string().contains("start the node with --python"));
    let (host, file) = (Native::default(), Path::new("/etc/hostname"));
    let outside = load(Some(&host), file, below(folder.path()), None, 1);
    assert!(matches!(outside.err().unwrap(), ModuleError::Open(_)));
    let own = folder.path().join("node");
    std::fs::create_dir(&own).unwrap();
    std::fs::write(own.join("net.py"), format!("{MARK}\ndense 10")).unwrap();
    std::os::unix::fs::symlink("node/net.py", folder.path().join("link.py")).unwrap();
    let folders = CodeFolders {
        own: Some(&own),
        ..below(folder.path())
    };
    for file in ["node/net.py", "link.py"] {
        assert!(matches!(
            folders.read(Path::new(file)),
            Err(ModuleError::OwnFolder { .. })
        ));
        assert!(below(folder.path()).read(Path::new(file)).is_ok());
    }
}

#[test]
fn outputs_that_the_data_cannot_be_compared_with_are_refused() {
    struct Wrong(usize);
    impl ModuleNetwork for Wrong {
        fn forward(&mut self, _: &[f32], rows: Rows<'_>, _: u64) -> Result<Vec<f32>, ModuleFailure> {
            Ok(vec![0.0; self.0 * rows.samples])
        }
        fn backward(&mut self, _: &[f32], _: &mut [f32]) -> Result<(), ModuleFailure> {
            Ok(())
        }
        fn infer(&mut self, weights: &[f32], rows: Rows<'_>) -> Result<Vec<f32>, ModuleFailure> {
            self.forward(weights, rows, 0)
        }
        fn step(&mut self, _: &[f32], _: &[u32], _: u64, _: &mut [f32]) -> Result<f32, ModuleFailure> {
            unreachable!()
        }
        fn measure(&mut self, _: &[f32], _: &[u32]) -> Result<Vec<(String, f64)>, ModuleFailure> {
            unreachable!()
        }
        fn settle(&mut self) -> Result<bool, ModuleFailure> {
            Ok(false)
        }
        fn observe(&mut self, _: &[f32], _: Minibatch<'_>) -> Result<(), ModuleFailure> {
            unreachable!()
        }
        fn untrained(&mut self, _: &[f32]) -> Result<Vec<UntrainedTensor>, ModuleFailure> {
            Ok(Vec::new())
        }
    }
    let rows = Rows {
        values: &[0.0; 6],
        samples: 3,
    };
    let (classes, numbers) = (TargetInfo::Classes, TargetInfo::Numbers);
    for (gives, target, fits) in [
        (2, classes(2), true),
        (1, classes(2), true),
        (3, classes(2), false),
        (1, classes(3), false),
        (10, classes(10), true),
        (2, numbers(2), true),
        // One number for two would be compared with those of other samples.
        (1, numbers(2), false),
    ] {
        let mut network = CheckedNetwork {
            network: Box::new(Wrong(gives)),
            target,
        };
        assert_eq!(network.forward(&[], rows, 0).is_ok(), fits, "{gives} for {target:?}");
        assert_eq!(network.infer(&[], rows).is_ok(), fits);
    }
}

/// Tests that a single sample has the gradient that it has among others.
#[test]
fn a_single_sample_is_taken_twice_and_counts_once() {
    struct Sum;
    impl ModuleNetwork for Sum {
        fn forward(&mut self, _: &[f32], rows: Rows<'_>, _: u64) -> Result<Vec<f32>, ModuleFailure> {
            assert_eq!((rows.samples, rows.values), (2, &[3.0, 4.0, 3.0, 4.0][..]));
            Ok(vec![1.0, 2.0, 1.0, 2.0])
        }
        fn backward(&mut self, output_gradient: &[f32], gradient: &mut [f32]) -> Result<(), ModuleFailure> {
            gradient.copy_from_slice(output_gradient);
            Ok(())
        }
        fn infer(&mut self, _: &[f32], _: Rows<'_>) -> Result<Vec<f32>, ModuleFailure> {
            unreachable!()
        }
        fn step(&mut self, _: &[f32], positions: &[u32], _: u64, gradient: &mut [f32]) -> Result<f32, ModuleFailure> {
            assert_eq!(positions, [5, 5]);
            gradient.fill(0.25);
            Ok(2.0)
        }
        fn measure(&mut self, _: &[f32], _: &[u32]) -> Result<Vec<(String, f64)>, ModuleFailure> {
            unreachable!()
        }
        fn settle(&mut self) -> Result<bool, ModuleFailure> {
            Ok(false)
        }
        fn observe(&mut self, _: &[f32], _: Minibatch<'_>) -> Result<(), ModuleFailure> {
            unreachable!()
        }
        fn untrained(&mut self, _: &[f32]) -> Result<Vec<UntrainedTensor>, ModuleFailure> {
            Ok(Vec::new())
        }
    }
    let mut network = CheckedNetwork {
        network: Box::new(Sum),
        target: TargetInfo::Classes(2),
    };
    let rows = Rows {
        values: &[3.0, 4.0],
        samples: 1,
    };
    assert_eq!(network.forward(&[], rows, 0).unwrap(), [1.0, 2.0]);
    let mut gradient = [9.0; 4];
    network.backward(1, &[0.5, -0.5], &mut gradient).unwrap();
    assert_eq!(gradient, [0.5, -0.5, 0.0, 0.0]);
    assert_eq!(network.step(&[], &[5], 0, &mut gradient), Ok(2.0));
    assert_eq!(gradient, [0.25; 4]);
}
