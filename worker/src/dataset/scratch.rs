//! Numbers in a scratch file, for data that does not fit into memory.
//!
//! The file has no name, so it disappears when the process ends, however that happens. Rows are read rather than
//! mapped: the system may drop cached pages at any time, and a failing disk is an error instead of a signal.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::DatasetError;

/// Environment variable that names the folder for scratch files.
const FOLDER: &str = "TAU_SCRATCH";
const FLOAT: usize = size_of::<f32>();
/// Number of floats of a scratch file that are read or written at once.
const PIECE: usize = 1 << 16;

/// A range of the numbers in a scratch file.
#[derive(Clone)]
pub(crate) struct ScratchFloats {
    file: Arc<File>,
    folder: Arc<PathBuf>,
    /// Index in the scratch file of the first number of this range.
    start: usize,
    len: usize,
}

impl ScratchFloats {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Splits the scratch file's range into the first `at` numbers and the others.
    pub(super) fn split_at(self, at: usize) -> (Self, Self) {
        let second = Self {
            start: self.start + at,
            len: self.len - at,
            ..self.clone()
        };
        (Self { len: at, ..self }, second)
    }

    /// Copies rows of `width` numbers, in the given order, to a scratch file of their own.
    pub(super) fn rows(&self, rows: &[u32], width: usize) -> Result<Self, DatasetError> {
        let mut writer = ScratchWriter::new(&self.folder.join("rows"))?;
        let mut row = vec![0.0; width];
        for &at in rows {
            self.read_row(at as usize * width, &mut row)?;
            writer.push(&row)?;
        }
        writer.finish()
    }

    /// Reads numbers into `to`, from index `at` of the scratch file's range on.
    pub(super) fn read(&self, at: usize, to: &mut [f32]) -> io::Result<()> {
        let mut bytes = vec![0; to.len() * FLOAT];
        self.file
            .read_exact_at(&mut bytes, ((self.start + at) * FLOAT) as u64)?;
        let (words, _) = bytes.as_chunks();
        for (number, &word) in to.iter_mut().zip(words) {
            *number = f32::from_le_bytes(word);
        }
        Ok(())
    }

    /// Reads one row of numbers into `to`, from index `at` of the scratch file's range on; errors name the file's
    /// folder.
    pub(super) fn read_row(&self, at: usize, to: &mut [f32]) -> Result<(), DatasetError> {
        self.read(at, to).map_err(|source| self.failed(source))
    }

    /// Passes all numbers of the scratch file's range to `take`, in order and at most `most` at a time.
    pub(super) fn each_piece(&self, most: usize, mut take: impl FnMut(&[f32])) -> Result<(), DatasetError> {
        let mut piece = vec![0.0; most.min(self.len)];
        for at in (0..self.len).step_by(most.max(1)) {
            let piece = &mut piece[..most.min(self.len - at)];
            self.read(at, piece).map_err(|source| self.failed(source))?;
            take(piece);
        }
        Ok(())
    }

    /// Passes all numbers of the scratch file's range to `change` for modification, in order and at most `most` at a
    /// time.
    pub(super) fn change(&mut self, most: usize, mut change: impl FnMut(&mut [f32])) -> Result<(), DatasetError> {
        let mut piece = vec![0.0; most.min(self.len)];
        for at in (0..self.len).step_by(most.max(1)) {
            let piece = &mut piece[..most.min(self.len - at)];
            self.read(at, piece).map_err(|source| self.failed(source))?;
            change(piece);
            write_at(&self.file, self.start + at, piece).map_err(|source| self.failed(source))?;
        }
        Ok(())
    }

    fn failed(&self, source: io::Error) -> DatasetError {
        failed(&self.folder, source)
    }
}

/// Two ranges of scratch files are equal if they hold the same numbers.
impl PartialEq for ScratchFloats {
    fn eq(&self, other: &Self) -> bool {
        let (mut mine, mut theirs) = (vec![0.0; PIECE], vec![0.0; PIECE]);
        self.len == other.len
            && (0..self.len).step_by(PIECE).all(|at| {
                let count = PIECE.min(self.len - at);
                let read = self
                    .read(at, &mut mine[..count])
                    .and_then(|()| other.read(at, &mut theirs[..count]));
                read.is_ok() && mine[..count] == theirs[..count]
            })
    }
}

