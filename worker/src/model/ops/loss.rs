//! Losses on the CPU, computed from labels or target numbers in one pass forward and one backward.

use dfdx::prelude::*;

use super::tensor::{gradient_of, take_gradient};
use super::{OpError, Pass, Rows, values};
use crate::dataset::Answers;
use crate::model::tape::{Forward, Neighbours, Operation};
use crate::task::objective::{Distance, Objective};

/// Returns the loss of one sample and the logarithm of the sum of exponentials; writes the softmax to `probabilities`.
fn softmax_row(logits: &[f32], label: usize, probabilities: &mut [f32]) -> (f64, f64) {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for (probability, &logit) in probabilities.iter_mut().zip(logits) {
        *probability = (logit - largest).exp();
        sum += *probability;
    }
    for probability in probabilities {
        *probability /= sum;
    }
    let logarithm = f64::from(sum).ln();
    (
        f64::from(largest - logits[label]) + logarithm,
        f64::from(largest) + logarithm,
    )
}

/// Returns `ln(1 + eˣ)` without overflow for any x.
fn softplus(x: f32) -> f64 {
    let x = f64::from(x);
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

fn sigmoid(x: f32) -> f32 {
    (1.0 / (1.0 + (-f64::from(x)).exp())) as f32
}

/// Computes the mean loss of a minibatch, as the operation that ends a network.
#[derive(Clone, Debug)]
pub struct MeanLoss {
    /// Kind of loss and its settings.
    pub objective: Objective,
    /// Expected outputs of the minibatch, one per sample.
    pub answers: Answers,
}

impl MeanLoss {
    /// Returns the mean loss of a network's outputs for the minibatch, and replaces the outputs by the gradient of that
    /// mean.
    pub(crate) fn replace_by_gradient(&self, outputs: &mut Vec<f32>) -> f32 {
        let (loss, row_gradients) = self.of_rows(outputs);
        *outputs = row_gradients;
        let scale = (1.0 / self.answers.len() as f64) as f32;
        for gradient in outputs {
            *gradient *= scale;
        }
        loss
    }

    /// Returns the mean loss of a network's outputs for the minibatch, and the gradient of each sample's own loss at
    /// each of its outputs.
    fn of_rows(&self, outputs: &[f32]) -> (f32, Vec<f32>) {
        let samples = self.answers.len();
        let width = outputs.len() / samples;
        assert_eq!(outputs.len(), samples * width);
        let mut row_gradients = vec![0.0; outputs.len()];
        let rows = outputs.chunks_exact(width).zip(row_gradients.chunks_exact_mut(width));
        let losses = rows
            .enumerate()
            .map(|(sample, (row, row_gradient))| self.of_row(row, sample, row_gradient));
        let total: f64 = losses.sum();
        ((total * (1.0 / samples as f64)) as f32, row_gradients)
    }

    /// Returns the loss of one sample, and writes its gradient at each output to `row_gradient`.
    fn of_row(&self, row: &[f32], sample: usize, row_gradient: &mut [f32]) -> f64 {
        match &self.objective {
            Objective::Classes { smoothing, weights } => {
                let label = self.answers.labels()[sample] as usize;
                let loss = classes(row, label, *smoothing, row_gradient);
                let weight = weights.as_ref().map_or(1.0, |weights| weights[label]);
                for row_gradient in row_gradient {
                    *row_gradient *= weight;
                }
                loss * f64::from(weight)
            }
            Objective::Numbers { distance, .. } => {
                let wanted = &self.answers.numbers()[sample * row.len()..][..row.len()];
                let share = 1.0 / row.len() as f32;
                let mut total = 0.0;
                for ((row_gradient, found), wanted) in row_gradient.iter_mut().zip(row).zip(wanted) {
                    let (loss, steep) = distance.of(found - wanted);
                    *row_gradient = steep * share;
                    total += f64::from(loss) * f64::from(share);
                }
                total
            }
            Objective::Module => unreachable!("a module's code computes the loss of its own samples"),
        }
    }
}

/// Returns the loss of one sample with a class, and writes its gradients. A single output is the logit of the second of
/// two classes.
fn classes(row: &[f32], label: usize, smoothing: f32, row_gradient: &mut [f32]) -> f64 {
    if let &[logit] = row {
        let wanted = (1.0 - smoothing) * label as f32 + 0.5 * smoothing;
        row_gradient[0] = sigmoid(logit) - wanted;
        return softplus(logit) - f64::from(wanted) * f64::from(logit);
    }
    let (sharp, logarithm) = softmax_row(row, label, row_gradient);
    // Softmax minus target is the gradient of the loss.
    row_gradient[label] -= 1.0 - smoothing;
    if smoothing == 0.0 {
        return sharp;
    }
    let each = smoothing / row.len() as f32;
    for row_gradient in row_gradient {
        *row_gradient -= each;
    }
    let all: f64 = row.iter().map(|&logit| logarithm - f64::from(logit)).sum();
    f64::from(1.0 - smoothing) * sharp + f64::from(each) * all
}

impl Distance {
    /// Returns the loss of an output that is `off` away from the expected number, and the loss's derivative.
    fn of(self, off: f32) -> (f32, f32) {
        match self {
            Self::Squared => (off * off, 2.0 * off),
            Self::Absolute => (off.abs(), if off == 0.0 { 0.0 } else { off.signum() }),
            Self::Huber if off.abs() <= 1.0 => (0.5 * off * off, off),
            Self::Huber => (off.abs() - 0.5, off.signum()),
        }
    }
}

impl Operation<()> for MeanLoss {
    type Unit = f32;
    type Pass = Pass;
    /// Values saved for the backward pass: the gradient of each sample's loss at each output.
    type Saved = Vec<f32>;
    type Error = OpError;

    fn forward(&self, _: &Pass, logits: &Rows, _: bool) -> Forward<Self, ()> {
        let (loss, output_gradients) = self.of_rows(values(logits));
        Ok((logits.device().try_tensor_from_vec(vec![loss], ())?, output_gradients))
    }

    fn backward(
        &self,
        pass: &Pass,
        Neighbours { x: logits, y: loss }: Neighbours<'_, f32, ()>,
        output_gradients: Vec<f32>,
        gradients: &mut Gradients<f32, Cpu>,
    ) -> Result<(), OpError> {
        let mean = 1.0 / logits.shape().0 as f64;
        let scale = take_gradient(gradients, loss)?[0] * mean as f32 * pass.backward.share();
        let gradient = gradient_of(gradients, logits)?;
        for (gradient, row_gradient) in gradient.iter_mut().zip(&output_gradients) {
            *gradient += scale * row_gradient;
        }
        Ok(())
    }
}

/// Sums over samples from which the quality of a model is computed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EvalSums {
    /// Sum of the losses of all samples.
    pub loss: f64,
    /// Number of samples whose largest logit is at their label.
    pub correct: usize,
    /// Error sums of each number that the model predicts; empty for classes.
    pub errors: Vec<Errors>,
}

