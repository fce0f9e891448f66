//! Measurements of a run besides its result: the quality of its weights over time, and the resources it used on its
//! machines.

use serde::ser::SerializeStruct;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::named::NamedNumbers;

/// Quality of a model on evaluation samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// Share of correct predictions; R², the explained share of the variance, if the model predicts numbers. None for a
    /// model that has no accuracy, such as a language model.
    pub accuracy: Option<f64>,
    /// Mean loss per evaluation sample.
    pub loss: f64,
    /// Mean absolute error of predicted numbers in their own unit; none for classes.
    pub mae: Option<f64>,
    /// Further numbers that the user's code has measured, such as a perplexity.
    pub named: NamedNumbers,
}

impl Scores {
    /// Returns a warning for people if a model that predicts numbers has learned nothing.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        let has_learned_nothing = self.accuracy.is_some_and(|r2| r2 <= 0.0);
        (self.mae.is_some() && has_learned_nothing).then(|| {
            "the model is no better than always guessing the mean (R² is not above 0): lower the learning rate \
             (--optimiser), train for more --epochs, or check that the numbers can be predicted from the inputs"
                .into()
        })
    }
}

/// Progress of a run at the moment when an evaluation was requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Moment {
    /// Number of samples that all nodes together had trained when the evaluation was requested.
    pub samples: u64,
    /// Seconds from the run's first step to the request for the evaluation.
    pub seconds: f64,
}

/// Deserialises a number. JSON cannot express NaN or infinity and has `null` instead, which is read as NaN.
pub fn number_or_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    if deserializer.is_human_readable() {
        Option::deserialize(deserializer).map(|number| number.unwrap_or(f64::NAN))
    } else {
        f64::deserialize(deserializer)
    }
}

/// Quality of a run's weights on evaluation samples, with the moment of the run at which they were measured.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Evaluation {
    /// Samples that all nodes had trained when the evaluation was requested.
    pub samples: u64,
    /// Seconds from the run's first step to the request for the evaluation.
    pub seconds: f64,
    /// Share of correct predictions; R² if the model predicts numbers; none for a model without an accuracy.
    pub accuracy: Option<f64>,
    /// Mean loss per evaluation sample.
    #[serde(deserialize_with = "number_or_null")]
    pub loss: f64,
    /// Mean absolute error of predicted numbers; none for classes.
    #[serde(default)]
    pub mae: Option<f64>,
    /// Further numbers that the user's code has measured. JSON leaves the field out if there are none.
    #[serde(default)]
    pub named: NamedNumbers,
}

impl Serialize for Evaluation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self {
            samples,
            seconds,
            accuracy,
            loss,
            mae,
            named,
        } = self;
        // The wire format has no field names, so no field may be left out there.
        let is_left_out = named.is_empty() && serializer.is_human_readable();
        let mut fields = serializer.serialize_struct("Evaluation", 6 - usize::from(is_left_out))?;
        fields.serialize_field("samples", samples)?;
        fields.serialize_field("seconds", seconds)?;
        fields.serialize_field("accuracy", accuracy)?;
        fields.serialize_field("loss", loss)?;
        fields.serialize_field("mae", mae)?;
        if is_left_out {
            fields.skip_field("named")?;
        } else {
            fields.serialize_field("named", named)?;
        }
        fields.end()
    }
}

impl Evaluation {
    /// Combines a moment of a run with the scores that the weights of that moment reached.
    #[must_use]
    pub fn of(moment: Moment, scores: Scores) -> Self {
        Self {
            samples: moment.samples,
            seconds: moment.seconds,
            accuracy: scores.accuracy,
            loss: scores.loss,
            mae: scores.mae,
            named: scores.named,
        }
    }

    /// Returns the scores of the evaluation without its moment.
    #[must_use]
    pub fn scores(&self) -> Scores {
        Scores {
            accuracy: self.accuracy,
            loss: self.loss,
            mae: self.mae,
            named: self.named.clone(),
        }
    }
}

