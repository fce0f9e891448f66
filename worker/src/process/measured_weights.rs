//! Measured weights that a run may end with: the last that reached the target, and the best of all.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use protocol::job::{Job, Keep};
use protocol::stats::measured::Scores;

/// Weights that are kept after their evaluation, so that a run can end with them rather than with the last ones.
#[derive(Clone, Debug, Default)]
pub(super) struct MeasuredWeights(Arc<Mutex<Weights>>);

#[derive(Debug, Default)]
struct Weights {
    on_target: Option<Vec<f32>>,
    /// Lowest evaluation loss so far, and the weights that had it.
    best: Option<(f64, Vec<f32>)>,
}

impl MeasuredWeights {
    /// True if the job may end with earlier weights, so that evaluated weights must be kept.
    pub(super) fn is_wanted(job: &Job) -> bool {
        job.has_target() || job.keep == Keep::Best
    }

    /// Keeps evaluated weights if the job may end with them: they reached the target, or have the lowest loss
    /// so far.
    pub(super) fn take_note(&self, job: &Job, scores: &Scores, weights: Vec<f32>) {
        let mut kept = self.lock();
        if job.target_is_reached_by(scores) {
            kept.on_target = Some(weights);
        } else if job.keep == Keep::Best && kept.best.as_ref().is_none_or(|(loss, _)| scores.loss < *loss) {
            kept.best = Some((scores.loss, weights));
        }
    }

    /// Takes the latest weights that reached the job's target.
    pub(super) fn take_on_target(&self) -> Option<Vec<f32>> {
        self.lock().on_target.take()
    }

    /// Takes the weights with the lowest evaluation loss, if that is lower than the given `loss` of the last weights. A
    /// loss that is not a number is the worst.
    pub(super) fn take_better(&self, loss: Option<f64>) -> Option<Vec<f32>> {
        let best = self.lock().best.take();
        best.filter(|(best, _)| !loss.is_some_and(|loss| loss <= *best))
            .map(|(_, weights)| weights)
    }

    fn lock(&self) -> MutexGuard<'_, Weights> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use protocol::job::JobDraft;
    use protocol::stats::named::NamedNumbers;

    use super::*;

    fn job(text: &str) -> Job {
        JobDraft::from_toml(text).unwrap().resolve().unwrap()
    }

    fn scores(accuracy: f64, loss: f64) -> Scores {
        Scores {
            accuracy: Some(accuracy),
            loss,
            mae: None,
            named: NamedNumbers::default(),
        }
    }

    #[test]
    fn the_lowest_loss_is_kept_and_comes_back_if_the_last_is_no_better() {
        let best = job("keep = \"best\"");
        assert!(MeasuredWeights::is_wanted(&best) && !MeasuredWeights::is_wanted(&job("")));
        let measured = |losses: &[f64]| {
            let kept = MeasuredWeights::default();
            for (at, &loss) in losses.iter().enumerate() {
                kept.take_note(&best, &scores(0.5, loss), vec![at as f32]);
            }
            kept
        };
        let losses = [0.5, 0.3, 0.3, 0.4];
        assert_eq!(measured(&losses).take_better(Some(0.35)), Some(vec![1.0]));
        assert_eq!(
            measured(&losses).take_better(Some(0.3)),
            None,
            "the last weights are as good as the best"
        );
        assert_eq!(measured(&losses).take_better(Some(f64::NAN)), Some(vec![1.0]));
        assert_eq!(
            measured(&losses).take_better(None),
            Some(vec![1.0]),
            "the last weights were not measured"
        );
        assert_eq!(measured(&[]).take_better(Some(1.0)), None);
    }

    #[test]
    fn what_has_no_accuracy_reaches_no_target_accuracy() {
        let job = job("target_accuracy = 0.9");
        let kept = MeasuredWeights::default();
        let scores = Scores {
            accuracy: None,
            ..scores(1.0, 0.0)
        };
        kept.take_note(&job, &scores, vec![1.0]);
        assert_eq!(kept.take_on_target(), None);
    }

    #[test]
    fn weights_that_reach_the_target_loss_are_kept() {
        let loss = job("target_loss = 0.5");
        assert!(MeasuredWeights::is_wanted(&loss));
        let kept = MeasuredWeights::default();
        kept.take_note(&loss, &scores(1.0, 0.6), vec![1.0]);
        assert_eq!(kept.take_on_target(), None);
        let without_accuracy = Scores {
            accuracy: None,
            ..scores(0.0, 0.5)
        };
        kept.take_note(&loss, &without_accuracy, vec![2.0]);
        assert_eq!(kept.take_on_target(), Some(vec![2.0]));
        let both = job("target_loss = 0.5\ntarget_accuracy = 0.9");
        kept.take_note(&both, &scores(0.8, 0.4), vec![3.0]);
        kept.take_note(&both, &scores(0.9, 0.6), vec![4.0]);
        assert_eq!(kept.take_on_target(), None);
        kept.take_note(&both, &scores(0.9, 0.5), vec![5.0]);
        assert_eq!(kept.take_on_target(), Some(vec![5.0]));
    }

    #[test]
    fn what_reaches_the_target_comes_before_the_best() {
        let both = job("keep = \"best\"\ntarget_accuracy = 0.9");
        let kept = MeasuredWeights::default();
        kept.take_note(&both, &scores(0.8, 0.1), vec![1.0]);
        assert_eq!(kept.take_on_target(), None);
        kept.take_note(&both, &scores(0.9, 0.2), vec![2.0]);
        assert_eq!(kept.take_on_target(), Some(vec![2.0]));
        // Without a target and `keep = "best"` no weights are kept.
        kept.take_note(&job(""), &scores(1.0, 0.0), vec![3.0]);
        assert_eq!(kept.take_better(None), Some(vec![1.0]));
    }
}
