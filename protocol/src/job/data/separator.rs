//! The character between the cells of a line.

use super::DataSpecError;
use crate::text_options::words;

/// Character between the cells of a line in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Separator {
    Comma,
    Semicolon,
    Tab,
    Bar,
}

impl Separator {
    /// All separators; those that rarely occur within a cell come first.
    pub const ALL: [Self; 4] = [Self::Tab, Self::Semicolon, Self::Bar, Self::Comma];

    #[must_use]
    pub const fn byte(self) -> u8 {
        match self {
            Self::Comma => b',',
            Self::Semicolon => b';',
            Self::Tab => b'\t',
            Self::Bar => b'|',
        }
    }

    /// Reads a table's cell separator from its name, or from the character itself.
    pub(super) fn read(text: &str) -> Result<Self, DataSpecError> {
        let of_byte = |byte: u8| Self::ALL.into_iter().find(|separator| separator.byte() == byte);
        match text.as_bytes() {
            &[byte] => of_byte(byte).ok_or_else(|| DataSpecError::Separator(text.to_owned())),
            _ => text.parse(),
        }
    }
}

words!(
    Separator, DataSpecError, DataSpecError::Separator,
    "comma" => Self::Comma, "semicolon" => Self::Semicolon, "tab" => Self::Tab, "bar" => Self::Bar
);
