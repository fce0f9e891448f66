//! A column of a table, given by its name or position.

use std::fmt;
use std::str::FromStr;

use super::DataSpecError;

/// Column of a table, given by its name or position. Its text cannot hold `&` or `,`, so a column whose name does is
/// given by its position.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Column {
    /// Column with this name in the header. The name is never a whole number, because that reads as a position.
    Name(String),
    /// Column at this position: from 0 at the left, or from -1 at the right.
    Position(i64),
}

impl Column {
    /// Last column, where most files keep the label.
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

/// Reads a list of a table's columns that are separated by commas.
pub(super) fn list(text: &str) -> Result<Vec<Column>, DataSpecError> {
    text.split(',').map(str::parse).collect()
}

/// List of a table's columns, which prints as the comma-separated text that [`list`] reads.
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
