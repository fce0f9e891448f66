//! Reader of NPZ files: NumPy arrays of inputs and labels, for training and test samples.

mod array;
mod error;

use std::io::BufReader;
use std::path::Path;

use protocol::job::data::{ArrayOptions, TargetKind};
use protocol::job::model::Shape;
use zip::ZipArchive;

use array::{Array, Elements};
pub use error::NpzError;

use super::budget::Budget;
use super::csv::{self, Labels};
use super::error::list;
use super::samples::Values;
use super::{Answers, Dataset, DatasetError, Known, Samples, Scaling, Target, kind, parts, source};

/// Reads a dataset from the arrays of an NPZ file. If it has no separate test arrays, the seed splits the samples.
pub(super) fn open(
    file: &Path,
    options: ArrayOptions,
    seed: u64,
    known: Option<Known<'_>>,
) -> Result<Dataset, DatasetError> {
    let mut archive = Archive::open(file)?;
    let (mut x, y, trained) = if archive.has("x_train") {
        let (mut x, mut y) = (archive.array("x_train")?, archive.array("y_train")?);
        let trained = samples(&x);
        check_pair(file, &x, &y)?;
        let (x_test, y_test) = (archive.array("x_test")?, archive.array("y_test")?);
        check_pair(file, &x_test, &y_test)?;
        append(file, &mut x, x_test)?;
        append(file, &mut y, y_test)?;
        (x, y, Some(trained))
    } else {
        let (x, y) = (archive.array("x")?, archive.array("y")?);
        check_pair(file, &x, &y)?;
        (x, y, None)
    };
    let (train, test) = match trained {
        Some(trained) => (
            (0..trained as u32).collect(),
            (trained as u32..samples(&x) as u32).collect(),
        ),
        None => parts::by_seed(samples(&x), options.test_share(), seed),
    };
    let input = images(file, &mut x)?;
    let kind = known.map(|known| known.target.kind()).or(options.target);
    let (target, answers) = answers(&mut archive, &y, kind, known.map(|known| known.target), &train)?;
    let form = Form { file, input, known };
    let (values, scaling) = form.scaled(x.elements, &train)?;
    let part = |rows: &[u32]| {
        let mut chosen = Answers::default();
        answers.gather(rows, &mut chosen);
        Samples::new(input.elements(), parts::pick(&values, rows, input.elements()), chosen)
    };
    Dataset::new(input, None, Vec::new(), target, scaling, part(&train), part(&test))
}

/// Reads inputs for a model in their order: the test samples if there are any, else all samples.
pub(super) fn inputs(file: &Path, known: Known<'_>) -> Result<Samples, DatasetError> {
    let mut archive = Archive::open(file)?;
    let name = if archive.has("x_test") { "x_test" } else { "x" };
    let mut x = archive.array(name)?;
    let input = images(file, &mut x)?;
    let form = Form {
        file,
        input,
        known: Some(known),
    };
    let (values, _) = form.scaled(x.elements, &[])?;
    Ok(Samples::unlabelled(input.elements(), values))
}

/// An open NPZ file.
struct Archive<'a> {
    file: &'a Path,
    zip: ZipArchive<BufReader<std::fs::File>>,
    /// Memory that the file's arrays may still take.
    budget: Budget,
}

impl<'a> Archive<'a> {
    fn open(file: &'a Path) -> Result<Self, DatasetError> {
        let opened = source::open(file)?;
        let zip = ZipArchive::new(BufReader::new(opened)).map_err(|error| {
            let first = source::first_bytes(file);
            match kind::of(&first).filter(|kind| !kind.name.contains("NPZ")) {
                Some(found) => DatasetError::OtherKind {
                    file: file.to_owned(),
                    found: found.name,
                    expected: "an NPZ file",
                    instead: found.instead,
                },
                None => DatasetError::Npz(NpzError::NotNpz {
                    file: file.to_owned(),
                    why: error.to_string(),
                }),
            }
        })?;
        let budget = Budget::of_machine();
        Ok(Self { file, zip, budget })
    }

    fn has(&self, name: &str) -> bool {
        self.zip
            .file_names()
            .flatten()
            .any(|entry| entry == format!("{name}.npy"))
    }

    fn array(&mut self, name: &str) -> Result<Array, DatasetError> {
        if !self.has(name) {
            let names: Vec<String> = self
                .zip
                .file_names()
                .flatten()
                .map(|entry| entry.trim_end_matches(".npy").to_owned())
                .collect();
            return Err(DatasetError::Npz(NpzError::Missing {
                file: self.file.to_owned(),
                found: if names.is_empty() {
                    "no arrays".into()
                } else {
                    list(&names)
                },
            }));
        }
        let entry = self.zip.by_name(&format!("{name}.npy")).map_err(|error| {
            DatasetError::Npz(NpzError::NotNpz {
                file: self.file.to_owned(),
                why: error.to_string(),
            })
        })?;
        Array::read(self.file, name, entry, &mut self.budget)
    }
}

fn samples(array: &Array) -> usize {
    array.shape.first().copied().unwrap_or(0)
}

fn check_pair(file: &Path, x: &Array, y: &Array) -> Result<(), DatasetError> {
    let (inputs, labels) = (samples(x), samples(y));
    if inputs == labels && inputs > 0 && u32::try_from(inputs).is_ok() {
        return Ok(());
    }
    Err(DatasetError::Npz(NpzError::CountsDiffer {
        file: file.to_owned(),
        x: x.name.clone(),
        inputs,
        y: y.name.clone(),
        labels,
    }))
}

