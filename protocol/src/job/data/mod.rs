//! The source of a run's samples, as one line of text.
//!
//! The same text is typed on the command line, written in a job's TOML file, sent to other nodes and kept in model
//! files, so [`DataSpec`] is stored and sent as that text and nothing else:
//!
//! - `builtin:mnist`
//! - `idx:DIR`
//! - `csv:FILE?label=COLUMN&test=0.2`, and `parquet:FILE` likewise, where each option may be left out
//! - `npz:FILE?test=0.2`
//! - `images:DIR?size=32x32&colour=rgb`
//! - `cifar:DIR`
//! - `module`
//!
//! There are no escapes: everything up to the first `?` is the file, and options end at `&`. A column whose name holds
//! an `&` or a comma is given by its position instead.

mod arrays;
mod column;
mod error;
mod info;
mod separator;
mod table;
mod test_split;

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

pub use arrays::{ArrayOptions, Colour, ImageOptions, Size};
pub use column::Column;
pub use error::DataSpecError;
pub use info::DataInfo;
pub use separator::Separator;
pub use table::{Missing, TableOptions, TargetKind, TextRule};
pub use test_split::TestSplit;

use crate::text_options::serde_as_text;

/// Text of the data source that is a module's own function `data()`.
pub(super) const MODULE: &str = "module";

/// Source of a run's samples: the format of the data, its path and its options.
#[derive(Clone, Debug, PartialEq)]
pub enum DataSpec {
    /// Data source: the MNIST digits that are built into the program.
    BuiltinMnist,
    /// Data source: four files of images and labels in IDX format.
    Idx {
        /// Directory of the four IDX files.
        directory: PathBuf,
    },
    /// Data source: a text file with one sample per line, whose cells are separated by a character.
    Csv {
        file: PathBuf,
        /// Character between the cells of a line. `None`: the character is inferred from the file.
        separator: Option<Separator>,
        table: TableOptions,
    },
    /// Data source: a table in a Parquet file.
    Parquet {
        /// Path of the Parquet file.
        file: PathBuf,
        table: TableOptions,
    },
    /// Data source: arrays in an `.npz` file, as `NumPy` writes it.
    Npz {
        /// Path of the `.npz` file.
        file: PathBuf,
        arrays: ArrayOptions,
    },
    /// Data source: a folder that holds a folder of images for each class.
    Images {
        /// Path of the outer folder, which holds a folder of images for each class.
        directory: PathBuf,
        images: ImageOptions,
    },
    /// Data source: the binary files of CIFAR-10 or CIFAR-100.
    Cifar {
        /// Directory of the CIFAR files.
        directory: PathBuf,
    },
    /// Data source: the function `data()` in the file of the job's model, which is a module (the user's code).
    Module,
}

impl DataSpec {
    /// Returns all paths that the source names, so that the caller can change them.
    pub fn paths_mut(&mut self) -> Vec<&mut PathBuf> {
        match self {
            Self::BuiltinMnist | Self::Module => Vec::new(),
            Self::Idx { directory: path }
            | Self::Cifar { directory: path }
            | Self::Images { directory: path, .. }
            | Self::Npz { file: path, .. } => vec![path],
            Self::Csv { file, table, .. } | Self::Parquet { file, table } => {
                [file].into_iter().chain(table.paths_mut()).collect()
            }
        }
    }

    /// Returns the file or folder of the training samples; `None` for a built-in dataset and for that of a module.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::BuiltinMnist | Self::Module => None,
            Self::Idx { directory: path }
            | Self::Cifar { directory: path }
            | Self::Images { directory: path, .. }
            | Self::Npz { file: path, .. }
            | Self::Csv { file: path, .. }
            | Self::Parquet { file: path, .. } => Some(path),
        }
    }

    /// Returns the same source with all samples as test rows, except where the format itself marks the test samples.
    #[must_use]
    pub fn for_testing(mut self) -> Self {
        match &mut self {
            Self::BuiltinMnist | Self::Idx { .. } | Self::Cifar { .. } | Self::Module => {}
            Self::Csv { table, .. } | Self::Parquet { table, .. } => table.test_split = TestSplit::Share(1.0),
            Self::Npz { arrays, .. } => arrays.test = Some(1.0),
            Self::Images { images, .. } => images.test = Some(1.0),
        }
        self
    }
}

/// True if the text of a data source chooses its test rows (`test=` or `testfile=`) instead of leaving them to the
/// default.
#[must_use]
pub fn names_test_part(text: &str) -> bool {
    let (_, options) = parts(text);
    let mut options = options.into_iter().flat_map(|options| options.split('&'));
    options.any(|option| option.starts_with("test=") || option.starts_with("testfile="))
}

impl FromStr for DataSpec {
    type Err = DataSpecError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            Some(("builtin", "mnist")) => Ok(Self::BuiltinMnist),
            Some(("builtin", name)) => Err(DataSpecError::UnknownBuiltin(name.to_owned())),
            Some(("idx", directory)) => Ok(Self::Idx {
                directory: path("idx", "DIR", "the directory of the four IDX files", directory)?,
            }),
            Some(("cifar", directory)) => Ok(Self::Cifar {
                directory: path("cifar", "DIR", "the directory of CIFAR's binary files", directory)?,
            }),
            Some(("csv", rest)) => parse_csv(rest),
            Some(("parquet", rest)) => parse_parquet(rest),
            Some(("npz", rest)) => parse_npz(rest),
            Some(("images", rest)) => parse_images(rest),
            None if text == MODULE => Ok(Self::Module),
            _ => Err(unknown(text)),
        }
    }
}

