//! A trainer that computes nothing, for tests of everything above the device.

use std::time::Duration;

use protocol::weights::changes::{apply_to_weights, change, check_range};
use protocol::weights::dense::Dense;
use protocol::weights::digest::Digest;
use protocol::weights::lattice::{Range, Tau, count_of, weight_of};
use protocol::weights::sums::Sums;

use crate::trainer::{GpuUse, Numbers, StateError, StepControl, StepReport, TrainError, Trainer, TrainerState};
use protocol::weights::contribution::Contribution;

/// Fake trainer for tests, which computes nothing: it emits one change per sample. The weight with the sample's number,
/// modulo the number of weights, moves up.
#[derive(Clone, Debug)]
pub struct FakeTrainer<const BEGINS: bool = false> {
    weights: Vec<f32>,
    /// For each weight of a fake trainer, the number of times that it was trained; this is the trainer's own state.
    pub times: Vec<f32>,
    /// Value of `times` when the fake trainer last took a contribution out of its weights (call of `take`).
    taken: Vec<f32>,
    /// Every sample that the fake trainer was given, in order.
    pub trained: Vec<u32>,
    /// Settings of the last step, for tests to check.
    pub last: Option<StepControl>,
    /// Step in which the fake trainer fails.
    pub fails_at: Option<u64>,
    /// Step in which a bit of a weight flips, as in defective memory.
    pub flips_at: Option<u64>,
}

impl FakeTrainer {
    #[must_use]
    pub fn new(counts: &[i32]) -> Self {
        Self::made(counts)
    }
}

impl FakeTrainer<true> {
    /// Creates a fake trainer that is told of the next minibatch early, as a GPU's trainer is.
    #[must_use]
    pub fn beginning(counts: &[i32]) -> Self {
        Self::made(counts)
    }
}

impl<const BEGINS: bool> FakeTrainer<BEGINS> {
    fn made(counts: &[i32]) -> Self {
        Self {
            weights: counts.iter().copied().map(weight_of).collect(),
            times: vec![0.0; counts.len()],
            taken: vec![0.0; counts.len()],
            trained: Vec::new(),
            last: None,
            fails_at: None,
            flips_at: None,
        }
    }
}

impl<const BEGINS: bool> Trainer for FakeTrainer<BEGINS> {
    const BEGINS: bool = BEGINS;

    fn weights(&self) -> usize {
        self.weights.len()
    }

    fn step(
        &mut self,
        samples: &[u32],
        control: StepControl,
        changes: &mut Vec<u32>,
    ) -> Result<StepReport, TrainError> {
        if self.fails_at == Some(control.step) {
            return Err(TrainError::NotFinite);
        }
        if self.flips_at == Some(control.step) {
            self.weights[3] = weight_of(count_of(self.weights[3]).unwrap_or_default() ^ 1 << 9);
        }
        self.last = Some(control);
        self.trained.extend_from_slice(samples);
        for &sample in samples {
            let weights = self.times.len();
            self.times[sample as usize % weights] += 1.0;
        }
        changes.clear();
        let mut range = Range::Safe;
        if let Some(tau) = control.compare {
            changes.extend(
                samples
                    .iter()
                    .map(|&sample| change(sample % self.weights.len() as u32, true)),
            );
            changes.sort_unstable();
            check_range(changes, tau, &self.weights)?;
            range = apply_to_weights(changes, tau, &mut self.weights)?;
        }
        Ok(StepReport {
            loss: 1.0 / control.step as f32,
            range,
            training_time: Duration::from_micros(1),
            directions: Duration::ZERO,
            gpu: GpuUse::default(),
        })
    }

    fn loss(&mut self, _samples: &[u32]) -> Result<f32, TrainError> {
        Ok(1.0)
    }

    fn release(&mut self, _tau: Tau, changes: &mut Vec<u32>) -> Result<Range, TrainError> {
        changes.clear();
        Ok(Range::Safe)
    }

    fn take(
        &mut self,
        window: std::ops::Range<usize>,
        _contribution: Contribution,
    ) -> Result<(Dense, Range), TrainError> {
        let first = window.start as u32;
        let steps = window
            .map(|index| {
                let before = std::mem::replace(&mut self.taken[index], self.times[index]);
                (self.times[index] - before) as i32
            })
            .collect();
        let dense = Dense::checked(first, steps, self.weights.len()).unwrap_or_default();
        let range = self.shift(&dense)?;
        Ok((dense, range))
    }

    fn apply(&mut self, changes: &[u32], tau: Tau) -> Result<Range, TrainError> {
        Ok(apply_to_weights(changes, tau, &mut self.weights)?)
    }

    fn jump(&mut self, sums: &Sums) -> Result<Range, TrainError> {
        let (mut shared, mut own) = (self.weights.clone(), self.weights.clone());
        let range = sums.apply_to_both(&mut shared, &mut own)?;
        self.weights = shared;
        Ok(range)
    }

    fn copy_weights(&self) -> Result<Vec<f32>, TrainError> {
        Ok(self.weights.clone())
    }

    fn digest(&self) -> Result<Option<Digest>, TrainError> {
        Ok(Digest::of_weights(&self.weights))
    }

    fn residual_quantile(&self, _fraction: f64) -> Result<f64, TrainError> {
        Ok(f64::from(Tau::ONE_STEP.value()))
    }

    fn residual_norm(&self) -> Result<f64, TrainError> {
        Ok(0.0)
    }

    fn state(&self) -> Result<TrainerState, TrainError> {
        Ok(TrainerState {
            numbers: Numbers::default(),
            arrays: vec![self.times.clone()],
        })
    }

    fn restore(&mut self, mut state: TrainerState) -> Result<(), StateError> {
        state.check(1, self.weights.len())?;
        self.times = state.arrays.remove(0);
        Ok(())
    }
}
