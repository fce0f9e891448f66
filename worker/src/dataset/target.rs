//! The target of a model: the class or the numbers to predict.

use protocol::job::data::TargetKind;
use protocol::job::target::TargetInfo;
use serde::{Deserialize, Serialize};

use super::Scaling;

/// The class or the numbers to predict, unless only a module's code knows them. In a model file it is one entry,
/// `classes`, `numbers` or `module`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Target {
    /// A class is to be predicted: names of the classes, in the order of label numbers and model outputs.
    #[serde(rename = "classes")]
    Classes(Vec<String>),
    /// Numbers are to be predicted, in the order of model outputs.
    #[serde(rename = "numbers")]
    Numbers(Vec<NumberTarget>),
    /// Only the code of the model's module knows the target; that code computes the loss.
    #[serde(rename = "module")]
    Module,
}

/// A number to predict. A model learns it as `(number - mean) / deviation`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NumberTarget {
    /// Name of the number to predict.
    pub name: String,
    /// Mean of the number to predict over the training samples.
    pub mean: f32,
    /// Standard deviation of the number to predict over the training samples, or 1 if all are equal.
    pub deviation: f32,
}

impl NumberTarget {
    /// Converts a model's standardised output back to the number itself.
    #[must_use]
    pub fn restore(&self, standardised: f32) -> f32 {
        (f64::from(standardised) * f64::from(self.deviation) + f64::from(self.mean)) as f32
    }
}

impl Target {
    /// Returns the part of the target by which nodes compare their data.
    #[must_use]
    pub fn info(&self) -> TargetInfo {
        match self {
            Self::Classes(classes) => TargetInfo::Classes(classes.len()),
            Self::Numbers(numbers) => TargetInfo::Numbers(numbers.len()),
            Self::Module => TargetInfo::Module,
        }
    }

    /// Number of outputs that a model's last layer needs.
    #[must_use]
    pub fn outputs(&self) -> usize {
        self.info().outputs()
    }

    #[must_use]
    pub fn kind(&self) -> TargetKind {
        match self {
            Self::Classes(_) => TargetKind::Class,
            Self::Numbers(_) | Self::Module => TargetKind::Number,
        }
    }

    /// Returns the names of the classes; empty if numbers are to be predicted.
    #[must_use]
    pub fn classes(&self) -> &[String] {
        match self {
            Self::Classes(classes) => classes,
            Self::Numbers(_) | Self::Module => &[],
        }
    }

    /// The numbers to predict; empty if a class is to be predicted.
    #[must_use]
    pub fn numbers(&self) -> &[NumberTarget] {
        match self {
            Self::Classes(_) | Self::Module => &[],
            Self::Numbers(numbers) => numbers,
        }
    }

    /// True if means and deviations are valid; a damaged model file may say anything.
    pub(crate) fn is_sound(&self) -> bool {
        self.numbers()
            .iter()
            .all(|number| number.mean.is_finite() && number.deviation.is_finite() && number.deviation > 0.0)
    }

    /// Makes a target of numbers with these names, standardised by a scaling.
    pub(super) fn standardised(names: Vec<String>, scaling: &Scaling) -> Self {
        let Scaling::Standard { mean, deviation } = scaling else {
            return Self::Numbers(Vec::new());
        };
        let measures = mean.iter().zip(deviation);
        let numbers = names.into_iter().zip(measures);
        Self::Numbers(
            numbers
                .map(|(name, (&mean, &deviation))| NumberTarget { name, mean, deviation })
                .collect(),
        )
    }

    /// Returns the scaling that standardises target numbers, as the model learns them.
    pub(super) fn scaling(&self) -> Scaling {
        let of = |part: fn(&NumberTarget) -> f32| self.numbers().iter().map(part).collect();
        Scaling::Standard {
            mean: of(|number| number.mean),
            deviation: of(|number| number.deviation),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_from_what_they_were_standardised_by() {
        let rows = [[1.0f32, 7.0], [3.0, 7.0]];
        let scaling = Scaling::standard(2, &rows.iter().map(<[f32; 2]>::as_slice));
        let target = Target::standardised(vec!["a".into(), "b".into()], &scaling);
        assert_eq!(target.info(), TargetInfo::Numbers(2));
        assert_eq!(target.scaling(), scaling);
        let mut row = rows[1];
        scaling.apply(&mut row);
        let restored: Vec<f32> = target
            .numbers()
            .iter()
            .zip(row)
            .map(|(number, said)| number.restore(said))
            .collect();
        assert_eq!(restored, [3.0, 7.0]);
        assert!(target.is_sound() && target.classes().is_empty());
        let broken = NumberTarget {
            name: "a".into(),
            mean: 0.0,
            deviation: 0.0,
        };
        assert!(!Target::Numbers(vec![broken]).is_sound());
    }
}