/// Returns the error for the text of a data source without a known scheme, with a text to write instead that follows
/// from the file's extension.
fn unknown(text: &str) -> DataSpecError {
    let (file, _) = parts(text);
    let small = file.to_ascii_lowercase();
    let plain = small.strip_suffix(".gz").unwrap_or(&small);
    let (_, end) = plain.rsplit_once('.').unwrap_or_default();
    let instead = match end {
        "csv" | "tsv" | "txt" | "data" => format!("csv:{text}"),
        "parquet" | "npz" => format!("{end}:{text}"),
        "npy" => "npz:FILE with a file that numpy.savez has made of inputs x and labels y".to_owned(),
        _ => return DataSpecError::UnknownScheme(text.to_owned()),
    };
    DataSpecError::NoScheme {
        text: text.to_owned(),
        instead,
    }
}

/// Checks and returns the path in the text of a data source: it must be neither empty nor a pipe (`-`).
fn path(kind: &'static str, place: &'static str, what: &'static str, text: &str) -> Result<PathBuf, DataSpecError> {
    if text.is_empty() {
        return Err(DataSpecError::NoPath { kind, place, what });
    }
    if text == "-" {
        return Err(DataSpecError::Pipe(kind));
    }
    Ok(text.into())
}

/// Splits the text of a data source at its first `?` into the path and the options.
fn parts(text: &str) -> (&str, Option<&str>) {
    match text.split_once('?') {
        Some((path, options)) => (path, Some(options)),
        None => (text, None),
    }
}

fn parse_csv(text: &str) -> Result<DataSpec, DataSpecError> {
    let (file, options) = parts(text);
    let file = path("csv", "FILE", "the CSV file", file)?;
    let mut table = TableOptions::default();
    let mut separator = None;
    each_option(options, DataSpecError::UnknownOption, |key, value| {
        if key == "sep" {
            separator = Some(Separator::read(value)?);
            return Ok(true);
        }
        table.take(key, value)
    })?;
    Ok(DataSpec::Csv {
        file,
        separator,
        table: table.check()?,
    })
}

fn parse_parquet(text: &str) -> Result<DataSpec, DataSpecError> {
    let (file, options) = parts(text);
    let file = path("parquet", "FILE", "the Parquet file", file)?;
    let mut table = TableOptions::default();
    each_option(options, DataSpecError::UnknownOption, |key, value| {
        table.take(key, value)
    })?;
    Ok(DataSpec::Parquet {
        file,
        table: table.check()?,
    })
}

fn parse_npz(text: &str) -> Result<DataSpec, DataSpecError> {
    let (file, options) = parts(text);
    let file = path("npz", "FILE", "the NPZ file", file)?;
    let mut arrays = ArrayOptions::default();
    each_option(options, DataSpecError::ArrayOption, |key, value| {
        arrays.take(key, value)
    })?;
    Ok(DataSpec::Npz { file, arrays })
}

fn parse_images(text: &str) -> Result<DataSpec, DataSpecError> {
    let (directory, options) = parts(text);
    let directory = path(
        "images",
        "DIR",
        "the folder that holds a folder of images for each class",
        directory,
    )?;
    let mut images = ImageOptions::default();
    each_option(options, DataSpecError::ImageOption, |key, value| {
        images.take(key, value)
    })?;
    Ok(DataSpec::Images { directory, images })
}

/// Passes each option of a data source to `take`, which returns `false` for an unknown key. Unknown and repeated
/// options are errors.
fn each_option(
    options: Option<&str>,
    unknown: fn(String) -> DataSpecError,
    mut take: impl FnMut(&str, &str) -> Result<bool, DataSpecError>,
) -> Result<(), DataSpecError> {
    let mut seen = BTreeSet::new();
    for option in options.into_iter().flat_map(|options| options.split('&')) {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        if !take(key, value)? {
            return Err(unknown(option.to_owned()));
        }
        if !seen.insert(key) {
            return Err(DataSpecError::RepeatedOption(option.to_owned()));
        }
    }
    Ok(())
}

/// Writes a data source as the text that reads back as the same source.
impl fmt::Display for DataSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuiltinMnist => f.write_str("builtin:mnist"),
            Self::Module => f.write_str(MODULE),
            Self::Idx { directory } => write!(f, "idx:{}", directory.display()),
            Self::Cifar { directory } => write!(f, "cifar:{}", directory.display()),
            Self::Images { directory, images } => write!(f, "images:{}{images}", directory.display()),
            Self::Npz { file, arrays } => write!(f, "npz:{}{arrays}", file.display()),
            Self::Parquet { file, table } => write!(f, "parquet:{}?{table}", file.display()),
            Self::Csv { file, separator, table } => {
                write!(f, "csv:{}?{table}", file.display())?;
                match separator {
                    Some(separator) => write!(f, "&sep={separator}"),
                    None => Ok(()),
                }
            }
        }
    }
}

serde_as_text!(DataSpec);

#[cfg(test)]
mod tests;
