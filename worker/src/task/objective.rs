//! What a worker's training makes small on its data.

use std::sync::Arc;

use protocol::job::Job;
use protocol::job::augment::Augment;
use protocol::job::loss::{ClassWeights, Loss};
use thiserror::Error;

use crate::dataset::{Dataset, Target};

/// What is made small.
#[derive(Clone, Debug, PartialEq)]
pub enum Objective {
    /// How unlikely the right class was thought to be.
    Classes {
        /// The share of certainty that is spread over all classes.
        smoothing: f32,
        /// How much samples of each class count; all the same without.
        weights: Option<Arc<[f32]>>,
    },
    /// How far numbers are off.
    Numbers {
        /// In which way.
        distance: Distance,
        /// What one standard deviation of each is, in its own units.
        units: Arc<[f32]>,
    },
}

/// How far a number is off, in standard deviations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distance {
    /// The square.
    Squared,
    /// The distance itself.
    Absolute,
    /// Half the square up to one, and from there on the distance.
    Huber,
}

/// A loss that is not for this data.
#[derive(Debug, Error)]
pub enum ObjectiveError {
    /// The loss is for something else.
    #[error("--loss {loss} is for {wanted}, but {data} has {found}: remove --loss")]
    OtherKind {
        loss: Loss,
        wanted: &'static str,
        data: String,
        found: String,
    },
    /// Something that is for classes only.
    #[error("--{setting} is for classes, but {data} has numbers to predict: remove --{setting}")]
    NoClasses { setting: &'static str, data: String },
    /// A weight is missing, or there is one too many.
    #[error(
        "--class-weights has {given} weights, but {data} has {classes} classes: give one weight for each class, or \
         auto"
    )]
    WeightCount { given: usize, data: String, classes: usize },
}

impl Objective {
    /// What a data's target asks for by itself.
    #[must_use]
    pub fn of(target: &Target) -> Self {
        match target {
            Target::Classes(_) => Self::Classes {
                smoothing: 0.0,
                weights: None,
            },
            Target::Numbers(numbers) => Self::Numbers {
                distance: Distance::Squared,
                units: numbers.iter().map(|number| number.deviation).collect(),
            },
        }
    }

    /// The one that a trained model is judged by: nothing is smoothed or weighted there.
    #[must_use]
    pub fn for_evaluation(job: &Job, target: &Target) -> Self {
        match (Self::of(target), distance(job.loss)) {
            (Self::Numbers { units, .. }, Some(distance)) => Self::Numbers { distance, units },
            (plain, _) => plain,
        }
    }

    /// The one of a job on its data.
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

/// How much samples of each class count. Over all training samples the mean is one, so that rates stay what they are.
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

/// Data, how it is looked at, and what is made small on it.
#[derive(Clone, Debug)]
pub struct Task {
    /// The samples.
    pub dataset: Arc<Dataset>,
    /// What is made small.
    pub objective: Objective,
    /// How images are varied.
    pub augment: Augment,
}

impl Task {
    /// The one of a job on its data.
    pub fn of_job(job: &Job, dataset: Arc<Dataset>) -> Result<Self, ObjectiveError> {
        let objective = Objective::of_job(job, &dataset)?;
        Ok(Self {
            dataset,
            objective,
            augment: job.augment,
        })
    }
}

/// What the data asks for by itself.
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
