//! `tau evaluate`: how good a saved model is on a dataset's held-out samples.

use protocol::data::DataSpec;
use serde::Serialize;
use worker::dataset::Dataset;
use worker::evaluate::evaluate;
use worker::model_file::{self, Model};
use worker::ops::Threads;
use worker::predict::predict;

use crate::args::Evaluate;
use crate::commands;
use crate::confusion::Confusion;
use crate::failure::Failure;
use crate::output::{self, Audience};
use crate::view::View;

#[derive(Serialize)]
struct Evaluated<'a> {
    event: &'static str,
    accuracy: f64,
    loss: f64,
    samples: usize,
    digest: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    confusion: Option<Confusion>,
}

pub(crate) fn run(arguments: &Evaluate) -> Result<(), Failure> {
    let threads = commands::threads(arguments.threads, 1)?;
    let spec: DataSpec = arguments.data.parse().map_err(Failure::bad)?;
    let model = model_file::load(&arguments.model).map_err(Failure::bad)?;
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
    let evaluation = evaluate(&model.layout, model.weights.clone(), &dataset.test, threads, |so_far| {
        view.position(so_far.samples as u64);
        true
    })
    .map_err(Failure::work)?;
    let confusion = if arguments.confusion {
        Some(confusion(&model, &dataset, threads)?)
    } else {
        None
    };
    view.clear();
    if arguments.json {
        output::line(&Evaluated {
            event: "evaluated",
            accuracy: evaluation.accuracy,
            loss: evaluation.loss,
            samples: evaluation.samples,
            digest: &metadata.digest,
            confusion,
        });
    } else {
        let mut text = format!(
            "accuracy {:.4}, loss {:.4} on {} test samples; digest {}\n",
            evaluation.accuracy, evaluation.loss, evaluation.samples, metadata.digest
        );
        if let Some(confusion) = confusion {
            text = format!("{text}\n{}", confusion.text());
        }
        output::text(&text);
    }
    Ok(())
}

/// What the held-out samples are, and what the model takes them for.
fn confusion(model: &Model, dataset: &Dataset, threads: Threads) -> Result<Confusion, Failure> {
    let mut predicted = Vec::with_capacity(dataset.test.len());
    predict(&model.layout, model.weights.clone(), &dataset.test, threads, |some| {
        predicted.extend(some.iter().map(|one| one.class));
        true
    })
    .map_err(Failure::work)?;
    let pairs = dataset.test.labels().iter().copied().zip(predicted);
    Ok(Confusion::of(&dataset.classes, pairs))
}
