//! Where the samples of a run come from, as one line of text.
//!
//! The same text is typed on the command line, written in a job's TOML file, sent to other nodes and kept in model
//! files, so [`DataSpec`] is stored and sent as that text and nothing else:
//!
//! - `builtin:mnist`
//! - `idx:DIR`
//! - `csv:FILE?label=NAME-or-position&test=0.2`, where each option may be left out
//!
//! There are no escapes: everything up to the first `?` is the file, and options end at `&`. A label column whose
//! name holds an `&` is given by its position instead.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The share of a CSV file's samples that is kept for testing when nothing else was asked for.
const DEFAULT_TEST_FRACTION: f64 = 0.2;

/// Where a run's samples come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum DataSpec {
    /// The MNIST digits inside the program.
    BuiltinMnist,
    /// Four files of images and labels in IDX format.
    Idx {
        /// Where the four files are.
        directory: PathBuf,
    },
    /// One file of comma-separated values.
    Csv {
        /// The file.
        file: PathBuf,
        /// The column that holds the class.
        label: LabelColumn,
        /// The share of samples kept for testing, above 0 and at most 1.
        test_fraction: f64,
    },
}

/// The column of a CSV file that holds the class of a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LabelColumn {
    /// The column with this name in the header. Never a whole number: that reads as a position.
    Name(String),
    /// The column at this position: from 0 at the left, or from -1 at the right.
    Position(i64),
}

impl LabelColumn {
    /// The last column, where most files keep the class.
    pub const LAST: Self = Self::Position(-1);
}

/// Why a text does not say where samples come from.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DataSpecError {
    /// The text starts with none of the known schemes.
    #[error("'{0}' names no data: write builtin:mnist, idx:DIR or csv:FILE?label=NAME&test=0.2")]
    UnknownScheme(String),
    /// No such dataset is built in.
    #[error("no dataset '{0}' is built in: write builtin:mnist, the only one")]
    UnknownBuiltin(String),
    /// `idx:` without a directory.
    #[error("no directory follows 'idx:': write idx:DIR with the directory of the four IDX files")]
    NoDirectory,
    /// `csv:` without a file.
    #[error("no file follows 'csv:': write csv:FILE with the path of the CSV file")]
    NoFile,
    /// An option that CSV files do not have.
    #[error(
        "'{0}' is not an option of a CSV file: write label=NAME, label=POSITION or test=FRACTION, \
         separated by '&' (give a label column whose name holds '&' by its position)"
    )]
    UnknownOption(String),
    /// The same option twice.
    #[error("the option '{0}' is given twice: keep one of the two")]
    RepeatedOption(String),
    /// `label=` without a value.
    #[error("the label column is empty: write label=NAME or label=POSITION, such as label=-1")]
    EmptyLabel,
    /// A share of test samples that is no share.
    #[error("test={0} is not a share of the samples: write a number above 0 and at most 1")]
    TestFraction(String),
}

impl FromStr for DataSpec {
    type Err = DataSpecError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            Some(("builtin", "mnist")) => Ok(Self::BuiltinMnist),
            Some(("builtin", name)) => Err(DataSpecError::UnknownBuiltin(name.to_owned())),
            Some(("idx", "")) => Err(DataSpecError::NoDirectory),
            Some(("idx", directory)) => Ok(Self::Idx {
                directory: directory.into(),
            }),
            Some(("csv", rest)) => parse_csv(rest),
            _ => Err(DataSpecError::UnknownScheme(text.to_owned())),
        }
    }
}

/// Reads what follows `csv:`.
fn parse_csv(text: &str) -> Result<DataSpec, DataSpecError> {
    let (file, options) = match text.split_once('?') {
        Some((file, options)) => (file, Some(options)),
        None => (text, None),
    };
    if file.is_empty() {
        return Err(DataSpecError::NoFile);
    }
    let mut label = None;
    let mut test_fraction = None;
    for option in options.into_iter().flat_map(|options| options.split('&')) {
        let repeated = match option.split_once('=') {
            Some(("label", value)) => label.replace(value.parse()?).is_some(),
            Some(("test", value)) => test_fraction.replace(parse_fraction(value)?).is_some(),
            _ => return Err(DataSpecError::UnknownOption(option.to_owned())),
        };
        if repeated {
            return Err(DataSpecError::RepeatedOption(option.to_owned()));
        }
    }
    Ok(DataSpec::Csv {
        file: file.into(),
        label: label.unwrap_or(LabelColumn::LAST),
        test_fraction: test_fraction.unwrap_or(DEFAULT_TEST_FRACTION),
    })
}

/// Reads the value of `test=`.
fn parse_fraction(text: &str) -> Result<f64, DataSpecError> {
    text.parse()
        .ok()
        .filter(|&fraction: &f64| fraction > 0.0 && fraction <= 1.0)
        .ok_or_else(|| DataSpecError::TestFraction(text.to_owned()))
}

impl FromStr for LabelColumn {
    type Err = DataSpecError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match (text.trim(), text.trim().parse()) {
            ("", _) => Err(DataSpecError::EmptyLabel),
            (_, Ok(position)) => Ok(Self::Position(position)),
            (name, Err(_)) => Ok(Self::Name(name.to_owned())),
        }
    }
}

