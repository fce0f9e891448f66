//! `tau evaluate`: how good a saved model is on a dataset's held-out samples.

use protocol::data::DataSpec;
use serde::Serialize;
use worker::dataset::Dataset;
use worker::evaluate::evaluate;
use worker::model_file;

use crate::args::Evaluate;
use crate::commands;
use crate::failure::Failure;
use crate::output::{self, Audience};
use crate::view::View;

#[derive(Serialize)]
struct Evaluated {
    event: &'static str,
    accuracy: f64,
    loss: f64,
    samples: usize,
    digest: String,
}

pub(crate) fn run(arguments: &Evaluate) -> Result<(), Failure> {
    let threads = commands::threads(arguments.threads, 1)?;
    let spec: DataSpec = arguments.data.parse().map_err(Failure::bad)?;
    let model = model_file::load(&arguments.model).map_err(Failure::bad)?;
    let metadata = &model.metadata;
    let dataset =
        Dataset::open_for(&spec, model.job.seed, None, &metadata.scaling, &metadata.classes).map_err(Failure::bad)?;
    if dataset.input != metadata.input {
        return Err(Failure::input(format!(
            "{} takes samples of {}, but {spec} has samples of {}: give the data it was trained for",
            arguments.model.display(),
            metadata.input,
            dataset.input
        )));
    }
    let view = View::new(dataset.test.len() as u64, Audience::of(arguments.json));
    let evaluation = evaluate(&model.layout, model.weights, &dataset.test, threads, |so_far| {
        view.position(so_far.samples as u64);
        true
    })
    .map_err(Failure::work)?;
    view.clear();
    if arguments.json {
        output::line(&Evaluated {
            event: "evaluated",
            accuracy: evaluation.accuracy,
            loss: evaluation.loss,
            samples: evaluation.samples,
            digest: metadata.digest.clone(),
        });
    } else {
        eprintln!(
            "accuracy {:.4}, loss {:.4} on {} test samples; digest {}",
            evaluation.accuracy, evaluation.loss, evaluation.samples, metadata.digest
        );
    }
    Ok(())
}