/// The evaluations of a run, in order. If there are too many, or their named numbers take too much space, the one whose
/// two neighbours are closest together in time is removed, so that the whole course stays visible.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Course(Vec<Evaluation>);

impl Course {
    /// Maximum number of evaluations that a course keeps; beyond it, evaluations are thinned out.
    pub const MAX: usize = 256;
    /// Maximum number of bytes that the named numbers of a course take: nodes send a course within one message.
    pub const NAMED_BYTES_MAX: usize = 16 << 10;

    /// Merges the evaluations of several nodes into one course, ordered by time.
    #[must_use]
    pub fn of_all<'a>(courses: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut all: Vec<Evaluation> = courses.into_iter().flat_map(|course| course.0.clone()).collect();
        all.sort_by(|one, other| one.seconds.total_cmp(&other.seconds));
        let mut course = Self::default();
        for evaluation in all {
            course.add(evaluation);
        }
        course
    }

    /// Appends an evaluation, and removes some if there are too many.
    pub fn add(&mut self, evaluation: Evaluation) {
        let named = evaluation.named.bytes();
        while self.0.len() == Self::MAX || self.named_bytes() + named > Self::NAMED_BYTES_MAX {
            let between = |at: &usize| self.0[at + 1].seconds - self.0[at - 1].seconds;
            let nearest = (1..self.0.len() - 1).min_by(|one, other| between(one).total_cmp(&between(other)));
            self.0.remove(nearest.unwrap_or(1));
        }
        self.0.push(evaluation);
    }

    /// Returns the number of bytes that the named numbers of all evaluations take in a message.
    pub(crate) fn named_bytes(&self) -> usize {
        self.0.iter().map(|evaluation| evaluation.named.bytes()).sum()
    }

    #[must_use]
    pub fn evaluations(&self) -> &[Evaluation] {
        &self.0
    }
}

/// Resources of its machine that one process of a node has used.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessUsage {
    /// Name of the process: `node`, or `worker` with the worker's number.
    pub process: String,
    /// Seconds of processor time that the process has used since the run began on its node.
    pub cpu_seconds: f64,
    /// Peak memory in bytes since the process started.
    pub memory_peak_bytes: u64,
    /// Bytes that the process has read from disks since the run began on its node; data in the system's cache does not
    /// count.
    pub disk_read_bytes: u64,
    /// Bytes that the process has written to disks since the run began on its node.
    pub disk_write_bytes: u64,
}

