//! A column of a table, as people name it.

use std::fmt;
use std::str::FromStr;

use super::DataSpecError;

/// A column of a table. Its text holds neither `&` nor `,`: a column whose name does is given by its position.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Column {
    /// The column with this name in the header. Never a whole number: that reads as a position.
    Name(String),
    /// The column at this position: from 0 at the left, or from -1 at the right.
    Position(i64),
}

impl Column {
    /// The last column, where most files keep the label.
    pub const LAST: Self = Self::Position(-1);
}

impl FromStr for Column {
    type Err = DataSpecError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match (text.trim(), text.trim().parse()) {
            ("", _) => Err(DataSpecError::EmptyColumn),
            (_, Ok(position)) => Ok(Self::Position(position)),
            (name, Err(_)) => Ok(Self::Name(name.to_owned())),
        }
    }
}

impl fmt::Display for Column {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Position(position) => write!(f, "{position}"),
        }
    }
}

/// Reads columns that are separated by commas.
pub(super) fn list(text: &str) -> Result<Vec<Column>, DataSpecError> {
    text.split(',').map(str::parse).collect()
}

/// Columns as [`list`] reads them.
pub(super) struct Listed<'a>(pub(super) &'a [Column]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, column) in self.0.iter().enumerate() {
            let comma = if place == 0 { "" } else { "," };
            write!(f, "{comma}{column}")?;
        }
        Ok(())
    }
}
