//! Tests of every device against the reference, the CPU with one thread: results either agree to the bit or, where
//! rounding may differ, are close.
//!
//! The CPU with two threads counts as a device, so that the tests themselves are tested everywhere. GPUs need the
//! feature `cuda`, and a GPU: without one their tests say so and pass.

mod learning;
mod replicas;

use std::sync::Arc;

use protocol::job::data::DataSpec;
use protocol::job::model::{Layout, initial_counts};
use protocol::job::optimiser::{Optimiser, Rule};
use protocol::weights::lattice::Tau;
use worker::backend::cpu::CpuTrainer;
use worker::backend::device::Precision;
use worker::dataset::Dataset;
use worker::machine::parallel::Threads;
use worker::task::objective::Task;
use worker::trainer::{StepControl, Trainer};

const MINIBATCH: usize = 48;
const MLP: &str = "dense 61, relu, dense 40, tanh, dense 10";
const ALL_LAYERS: &str = "conv 3 3x3 nobias, batchnorm, relu, maxpool 2, residual [ conv 4 3x3 pad 1, tanh, groupnorm 2 ], relu, avgpool 2, flatten, dropout 0.2, dense 12, gelu, layernorm, dense 11, sigmoid, silu, relu, leakyrelu, dense 10";

/// The inputs that a trainer is created from.
struct Start {
    task: Task,
    layout: Layout,
    counts: Vec<i32>,
    rule: Rule,
}

impl Start {
    fn cpu(&self, threads: usize) -> CpuTrainer {
        let Self {
            task,
            layout,
            counts,
            rule,
        } = self;
        CpuTrainer::new(task.clone(), layout, counts, *rule, 1, Threads(threads)).unwrap()
    }
}

/// A device that is compared with the reference.
trait Device {
    type Trainer: Trainer;

    /// Finds the device as a worker does; `None` if it does not exist.
    fn found() -> Option<worker::backend::device::Device>;

    /// Creates a trainer on the device; `None` if it does not exist.
    fn trainer(start: &Start, precision: Precision) -> Option<Self::Trainer>;
}

struct TwoThreads;

impl Device for TwoThreads {
    type Trainer = CpuTrainer;

    fn found() -> Option<worker::backend::device::Device> {
        Some(worker::backend::device::Device::Cpu)
    }

    fn trainer(start: &Start, _: Precision) -> Option<CpuTrainer> {
        Some(start.cpu(2))
    }
}

#[cfg(feature = "cuda")]
struct FirstGpu;

#[cfg(feature = "cuda")]
fn is_absent(error: &worker::backend::cuda::GpuError) -> bool {
    use worker::backend::cuda::GpuError;
    matches!(
        error,
        GpuError::NoDriver(_) | GpuError::NoLibrary(_) | GpuError::NoDevice { .. }
    )
}

#[cfg(feature = "cuda")]
impl Device for FirstGpu {
    type Trainer = worker::backend::cuda::CudaTrainer;

    fn found() -> Option<worker::backend::device::Device> {
        use worker::backend::device::{Choice, DeviceError};
        match worker::backend::device::Device::find(Choice::Cuda(0), None) {
            Ok(found) => Some(found),
            Err(DeviceError::Gpu(error)) if is_absent(&error) => {
                println!("skipped: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn trainer(start: &Start, precision: Precision) -> Option<Self::Trainer> {
        use worker::backend::cuda::{CudaTrainer, Gpu};
        let gpu = match Gpu::open(0, precision) {
            Ok(gpu) => gpu,
            Err(error) if is_absent(&error) => {
                println!("skipped: {error}");
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        let Start {
            task,
            layout,
            counts,
            rule,
        } = start;
        Some(CudaTrainer::new(gpu, task.clone(), layout, counts, *rule, MINIBATCH, 1).unwrap())
    }
}

/// Makes tests for each device.
macro_rules! on_every_device {
    ($($file:ident::$name:ident)*) => {
        mod two_threads {
            $(#[test] fn $name() { super::$file::$name::<super::TwoThreads>() })*
        }

        #[cfg(feature = "cuda")]
        mod gpu {
            $(#[test] fn $name() { super::$file::$name::<super::FirstGpu>() })*
        }
    };
}

on_every_device! {
    learning::gradients_of_all_layers_are_the_cpus
    learning::losses_over_any_number_of_classes_are_the_cpus
    learning::losses_of_all_kinds_are_the_cpus
    learning::varied_images_are_the_cpus
    learning::every_kernel_runs
    learning::optimisers_do_what_the_cpus_do
    replicas::given_equal_updates_the_same_changes_leave
    replicas::a_thousand_batches_of_others_give_the_same_replica
    replicas::a_state_goes_on_to_the_bit
    replicas::steps_that_are_announced_are_those_of_a_new_trainer
    replicas::what_is_no_number_and_what_leaves_the_range_is_reported
    learning::every_layer_learns_in_both_precisions
    learning::evaluations_are_the_cpus
    replicas::what_waits_is_applied_before_anyone_looks_and_in_order
    replicas::what_is_taken_is_the_cpus
}

/// The same model on the reference and on a device.
struct Pair<D: Device> {
    cpu: CpuTrainer,
    device: D::Trainer,
    layout: Layout,
}

fn start(task: impl Into<Task>, model: &str, rule: Rule) -> Start {
    let task = task.into();
    let dataset = &task.dataset;
    let layout = Layout::new(&model.parse().unwrap(), dataset.input, dataset.target.outputs()).unwrap();
    let counts = initial_counts(&layout, 1);
    Start {
        task,
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

fn pair_on<D: Device>(task: impl Into<Task>, model: &str, rule: Rule) -> Option<Pair<D>> {
    let start = start(task, model, rule);
    Some(Pair {
        device: D::trainer(&start, Precision::F32)?,
        cpu: start.cpu(1),
        layout: start.layout,
    })
}

fn control(rule: Rule, learning_rate: f64, compare: Option<Tau>) -> StepControl {
    StepControl {
        rule,
        learning_rate,
        weight_decay: 0.0,
        clip: None,
        look_ahead: 0.0,
        turns: 4,
        step: 1,
        compare,
    }
}

fn minibatch(step: u32) -> Vec<u32> {
    (0..MINIBATCH as u32)
        .map(|at| (at * 977 + step * 131) % 60_000)
        .collect()
}

/// Returns the difference between a trainer's own and shared weights.
fn residual(trainer: &impl Trainer) -> Vec<f32> {
    trainer.state().unwrap().arrays.swap_remove(0)
}

/// Returns the distance of two vectors, relative to the size of the first.
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

fn rules() -> Vec<Rule> {
    let texts = [
        "sgd:0.1",
        "sgd:0.1,momentum=0.9",
        "sgd:0.1,momentum=0.9,nesterov",
        "adagrad:0.1",
        "rmsprop:0.1",
        "adam:0.1",
        "muon:0.1,block=32,every=2",
    ];
    texts
        .iter()
        .map(|text| text.parse::<Optimiser>().unwrap().rule)
        .collect()
}
