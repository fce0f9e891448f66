//! Summary of a run in a few numbers: progress, speed, quality, and equality of its replicas.

use std::collections::BTreeMap;

use protocol::stats::ratio;
use serde::Serialize;

use super::{End, Timeline};
use crate::output::quality_metric::QualityMetric;

/// Number of the newest points of a run's curve that its speed is computed from.
const RECENT: usize = 10;

/// The main figures of a run, such as its progress, speed and losses, for views.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Summary {
    pub(crate) state: String,
    pub(crate) samples: u64,
    /// Number of the run's epochs trained so far.
    pub(crate) epoch: Option<f64>,
    /// Fraction of the run's samples that have been trained so far.
    pub(crate) share: Option<f64>,
    pub(crate) samples_per_second: f64,
    /// Seconds since the run's first step; `left` is an estimate of the remaining seconds.
    pub(crate) elapsed: f64,
    pub(crate) left: Option<f64>,
    /// Training loss of the run; `eval_loss` and the fields after it are measured on evaluation samples.
    pub(crate) loss: Option<f64>,
    #[serde(rename = "held_out_loss")]
    pub(crate) eval_loss: Option<f64>,
    /// Accuracy on evaluation samples; none before the first evaluation and for models without an accuracy.
    pub(crate) accuracy: Option<f64>,
    /// Mean absolute error of a model that predicts numbers; `accuracy` is R² then.
    pub(crate) mae: Option<f64>,
    /// Best value so far of the figure that measures the model's quality.
    pub(crate) best: Option<f64>,
    pub(crate) replicas: Replicas,
}

/// Equality of the replicas (the nodes' copies of the model): the number with the most frequent digest, and the number
/// of all. Replicas that are a batch ahead or behind have another digest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Replicas {
    pub(crate) equal: usize,
    pub(crate) of: usize,
    pub(crate) digest: String,
}

impl Summary {
    /// Returns the figure that measures the quality of the run's model, and its newest value.
    pub(crate) fn quality(&self) -> (QualityMetric, Option<f64>) {
        QualityMetric::of(self.accuracy, self.mae, self.eval_loss)
    }
}

impl Timeline {
    pub(crate) fn summary(&self) -> Summary {
        let newest = self.evaluations().last();
        let loss = self.nodes.loss();
        let mut summary = Summary {
            state: self.state().into(),
            samples: self.samples,
            samples_per_second: self.nodes.samples_per_second(),
            elapsed: self.seconds,
            loss: Some(loss).filter(|loss| loss.is_finite()),
            eval_loss: newest.map(|evaluation| evaluation.loss),
            accuracy: newest.and_then(|evaluation| evaluation.accuracy),
            mae: newest.and_then(|evaluation| evaluation.mae),
            best: self.best,
            replicas: self.replicas(),
            ..Summary::default()
        };
        let Some(facts) = &self.facts else {
            return summary;
        };
        if let Some(End::Finished {
            accuracy,
            mae,
            loss,
            samples,
            seconds,
            agree,
            nodes,
            digest,
            ..
        }) = &facts.end
        {
            summary.samples = *samples;
            summary.elapsed = *seconds;
            summary.samples_per_second = ratio(*samples as f64, *seconds);
            summary.accuracy = *accuracy;
            summary.mae = *mae;
            summary.eval_loss = Some(*loss);
            let (metric, figure) = summary.quality();
            summary.best = figure.map(|figure| self.best.map_or(figure, |best| metric.better(best, figure)));
            if *agree {
                summary.replicas = Replicas {
                    equal: *nodes,
                    of: *nodes,
                    digest: digest.clone(),
                };
            }
        }
        let done = summary.samples as f64;
        summary.epoch = (facts.train > 0).then(|| done / facts.train as f64);
        summary.share = (facts.total() > 0).then(|| (done / facts.total() as f64).min(1.0));
        summary.left = self.left(facts.total() as f64 - done);
        summary
    }

    fn state(&self) -> &str {
        match &self.facts {
            Some(facts) => facts.phase,
            None if self.run.is_empty() => "idle",
            None => self.nodes.heard().map(|record| &*record.state).next().unwrap_or("idle"),
        }
    }

    /// Estimates the seconds that this many samples will take, at the speed of the newest points of the run's curve.
    fn left(&self, samples: f64) -> Option<f64> {
        if self.facts.as_ref().is_none_or(|facts| facts.phase != "training") {
            return None;
        }
        let points = self.curve.points();
        let recent = &points[points.len().saturating_sub(RECENT)..];
        let (first, last) = (recent.first()?, recent.last()?);
        let rate = (last.samples - first.samples) / (last.seconds - first.seconds);
        (rate > 0.0).then(|| (samples / rate).max(0.0))
    }

    fn replicas(&self) -> Replicas {
        let exchanging = self.nodes.heard().filter(|record| record.run == self.run);
        let digests: Vec<&str> = exchanging
            .map(|record| &*record.digest)
            .filter(|digest| !digest.is_empty())
            .collect();
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for digest in &digests {
            *counts.entry(digest).or_default() += 1;
        }
        let most = counts.into_iter().max_by_key(|(_, count)| *count);
        most.map_or_else(Replicas::default, |(digest, equal)| Replicas {
            equal,
            of: digests.len(),
            digest: digest.into(),
        })
    }
}