/// Writes a scratch file, which holds numbers that do not fit into memory.
pub(super) struct ScratchWriter {
    file: File,
    folder: PathBuf,
    buffer: Vec<f32>,
    written: usize,
}

impl ScratchWriter {
    /// Makes a file in the folder named by `TAU_SCRATCH`; if there is none, beside the data, or else in the system's
    /// folder for temporary files.
    pub(super) fn new(data: &Path) -> Result<Self, DatasetError> {
        let beside = data.parent().filter(|folder| !folder.as_os_str().is_empty());
        let beside = beside.unwrap_or(Path::new(".")).to_owned();
        let folders = match std::env::var_os(FOLDER) {
            Some(folder) => vec![folder.into()],
            None => vec![beside, std::env::temp_dir()],
        };
        let mut refused = None;
        for folder in folders {
            match tempfile::tempfile_in(&folder) {
                Ok(file) => {
                    return Ok(Self {
                        file,
                        folder,
                        buffer: Vec::new(),
                        written: 0,
                    });
                }
                Err(source) => refused = Some(failed(&folder, source)),
            }
        }
        Err(refused.unwrap_or_else(|| failed(data, io::ErrorKind::NotFound.into())))
    }

    pub(super) fn push(&mut self, numbers: &[f32]) -> Result<(), DatasetError> {
        // However many numbers are pushed at once, at most one piece of them is buffered.
        for piece in numbers.chunks(PIECE) {
            self.buffer.extend_from_slice(piece);
            if self.buffer.len() >= PIECE {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), DatasetError> {
        let at = self.written;
        write_at(&self.file, at, &self.buffer).map_err(|source| failed(&self.folder, source))?;
        self.written += self.buffer.len();
        self.buffer.clear();
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<ScratchFloats, DatasetError> {
        self.flush()?;
        Ok(ScratchFloats {
            file: Arc::new(self.file),
            folder: Arc::new(self.folder),
            start: 0,
            len: self.written,
        })
    }
}

fn write_at(file: &File, at: usize, numbers: &[f32]) -> io::Result<()> {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    file.write_all_at(&bytes, (at * FLOAT) as u64)
}

fn failed(folder: &Path, source: io::Error) -> DatasetError {
    DatasetError::Scratch {
        folder: folder.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn much_at_once_is_not_held_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = ScratchWriter::new(&folder.path().join("data")).unwrap();
        writer.push(&[1.0; 3]).unwrap();
        writer.push(&vec![2.0; 20 * PIECE]).unwrap();
        assert!(writer.buffer.capacity() <= 4 * PIECE, "{}", writer.buffer.capacity());
        let floats = writer.finish().unwrap();
        let mut ends = [0.0; 2];
        floats.read(2, &mut ends).unwrap();
        assert_eq!((floats.len(), ends), (20 * PIECE + 3, [1.0, 2.0]));
    }

    #[test]
    fn numbers_come_back_from_where_they_were_put() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = ScratchWriter::new(&folder.path().join("data.csv")).unwrap();
        let numbers: Vec<f32> = (0..200_000u32).map(|number| number as f32 * 0.5).collect();
        for row in numbers.chunks(7) {
            writer.push(row).unwrap();
        }
        let all = writer.finish().unwrap();
        assert_eq!(
            std::fs::read_dir(folder.path()).unwrap().count(),
            0,
            "the scratch file must have no name in the folder"
        );
        let (first, mut second) = all.clone().split_at(70_000);
        assert_eq!((first.len(), second.len()), (70_000, 130_000));
        let mut some = [0.0; 3];
        second.read(5, &mut some).unwrap();
        assert_eq!(some, numbers[70_005..70_008]);
        let mut seen = Vec::new();
        first.each_piece(999, |piece| seen.extend_from_slice(piece)).unwrap();
        assert_eq!(seen, numbers[..70_000]);
        second
            .change(1000, |piece| piece.iter_mut().for_each(|number| *number += 1.0))
            .unwrap();
        all.read(70_005, &mut some).unwrap();
        assert_eq!(some[0], numbers[70_005] + 1.0);
        assert!(first == first.clone() && first != second);
        assert!(
            second.read(130_000, &mut some).is_err(),
            "a read beyond the end must fail"
        );
    }
}