/// Sums over samples from which a model's errors in one of the numbers to predict are computed, in units of the
/// number's standard deviation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Errors {
    /// Sum of the squared errors of one number to predict.
    pub squared: f64,
    /// Sum of the absolute errors of one number to predict.
    pub absolute: f64,
    /// Sum of the samples' true values of the number to predict.
    pub sum: f64,
    /// Sum of the squares of the samples' true values of the number to predict.
    pub squares: f64,
}

impl EvalSums {
    /// Adds the evaluation sums over other samples.
    pub fn add(&mut self, other: &Self) {
        self.loss += other.loss;
        self.correct += other.correct;
        self.errors
            .resize(self.errors.len().max(other.errors.len()), Errors::default());
        for (errors, more) in self.errors.iter_mut().zip(&other.errors) {
            errors.squared += more.squared;
            errors.absolute += more.absolute;
            errors.sum += more.sum;
            errors.squares += more.squares;
        }
    }

    /// Returns R², the explained fraction of variance over this many samples, averaged over all numbers to predict.
    #[must_use]
    pub fn r2(&self, samples: usize) -> f64 {
        let of = |errors: &Errors| {
            let variance = errors.squares - errors.sum * errors.sum / samples.max(1) as f64;
            1.0 - errors.squared / variance.max(f64::MIN_POSITIVE)
        };
        let mean = self.errors.iter().map(of).sum::<f64>() / self.errors.len().max(1) as f64;
        // A model that has diverged gets the worst score.
        if mean.is_nan() { WORST } else { mean.max(WORST) }
    }
}

/// The lowest R² that is reported for an evaluation, also for a model that has diverged.
const WORST: f64 = -1e9;

/// Computes the evaluation sums of a minibatch's outputs, one row per answer.
#[must_use]
pub fn eval_sums(objective: &Objective, logits: &[f32], answers: &Answers) -> EvalSums {
    let outputs = logits.len() / answers.len().max(1);
    let loss = MeanLoss {
        objective: objective.clone(),
        answers: answers.clone(),
    };
    let mut output_gradients = vec![0.0; outputs];
    let mut sums = EvalSums::default();
    if let Objective::Numbers { .. } = objective {
        sums.errors = vec![Errors::default(); outputs];
    }
    for (sample, row) in logits.chunks_exact(outputs.max(1)).enumerate() {
        sums.loss += loss.of_row(row, sample, &mut output_gradients);
        if let Some(&label) = answers.labels().get(sample) {
            sums.correct += usize::from(largest(row) == label as usize);
        }
        let wanted = answers.numbers().get(sample * outputs..).unwrap_or_default();
        for ((errors, &found), &wanted) in sums.errors.iter_mut().zip(row).zip(wanted) {
            let (off, wanted) = (f64::from(found) - f64::from(wanted), f64::from(wanted));
            errors.squared += off * off;
            errors.absolute += off.abs();
            errors.sum += wanted;
            errors.squares += wanted * wanted;
        }
    }
    sums
}

/// Returns the class of the largest logit. The first of equal ones wins, as in PyTorch's argmax; a single logit decides
/// for the second class if it is positive.
fn largest(row: &[f32]) -> usize {
    match row {
        &[logit] => usize::from(logit > 0.0),
        _ => (1..row.len()).fold(0, |best, class| if row[class] > row[best] { class } else { best }),
    }
}

/// Returns the most likely class of a row of outputs.
#[must_use]
pub fn most_likely(row: &[f32]) -> u32 {
    largest(row) as u32
}
