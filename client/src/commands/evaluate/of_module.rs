//! Measuring a model that is a module (a network that is Python code), by an interpreter that runs the code.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use protocol::stats::measured::Scores;
use protocol::stats::named::NamedNumbers;
use serde::Deserialize;
use worker::model_file::Model;

use super::Evaluated;
use crate::args::Evaluate;
use crate::failure::Failure;
use crate::local::interpreter;
use crate::output::{self, Audience, quantity};
use crate::progress::View;
use crate::run::ending::how_good;

/// Measurements of a module, as the interpreter prints them.
#[derive(Deserialize)]
struct Measured {
    /// Means of the test samples by their names, with `loss` among them; none for what is not finite.
    means: BTreeMap<String, Option<f64>>,
    samples: usize,
    samples_in_data: usize,
}

/// Measures a module on the test samples of its own data. `source` is the file of its code, which the user names: no file
/// decides what is run.
pub(super) fn run(arguments: &Evaluate, source: &Path, model: &Model) -> Result<(), Failure> {
    if arguments.data.is_some() || arguments.confusion {
        return Err(Failure::input(format!(
            "{} is measured on data of its own, by its own code: leave --data and --confusion out",
            arguments.model.display()
        )));
    }
    let python = interpreter::find(arguments.python.as_deref())?;
    let view = View::new(0, Audience::of(arguments.json));
    view.busy("measuring the model");
    let said = Command::new(&python)
        .args(["-I", "-m", "tau.evaluate"])
        .args([&arguments.model, source])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output();
    view.clear();
    let said = said.map_err(Failure::work)?;
    if !said.status.success() {
        return Err(Failure::Failed(format!(
            "{} could not be measured: its code failed",
            source.display()
        )));
    }
    let Measured {
        mut means,
        samples,
        samples_in_data,
    } = serde_json::from_slice(&said.stdout).map_err(Failure::work)?;
    let mut take = |name: &str| means.remove(name).map(|mean| mean.unwrap_or(f64::NAN));
    let (accuracy, loss) = (take("accuracy"), take("loss"));
    let others = means.into_iter().map(|(name, mean)| (name, mean.unwrap_or(f64::NAN)));
    let scores = Scores {
        accuracy,
        loss: loss.unwrap_or(f64::NAN),
        mae: None,
        named: NamedNumbers::new(others).map_err(Failure::bad)?,
    };
    let digest = &model.metadata.digest;
    if arguments.json {
        output::line(&Evaluated {
            event: "evaluated",
            accuracy,
            base_rate: None,
            r2: None,
            mae: None,
            loss: scores.loss,
            named: &scores.named,
            balanced_accuracy: None,
            macro_f1: None,
            samples,
            samples_in_data,
            digest,
            confusion: None,
        });
    } else {
        let good = how_good(&scores, None, quantity::accuracy);
        let samples = quantity::of(samples, "test sample");
        output::text(&format!(
            "{good} on {samples} of {samples_in_data} (the test part); digest {digest}\n"
        ));
    }
    Ok(())
}
