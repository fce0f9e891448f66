//! `tau predict`: what a saved model says of samples.

use std::io::{BufWriter, ErrorKind, IsTerminal, Write};

use protocol::data::DataSpec;
use serde::Serialize;
use worker::dataset::Dataset;
use worker::model_file;
use worker::predict::{Prediction, predict};

use crate::args::Predict;
use crate::commands;
use crate::failure::Failure;
use crate::output::Audience;
use crate::view::View;

/// A line of the answer.
#[derive(Serialize)]
struct Answer<'a> {
    class: &'a str,
    probability: f32,
}

pub(crate) fn run(arguments: &Predict) -> Result<(), Failure> {
    let threads = commands::threads(arguments.threads, 1)?;
    let spec: DataSpec = arguments.data.parse().map_err(Failure::bad)?;
    let model = model_file::load(&arguments.model).map_err(Failure::bad)?;
    let samples = Dataset::inputs(&spec, model.metadata.known()).map_err(Failure::bad)?;
    let stdout = std::io::stdout().lock();
    // On a terminal the answers themselves are the progress.
    let audience = if stdout.is_terminal() {
        Audience::Nobody
    } else {
        Audience::People
    };
    let view = View::new(samples.len() as u64, audience);
    let mut writer = Writer::new(arguments.json, BufWriter::new(stdout));
    let (mut done, mut written) = (0, Ok(()));
    let classes = &model.metadata.classes;
    let predicted = predict(&model.layout, model.weights, &samples, threads, |some| {
        done += some.len();
        view.position(done as u64);
        written = some.iter().try_for_each(|one| writer.write(&answer(*one, classes)));
        written.is_ok()
    });
    view.clear();
    predicted.map_err(Failure::work)?;
    match written.and_then(|()| writer.end()) {
        // Whoever reads has seen enough, as 'head' does.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(|error| Failure::Failed(format!("the answers could not be written: {error}"))),
    }
}

fn answer(prediction: Prediction, classes: &[String]) -> Answer<'_> {
    Answer {
        class: &classes[prediction.class as usize],
        probability: prediction.probability,
    }
}

/// Where answers go: as CSV with a header, or as one JSON object per line.
enum Writer<W: Write> {
    Csv(Box<csv::Writer<W>>),
    Json(W),
}

impl<W: Write> Writer<W> {
    fn new(json: bool, out: W) -> Self {
        if json {
            Self::Json(out)
        } else {
            Self::Csv(Box::new(csv::Writer::from_writer(out)))
        }
    }

    fn write(&mut self, answer: &Answer<'_>) -> std::io::Result<()> {
        match self {
            Self::Csv(csv) => csv.serialize(answer).map_err(std::io::Error::from),
            Self::Json(out) => {
                serde_json::to_writer(&mut *out, answer)?;
                out.write_all(b"\n")
            }
        }
    }

    fn end(mut self) -> std::io::Result<()> {
        match &mut self {
            Self::Csv(csv) => csv.flush(),
            Self::Json(out) => out.flush(),
        }
    }
}
