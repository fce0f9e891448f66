//! Measures the parts of a GPU's step: its time with and without changes that leave, the time of applying others'
//! changes, and the bytes that cross the bus.
//!
//! `cuda_parts LAYERS MINIBATCH DENSITY PRECISION DATA`; times are medians, in milliseconds.

#[cfg(not(feature = "cuda"))]
fn main() {
    eprintln!("this example needs a GPU: build it with --features cuda");
}

#[cfg(feature = "cuda")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    cuda::main()
}

#[cfg(feature = "cuda")]
mod cuda {
    use std::sync::Arc;
    use std::time::Instant;

    use protocol::job::data::DataSpec;
    use protocol::job::model::{Layout, initial_counts};
    use protocol::job::optimiser::Rule;
    use protocol::weights::lattice::Tau;
    use worker::backend::cuda::{CudaTrainer, Gpu};
    use worker::backend::device::Precision;
    use worker::dataset::Dataset;
    use worker::trainer::{StepControl, Trainer};

    const ROUNDS: usize = 200;

    pub(super) fn main() -> Result<(), Box<dyn std::error::Error>> {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let [layers, minibatch, density, precision, data] = &arguments[..] else {
            return Err("usage: cuda_parts LAYERS MINIBATCH DENSITY PRECISION DATA".into());
        };
        let (minibatch, density): (usize, f64) = (minibatch.parse()?, density.parse()?);
        let precision = match precision.as_str() {
            "f32" => Precision::F32,
            _ => Precision::Tf32,
        };
        let dataset = Arc::new(Dataset::open(&data.parse::<DataSpec>()?, 1, None)?);
        let layout = Layout::new(&layers.parse()?, dataset.input, dataset.target.outputs())?;
        let counts = initial_counts(&layout, 1);
        let samples: Vec<u32> = (0..minibatch as u32)
            .map(|at| at % dataset.train.len() as u32)
            .collect();
        let gpu = Gpu::open(0, precision)?;
        let mut trainer = CudaTrainer::new(gpu, dataset, &layout, &counts, Rule::Sgd, minibatch, 1)?;
        let mut control = StepControl {
            rule: Rule::Sgd,
            learning_rate: 0.01,
            weight_decay: 0.0,
            clip: None,
            look_ahead: 0.0,
            turns: 4,
            step: 1,
            compare: None,
        };
        let mut changes = Vec::new();
        trainer.step(&samples, control, &mut changes)?;
        let plain = timed(|| {
            trainer.step(&samples, control, &mut changes)?;
            Ok(())
        })?;
        // Searches the τ at which about `wanted` changes leave in every step.
        let wanted = density * layout.weights as f64;
        let mut tau = trainer.residual_quantile(4.0 * density)?;
        for _ in 0..4 * ROUNDS {
            control.compare = Some(Tau::nearest(tau));
            trainer.step(&samples, control, &mut changes)?;
            tau *= if changes.len() as f64 > wanted { 1.02 } else { 0.98 };
        }
        let mut emitted = 0;
        let bytes = trainer.backend().bytes();
        let full = timed(|| {
            trainer.step(&samples, control, &mut changes)?;
            emitted += changes.len();
            Ok(())
        })?;
        let bytes = (trainer.backend().bytes() - bytes) as f64 / ROUNDS as f64;
        let emitted = emitted as f64 / ROUNDS as f64;
        // As many changes as leave, spread over the weights.
        let count = (density * layout.weights as f64) as usize;
        let others: Vec<u32> = (0..count)
            .map(|at| (at * layout.weights / count) as u32 * 2 + at as u32 % 2)
            .collect();
        let apply = timed(|| {
            for _ in 0..10 {
                trainer.apply(&others, Tau::ONE_STEP)?;
            }
            // Waits until the changes are applied.
            trainer.digest()?;
            Ok(())
        })?;
        let digest = timed(|| Ok(trainer.digest().map(drop)?))?;
        let loss = timed(|| Ok(trainer.loss(&samples).map(drop)?))?;
        println!(
            "{} weights, times in ms: step without changes {plain:.3}, with {emitted:.0} changes {full:.3}, so \
             comparing and emitting {:.3}; applying {count} changes of other workers {:.3}; digest {digest:.3}; \
             forward and backward pass with an update that moves nothing {loss:.3}; {bytes:.0} bytes over the bus per step, {:.1} per \
             change",
            layout.weights,
            full - plain,
            (apply - digest) / 10.0,
            bytes / emitted.max(1.0),
        );
        Ok(())
    }

    fn timed(
        mut action: impl FnMut() -> Result<(), Box<dyn std::error::Error>>,
    ) -> Result<f64, Box<dyn std::error::Error>> {
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            let start = Instant::now();
            action()?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        times.sort_by(f64::total_cmp);
        Ok(times[ROUNDS / 2])
    }
}
