//! Prediction: runs a model on samples and returns its outputs, or each sample's most likely class and its probability.

use std::sync::Arc;

use dfdx::prelude::Cpu;
use protocol::job::model::Layout;

use crate::dataset::{Answers, Samples};
use crate::machine::parallel::{Threads, map_parts};
use crate::model::evaluation::MINIBATCH;
use crate::model::network::Network;
use crate::model::ops::loss;
use crate::model::ops::{CpuLayer, OpError, Parameters, Pass, Statistics, from_rows, network, values};
use crate::model::program::{ImageOrder, Program};

/// A model's prediction for one sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// Number of the class that the model finds most likely for a sample.
    pub class: u32,
    /// Probability of the predicted class according to the model.
    pub probability: f64,
}

impl Prediction {
    /// Returns the most likely class and its probability from a row of a model's outputs.
    #[must_use]
    pub fn of(row: &[f32]) -> Self {
        let class = loss::most_likely(row);
        let probability = probabilities(row)[class as usize];
        Self { class, probability }
    }
}

/// Returns the probability of each class from a row of a model's outputs. The result is `f64`, so that nearly certain
/// predictions differ from certain ones.
#[must_use]
pub fn probabilities(row: &[f32]) -> Vec<f64> {
    // A single output is the logit of the second of two classes.
    let logits: Vec<f64> = match row {
        &[logit] => vec![0.0, f64::from(logit)],
        logits => logits.iter().map(|&logit| f64::from(logit)).collect(),
    };
    let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let shares: Vec<f64> = logits.iter().map(|logit| (logit - most).exp()).collect();
    let all: f64 = shares.iter().sum();
    shares.into_iter().map(|share| share / all).collect()
}

/// A model on the CPU that computes outputs and does not train.
pub(crate) struct Predictor {
    pass: Pass,
    network: Network<CpuLayer>,
}

impl Predictor {
    pub(crate) fn new(layout: &Layout, weights: Vec<f32>, statistics: Vec<f32>) -> Result<Self, OpError> {
        let program = Program::new(layout, ImageOrder::BySample).for_evaluation();
        Ok(Self {
            pass: Pass::new(
                Parameters::new(&Cpu::default(), weights)?,
                0,
                Statistics::Given(Arc::new(statistics)),
            ),
            network: network(program, Threads(1)),
        })
    }

    /// Returns the model's outputs for the samples at `indices`, one row each, and the expected outputs of these
    /// samples.
    pub(crate) fn logits(&self, samples: &Samples, indices: &[u32]) -> Result<(Vec<f32>, Answers), OpError> {
        let (mut inputs, mut answers) = (Vec::new(), Answers::default());
        samples.gather(indices, &mut inputs, &mut answers);
        let x = from_rows(&Cpu::default(), indices.len(), samples.features(), inputs)?;
        let logits = self.network.forward(&self.pass, x)?;
        Ok((values(&logits).to_vec(), answers))
    }
}

/// Computes a model's outputs for all samples, in their order, and passes them to `go_on` some rows at a time until it
/// returns false. Each thread computes minibatches of its own.
pub fn predict(
    layout: &Layout,
    weights: Vec<f32>,
    statistics: Vec<f32>,
    samples: &Samples,
    threads: Threads,
    mut go_on: impl FnMut(&[f32]) -> bool,
) -> Result<(), OpError> {
    let predictor = Predictor::new(layout, weights, statistics)?;
    let indices: Vec<u32> = (0..samples.len() as u32).collect();
    let minibatches: Vec<&[u32]> = indices.chunks(MINIBATCH).collect();
    let answer = |minibatch: &[u32]| predictor.logits(samples, minibatch).map(|(logits, _)| logits);
    for round in minibatches.chunks(threads.0.max(1)) {
        for told in map_parts(round.to_vec(), answer) {
            if !go_on(&told?) {
                return Ok(());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use protocol::job::JobDraft;
    use protocol::job::model::Shape;

    use super::*;
    use crate::dataset::Known;
    use crate::dataset::{Dataset, Scaling, Target};

    #[test]
    fn predictions_come_in_the_order_of_samples_whatever_the_threads() {
        let draft = JobDraft {
            model: Some("dense 2".into()),
            ..JobDraft::default()
        };
        let layout = Layout::new(&draft.resolve().unwrap().model, Shape::Flat(1), 2).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new.csv");
        let text: Vec<String> = (0..300).map(|n| if n % 3 == 0 { "1" } else { "-1" }.into()).collect();
        std::fs::write(&path, text.join("\n")).unwrap();
        let known = Known {
            input: Shape::Flat(1),
            target: &Target::Classes(Vec::new()),
            columns: None,
            encodings: &[],
            scaling: &Scaling::Standard {
                mean: vec![0.0],
                deviation: vec![1.0],
            },
        };
        let spec = format!("csv:{}", path.display()).parse().unwrap();
        let samples = Dataset::inputs(&spec, known).unwrap();
        // Biases first, then weights: the second class has the logit x, the first one −x.
        let weights = vec![0.0, 0.0, -1.0, 1.0];
        for threads in [1, 3] {
            let mut told = Vec::new();
            predict(
                &layout,
                weights.clone(),
                Vec::new(),
                &samples,
                Threads(threads),
                |some| {
                    told.extend(some.chunks_exact(2).map(Prediction::of));
                    true
                },
            )
            .unwrap();
            assert_eq!(told.len(), 300);
            for (number, prediction) in told.iter().enumerate() {
                assert_eq!(prediction.class, u32::from(number % 3 == 0), "{number}");
                let expected = 1.0 / (1.0 + (-2.0f64).exp());
                assert!((prediction.probability - expected).abs() < 1e-6, "{prediction:?}");
            }
        }
    }

    #[test]
    fn nearly_sure_is_not_sure() {
        let [almost, hardly] = probabilities(&[20.0, 0.0])[..] else {
            panic!("there must be two probabilities");
        };
        assert!(almost < 1.0 && almost > 0.999_999_99);
        assert!((hardly - (-20.0f64).exp()).abs() < 1e-15);
        // One output stands for two classes.
        assert_eq!(probabilities(&[1.5]), probabilities(&[0.0, 1.5]));
        assert_eq!(Prediction::of(&[1.5]).class, 1);
        assert_eq!(Prediction::of(&[-1.5]).probability, probabilities(&[1.5])[1]);
    }
}
