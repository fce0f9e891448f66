//! Rows of numbers that are appended one by one: in memory while they are few, then in a scratch file.

use std::ops::Range;
use std::path::{Path, PathBuf};

use super::DatasetError;
use super::samples::Values;
use super::scratch::{ScratchFloats, ScratchWriter};
use crate::machine::memory;

/// Most bytes that a table may take in memory. Several workers of a machine each hold their own.
const BYTES_MAX: u64 = 512 << 20;
/// A table may take at most one part in this many of the free memory.
const SHARE_OF_MEMORY: u64 = 8;
/// Approximate number of a table's numbers that are processed at once.
const PIECE: usize = 1 << 16;

/// Returns the bytes of a table that this machine holds in memory; larger tables use a scratch file.
pub(super) fn bytes_max() -> u64 {
    let free = memory::available().map_or(BYTES_MAX, |free| free / SHARE_OF_MEMORY);
    free.min(BYTES_MAX)
}

/// A finished table of numbers, all rows of one width, in memory or in a scratch file.
pub(super) struct Floats {
    width: usize,
    store: FloatStore,
}

enum FloatStore {
    Memory(Vec<f32>),
    Scratch(ScratchFloats),
}

impl Floats {
    pub(super) fn rows(&self) -> usize {
        match &self.store {
            FloatStore::Memory(numbers) => numbers.len() / self.width,
            FloatStore::Scratch(numbers) => numbers.len() / self.width,
        }
    }

    /// Reads one row of the table into `to`.
    pub(super) fn read(&self, row: usize, to: &mut Vec<f32>) -> Result<(), DatasetError> {
        let at = row * self.width;
        match &self.store {
            FloatStore::Memory(numbers) => {
                to.clear();
                to.extend_from_slice(&numbers[at..][..self.width]);
                Ok(())
            }
            FloatStore::Scratch(numbers) => {
                to.resize(self.width, 0.0);
                numbers.read_row(at, to)
            }
        }
    }

    /// Passes a range of the table's rows to `take`, in order.
    pub(super) fn each(&self, rows: Range<usize>, mut take: impl FnMut(&[f32])) -> Result<(), DatasetError> {
        let each_row = |piece: &[f32]| piece.chunks_exact(self.width).for_each(&mut take);
        let numbers = rows.start * self.width..rows.end * self.width;
        match &self.store {
            FloatStore::Memory(all) => {
                let mut each_row = each_row;
                each_row(&all[numbers]);
                Ok(())
            }
            FloatStore::Scratch(all) => {
                let (all, _) = all.clone().split_at(numbers.end);
                let (_, some) = all.split_at(numbers.start);
                some.each_piece(self.piece(), each_row)
            }
        }
    }

    /// Passes every row of the table to `change` for modification, in order.
    pub(super) fn change(&mut self, mut change: impl FnMut(&mut [f32])) -> Result<(), DatasetError> {
        let (width, piece) = (self.width, self.piece());
        let each_row = |piece: &mut [f32]| piece.chunks_exact_mut(width).for_each(&mut change);
        match &mut self.store {
            FloatStore::Memory(all) => {
                let mut each_row = each_row;
                each_row(all);
                Ok(())
            }
            FloatStore::Scratch(all) => all.change(piece, each_row),
        }
    }

    /// Splits the table into the first `row` rows and the others.
    pub(super) fn split_at(self, row: usize) -> (Values, Values) {
        let at = row * self.width;
        match self.store {
            FloatStore::Memory(mut first) => {
                let second = first.split_off(at);
                (Values::Floats(first), Values::Floats(second))
            }
            FloatStore::Scratch(all) => {
                let (first, second) = all.split_at(at);
                (Values::Scratch(first), Values::Scratch(second))
            }
        }
    }

    /// Returns the number of values that are processed at once: whole rows, about `PIECE` values.
    fn piece(&self) -> usize {
        (PIECE / self.width).max(1) * self.width
    }
}

/// Builds a table of numbers row by row, in memory or in a scratch file.
pub(super) struct FloatsWriter {
    width: usize,
    /// File that the numbers come from; a scratch file is made beside it.
    data: PathBuf,
    bytes_max: u64,
    memory: Vec<f32>,
    scratch: Option<ScratchWriter>,
}

impl FloatsWriter {
    /// Starts a table with rows of `width` numbers, which must not be 0. At most `bytes_max` bytes of it stay in
    /// memory.
    pub(super) fn new(width: usize, data: &Path, bytes_max: u64) -> Self {
        Self {
            width,
            data: data.to_owned(),
            bytes_max,
            memory: Vec::new(),
            scratch: None,
        }
    }

    /// Appends one or several rows to the table.
    pub(super) fn push(&mut self, numbers: &[f32]) -> Result<(), DatasetError> {
        if let Some(scratch) = &mut self.scratch {
            return scratch.push(numbers);
        }
        self.memory.extend_from_slice(numbers);
        if size_of_val(self.memory.as_slice()) as u64 > self.bytes_max {
            let mut scratch = ScratchWriter::new(&self.data)?;
            scratch.push(&std::mem::take(&mut self.memory))?;
            self.scratch = Some(scratch);
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<Floats, DatasetError> {
        let store = if let Some(scratch) = self.scratch {
            FloatStore::Scratch(scratch.finish()?)
        } else {
            // Growing has left up to as much again unused, for as long as the dataset lives.
            self.memory.shrink_to_fit();
            FloatStore::Memory(self.memory)
        };
        Ok(Floats {
            width: self.width,
            store,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(bytes_max: u64) -> Floats {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = FloatsWriter::new(3, &folder.path().join("data"), bytes_max);
        for row in 0..50_000u16 {
            writer.push(&[f32::from(row), 1.0, -f32::from(row)]).unwrap();
        }
        writer.finish().unwrap()
    }

    #[test]
    fn rows_are_the_same_wherever_they_are() {
        for bytes_max in [0, 1000, u64::MAX] {
            let mut rows = rows(bytes_max);
            assert_eq!(matches!(rows.store, FloatStore::Memory(_)), bytes_max == u64::MAX);
            assert_eq!(rows.rows(), 50_000);
            let mut row = Vec::new();
            rows.read(40_000, &mut row).unwrap();
            assert_eq!(row, [40_000.0, 1.0, -40_000.0]);
            rows.change(|row| row[1] = row[0] + row[2]).unwrap();
            let mut count = 0;
            rows.each(10..40_010, |row| {
                assert_eq!(row, [10.0 + count as f32, 0.0, -10.0 - count as f32]);
                count += 1;
            })
            .unwrap();
            assert_eq!(count, 40_000);
            let (first, second) = rows.split_at(49_999);
            assert_eq!((first.len(), second.len()), (3 * 49_999, 3));
        }
    }
}