/// Appends the samples of one array (tests) to those of another (training).
fn append(file: &Path, to: &mut Array, from: Array) -> Result<(), DatasetError> {
    let differs = to.shape[1..] != from.shape[1..];
    match (&mut to.elements, from.elements) {
        (Elements::Bytes(all), Elements::Bytes(more)) if !differs => all.extend(more),
        (Elements::Floats(all), Elements::Floats(more)) if !differs => all.extend(more),
        _ => {
            return Err(DatasetError::Npz(NpzError::Array {
                file: file.to_owned(),
                name: from.name,
                why: format!(
                    "has another shape or type than the array {}: give both the same shape and type",
                    to.name
                ),
            }));
        }
    }
    to.shape[0] += from.shape[0];
    Ok(())
}

/// Returns the shape of a sample. Images whose channels come last are reordered to channels first.
fn images(file: &Path, x: &mut Array) -> Result<Shape, DatasetError> {
    let image = |channels, height, width| Shape::Image {
        channels,
        height,
        width,
    };
    let is_colour = |side: usize| side == 1 || side == 3;
    let shape = match x.shape[1..] {
        [] => Shape::Flat(1),
        [features] => Shape::Flat(features),
        [height, width] => image(1, height, width),
        [height, width, channels] if is_colour(channels) && !is_colour(height) => {
            let pixels = height * width;
            match &mut x.elements {
                Elements::Bytes(all) => channels_first(all, pixels, channels),
                Elements::Floats(all) => channels_first(all, pixels, channels),
            }
            image(channels, height, width)
        }
        [channels, height, width] => image(channels, height, width),
        _ => Shape::Flat(0),
    };
    if shape.elements() > 0 {
        return Ok(shape);
    }
    Err(DatasetError::Npz(NpzError::Array {
        file: file.to_owned(),
        name: x.name.clone(),
        why: format!(
            "has the shape {:?}: give samples × features, samples × height × width, or samples × channels × height × \
             width",
            x.shape
        ),
    }))
}

fn channels_first<T: Copy>(all: &mut [T], pixels: usize, channels: usize) {
    let mut ordered = Vec::with_capacity(pixels * channels);
    for sample in all.chunks_exact_mut(pixels * channels) {
        ordered.clear();
        for channel in 0..channels {
            ordered.extend(sample.iter().skip(channel).step_by(channels).copied());
        }
        sample.copy_from_slice(&ordered);
    }
}

/// Makes the target (classes or numbers) and the expected outputs of all samples from an array of labels, by the same
/// rules as for tables.
fn answers(
    Archive { file, budget, .. }: &mut Archive<'_>,
    y: &Array,
    kind: Option<TargetKind>,
    known: Option<&Target>,
    train: &[u32],
) -> Result<(Target, Answers), DatasetError> {
    let width = y.shape[1..].iter().product::<usize>();
    if width == 0 || y.shape.len() > 2 {
        return Err(DatasetError::Npz(NpzError::Array {
            file: file.to_owned(),
            name: y.name.clone(),
            why: format!(
                "has the shape {:?}: give one label, or a row of numbers, for each sample",
                y.shape
            ),
        }));
    }
    let names: Vec<String> = match width {
        1 => vec!["y".to_owned()],
        _ => (0..width).map(|place| format!("y{place}")).collect(),
    };
    let mut labels = Labels::new(width, kind);
    for row in 0..samples(y) {
        for (place, name) in names.iter().enumerate() {
            let before = labels.bytes();
            labels.push(file, name, &y.elements.text(row * width + place), row as u64 + 1)?;
            budget.take(labels.bytes() - before, file, || "too many labels".into())?;
        }
    }
    Ok(csv::answers(file, labels.decide(file)?, names, known, train)?)
}

/// Facts that decide how an NPZ file's inputs are converted to stored values: their shape and, if they are for a
/// trained model, that model's facts.
struct Form<'a> {
    file: &'a Path,
    input: Shape,
    known: Option<Known<'a>>,
}

impl Form<'_> {
    /// Converts inputs to the values that are stored, and returns them with their scaling to model inputs: bytes stay
    /// as they are, numbers are standardised by the training samples or the model's scaling.
    fn scaled(&self, elements: Elements, train: &[u32]) -> Result<(Values, Scaling), DatasetError> {
        let width = self.input.elements();
        let scaling = match (&elements, self.known) {
            (Elements::Bytes(_), None) => Scaling::Unit,
            (Elements::Floats(all), None) => {
                let rows = train.iter().map(|&row| &all[row as usize * width..][..width]);
                Scaling::standard(width, &rows)
            }
            (elements, Some(known)) => {
                let fits = matches!(elements, Elements::Bytes(_)) == (*known.scaling == Scaling::Unit);
                if !fits || self.input != known.input {
                    let named = |is_unit| if is_unit { "bytes" } else { "numbers" };
                    return Err(DatasetError::OtherInputs {
                        file: self.file.to_owned(),
                        found: format!("{} of {}", named(matches!(elements, Elements::Bytes(_))), self.input),
                        expected: format!("{} of {}", named(*known.scaling == Scaling::Unit), known.input),
                    });
                }
                known.scaling.clone()
            }
        };
        Ok(match elements {
            Elements::Bytes(bytes) => (Values::Bytes(bytes), scaling),
            Elements::Floats(mut floats) => {
                floats.chunks_exact_mut(width).for_each(|row| scaling.apply(row));
                if floats.iter().any(|value| !value.is_finite()) {
                    let file = self.file.to_owned();
                    return Err(csv::CsvError::BeyondMeasure { file }.into());
                }
                (Values::Floats(floats), scaling)
            }
        })
    }
}

#[cfg(test)]
mod tests;
