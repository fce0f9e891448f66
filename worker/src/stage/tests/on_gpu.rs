//! Tests of pipelines in which all or some workers compute on a GPU. Without a GPU these tests say so and pass.

use super::*;
use crate::backend::cuda::{CudaStageTrainer, CudaTrainer, Gpu, GpuError};

/// Opens the first GPU; `None` without such a device.
fn gpu(precision: Precision) -> Option<Gpu> {
    match Gpu::open(0, precision) {
        Ok(gpu) => Some(gpu),
        Err(error @ (GpuError::NoDriver(_) | GpuError::NoLibrary(_) | GpuError::NoDevice { .. })) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Largest number of samples in a minibatch of these tests.
const MINIBATCH: usize = 32;
const FULL: On = On::Gpu(Precision::F32);

pub(super) fn take_part(
    precision: Precision,
    membership: Membership,
    wires: &Wires,
    counts: &[i32],
    job: &Job,
    steps: u64,
) -> (Vec<f32>, Vec<f32>, Option<Scores>) {
    let micro_batch = MINIBATCH.div_ceil(membership.micro_batches);
    let gpu = Gpu::open(0, precision).unwrap();
    let trainer = CudaStageTrainer::in_pipeline(gpu, membership, counts, job.optimiser.rule, micro_batch);
    super::take_part(trainer.unwrap(), wires, job, steps)
}

/// Trains on one GPU. Returns its own weights after these steps, and the losses of all steps.
fn alone_on(gpu: Gpu, job: &Job, data: &Arc<Dataset>, steps: u64) -> (Vec<f32>, Vec<f32>) {
    let layout = layout_for(job, data).unwrap();
    let task = Task::of_job(job, Arc::clone(data)).unwrap();
    let counts = initial_counts(&layout, job.seed);
    let mut trainer = CudaTrainer::new(gpu, task, &layout, &counts, job.optimiser.rule, MINIBATCH, SEED).unwrap();
    let losses = (1..=steps).map(|step| {
        let report = trainer.step(&samples(step), control(job, step), &mut Vec::new());
        report.unwrap().loss
    });
    let losses = losses.collect();
    let own = trainer.backend().read(Array::Own).unwrap().into_owned();
    (own, losses)
}

/// Tests that a pipeline of GPUs computes the same as one GPU: close, not bit-equal, because a product may add up in
/// another order, depending on where its values lie in memory.
#[test]
fn a_pipeline_of_gpus_is_one_gpu() {
    let data = dataset();
    // Smooth activations only: where sums differ by a bit, the gradient at a kink may be another one.
    for model in [DENSE, CONVOLUTIONS] {
        let model = model.replace("relu", "tanh").replace("maxpool", "avgpool");
        // A velocity amplifies differences between sums, more with every step.
        for (optimiser, steps, most) in [
            ("sgd:0.05", 50, 1e-5),
            ("sgd:0.05,momentum=0.9", 10, 1e-4),
            // Blocks take turns, by their numbers in the whole model.
            ("muon:0.05,block=8,every=2", 4, 5e-3),
        ] {
            let Some(gpu) = gpu(Precision::F32) else { return };
            let (own, losses) = alone_on(gpu, &job(&model, optimiser, 2, 1), &data, steps);
            for groups in 2..=4 {
                let job = job(&model, optimiser, groups, 1);
                let (pipeline, found, _) = in_a_pipeline_on(&[FULL], &job, &data, steps);
                let off = (furthest(&own, &pipeline), furthest(&losses, &found));
                println!("{groups} groups, {optimiser}: {off:?}");
                assert!(off.0 < most && off.1 < 5.0 * most, "{model}: {groups}: {off:?}");
            }
        }
    }
}

#[test]
fn parts_and_slices_on_gpus_and_cpus_add_up() {
    let data = dataset();
    for model in [DENSE, CONVOLUTIONS].map(smooth) {
        let (own, losses, _) = alone(&job(&model, "sgd:0.05", 2, 1), &data, 50);
        for cut in [
            "groups=2,micro=2,ahead=0",
            "groups=4,micro=7,ahead=0",
            "groups=1,slices=2,micro=1",
            "groups=1,slices=3,micro=4,ahead=0",
            "groups=2,slices=2,micro=3,ahead=0",
        ] {
            for on in [&[FULL][..], &[FULL, On::Cpu], &[On::Cpu, FULL]] {
                if gpu(Precision::F32).is_none() {
                    return;
                }
                let (pipeline, found, _) = in_a_pipeline_on(on, &job_of(&model, "sgd:0.05", cut), &data, 50);
                let off = (furthest(&own, &pipeline), furthest(&losses, &found));
                println!("{cut}, {} kinds: {off:?}", on.len());
                assert!(off.0 < 1e-5 && off.1 < 5e-5, "{model}: {cut}: {off:?}");
            }
        }
    }
}

#[test]
fn gradients_of_a_gpu_belong_to_the_weights_that_a_minibatch_went_with() {
    if gpu(Precision::F32).is_some() {
        assert_gradients_belong_to_their_weights(&[FULL]);
    }
}

/// Tests that evaluations of a pipeline of GPUs do not depend on the precision of training.
#[test]
fn a_pipeline_of_gpus_measures_in_full() {
    let data = dataset();
    for cut in ["groups=3,micro=2", "groups=2,slices=3,ahead=0"] {
        if gpu(Precision::F32).is_none() {
            return;
        }
        let job = job_of(CONVOLUTIONS, "adam", cut);
        let (_, _, cpu) = in_a_pipeline(&job, &data, 2);
        let (_, _, gpu) = in_a_pipeline_on(&[On::Gpu(Precision::Tf32)], &job, &data, 2);
        println!("{cut}: {cpu:?} {gpu:?}");
        assert!((cpu.loss - gpu.loss).abs() < 1e-5 * cpu.loss, "{cut}: {cpu:?} {gpu:?}");
    }
}

#[test]
fn gpus_learn_with_minibatches_ahead() {
    let data = dataset();
    for (optimiser, cut) in [
        ("adam", "groups=3,micro=4,ahead=1"),
        ("muon", "groups=4,micro=2,ahead=1"),
        ("adam", "groups=3,slices=2,micro=2,ahead=1"),
    ] {
        if gpu(Precision::F32).is_none() {
            return;
        }
        let job = job_of(DENSE, optimiser, cut);
        for on in [&[FULL][..], &[FULL, On::Cpu]] {
            let (_, losses, _) = in_a_pipeline_on(on, &job, &data, 60);
            assert_learned(&losses, cut);
        }
    }
}
