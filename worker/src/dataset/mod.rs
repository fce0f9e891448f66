//! The samples of a run: reads them from a source, and checks, splits and scales them.
//!
//! Every source yields a [`Dataset`]: two sets of [`Samples`] from which minibatches are gathered, and a
//! [`ContentHash`] by which the nodes of a cluster check that they all hold the same data.

mod answers;
mod budget;
mod builtin;
mod cifar;
mod csv;
mod error;
mod fake;
mod floats;
mod hash;
mod idx;
mod images;
mod kind;
mod npz;
mod parts;
mod progress;
mod root;
mod samples;
mod scaling;
mod scratch;
mod source;
mod target;
#[cfg(test)]
mod test_support;

use std::path::Path;

use csv::{Form, Source};
use protocol::job::data::{Column, DataInfo, DataSpec, TestSplit};
use protocol::job::model::Shape;
use protocol::stats::base_rate;

pub use answers::Answers;
pub(crate) use csv::width;
pub use csv::{ColumnNames, CsvError, Encoding};
pub use error::DatasetError;
pub use hash::ContentHash;
pub use idx::IdxError;
pub use npz::NpzError;
pub use progress::{Progress, Watcher};
pub use samples::Samples;
#[cfg(feature = "cuda")]
pub(crate) use samples::Values;
pub use scaling::Scaling;
pub use target::{NumberTarget, Target};

/// Training and test samples with everything that a run needs to know about them.
#[derive(Clone, Debug)]
pub struct Dataset {
    pub input: Shape,
    /// The class or the numbers to predict.
    pub target: Target,
    /// Names of the table's columns, if the file has them.
    pub columns: Option<ColumnNames>,
    /// Conversion of each table column to model inputs; empty if each column is one number, used as it is.
    pub encodings: Vec<Encoding>,
    /// Scaling from stored values to the model's inputs.
    pub scaling: Scaling,
    pub train: Samples,
    pub test: Samples,
    /// Hash of the dataset's contents, by which nodes compare their data.
    pub hash: ContentHash,
    /// Sentences about assumptions that were made about the data, for users who may know better.
    pub remarks: Vec<String>,
}

/// Samples for a model to predict, with names that identify them.
#[derive(Clone, Debug)]
pub struct Inputs {
    pub samples: Samples,
    /// File of each sample, for folders of images.
    pub files: Option<Vec<String>>,
    /// Cell of the requested identifier column for each sample.
    pub ids: Option<Vec<String>>,
}

/// Facts about data that a trained model fixes: other data for the model must match them.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    pub input: Shape,
    /// The class or the numbers that the model predicts.
    pub target: &'a Target,
    /// Names of the table columns that the model was trained on, if they had names.
    pub columns: Option<&'a ColumnNames>,
    /// Conversion of each table column to model inputs; empty if each column is one number, used as it is.
    pub encodings: &'a [Encoding],
    /// Scaling from stored values to the model's inputs.
    pub scaling: &'a Scaling,
}

/// Returns the path to open for a file that a job names besides its data, under the same rules: below the data root.
pub(crate) fn resolve_file(path: &Path, root: Option<&Path>) -> Result<std::path::PathBuf, DatasetError> {
    root::resolve(path, root)
}

/// Opens a file that a job names besides its data, under the same rules: below the data root, and only regular files.
pub(crate) fn open_file(path: &Path, root: Option<&Path>) -> Result<std::fs::File, DatasetError> {
    source::open(&root::resolve(path, root)?)
}

impl Dataset {
    /// Reads data to train on.
    ///
    /// `seed` decides which rows of a table become test rows. With a `data_root`, relative paths start there and
    /// nothing outside of it is read. Without one, any path is allowed: only for a user's own process and files, not
    /// for jobs that may come from elsewhere.
    pub fn open(spec: &DataSpec, seed: u64, data_root: Option<&Path>) -> Result<Self, DatasetError> {
        Self::open_watched(spec, seed, data_root, &|_| {})
    }

