//! A text of which no row is longer than a limit.

use std::io::{self, Read};

/// Fails with [`io::ErrorKind::FileTooLarge`] where a row does not end in time.
pub(super) struct Bounded {
    text: Box<dyn Read>,
    row_max: u64,
    /// Bytes that may still be read for the row under way.
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

    /// Begins a row.
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
