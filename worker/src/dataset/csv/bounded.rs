//! A reader that limits the length of rows.

use std::io::{self, Read};

/// A reader that passes a table's text through, and fails with [`io::ErrorKind::FileTooLarge`] if a row is longer than
/// the limit.
pub(super) struct Bounded {
    text: Box<dyn Read>,
    row_max: u64,
    /// Bytes that may still be read for the present row of the table.
    left: u64,
}

impl Bounded {
    pub(super) fn new(text: Box<dyn Read>, row_max: u64) -> Self {
        Self {
            text,
            row_max,
            left: row_max,
        }
    }

    /// Starts a new row of the table, which may take `row_max` bytes.
    pub(super) fn allow_a_row(&mut self) {
        self.left = self.row_max;
    }
}

impl Read for Bounded {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let count = (&mut self.text).take(self.left).read(to)?;
        self.left -= count as u64;
        Ok(count)
    }
}