/// Resources of its machine that a node has used since the run began on the node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeUsage {
    /// Name of the node.
    pub node: String,
    /// Bytes received over all of the node's sockets since the run began on the node, including encryption, control
    /// messages and handshakes.
    pub wire_in: u64,
    /// Bytes sent over all of the node's sockets since the run began on the node, including encryption, control
    /// messages and handshakes.
    pub wire_out: u64,
    /// Usage of the node's processes: the node's own first, then its workers.
    pub processes: Vec<ProcessUsage>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u32) -> Evaluation {
        Evaluation {
            seconds: f64::from(seconds),
            ..Evaluation::default()
        }
    }

    #[test]
    fn what_is_no_number_comes_back_from_json() {
        let diverged = Evaluation {
            loss: f64::NAN,
            ..at(3)
        };
        let text = serde_json::to_string(&diverged).unwrap();
        let back: Evaluation = serde_json::from_str(&text).unwrap();
        assert!(back.loss.is_nan() && back.seconds == 3.0, "{text}");
        let bytes = postcard::to_stdvec(&at(3)).unwrap();
        assert_eq!(postcard::from_bytes::<Evaluation>(&bytes).unwrap(), at(3));
    }

    #[test]
    fn an_accuracy_may_be_a_number_null_or_absent() {
        let read = |accuracy: &str| {
            let text = format!("{{\"samples\": 5, \"seconds\": 1.5{accuracy}, \"loss\": 0.25}}");
            let evaluation: Evaluation = serde_json::from_str(&text).unwrap();
            assert_eq!((evaluation.samples, evaluation.loss), (5, 0.25));
            evaluation.accuracy
        };
        assert_eq!(read(", \"accuracy\": 0.9"), Some(0.9));
        assert_eq!((read(", \"accuracy\": null"), read("")), (None, None));
        let without = serde_json::to_value(at(3)).unwrap();
        assert_eq!(
            without.get("accuracy"),
            Some(&serde_json::Value::Null),
            "the field stays"
        );
        let with = Evaluation {
            accuracy: Some(0.5),
            ..at(3)
        };
        for evaluation in [at(3), with] {
            let bytes = postcard::to_stdvec(&evaluation).unwrap();
            assert_eq!(postcard::from_bytes::<Evaluation>(&bytes).unwrap(), evaluation);
        }
    }

    #[test]
    fn named_numbers_are_left_out_of_json_where_there_are_none() {
        let json = serde_json::to_value(at(3)).unwrap();
        assert!(json.get("named").is_none());
        let named = NamedNumbers::new([("perplexity", 7.5)]).unwrap();
        let with = Evaluation { named, ..at(3) };
        let text = serde_json::to_string(&with).unwrap();
        assert!(text.contains(r#""named":{"perplexity":7.5}"#), "{text}");
        let bytes = postcard::to_stdvec(&with).unwrap();
        assert_eq!(postcard::from_bytes::<Evaluation>(&bytes).unwrap(), with);
        let back: Evaluation = serde_json::from_str(&text.replace("null", "0.5")).unwrap();
        assert_eq!(back.named, with.named);
    }

    #[test]
    fn only_numbers_that_are_no_better_than_their_mean_are_warned_of() {
        let warns = |accuracy, mae| {
            let loss = 0.5;
            let scores = Scores {
                accuracy,
                loss,
                mae,
                named: NamedNumbers::default(),
            };
            scores.warning().is_some()
        };
        assert!(warns(Some(0.0), Some(3.0)));
        assert!(!warns(Some(0.5), Some(3.0)) && !warns(Some(0.0), None) && !warns(None, None));
    }

    #[test]
    fn a_long_course_keeps_its_ends_and_is_bounded() {
        let mut course = Course::default();
        for seconds in 0..10_000 {
            course.add(at(seconds));
            assert!(course.evaluations().len() <= Course::MAX);
        }
        assert_eq!(course.evaluations().last(), Some(&at(9_999)));
        assert_eq!(course.evaluations()[0], at(0));
        let gaps = course.evaluations().windows(2);
        let widest = gaps.map(|two| two[1].seconds - two[0].seconds).fold(0.0, f64::max);
        assert!(widest <= 128.0, "{widest}");
    }

    #[test]
    fn the_named_numbers_of_a_course_are_bounded() {
        let long = (0..NamedNumbers::MAX).map(|number| (format!("{number:064}"), 0.5));
        let long = NamedNumbers::new(long).unwrap();
        let short = NamedNumbers::new([("perplexity", 7.5), ("bleu", 0.5)]).unwrap();
        for (named, kept) in [(long, 14), (short, Course::MAX)] {
            let mut course = Course::default();
            for seconds in 0..1000 {
                let named = named.clone();
                course.add(Evaluation { named, ..at(seconds) });
            }
            assert!(course.named_bytes() <= Course::NAMED_BYTES_MAX);
            let ends = (course.0[0].seconds, course.0[course.0.len() - 1].seconds);
            assert_eq!((course.0.len(), ends), (kept, (0.0, 999.0)));
        }
    }

    #[test]
    fn courses_of_several_nodes_are_one_in_time() {
        let (mut one, mut other) = (Course::default(), Course::default());
        one.add(at(1));
        one.add(at(5));
        other.add(at(3));
        let all = Course::of_all([&one, &other]);
        assert_eq!(all.evaluations(), [at(1), at(3), at(5)]);
    }
}
