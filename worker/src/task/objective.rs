//! The objective: the loss that a worker's training minimises on its data.

use std::sync::Arc;

use protocol::job::Job;
use protocol::job::augment::Augment;
use protocol::job::loss::{ClassWeights, Loss};
use thiserror::Error;

use crate::dataset::{Dataset, Target};

/// Loss that training minimises or an evaluation measures.
#[derive(Clone, Debug, PartialEq)]
pub enum Objective {
    /// Loss for classes: cross-entropy of the predicted probabilities.
    Classes {
        /// Label smoothing: the fraction of certainty that is spread over all classes.
        smoothing: f32,
        /// Weight of the samples of each class in the loss; without weights all count the same.
        weights: Option<Arc<[f32]>>,
    },
    /// Loss for numbers: the distance between predicted and true numbers.
    Numbers {
        distance: Distance,
        /// Standard deviation of each number to predict, in the number's own units.
        units: Arc<[f32]>,
    },
    /// Loss that the code of a module computes from its own samples; Tau never computes it.
    Module,
}

/// Measure of the distance between a predicted and a true number, in standard deviations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distance {
    Squared,
    Absolute,
    /// Huber distance: half the square up to one standard deviation, and from there on the distance minus a half.
    Huber,
}

#[derive(Debug, Error)]
pub enum ObjectiveError {
    /// Reason why a loss does not suit the data: it is for the other kind of target (classes or numbers).
    #[error("--loss {loss} is for {wanted}, but {data} has {found}: remove --loss")]
    OtherKind {
        loss: Loss,
        wanted: &'static str,
        data: String,
        found: String,
    },
    /// Reason why a job's setting does not suit the data: it is for classes only.
    #[error("--{setting} is for classes, but {data} has numbers to predict: remove --{setting}")]
    NoClasses { setting: &'static str, data: String },
    /// Reason why a job's class weights do not suit the data: their number is not the number of classes.
    #[error(
        "--class-weights has {given} weights, but {data} has {classes} classes: give one weight for each class, or \
         auto"
    )]
    WeightCount { given: usize, data: String, classes: usize },
}

impl Objective {
    /// Returns the default loss for a target: cross-entropy for classes, squared distance for numbers.
    #[must_use]
    pub fn of(target: &Target) -> Self {
        match target {
            Target::Classes(_) => Self::Classes {
                smoothing: 0.0,
                weights: None,
            },
            Target::Module => Self::Module,
            Target::Numbers(numbers) => Self::Numbers {
                distance: Distance::Squared,
                units: numbers.iter().map(|number| number.deviation).collect(),
            },
        }
    }

    /// Returns the loss that evaluations measure: the job's, without label smoothing and class weights.
    #[must_use]
    pub fn for_evaluation(job: &Job, target: &Target) -> Self {
        match (Self::of(target), distance(job.loss)) {
            (Self::Numbers { units, .. }, Some(distance)) => Self::Numbers { distance, units },
            (plain, _) => plain,
        }
    }

    /// Returns the loss that training minimises for a job on its data, or the reason why it does not suit the data.
    pub fn of_job(job: &Job, dataset: &Dataset) -> Result<Self, ObjectiveError> {
        let data = || job.data.to_string();
        let other_kind = |wanted| ObjectiveError::OtherKind {
            loss: job.loss,
            wanted,
            data: data(),
            found: dataset.target.info().to_string(),
        };
        match &dataset.target {
            Target::Classes(_) if distance(job.loss).is_some() => Err(other_kind("numbers")),
            Target::Classes(classes) => Ok(Self::Classes {
                smoothing: job.label_smoothing as f32,
                weights: weights(job, dataset.train.labels(), classes.len())?,
            }),
            Target::Numbers(_) if job.loss == Loss::CrossEntropy => Err(other_kind("classes")),
            Target::Numbers(_) if job.label_smoothing > 0.0 => Err(ObjectiveError::NoClasses {
                setting: "label-smoothing",
                data: data(),
            }),
            Target::Numbers(_) if job.class_weights != ClassWeights::Equal => Err(ObjectiveError::NoClasses {
                setting: "class-weights",
                data: data(),
            }),
            target @ Target::Numbers(_) => Ok(Self::for_evaluation(job, target)),
            Target::Module => Ok(Self::Module),
        }
    }
}

fn distance(loss: Loss) -> Option<Distance> {
    match loss {
        Loss::Auto | Loss::CrossEntropy => None,
        Loss::Mse => Some(Distance::Squared),
        Loss::Mae => Some(Distance::Absolute),
        Loss::Huber => Some(Distance::Huber),
    }
}

