//! `tau predict`: what a saved model says of samples.

use std::io::{BufWriter, ErrorKind, IsTerminal, Write};

use protocol::data::DataSpec;
use serde::Serialize;
use worker::dataset::{Dataset, NumberTarget, Target};
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
    let (target, outputs) = (&model.metadata.target, model.layout.outputs());
    let predicted = predict(
        &model.layout,
        model.weights,
        model.statistics,
        &samples,
        threads,
        |some| {
            let mut rows = some.chunks_exact(outputs);
            done += rows.len();
            view.position(done as u64);
            written = rows.try_for_each(|row| writer.write(row, target));
            written.is_ok()
        },
    );
    view.clear();
    predicted.map_err(Failure::work)?;
    match written.and_then(|()| writer.end()) {
        // Whoever reads has seen enough, as 'head' does.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(|error| Failure::Failed(format!("the answers could not be written: {error}"))),
    }
}

/// What was wrong with writing, as it was: the library's own way from one to the other forgets the kind.
fn as_io(error: csv::Error) -> std::io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        other => std::io::Error::other(format!("{other:?}")),
    }
}

/// Where answers go: as CSV with a header, or as one JSON object per line.
enum Writer<W: Write> {
    Csv {
        csv: Box<csv::Writer<W>>,
        /// Whether the header of numbers is written.
        named: bool,
    },
    Json(W),
}

impl<W: Write> Writer<W> {
    fn new(json: bool, out: W) -> Self {
        if json {
            Self::Json(out)
        } else {
            Self::Csv {
                csv: Box::new(csv::Writer::from_writer(out)),
                named: false,
            }
        }
    }

    /// Writes what a row of outputs says of the target.
    fn write(&mut self, row: &[f32], target: &Target) -> std::io::Result<()> {
        match target {
            Target::Classes(classes) => {
                let Prediction { class, probability } = Prediction::of(row);
                let class = &classes[class as usize];
                self.write_one(&Answer { class, probability })
            }
            Target::Numbers(numbers) => self.write_numbers(numbers, row),
        }
    }

    fn write_one(&mut self, answer: &Answer<'_>) -> std::io::Result<()> {
        match self {
            Self::Csv { csv, .. } => csv.serialize(answer).map_err(as_io),
            Self::Json(out) => {
                serde_json::to_writer(&mut *out, answer)?;
                out.write_all(b"\n")
            }
        }
    }

    /// Numbers in their own units, under their own names.
    fn write_numbers(&mut self, numbers: &[NumberTarget], row: &[f32]) -> std::io::Result<()> {
        let restored = numbers.iter().zip(row).map(|(number, &said)| number.restore(said));
        match self {
            Self::Csv { csv, named } => {
                if !std::mem::replace(named, true) {
                    let names = numbers.iter().map(|number| &number.name);
                    csv.write_record(names).map_err(as_io)?;
                }
                csv.write_record(restored.map(|number| number.to_string()))
                    .map_err(as_io)
            }
            Self::Json(out) => {
                let named = numbers.iter().map(|number| number.name.clone()).zip(restored);
                let object: serde_json::Map<_, _> = named.map(|(name, number)| (name, number.into())).collect();
                serde_json::to_writer(&mut *out, &object)?;
                out.write_all(b"\n")
            }
        }
    }

    fn end(mut self) -> std::io::Result<()> {
        match &mut self {
            Self::Csv { csv, .. } => csv.flush(),
            Self::Json(out) => out.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever read has gone away.
    struct Gone;

    impl Write for Gone {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_has_seen_enough_is_told_from_a_full_disk() {
        let targets = [
            Target::Classes(vec!["a".into(), "b".into()]),
            Target::Numbers(vec![NumberTarget {
                name: "price".into(),
                mean: 0.0,
                deviation: 1.0,
            }]),
        ];
        for (target, json) in targets.iter().flat_map(|target| [(target, false), (target, true)]) {
            let mut writer = Writer::new(json, Gone);
            // More than any buffer holds.
            let written = (0..100_000).try_for_each(|_| writer.write(&[0.5, 0.25], target));
            assert_eq!(written.unwrap_err().kind(), ErrorKind::BrokenPipe);
        }
    }
}