    /// Reads data to train on like [`Dataset::open`], and reports progress to `watcher`.
    pub fn open_watched(
        spec: &DataSpec,
        seed: u64,
        data_root: Option<&Path>,
        watcher: Watcher<'_>,
    ) -> Result<Self, DatasetError> {
        let dataset = Self::load(spec, seed, data_root, None, watcher)?;
        if dataset.train.is_empty() {
            return Err(DatasetError::NothingToTrainOn {
                data: spec.to_string(),
                samples: dataset.test.len(),
            });
        }
        if let [only] = dataset.target.classes() {
            return Err(DatasetError::OneClass {
                data: spec.to_string(),
                class: only.clone(),
            });
        }
        Ok(dataset)
    }

    /// Makes the dataset of samples that only a module can read. `classes` are those of the training samples, which
    /// come first in the module's data; `test` samples follow. `hash` is the one that the module's code has computed.
    #[must_use]
    pub fn of_module(classes: Vec<u32>, test: usize, hash: [u8; 32]) -> Self {
        let first = classes.len() as u32;
        Self {
            input: Shape::Flat(1),
            target: Target::Module,
            columns: None,
            encodings: Vec::new(),
            scaling: Scaling::Unit,
            train: Samples::of_module(0, classes),
            test: Samples::of_module(first, vec![0; test]),
            hash: hash.into(),
            remarks: Vec::new(),
        }
    }

    /// Reads data to measure a trained model on, with the scaling and the target of that model.
    ///
    /// A label outside of the model's classes is an error. The training part may be empty.
    pub fn open_for(
        spec: &DataSpec,
        seed: u64,
        data_root: Option<&Path>,
        known: Known<'_>,
    ) -> Result<Self, DatasetError> {
        Self::load(spec, seed, data_root, Some(known), &|_| {})
    }

    /// Reads samples for a trained model in the order of their file; labels are not needed. If the data has a test
    /// part, only that is read. `idx:` may also name a single file of images.
    pub fn inputs(spec: &DataSpec, known: Known<'_>) -> Result<Samples, DatasetError> {
        match spec {
            DataSpec::BuiltinMnist => Ok(builtin::open(Some(known))?.test),
            DataSpec::Module => Err(DatasetError::OfModule),
            DataSpec::Idx { directory } => idx::inputs(directory, known),
            DataSpec::Csv { file, table, .. } | DataSpec::Parquet { file, table } => {
                csv::inputs(Source::new(file, Form::of(spec), &|_| {}), table, known)
            }
            DataSpec::Npz { file, .. } => npz::inputs(file, known),
            DataSpec::Cifar { directory } => Ok(cifar::open(directory, None, Some(known))?.test),
            DataSpec::Images { directory, images } => Ok(images::inputs(directory, *images, known)?.0),
        }
    }

    /// Reads samples like [`Dataset::inputs`], with the file names of images and, if `id` names a column of a table,
    /// the cells of that column.
    pub fn named_inputs(spec: &DataSpec, known: Known<'_>, id: Option<&Column>) -> Result<Inputs, DatasetError> {
        let ids = match (spec, id) {
            (_, None) => None,
            (DataSpec::Csv { file, table, .. } | DataSpec::Parquet { file, table }, Some(id)) => {
                let source = Source::new(file, Form::of(spec), &|_| {});
                Some(csv::column(source, table, known, id)?)
            }
            (_, Some(id)) => {
                return Err(DatasetError::NoColumns {
                    data: spec.to_string(),
                    column: id.to_string(),
                });
            }
        };
        let (samples, files) = match spec {
            DataSpec::Images { directory, images } => {
                let (samples, files) = images::inputs(directory, *images, known)?;
                (samples, Some(files))
            }
            _ => (Self::inputs(spec, known)?, None),
        };
        Ok(Inputs { samples, files, ids })
    }

