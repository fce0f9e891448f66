//! `tau show`: prints the contents of a model file, and the result of the run that made it.

use std::fmt::Write as _;
use std::path::Path;

use protocol::job::JobDraft;
use protocol::stats::measured::{Scores, number_or_null};
use protocol::stats::named::NamedNumbers;
use serde::{Deserialize, Serialize};
use worker::model_file::{self, Model};

use crate::args::Show;
use crate::failure::Failure;
use crate::output::{self, printable, quantity};
use crate::run::ending::how_good;
use crate::run::folder::RESULT;

/// Maximum number of names of classes, columns or nodes that are printed; a longer list is cut and its length given.
const NAMES_MAX: usize = 20;

/// The contents of a model file, as `tau show` prints them.
#[derive(Serialize)]
struct ModelSummary<'a> {
    event: &'static str,
    layers: Vec<ShownLayer>,
    weights: usize,
    input: String,
    classes: &'a [String],
    /// Names of the numbers that the model predicts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    numbers: Vec<String>,
    columns: Option<&'a [String]>,
    digest: &'a str,
    job: &'a JobDraft,
    /// Result of the run that trained the model, if it lies in the model's folder.
    result: Option<RunResult>,
}

#[derive(Serialize)]
struct ShownLayer {
    layer: String,
    input: String,
    output: String,
    weights: usize,
}

/// The fields of a run's result file that `tau show` prints.
#[derive(Debug, Serialize, Deserialize)]
struct RunResult {
    digest: String,
    #[serde(default)]
    accuracy: Option<f64>,
    #[serde(default)]
    base_rate: Option<f64>,
    #[serde(default)]
    mae: Option<f64>,
    #[serde(deserialize_with = "number_or_null")]
    loss: f64,
    #[serde(default, skip_serializing_if = "NamedNumbers::is_empty")]
    named: NamedNumbers,
    seconds: f64,
    samples: u64,
    participants: Vec<String>,
    replicas_agree: bool,
    #[serde(default)]
    run: String,
    #[serde(default)]
    ended: String,
}

pub(crate) fn run(arguments: &Show) -> Result<(), Failure> {
    let model = model_file::load(&arguments.model).map_err(Failure::bad)?;
    let metadata = &model.metadata;
    let shown = ModelSummary {
        event: "model",
        layers: layers(&model),
        weights: model.layout.weights,
        input: metadata.input.to_string(),
        classes: metadata.target.classes(),
        numbers: metadata
            .target
            .numbers()
            .iter()
            .map(|number| number.name.clone())
            .collect(),
        columns: metadata.columns.as_ref().map(|columns| columns.features.as_slice()),
        digest: &metadata.digest,
        job: &metadata.job,
        result: result_beside(&arguments.model, &metadata.digest),
    };
    if arguments.json {
        output::line(&shown);
    } else {
        output::text(&text(&shown)?);
    }
    Ok(())
}

/// Returns the layers of a model or, if they are code, its tensors.
fn layers(model: &Model) -> Vec<ShownLayer> {
    if model.job.model.module().is_some() {
        let tensors = model.layout.tensors.iter();
        let shown = tensors.map(|tensor| ShownLayer {
            layer: tensor.key.clone(),
            input: String::new(),
            output: tensor.size(),
            weights: tensor.elements(),
        });
        return shown.collect();
    }
    let layers = model.layout.layers.iter();
    let shown = layers.map(|placed| ShownLayer {
        layer: placed.layer.to_string(),
        input: placed.input.to_string(),
        output: placed.output.to_string(),
        weights: placed.weights(),
    });
    shown.collect()
}

/// Returns the run's result that lies in the model's folder, if it belongs to these weights: a result with another
/// digest is not shown.
fn result_beside(model: &Path, digest: &str) -> Option<RunResult> {
    let text = std::fs::read_to_string(model.with_file_name(RESULT)).ok()?;
    let result: RunResult = serde_json::from_str(&text).ok()?;
    (result.digest == digest).then_some(result)
}

fn text(shown: &ModelSummary<'_>) -> Result<String, Failure> {
    let mut text = format!(
        "{:>3}  {:24}  {:>12}  {:>12}  {:>10}\n",
        "", "layer", "input", "output", "weights"
    );
    for (number, layer) in shown.layers.iter().enumerate() {
        let _ = writeln!(
            text,
            "{number:>3}  {:24}  {:>12}  {:>12}  {:>10}",
            layer.layer, layer.input, layer.output, layer.weights
        );
    }
    let _ = writeln!(text, "\nweights   {}", shown.weights);
    let _ = match &shown.numbers[..] {
        [] => writeln!(text, "classes   {}", named(shown.classes)),
        numbers => writeln!(text, "numbers   {}", named(numbers)),
    };
    if let Some(columns) = shown.columns {
        let _ = writeln!(text, "columns   {}", named(columns));
    }
    let _ = writeln!(text, "digest    {}", shown.digest);
    match &shown.result {
        Some(result) => {
            let scores = Scores {
                accuracy: result.accuracy,
                loss: result.loss,
                mae: result.mae,
                named: result.named.clone(),
            };
            let good = how_good(&scores, result.base_rate, quantity::accuracy);
            let (word, rest) = good.split_once(' ').unwrap_or((&good, ""));
            let _ = writeln!(text, "{word:<9} {rest} on test samples");
            let agree = if result.replicas_agree {
                ""
            } else {
                ", whose replicas DISAGREE"
            };
            let _ = writeln!(
                text,
                "trained   {} samples in {:.1} s by {}{agree}",
                result.samples,
                result.seconds,
                named(&result.participants)
            );
            if !result.run.is_empty() {
                let _ = writeln!(text, "run       {}, ended {}", result.run, result.ended);
            }
        }
        None => {
            let _ = writeln!(
                text,
                "accuracy  unknown: the model's folder has no {RESULT} for it ('tau evaluate' measures the accuracy)"
            );
        }
    }
    let job = shown.job.to_toml().map_err(Failure::work)?;
    let _ = write!(text, "\njob\n{job}");
    Ok(text)
}

fn named(names: &[String]) -> String {
    let some = names[..names.len().min(NAMES_MAX)].join(", ");
    let some = printable::line(&some);
    match names.len() {
        count if count > NAMES_MAX => format!("{count}: {some}, …"),
        count => format!("{count}: {some}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_whose_loss_is_no_number_is_shown() {
        let folder = tempfile::tempdir().unwrap();
        let result = r#"{"digest": "00ff", "accuracy": 0.5, "loss": null, "seconds": 1.5, "samples": 10,
            "participants": ["a"], "replicas_agree": true}"#;
        std::fs::write(folder.path().join(RESULT), result).unwrap();
        let shown = result_beside(&folder.path().join("model.safetensors"), "00ff").unwrap();
        assert!(shown.accuracy == Some(0.5) && shown.loss.is_nan());
        for accuracy in ["", "\"accuracy\": null, "] {
            let result = result.replace("\"accuracy\": 0.5, ", accuracy);
            std::fs::write(folder.path().join(RESULT), result).unwrap();
            let shown = result_beside(&folder.path().join("model.safetensors"), "00ff").unwrap();
            assert_eq!(shown.accuracy, None);
        }
    }
}
