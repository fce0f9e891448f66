//! Limits the memory that data may take, because a small compressed file can unpack to any size.

use std::path::Path;

use super::DatasetError;
use crate::machine::memory;

/// Limit in bytes on the memory that the data of one file may take, and the part of it that is not taken yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    limit: u64,
    left: u64,
}

impl Budget {
    /// Creates the memory budget for the data of one file: the share of this machine's free memory that data may take,
    /// or no limit if the free memory is unknown.
    pub(super) fn of_machine() -> Self {
        Self::of(memory::left_for_data().unwrap_or(u64::MAX))
    }

    pub(super) fn of(bytes: u64) -> Self {
        Self {
            limit: bytes,
            left: bytes,
        }
    }

    /// Takes memory from the budget; fails if too little is left. `holds` describes the contents in an error, such as
    /// "a line of 7 MB".
    pub(super) fn take(&mut self, bytes: u64, file: &Path, holds: impl FnOnce() -> String) -> Result<(), DatasetError> {
        match self.left.checked_sub(bytes) {
            Some(left) => self.left = left,
            None => return Err(self.exceeded(file, holds())),
        }
        Ok(())
    }

    /// Returns the number of items of this size that the whole budget has room for.
    pub(super) fn room_for(self, bytes_each: u64) -> u64 {
        self.limit / bytes_each
    }

    /// Returns the error for a file that exceeds the budget.
    pub(super) fn exceeded(self, file: &Path, holds: String) -> DatasetError {
        DatasetError::TooLarge {
            file: file.to_owned(),
            holds,
            limit: size(self.limit),
            percent: 100 / memory::DATA_SHARE,
        }
    }
}

/// Formats a number of bytes for people.
pub(super) fn size(bytes: u64) -> String {
    let bytes = bytes as f64;
    if bytes >= 1e9 {
        format!("{:.1} GB", bytes / 1e9)
    } else {
        format!("{:.1} MB", bytes / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_counts_and_what_does_not_fit_is_named() {
        let mut budget = Budget::of(2_000_000);
        let mut take = |bytes| budget.take(bytes, Path::new("f"), || format!("{bytes} bytes"));
        assert!(take(1_500_000).is_ok());
        assert_eq!(
            take(500_001).unwrap_err().to_string(),
            "f holds 500001 bytes, but data may use at most 2.0 MB here, 50 % of the free memory: use less data, or a \
             machine with more memory"
        );
        assert!(take(500_000).is_ok());
        assert_eq!(budget.room_for(1000), 2000);
        assert_eq!(size(u64::MAX), "18446744073.7 GB");
    }
}
