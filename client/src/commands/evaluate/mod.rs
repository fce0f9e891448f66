//! `tau evaluate`: measures a saved model on samples that it was not trained on.

pub(crate) mod confusion;
mod of_module;

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::path::Path;

use protocol::job::data::{DataSpec, names_test_part};
use protocol::job::loss::ClassWeights;
use protocol::stats::base_rate::BaseRate;
use protocol::stats::named::NamedNumbers;
use ratatui::crossterm::terminal;
use serde::Serialize;
use worker::dataset::{Dataset, Target};
use worker::evaluate::predict::Prediction;
use worker::model_file;

use super::evaluate::confusion::Confusion;
use super::parsed;
use crate::args::Evaluate;
use crate::failure::Failure;
use crate::local::compute;
use crate::local::saved_model::SavedModel;
use crate::output::{self, Audience, notice, quantity};
use crate::progress::View;
use crate::run::ending::how_good;

#[derive(Serialize)]
struct Evaluated<'a> {
    event: &'static str,
    accuracy: Option<f64>,
    /// Accuracy of always guessing the most frequent class of these samples.
    base_rate: Option<f64>,
    /// R², the explained share of the variance, of a model that predicts numbers; `mae` is its mean absolute error.
    /// Both are none for classes.
    #[serde(skip_serializing_if = "Option::is_none")]
    r2: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mae: Option<f64>,
    loss: f64,
    /// Further numbers that the model's own code has measured.
    #[serde(skip_serializing_if = "NamedNumbers::is_empty")]
    named: &'a NamedNumbers,
    /// Mean recall of all classes; `macro_f1` is their mean F1. Both are none for predicted numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    balanced_accuracy: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    macro_f1: Option<f64>,
    samples: usize,
    /// Number of samples in the evaluated data, training samples included.
    samples_in_data: usize,
    digest: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    confusion: Option<Confusion>,
}

/// The samples of a dataset that a model is measured on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EvaluatedSamples {
    /// The model is measured on the test samples of the dataset only.
    Test,
    /// The model is measured on all samples of the dataset, because it was trained on other data.
    NewFile,
}

impl EvaluatedSamples {
    /// Chooses the samples that a model is measured on: all samples if the data names another file than the training
    /// data and no test part, else the test samples.
    fn of(text: Option<&str>, given: Option<&DataSpec>, trained: &DataSpec) -> Self {
        let paths = given.and_then(DataSpec::path).zip(trained.path());
        let is_same = match paths {
            Some((given, trained)) => is_same_file(given, trained),
            None => given.is_none_or(|given| given == trained),
        };
        if is_same || text.is_none_or(names_test_part) {
            Self::Test
        } else {
            Self::NewFile
        }
    }

    /// Describes the measured samples, for example `200 test samples of 1000 (the test part)`.
    fn text(self, dataset: &Dataset) -> String {
        let (test, train) = (dataset.test.len(), dataset.train.len());
        let samples = quantity::of(test, "test sample");
        match self {
            _ if train > 0 => format!("{samples} of {} (the test part)", test + train),
            Self::NewFile => format!("{samples} (all: the model was not trained on this data)"),
            Self::Test => samples,
        }
    }
}

/// Returns true if both paths lead to the same file. If either file does not exist, their names are compared.
fn is_same_file(given: &Path, trained: &Path) -> bool {
    match (given.canonicalize(), trained.canonicalize()) {
        (Ok(given), Ok(trained)) => given == trained,
        _ => given.file_name() == trained.file_name(),
    }
}