impl fmt::Display for LabelColumn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Position(position) => write!(f, "{position}"),
        }
    }
}

/// The text that reads back as the same value. Options are always written out, so that a text kept in a model file
/// means the same should a default ever change.
impl fmt::Display for DataSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuiltinMnist => f.write_str("builtin:mnist"),
            Self::Idx { directory } => write!(f, "idx:{}", directory.display()),
            Self::Csv {
                file,
                label,
                test_fraction,
            } => write!(f, "csv:{}?label={label}&test={test_fraction}", file.display()),
        }
    }
}

impl TryFrom<String> for DataSpec {
    type Error = DataSpecError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<DataSpec> for String {
    fn from(spec: DataSpec) -> Self {
        spec.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn csv(label: LabelColumn, test_fraction: f64) -> DataSpec {
        DataSpec::Csv {
            file: "iris.csv".into(),
            label,
            test_fraction,
        }
    }

    #[test]
    fn every_form_is_read() {
        let named = |name: &str| LabelColumn::Name(name.to_owned());
        for (text, expected) in [
            ("builtin:mnist", DataSpec::BuiltinMnist),
            (
                "idx:some/dir",
                DataSpec::Idx {
                    directory: "some/dir".into(),
                },
            ),
            ("csv:iris.csv", csv(LabelColumn::Position(-1), 0.2)),
            ("csv:iris.csv?label=kind", csv(named("kind"), 0.2)),
            ("csv:iris.csv?label=ill?", csv(named("ill?"), 0.2)),
            ("csv:iris.csv?label=a=b", csv(named("a=b"), 0.2)),
            ("csv:iris.csv?label=0", csv(LabelColumn::Position(0), 0.2)),
            ("csv:iris.csv?test=1", csv(LabelColumn::LAST, 1.0)),
            ("csv:iris.csv?test=0.5&label=kind", csv(named("kind"), 0.5)),
            ("csv:iris.csv?label=-2&test=1e-3", csv(LabelColumn::Position(-2), 0.001)),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_read_says_what_to_write() {
        for (text, hint) in [
            ("", "write builtin:mnist, idx:DIR or csv:FILE"),
            ("mnist", "write builtin:mnist, idx:DIR or csv:FILE"),
            ("http://x", "'http://x' names no data"),
            ("builtin:cifar", "no dataset 'cifar'"),
            ("idx:", "write idx:DIR"),
            ("csv:", "write csv:FILE"),
            ("csv:?label=1", "write csv:FILE"),
            ("csv:f?", "write label=NAME"),
            ("csv:f?lable=x", "'lable=x' is not an option"),
            ("csv:f?label=R&D", "by its position"),
            ("csv:f?label= ", "write label=NAME"),
            ("csv:f?test=0.1&test=0.2", "'test=0.2' is given twice"),
            ("csv:f?test=0", "test=0 is not a share"),
            ("csv:f?test=1.1", "above 0 and at most 1"),
            ("csv:f?test=NaN", "above 0 and at most 1"),
            ("csv:f?test=", "above 0 and at most 1"),
        ] {
            let error = text.parse::<DataSpec>().unwrap_err().to_string();
            assert!(error.contains(hint), "{text}: {error}");
        }
    }

    #[test]
    fn serde_uses_the_text() {
        let json = serde_json::to_string(&DataSpec::BuiltinMnist).unwrap();
        assert_eq!(json, "\"builtin:mnist\"");
        let read: DataSpec = serde_json::from_str("\"csv:iris.csv?label=kind\"").unwrap();
        assert_eq!(read, csv(LabelColumn::Name("kind".into()), 0.2));
        assert!(serde_json::from_str::<DataSpec>("\"tape:7\"").is_err());
    }

    fn any_label() -> impl Strategy<Value = LabelColumn> {
        prop_oneof![
            any::<i64>().prop_map(LabelColumn::Position),
            "[^&]+"
                .prop_filter("a number or blank reads as something else", |name| {
                    name.trim() == name && !name.is_empty() && name.parse::<i64>().is_err()
                })
                .prop_map(LabelColumn::Name),
        ]
    }

    fn any_spec() -> impl Strategy<Value = DataSpec> {
        prop_oneof![
            Just(DataSpec::BuiltinMnist),
            ".+".prop_map(|directory| DataSpec::Idx {
                directory: directory.into()
            }),
            ("[^?]+", any_label(), 0.0..1.0).prop_map(|(file, label, share)| DataSpec::Csv {
                file: file.into(),
                label,
                test_fraction: 1.0 - share,
            }),
        ]
    }

    proptest! {
        #[test]
        fn the_text_of_a_spec_reads_back(spec in any_spec()) {
            prop_assert_eq!(spec.to_string().parse(), Ok(spec.clone()));
            let json = serde_json::to_string(&spec).unwrap();
            prop_assert_eq!(serde_json::from_str::<DataSpec>(&json).unwrap(), spec);
        }

        #[test]
        fn no_text_panics(text in "(builtin|idx|csv):.*") {
            let _ = text.parse::<DataSpec>();
        }
    }
}
