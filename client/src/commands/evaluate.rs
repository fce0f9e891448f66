//! `tau evaluate`: how good a saved model is on a dataset's held-out samples.

use protocol::base_rate::BaseRate;
use protocol::data::DataSpec;
use protocol::measured::Scores;
use serde::Serialize;
use worker::dataset::Dataset;
use worker::evaluate::evaluate;
use worker::model_file::{self, Model};
use worker::objective::Objective;
use worker::ops::Threads;
use worker::predict::{Prediction, predict};

use crate::args::Evaluate;
use crate::commands;
use crate::confusion::Confusion;
use crate::failure::Failure;
use crate::notice;
use crate::output::{self, Audience};
use crate::report::how_good;
use crate::view::View;

#[derive(Serialize)]
struct Evaluated<'a> {
    event: &'static str,
    accuracy: f64,
    /// The accuracy of always guessing the most frequent class of these samples.
    base_rate: Option<f64>,
    /// How much of the numbers' variance is explained, where numbers are predicted, and how far they are off.
    #[serde(skip_serializing_if = "Option::is_none")]
    r2: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mae: Option<f64>,
    loss: f64,
    samples: usize,
    digest: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    confusion: Option<Confusion>,
}

pub(crate) fn run(arguments: &Evaluate) -> Result<(), Failure> {
    let threads = commands::threads(arguments.threads, 1)?;
    let given: Option<DataSpec> = arguments
        .data
        .as_deref()
        .map(str::parse)
        .transpose()
        .map_err(Failure::bad)?;
    let model = model_file::load(&arguments.model).map_err(Failure::bad)?;
    let spec = given.unwrap_or_else(|| model.job.data.clone());
    let metadata = &model.metadata;
    let dataset = Dataset::open_for(&spec, model.job.seed, None, metadata.known()).map_err(Failure::bad)?;
    if dataset.input != metadata.input {
        return Err(Failure::input(format!(
            "{} takes samples of {}, but {spec} has samples of {}: give the data it was trained for",
            arguments.model.display(),
            metadata.input,
            dataset.input
        )));
    }
    let view = View::new(dataset.test.len() as u64, Audience::of(arguments.json));
    let evaluation = evaluate(
        &model.layout,
        model.weights.clone(),
        model.statistics.clone(),
        &dataset.test,
        &Objective::to_judge(&model.job, &metadata.target),
        threads,
        |so_far| {
            view.position(so_far.samples as u64);
            true
        },
    )
    .map_err(Failure::work)?;
    if arguments.confusion && dataset.target.classes().is_empty() {
        return Err(Failure::input(
            "--confusion is for classes, but this model predicts numbers: leave it out",
        ));
    }
    let confusion = if arguments.confusion {
        Some(confusion(&model, &dataset, threads)?)
    } else {
        None
    };
    view.clear();
    let scores = Scores {
        accuracy: evaluation.accuracy,
        loss: evaluation.loss,
        mae: evaluation.mae,
    };
    let info = dataset.info();
    let base = BaseRate::of(info.test, info.most_frequent);
    if arguments.json {
        output::line(&Evaluated {
            event: "evaluated",
            accuracy: evaluation.accuracy,
            base_rate: base.map(|base| base.rate),
            r2: evaluation.mae.map(|_| evaluation.accuracy),
            mae: evaluation.mae,
            loss: evaluation.loss,
            samples: evaluation.samples,
            digest: &metadata.digest,
            confusion,
        });
    } else {
        let mut text = format!(
            "{} on {} test samples; digest {}\n",
            how_good(scores, base.map(|base| base.rate), |share| format!("{share:.4}")),
            evaluation.samples,
            metadata.digest
        );
        if let Some(confusion) = confusion {
            text = format!("{text}\n{}", confusion.text());
        }
        output::text(&text);
    }
    let of_classes = base.and_then(|base| base.warning(evaluation.accuracy));
    if let Some(warning) = of_classes.or_else(|| scores.warning()) {
        notice::say(&format!("warning: {warning}"));
    }
    Ok(())
}

/// What the held-out samples are, and what the model takes them for.
fn confusion(model: &Model, dataset: &Dataset, threads: Threads) -> Result<Confusion, Failure> {
    let mut predicted = Vec::with_capacity(dataset.test.len());
    predict(
        &model.layout,
        model.weights.clone(),
        model.statistics.clone(),
        &dataset.test,
        threads,
        |some| {
            predicted.extend(
                some.chunks_exact(model.layout.outputs())
                    .map(|row| Prediction::of(row).class),
            );
            true
        },
    )
    .map_err(Failure::work)?;
    let pairs = dataset.test.labels().iter().copied().zip(predicted);
    Ok(Confusion::of(dataset.target.classes(), pairs))
}