pub(crate) fn run(arguments: &Evaluate) -> Result<(), Failure> {
    let source = arguments.model_source.as_deref();
    if let Some(source) = source {
        let model = model_file::load(&arguments.model).map_err(Failure::bad)?;
        if model.metadata.target == Target::Module {
            return of_module::run(arguments, source, &model);
        }
    }
    let threads = compute::threads(arguments.threads, 1)?;
    let given: Option<DataSpec> = parsed(arguments.data.as_deref())?;
    let mut saved = SavedModel::open(&arguments.model, source, arguments.python.as_deref(), threads)?;
    let (job, metadata) = (saved.model.job.clone(), saved.model.metadata.clone());
    if arguments.confusion && metadata.target.classes().is_empty() {
        return Err(Failure::input(
            "--confusion is for classes, but this model predicts numbers: leave it out",
        ));
    }
    let part = EvaluatedSamples::of(arguments.data.as_deref(), given.as_ref(), &job.data);
    let spec = match (given, part) {
        (None, _) => job.data.clone(),
        (Some(given), EvaluatedSamples::NewFile) => given.for_testing(),
        (Some(given), EvaluatedSamples::Test) => given,
    };
    let dataset = Dataset::open_for(&spec, job.seed, None, metadata.known()).map_err(Failure::bad)?;
    if dataset.input != metadata.input {
        return Err(Failure::input(format!(
            "{} takes samples of shape {}, but {spec} has samples of shape {}: give data like the model's training \
             data",
            arguments.model.display(),
            metadata.input,
            dataset.input
        )));
    }
    let view = View::new(dataset.test.len() as u64, Audience::of(arguments.json));
    let evaluation = saved.evaluate(&dataset.test, |so_far| {
        view.position(so_far.samples as u64);
        true
    })?;
    let confusion = match dataset.target {
        Target::Classes(_) => Some(confusion(&mut saved, &dataset)?),
        Target::Numbers(_) | Target::Module => None,
    };
    view.clear();
    let scores = evaluation.scores();
    let info = dataset.info();
    let base = BaseRate::of(info.test, info.most_frequent);
    let warning = match &confusion {
        // Class weights give up accuracy for that of rare classes, so the balanced accuracy is judged instead.
        Some(confusion) if job.class_weights != ClassWeights::Equal => confusion.warning(),
        _ => base.and_then(|base| base.warning(evaluation.accuracy?)),
    };
    if arguments.json {
        output::line(&Evaluated {
            event: "evaluated",
            accuracy: evaluation.accuracy,
            base_rate: base.map(|base| base.rate),
            r2: evaluation.mae.and(evaluation.accuracy),
            mae: evaluation.mae,
            loss: evaluation.loss,
            named: &evaluation.named,
            balanced_accuracy: confusion.as_ref().map(|one| one.balanced_accuracy),
            macro_f1: confusion.as_ref().map(|one| one.macro_f1),
            samples: evaluation.samples,
            samples_in_data: dataset.train.len() + dataset.test.len(),
            digest: &metadata.digest,
            confusion: confusion.filter(|_| arguments.confusion),
        });
    } else {
        let mut text = format!(
            "{} on {}; digest {}\n",
            how_good(&scores, base.map(|base| base.rate), quantity::accuracy),
            part.text(&dataset),
            metadata.digest
        );
        if let Some(confusion) = &confusion {
            let balanced = quantity::accuracy(confusion.balanced_accuracy);
            let _ = writeln!(text, "balanced accuracy {balanced}, macro F1 {:.4}", confusion.macro_f1);
        }
        if let Some(confusion) = confusion.filter(|_| arguments.confusion) {
            text = format!("{text}\n{}", confusion.text(room()));
        }
        output::text(&text);
    }
    if let Some(warning) = warning.or_else(|| scores.warning()) {
        notice::say(&format!("warning: {warning}"));
    }
    Ok(())
}

/// Returns the number of columns for the output: the width of the terminal, or no limit if standard output is no
/// terminal.
fn room() -> usize {
    let is_shown = std::io::stdout().is_terminal();
    let size = terminal::size().ok().filter(|_| is_shown);
    size.map_or(usize::MAX, |(columns, _)| columns.into())
}

/// Predicts all test samples, and counts their true and predicted classes.
fn confusion(saved: &mut SavedModel, dataset: &Dataset) -> Result<Confusion, Failure> {
    let mut predicted = Vec::with_capacity(dataset.test.len());
    saved.predict(&dataset.test, |row| {
        predicted.push(Prediction::of(row).class);
        true
    })?;
    let pairs = dataset.test.labels().iter().copied().zip(predicted);
    Ok(Confusion::of(dataset.target.classes(), pairs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_not_trained_on_is_measured_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        for name in ["train.csv", "new.csv"] {
            std::fs::write(path(name), "1,2\n").unwrap();
        }
        let part = |given: &str, trained: &str| {
            let spec: DataSpec = given.parse().unwrap();
            EvaluatedSamples::of(Some(given), Some(&spec), &trained.parse().unwrap())
        };
        let (train, new) = (format!("csv:{}", path("train.csv")), format!("csv:{}", path("new.csv")));
        let round_about = train.replace("train.csv", "./train.csv");
        assert_eq!(part(&train, &train), EvaluatedSamples::Test);
        assert_eq!(part(&round_about, &train), EvaluatedSamples::Test);
        assert_eq!(part(&new, &train), EvaluatedSamples::NewFile);
        // The file that served as the test file in training was not trained on.
        let with_test_file = format!("{train}?testfile={}", path("new.csv"));
        assert_eq!(part(&new, &with_test_file), EvaluatedSamples::NewFile);
        // A test part that the user names is measured.
        assert_eq!(part(&format!("{new}?test=0.2"), &train), EvaluatedSamples::Test);
        // The training file has moved, or was on another machine.
        assert_eq!(part(&train, "csv:gone/train.csv"), EvaluatedSamples::Test);
        assert_eq!(part(&new, "csv:gone/train.csv"), EvaluatedSamples::NewFile);
        assert_eq!(part(&new, "builtin:mnist"), EvaluatedSamples::NewFile);
        assert_eq!(part("builtin:mnist", "builtin:mnist"), EvaluatedSamples::Test);
        assert_eq!(
            EvaluatedSamples::of(None, None, &train.parse().unwrap()),
            EvaluatedSamples::Test
        );
    }
}