/// Returns the weight of the samples of each class. Their mean over all training samples is one, so that learning rates
/// keep their meaning.
fn weights(job: &Job, labels: &[u32], classes: usize) -> Result<Option<Arc<[f32]>>, ObjectiveError> {
    let mut counts = vec![0u64; classes];
    for &label in labels {
        counts[label as usize] += 1;
    }
    let plain: Vec<f64> = match &job.class_weights {
        ClassWeights::Equal => return Ok(None),
        ClassWeights::Auto => counts.iter().map(|&count| 1.0 / count.max(1) as f64).collect(),
        ClassWeights::Given(given) if given.len() == classes => given.iter().map(|&weight| f64::from(weight)).collect(),
        ClassWeights::Given(given) => {
            return Err(ObjectiveError::WeightCount {
                given: given.len(),
                data: job.data.to_string(),
                classes,
            });
        }
    };
    let total: f64 = plain
        .iter()
        .zip(&counts)
        .map(|(weight, &count)| weight * count as f64)
        .sum();
    let scale = labels.len() as f64 / total.max(f64::MIN_POSITIVE);
    Ok(Some(plain.iter().map(|weight| (weight * scale) as f32).collect()))
}

/// Training task: data, its augmentation, and the loss to minimise.
#[derive(Clone, Debug)]
pub struct Task {
    pub dataset: Arc<Dataset>,
    pub objective: Objective,
    pub augment: Augment,
}

impl Task {
    /// Returns the training task of a job on its data.
    pub fn of_job(job: &Job, dataset: Arc<Dataset>) -> Result<Self, ObjectiveError> {
        let objective = Objective::of_job(job, &dataset)?;
        Ok(Self {
            dataset,
            objective,
            augment: job.augment,
        })
    }
}

/// Makes a training task of data alone: the default loss, without augmentation.
impl From<Arc<Dataset>> for Task {
    fn from(dataset: Arc<Dataset>) -> Self {
        let objective = Objective::of(&dataset.target);
        Self {
            dataset,
            objective,
            augment: Augment::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::job::JobDraft;

    use super::*;

    fn task(text: &str, draft: JobDraft) -> Result<Objective, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.csv");
        std::fs::write(&path, text).unwrap();
        let draft = JobDraft {
            data: Some(format!("csv:{}?test=0.01", path.display())),
            ..draft
        };
        let job = draft.resolve().unwrap();
        let dataset = Dataset::open(&job.data, 1, None).unwrap();
        Objective::of_job(&job, &dataset).map_err(|error| error.to_string())
    }

    fn classes() -> String {
        let row = |row: usize| format!("{row},{}", if row.is_multiple_of(4) { "rare" } else { "often" });
        (0..400).map(row).collect::<Vec<_>>().join("\n")
    }

    fn numbers() -> String {
        (0..400)
            .map(|row| format!("{row},{}.5", row * 3))
            .collect::<Vec<_>>()
            .join("\n")
    }

    #[test]
    fn rare_classes_count_as_much_as_others() {
        let draft = || JobDraft {
            class_weights: Some("auto".into()),
            ..JobDraft::default()
        };
        let Objective::Classes {
            weights: Some(weights), ..
        } = task(&classes(), draft()).unwrap()
        else {
            panic!("the objective has no class weights");
        };
        // Classes by name: often, rare.
        assert!((weights[1] / weights[0] - 3.0).abs() < 0.1, "{weights:?}");
        assert!(
            (0.25 * weights[1] + 0.75 * weights[0] - 1.0).abs() < 0.05,
            "{weights:?}"
        );
    }

    #[test]
    fn what_is_not_for_the_data_is_said() {
        let draft = |change: fn(&mut JobDraft)| {
            let mut draft = JobDraft::default();
            change(&mut draft);
            draft
        };
        let error = |text: &str, change| task(text, draft(change)).unwrap_err();
        assert!(error(&classes(), |job| job.loss = Some("mse".into())).contains("--loss mse is for numbers"));
        assert!(error(&numbers(), |job| job.loss = Some("cross-entropy".into())).contains("is for classes"));
        assert!(error(&numbers(), |job| job.label_smoothing = Some(0.1)).contains("--label-smoothing is for classes"));
        assert!(error(&numbers(), |job| job.class_weights = Some("auto".into())).contains("--class-weights is for"));
        assert!(error(&classes(), |job| job.class_weights = Some("1,2,3".into())).contains("has 3 weights, but"));
        let huber = task(&numbers(), draft(|job| job.loss = Some("huber".into()))).unwrap();
        assert!(matches!(
            huber,
            Objective::Numbers {
                distance: Distance::Huber,
                ..
            }
        ));
    }
}
