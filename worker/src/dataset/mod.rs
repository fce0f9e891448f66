//! The samples of a run: where they are read from, checked, split and scaled.
//!
//! Whatever the source, a [`Dataset`] ends up as two sets of [`Samples`] ready for gathering into minibatches, and a
//! [`ContentHash`] by which the nodes of a cluster check that they all hold the same data.

mod builtin;
mod csv;
mod error;
mod hash;
mod idx;
mod root;
mod samples;
mod scaling;
mod source;

use std::path::Path;

use protocol::data::DataSpec;
use protocol::model::Shape;

pub use csv::{ColumnNames, CsvError};
pub use error::DatasetError;
pub use hash::ContentHash;
pub use idx::IdxError;
pub use samples::Samples;
#[cfg(feature = "cuda")]
pub(crate) use samples::Values;
pub use scaling::Scaling;

/// Everything a run needs to know about its data, held in memory.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// The shape of one sample.
    pub input: Shape,
    /// The name of each class, in the order of the label numbers.
    pub classes: Vec<String>,
    /// The names of the columns, where the file has them.
    pub columns: Option<ColumnNames>,
    /// How the stored values were turned into the model's inputs.
    pub scaling: Scaling,
    /// The samples to learn from.
    pub train: Samples,
    /// The samples kept for measuring.
    pub test: Samples,
    /// What this data is, in 32 bytes.
    pub hash: ContentHash,
}

/// What a trained model already fixes about its data.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// The shape of one sample.
    pub input: Shape,
    /// The name of each class.
    pub classes: &'a [String],
    /// The names of the columns that it was trained on, if they had any.
    pub columns: Option<&'a ColumnNames>,
    /// How values are turned into its inputs.
    pub scaling: &'a Scaling,
}

impl Dataset {
    /// Reads data to train on.
    ///
    /// `seed` decides which rows of a CSV file are kept for testing. With a `data_root`, relative paths start there
    /// and nothing outside of it is read. Without one, any path is taken as it is: for a user's own process and files, not
    /// for jobs that may come from elsewhere.
    pub fn open(spec: &DataSpec, seed: u64, data_root: Option<&Path>) -> Result<Self, DatasetError> {
        let dataset = Self::load(spec, seed, data_root, None)?;
        if dataset.train.is_empty() {
            return Err(DatasetError::NothingToTrainOn {
                data: spec.to_string(),
                samples: dataset.test.len(),
            });
        }
        if let [only] = dataset.classes.as_slice() {
            return Err(DatasetError::OneClass {
                data: spec.to_string(),
                class: only.clone(),
            });
        }
        Ok(dataset)
    }

    /// Reads data to measure a trained model on, with the scaling and the class names of that model.
    ///
    /// A label that is not among its classes is an error. The training part may be empty.
    pub fn open_for(
        spec: &DataSpec,
        seed: u64,
        data_root: Option<&Path>,
        known: Known<'_>,
    ) -> Result<Self, DatasetError> {
        Self::load(spec, seed, data_root, Some(known))
    }

    /// Reads samples for a trained model in the order of their file, whether they have labels or not. Of data with a part
    /// for testing it is that part; `idx:` may also name one file of images.
    pub fn inputs(spec: &DataSpec, known: Known<'_>) -> Result<Samples, DatasetError> {
        match spec {
            DataSpec::BuiltinMnist => Ok(builtin::open(Some(known))?.test),
            DataSpec::Idx { directory } => idx::inputs(directory, known),
            DataSpec::Csv { file, label, .. } => csv::inputs(file, label, known),
        }
    }

    /// What a model that is trained on this data fixes about its data.
    #[must_use]
    pub fn known(&self) -> Known<'_> {
        Known {
            input: self.input,
            classes: &self.classes,
            columns: self.columns.as_ref(),
            scaling: &self.scaling,
        }
    }

    fn load(
        spec: &DataSpec,
        seed: u64,
        data_root: Option<&Path>,
        known: Option<Known<'_>>,
    ) -> Result<Self, DatasetError> {
        match spec {
            DataSpec::BuiltinMnist => builtin::open(known),
            DataSpec::Idx { directory } => idx::open(directory, data_root, known),
            DataSpec::Csv {
                file,
                label,
                test_fraction,
            } => {
                let file = root::resolve(file, data_root)?;
                csv::open(&file, label, *test_fraction, seed, known)
            }
        }
    }

    /// Puts the parts together and names the whole.
    fn new(
        (input, columns): (Shape, Option<ColumnNames>),
        classes: Vec<String>,
        scaling: Scaling,
        train: Samples,
        test: Samples,
    ) -> Self {
        let hash = ContentHash::of((input, columns.as_ref()), &classes, [&train, &test]);
        Self {
            input,
            classes,
            columns,
            scaling,
            train,
            test,
            hash,
        }
    }
}