    /// Returns the facts that a model trained on this data fixes, for reading other data in the same way.
    #[must_use]
    pub fn known(&self) -> Known<'_> {
        Known {
            input: self.input,
            target: &self.target,
            columns: self.columns.as_ref(),
            encodings: &self.encodings,
            scaling: &self.scaling,
        }
    }

    /// Returns the facts by which the nodes of a cluster compare their data.
    #[must_use]
    pub fn info(&self) -> DataInfo {
        DataInfo {
            hash: *self.hash.as_bytes(),
            input: self.input,
            target: self.target.info(),
            train: self.train.len() as u64,
            test: self.test.len() as u64,
            validation: 0,
            most_frequent: match self.target {
                // The classes of these test samples are unknown.
                Target::Module => 0,
                _ => base_rate::most_frequent(self.test.labels()),
            },
            code: None,
        }
    }

    fn load(
        spec: &DataSpec,
        seed: u64,
        data_root: Option<&Path>,
        known: Option<Known<'_>>,
        watcher: Watcher<'_>,
    ) -> Result<Self, DatasetError> {
        match spec {
            DataSpec::BuiltinMnist => builtin::open(known),
            DataSpec::Module => Err(DatasetError::OfModule),
            DataSpec::Idx { directory } => idx::open(directory, data_root, known),
            DataSpec::Csv { file, table, .. } | DataSpec::Parquet { file, table } => {
                let file = root::resolve(file, data_root)?;
                let test_file = match &table.test_split {
                    TestSplit::File(test) => Some(root::resolve(test, data_root)?),
                    TestSplit::Share(_) => None,
                };
                let source = Source::new(&file, Form::of(spec), watcher);
                csv::open(source, test_file.as_deref(), table, seed, known).map_err(|error| match error {
                    DatasetError::Csv(error) => error.with_cure(spec).into(),
                    other => other,
                })
            }
            DataSpec::Npz { file, arrays } => npz::open(&root::resolve(file, data_root)?, *arrays, seed, known),
            DataSpec::Cifar { directory } => cifar::open(directory, data_root, known),
            DataSpec::Images { directory, images } => {
                let place = images::ImageSource {
                    directory,
                    data_root,
                    watcher,
                };
                images::open(place, *images, seed, known)
            }
        }
    }

    /// Makes a dataset of its parts and computes its hash.
    fn new(
        input: Shape,
        columns: Option<ColumnNames>,
        encodings: Vec<Encoding>,
        target: Target,
        scaling: Scaling,
        train: Samples,
        test: Samples,
    ) -> Result<Self, DatasetError> {
        let hash = ContentHash::of(input, columns.as_ref(), &encodings, &target, [&train, &test])?;
        Ok(Self {
            input,
            target,
            columns,
            encodings,
            scaling,
            train,
            test,
            hash,
            remarks: Vec::new(),
        })
    }

    /// Sets a share of the training samples aside for validation. Returns the dataset to train on, whose test samples
    /// are the validation rows, and the dataset with the real test samples. If the share is 0, one dataset serves both.
    pub fn with_validation(self, share: f64, seed: u64) -> Result<(Self, Option<Self>), DatasetError> {
        if share <= 0.0 {
            return Ok((self, None));
        }
        let (train, validation) = parts::for_validation(self.train.len(), share, seed);
        if train.is_empty() {
            return Err(DatasetError::NothingToValidateOn {
                samples: self.train.len(),
            });
        }
        let (train, validation) = (self.train.part(&train)?, self.train.part(&validation)?);
        let tested = Self {
            train: self.train.part(&[])?,
            ..self
        };
        let trained = Self {
            input: tested.input,
            target: tested.target.clone(),
            columns: tested.columns.clone(),
            encodings: tested.encodings.clone(),
            scaling: tested.scaling.clone(),
            train,
            test: validation,
            hash: tested.hash,
            remarks: tested.remarks.clone(),
        };
        Ok((trained, Some(tested)))
    }

    /// Returns the dataset with these test samples in place of its own.
    fn with_test(self, test: Samples) -> Result<Self, DatasetError> {
        let dataset = Self::new(
            self.input,
            self.columns,
            self.encodings,
            self.target,
            self.scaling,
            self.train,
            test,
        )?;
        Ok(Self {
            remarks: self.remarks,
            ..dataset
        })
    }
}
