//! The samples of a run: where they are read from, checked, split and scaled.
//!
//! Whatever the source, a [`Dataset`] ends up as two sets of [`Samples`] ready for gathering into minibatches, and a
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

/// Everything a run needs to know about its data, held in memory.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// The shape of one sample.
    pub input: Shape,
    /// What is to be predicted.
    pub target: Target,
    /// The names of the columns, where the file has them.
    pub columns: Option<ColumnNames>,
    /// How columns became inputs, one for each; none where each is a number of its own.
    pub encodings: Vec<Encoding>,
    /// How the stored values were turned into the model's inputs.
    pub scaling: Scaling,
    /// The samples to learn from.
    pub train: Samples,
    /// The samples kept for measuring.
    pub test: Samples,
    /// What this data is, in 32 bytes.
    pub hash: ContentHash,
    /// What was found out about it without being told, a sentence each, for who may know better.
    pub remarks: Vec<String>,
}

/// Samples for a model to predict, and what tells one from another.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// The samples, in the order of their file.
    pub samples: Samples,
    /// The file of each sample, for folders of images.
    pub files: Option<Vec<String>>,
    /// The cells of the column that was asked for, one for each sample.
    pub ids: Option<Vec<String>>,
}

/// What a trained model already fixes about its data.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// The shape of one sample.
    pub input: Shape,
    /// What it predicts.
    pub target: &'a Target,
    /// The names of the columns that it was trained on, if they had any.
    pub columns: Option<&'a ColumnNames>,
    /// How columns become inputs, one for each; none where each is a number of its own.
    pub encodings: &'a [Encoding],
    /// How values are turned into its inputs.
    pub scaling: &'a Scaling,
}

/// Opens another file that a job names, as data is opened: under the same folder, and nothing but regular files.
pub(crate) fn open_file(path: &Path, root: Option<&Path>) -> Result<std::fs::File, DatasetError> {
    source::open(&root::resolve(path, root)?)
}

impl Dataset {
    /// Reads data to train on.
    ///
    /// `seed` decides which rows of a CSV file are kept for testing. With a `data_root`, relative paths start there
    /// and nothing outside of it is read. Without one, any path is taken as it is: for a user's own process and files, not
    /// for jobs that may come from elsewhere.
    pub fn open(spec: &DataSpec, seed: u64, data_root: Option<&Path>) -> Result<Self, DatasetError> {
        Self::open_watched(spec, seed, data_root, &|_| {})
    }

    /// Reads data to train on as [`Dataset::open`] does, and tells how far it is.
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

    /// Reads data to measure a trained model on, with the scaling and the target of that model.
    ///
    /// A label that is not among its classes is an error. The training part may be empty.
    pub fn open_for(
        spec: &DataSpec,
        seed: u64,
        data_root: Option<&Path>,
        known: Known<'_>,
    ) -> Result<Self, DatasetError> {
        Self::load(spec, seed, data_root, Some(known), &|_| {})
    }

    /// Reads samples for a trained model in the order of their file, whether they have labels or not. Of data with a part
    /// for testing it is that part; `idx:` may also name one file of images.
    pub fn inputs(spec: &DataSpec, known: Known<'_>) -> Result<Samples, DatasetError> {
        match spec {
            DataSpec::BuiltinMnist => Ok(builtin::open(Some(known))?.test),
            DataSpec::Idx { directory } => idx::inputs(directory, known),
            DataSpec::Csv { file, table, .. } | DataSpec::Parquet { file, table } => {
                csv::inputs(Source::new(file, Form::of(spec), &|_| {}), table, known)
            }
            DataSpec::Npz { file, .. } => npz::inputs(file, known),
            DataSpec::Cifar { directory } => Ok(cifar::open(directory, None, Some(known))?.test),
            DataSpec::Images { directory, images } => Ok(images::inputs(directory, *images, known)?.0),
        }
    }

    /// Reads samples as [`Dataset::inputs`] does, with the files of images, and the cells of a column of a table if one is
    /// named.
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

    /// What a model that is trained on this data fixes about its data.
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

    /// What others compare with theirs.
    #[must_use]
    pub fn info(&self) -> DataInfo {
        DataInfo {
            hash: *self.hash.as_bytes(),
            input: self.input,
            target: self.target.info(),
            train: self.train.len() as u64,
            test: self.test.len() as u64,
            validation: 0,
            most_frequent: base_rate::most_frequent(self.test.labels()),
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

    /// Puts the parts together and names the whole.
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

    /// Sets a share of the training samples aside for validation: the dataset to train on, which measures on them, and the one
    /// that the result is measured on. Without a share, one dataset is for both.
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

    /// The same with other samples to test on.
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
