//! `tau predict`: writes a saved model's prediction of each sample.

use std::collections::BTreeMap;
use std::io::{BufWriter, ErrorKind, IsTerminal, Write};

use protocol::job::data::{Column, DataSpec};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use worker::dataset::{Dataset, Target};
use worker::evaluate::predict::{Prediction, probabilities};

use super::parsed;
use crate::args::Predict;
use crate::failure::Failure;
use crate::local::compute;
use crate::local::saved_model::SavedModel;
use crate::output::Audience;
use crate::progress::View;

pub(crate) fn run(arguments: &Predict) -> Result<(), Failure> {
    let threads = compute::threads(arguments.threads, 1)?;
    let spec: DataSpec = arguments.data.parse().map_err(Failure::bad)?;
    let source = arguments.model_source.as_deref();
    let mut saved = SavedModel::open(&arguments.model, source, arguments.python.as_deref(), threads)?;
    let metadata = saved.model.metadata.clone();
    let id: Option<Column> = parsed(arguments.id.as_deref())?;
    let inputs = Dataset::named_inputs(&spec, metadata.known(), id.as_ref()).map_err(Failure::bad)?;
    let target = &metadata.target;
    if *target == Target::Module {
        return Err(Failure::input(format!(
            "{} was trained on data of its own, and only its code knows what an output means: in Python, tau.load \
             gives the module",
            arguments.model.display()
        )));
    }
    if arguments.all && target.classes().is_empty() {
        return Err(Failure::input(
            "--all is for classes, but this model predicts numbers: leave it out",
        ));
    }
    let samples = &inputs.samples;
    let stdout = std::io::stdout().lock();
    // On a terminal the predictions themselves show the progress.
    let audience = if stdout.is_terminal() {
        Audience::Nobody
    } else {
        Audience::People
    };
    let view = View::new(samples.len() as u64, audience);
    let lines = PredictionWriter {
        target,
        all: arguments.all,
        rows: arguments.row,
        files: inputs.files.as_deref().filter(|_| arguments.row),
        ids: arguments.id.as_deref().zip(inputs.ids.as_deref()),
    };
    let mut writer = Writer::new(arguments.json, BufWriter::new(stdout));
    let (mut done, mut written) = (0, Ok(()));
    let predicted = saved.predict(samples, |row| {
        written = writer.write(&lines.line(done, row));
        done += 1;
        view.position(done as u64);
        written.is_ok()
    });
    view.clear();
    predicted?;
    match written.and_then(|()| writer.end()) {
        // The reader of a pipe has read enough, as 'head' does.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(|error| {
            Failure::Failed(format!(
                "the predictions could not be written to standard output: \
                                                                    {error}"
            ))
        }),
    }
}

/// Returns the I/O error within a CSV error. The library's own conversion loses its kind.
fn as_io(error: csv::Error) -> std::io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        other => std::io::Error::other(format!("{other:?}")),
    }
}

/// Makes the output line of each sample, with the columns that the flags ask for.
struct PredictionWriter<'a> {
    target: &'a Target,
    /// True if each line of predictions has the probabilities of all classes.
    all: bool,
    /// True if each line of predictions has the number of its sample.
    rows: bool,
    /// Path of each sample's file, if lines of predictions name the files.
    files: Option<&'a [String]>,
    /// Name of a data column and its cell for each sample, if lines of predictions repeat that column.
    ids: Option<(&'a str, &'a [String])>,
}

/// One line of predictions, as pairs of a column's name and its value.
type PredictionLine<'a> = Vec<(&'a str, Field<'a>)>;

enum Field<'a> {
    Text(&'a str),
    Count(usize),
    Probability(f64),
    /// Value in a line of predictions: a predicted number in the unit of the data.
    Number(f32),
    /// Value in a line of predictions: the classes with their probabilities, a nested object in JSON and one column per
    /// class in CSV.
    Probabilities(&'a [String], Vec<f64>),
}

impl<'a> PredictionWriter<'a> {
    /// Makes the line of predictions for the sample at position `at` (from 0), for which the model's outputs are `row`.
    fn line(&self, at: usize, row: &[f32]) -> PredictionLine<'a> {
        let mut line: PredictionLine<'a> = match self.target {
            Target::Classes(classes) => {
                let Prediction { class, probability } = Prediction::of(row);
                let class = Field::Text(&classes[class as usize]);
                vec![("class", class), ("probability", Field::Probability(probability))]
            }
            // Numbers are given in the unit and under the name that they have in the data.
            Target::Numbers(numbers) => {
                let restored = numbers.iter().zip(row);
                let restored = restored.map(|(number, &said)| (number.name.as_str(), number.restore(said)));
                restored.map(|(name, number)| (name, Field::Number(number))).collect()
            }
            // Only the module's code knows what its outputs mean, so this command has refused such a model.
            Target::Module => Vec::new(),
        };
        if self.rows {
            line.push(("row", Field::Count(at + 1)));
        }
        if let Some(files) = self.files {
            line.push(("file", Field::Text(&files[at])));
        }
        if let Some((name, cells)) = self.ids {
            line.push((name, Field::Text(&cells[at])));
        }
        if self.all {
            let each = Field::Probabilities(self.target.classes(), probabilities(row));
            line.push(("probabilities", each));
        }
        line
    }
}

