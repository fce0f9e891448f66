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

/// Writes a file with these contents and opens it as a module for two numbers and two classes.
fn opened(contents: &str) -> Result<Layout, ModuleError> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("net.py"), contents).unwrap();
    let shape = (Shape::Flat(2), 2);
    open(Some(&Native), Path::new("net.py"), Some(folder.path()), shape, 1).map(|(_, layout, _)| layout)
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
        let shape = (dataset.input, 10);
        let file = Path::new("net.py");
        let (module, layout, counts) = open(Some(&Native), file, Some(root.path()), shape, job.seed).unwrap();
        let own = Layout::new(&job.model, dataset.input, 10).unwrap();
        assert_eq!((layout.weights, layout.tensors.len()), (own.weights, own.tensors.len()));
        let rule = job.optimiser.rule;
        let task = || Task::of_job(&job, Arc::clone(&dataset)).unwrap();
        let network = module.network(1).unwrap();
        let foreign = CpuModuleTrainer::of_network(network, task(), &layout, &counts, rule, 5, Threads(1)).unwrap();
        let native = CpuTrainer::new(task(), &own, &counts, rule, 5, Threads(1)).unwrap();
        let minibatch = job.minibatch as usize;
        let foreign = fifty_steps(foreign.in_minibatches_of(minibatch), &job, &dataset);
        let native = fifty_steps(native.in_minibatches_of(minibatch), &job, &dataset);
        assert!(foreign.0 == native.0, "{text}: the batches differ");
        assert!(foreign.1 == native.1, "{text}: the weights differ");
        if own.measured() == 0 {
            let objective = task().objective;
            let weights = foreign.1;
            let mut network = module.network(1).unwrap();
            let found = evaluate_module(&mut network, &weights, &dataset.test, &objective, |_| true).unwrap();
            let expected = evaluate(&own, weights, Vec::new(), &dataset.test, &objective, Threads(1), |_| {
                true
            });
            assert_eq!(found, expected.unwrap(), "{text}");
        }
    }
}

#[test]
fn mistakes_are_named_before_anything_is_run() {
    let error = |contents: &str| opened(contents).unwrap_err().to_string();
    assert!(error("dense 2").contains("write '# tau: model' as its first line"));
    assert!(error(&format!("{}{MARK}\ndense 2", "\n".repeat(MARK_WITHIN))).contains("as its first line"));
    assert!(error(&format!("{MARK}\n{}", " ".repeat(1 << 20))).contains("more than 1048576 bytes"));
    assert!(error(&format!("{MARK}\ndense x")).contains("not 'x'"));
    assert_eq!(
        opened(&format!("#!/usr/bin/env python3\n {MARK} \ndense 2"))
            .unwrap()
            .weights,
        6
    );
    let folder = tempfile::tempdir().unwrap();
    let none = open(None, Path::new("net.py"), Some(folder.path()), (Shape::Flat(2), 2), 1);
    assert!(none.err().unwrap().to_string().contains("start the node with --python"));
    let outside = open(
        Some(&Native),
        Path::new("/etc/hostname"),
        Some(folder.path()),
        (Shape::Flat(2), 2),
        1,
    );
    assert!(matches!(outside.err().unwrap(), ModuleError::Open(_)));
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
    }
    let rows = Rows {
        values: &[0.0; 6],
        samples: 3,
    };
    for (gives, outputs, fits) in [(2, 2, true), (1, 2, true), (3, 2, false), (1, 3, false), (10, 10, true)] {
        let mut network = CheckedNetwork {
            network: Box::new(Wrong(gives)),
            outputs,
        };
        assert_eq!(network.forward(&[], rows, 0).is_ok(), fits, "{gives} for {outputs}");
        assert_eq!(network.infer(&[], rows).is_ok(), fits);
    }
}
