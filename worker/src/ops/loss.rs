//! Softmax and cross-entropy in one operation, straight from labels: no one-hot matrix, one pass each way.

use dfdx::prelude::*;

use super::tensor::{gradient_of, take_gradient};
use super::{OpError, Pass, Rows, values};
use crate::tape::{Around, Forward, Operation};

/// What a minibatch's logits say about its labels.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Judgement {
    /// The sum of the samples' losses.
    pub loss: f64,
    /// How many samples have their largest logit at their label.
    pub correct: usize,
}

/// The loss of one sample; `probabilities` receives its softmax.
fn softmax_row(logits: &[f32], label: usize, probabilities: &mut [f32]) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for (probability, &logit) in probabilities.iter_mut().zip(logits) {
        *probability = (logit - largest).exp();
        sum += *probability;
    }
    for probability in probabilities {
        *probability /= sum;
    }
    f64::from(largest - logits[label]) + f64::from(sum).ln()
}

/// The mean cross-entropy of a minibatch with these labels.
#[derive(Clone, Debug)]
pub struct CrossEntropy {
    /// One per row, each below the number of columns.
    pub labels: Vec<u32>,
}

impl Operation<()> for CrossEntropy {
    type Unit = f32;
    type Pass = Pass;
    /// The slope of each sample's loss at each logit.
    type Kept = Vec<f32>;
    type Error = OpError;

    fn forward(&self, _: &Pass, logits: &Rows, _: bool) -> Forward<Self, ()> {
        let (samples, classes) = *logits.shape();
        assert_eq!(samples, self.labels.len());
        let mut slopes = vec![0.0; samples * classes];
        let mut total = 0.0;
        let rows = values(logits)
            .chunks_exact(classes)
            .zip(slopes.chunks_exact_mut(classes));
        for ((row, slope), &label) in rows.zip(&self.labels) {
            total += softmax_row(row, label as usize, slope);
            // The softmax itself is the slope of the loss, but for the label's own logit.
            slope[label as usize] -= 1.0;
        }
        let mean = 1.0 / samples as f64;
        let loss = logits.device().try_tensor_from_vec(vec![(total * mean) as f32], ())?;
        Ok((loss, slopes))
    }

    fn backward(
        &self,
        _: &Pass,
        Around { x: logits, y: loss }: Around<'_, f32, ()>,
        slopes: Vec<f32>,
        gradients: &mut Gradients<f32, Cpu>,
    ) -> Result<(), OpError> {
        let mean = 1.0 / logits.shape().0 as f64;
        let scale = take_gradient(gradients, loss)?[0] * mean as f32;
        let gradient = gradient_of(gradients, logits)?;
        for (gradient, slope) in gradient.iter_mut().zip(&slopes) {
            *gradient += scale * slope;
        }
        Ok(())
    }
}

/// Loss and accuracy of a minibatch's logits, one row per label, for evaluation.
#[must_use]
pub fn judge(logits: &[f32], labels: &[u32]) -> Judgement {
    let classes = logits.len() / labels.len().max(1);
    let mut probabilities = vec![0.0; classes];
    let mut judgement = Judgement::default();
    for (row, &label) in logits.chunks_exact(classes.max(1)).zip(labels) {
        judgement.loss += softmax_row(row, label as usize, &mut probabilities);
        judgement.correct += usize::from(largest(row) == label as usize);
    }
    judgement
}

/// The class of the largest logit. The first of equal ones wins, as in PyTorch's argmax.
fn largest(row: &[f32]) -> usize {
    (1..row.len()).fold(0, |best, class| if row[class] > row[best] { class } else { best })
}

/// The most likely class by these logits, and its probability.
#[must_use]
pub fn most_likely(row: &[f32]) -> (u32, f32) {
    let class = largest(row);
    let mut probabilities = vec![0.0; row.len()];
    softmax_row(row, class, &mut probabilities);
    (class as u32, probabilities[class])
}