/// Rounds a probability to few digits, but enough to tell it from 0 and from 1.
fn rounded(probability: f64) -> f64 {
    let to_the_end = probability.min(1.0 - probability).max(1e-13);
    let digits = (3.0 - to_the_end.log10()).ceil().clamp(7.0, 16.0);
    let unit = 10f64.powi(digits as i32);
    (probability * unit).round() / unit
}

/// Writes predictions to `W` as CSV with a header, or as one JSON object per line.
enum Writer<W: Write> {
    Csv {
        csv: Box<csv::Writer<W>>,
        /// True once the header of the CSV output is written.
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

    fn write(&mut self, line: &PredictionLine<'_>) -> std::io::Result<()> {
        match self {
            Self::Csv { csv, named } => {
                if !std::mem::replace(named, true) {
                    let names = line.iter().flat_map(|(name, field)| match field {
                        Field::Probabilities(classes, _) => classes.iter().map(String::as_str).collect(),
                        _ => vec![*name],
                    });
                    csv.write_record(names).map_err(as_io)?;
                }
                let cells = line.iter().flat_map(|(_, field)| match field {
                    Field::Text(text) => vec![(*text).to_owned()],
                    Field::Count(count) => vec![count.to_string()],
                    Field::Probability(one) => vec![format!("{:?}", rounded(*one))],
                    Field::Number(number) => vec![number.to_string()],
                    Field::Probabilities(_, each) => each.iter().map(|one| format!("{:?}", rounded(*one))).collect(),
                });
                csv.write_record(cells).map_err(as_io)
            }
            Self::Json(out) => {
                serde_json::to_writer(&mut *out, &Object(line))?;
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

/// Line of predictions that serialises as a JSON object with the fields in the order of the line.
struct Object<'a>(&'a PredictionLine<'a>);

impl Serialize for Object<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_map(Some(self.0.len()))?;
        for (name, field) in self.0 {
            match field {
                Field::Text(text) => object.serialize_entry(name, text)?,
                Field::Count(count) => object.serialize_entry(name, count)?,
                Field::Probability(one) => object.serialize_entry(name, &rounded(*one))?,
                Field::Number(number) => object.serialize_entry(name, number)?,
                Field::Probabilities(classes, each) => {
                    let each = each.iter().map(|one| rounded(*one));
                    let each: BTreeMap<_, _> = classes.iter().zip(each).collect();
                    object.serialize_entry(name, &each)?;
                }
            }
        }
        object.end()
    }
}

#[cfg(test)]
mod tests {
    use worker::dataset::NumberTarget;

    use super::*;

    /// A writer that fails like a pipe whose reader has closed it.
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
    fn what_is_asked_for_follows_what_is_always_told() {
        let target = Target::Classes(vec!["a".into(), "b,c".into()]);
        let names = ["x.png".to_owned(), "y.png".to_owned()];
        let lines = PredictionWriter {
            target: &target,
            all: true,
            rows: true,
            files: Some(&names),
            ids: Some(("name", &names)),
        };
        let written = |json: bool| {
            let mut bytes = Vec::new();
            let mut writer = Writer::new(json, &mut bytes);
            writer.write(&lines.line(0, &[0.0, 0.0])).unwrap();
            writer.write(&lines.line(1, &[-18.0, 0.0])).unwrap();
            writer.end().unwrap();
            String::from_utf8(bytes).unwrap()
        };
        assert_eq!(
            written(false),
            "class,probability,row,file,name,a,\"b,c\"\na,0.5,1,x.png,x.png,0.5,0.5\n\
             \"b,c\",0.99999998477,2,y.png,y.png,1.523e-8,0.99999998477\n"
        );
        assert_eq!(
            written(true).lines().next(),
            Some(
                "{\"class\":\"a\",\"probability\":0.5,\"row\":1,\"file\":\"x.png\",\"name\":\"x.png\",\
                 \"probabilities\":{\"a\":0.5,\"b,c\":0.5}}"
            )
        );
        assert_eq!(
            (rounded(1.0), rounded(0.0), rounded(0.123_456_78)),
            (1.0, 0.0, 0.123_456_8)
        );
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
            let lines = PredictionWriter {
                target,
                all: false,
                rows: false,
                files: None,
                ids: None,
            };
            // More lines than any buffer holds.
            let written = (0..100_000).try_for_each(|at| writer.write(&lines.line(at, &[0.5, 0.25])));
            assert_eq!(written.unwrap_err().kind(), ErrorKind::BrokenPipe);
        }
    }
}
