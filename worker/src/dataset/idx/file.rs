//! One IDX file: a header of big-endian numbers, then the elements of an array.
//!
//! The header is two zero bytes, the type of the elements, the number of dimensions, and each dimension as a 32-bit
//! number. A header can claim anything, so memory grows only as bytes really arrive.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;

use super::IdxError;
use crate::dataset::DatasetError;
use crate::dataset::budget::{Budget, size};

/// The type of elements that are unsigned bytes, the only type that is read.
const UNSIGNED_BYTE: u8 = 0x08;

/// The most elements that are believed: beyond any dataset that would be loaded into memory whole. It bounds what a
/// small file of compressed zeros can grow to.
const MOST_ELEMENTS: u64 = 1 << 34;

/// The first bytes of everything that gzip has compressed. No IDX file starts with them.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// What a file is expected to hold.
#[derive(Clone, Copy)]
pub(super) enum Content {
    /// One dimension: a number for each sample.
    Labels,
    /// Two to four dimensions: samples, then perhaps channels, then rows and columns, or just features.
    Images,
}

/// An array of bytes and the file it came from.
#[derive(Debug)]
pub(super) struct IdxArray {
    /// For messages.
    pub(super) file: PathBuf,
    /// Samples first. None is zero.
    pub(super) dimensions: Vec<usize>,
    /// As many as the product of the dimensions.
    pub(super) bytes: Vec<u8>,
}

impl IdxArray {
    /// Reads a file, compressed or not, to its end.
    pub(super) fn read(file: PathBuf, content: Content, source: impl Read) -> Result<Self, DatasetError> {
        let mut source = BufReader::new(source);
        let start = source.fill_buf().map_err(DatasetError::read(&file))?;
        if start.starts_with(&GZIP) {
            Self::read_plain(file, content, MultiGzDecoder::new(source))
        } else {
            Self::read_plain(file, content, source)
        }
    }

    fn read_plain(file: PathBuf, content: Content, mut bytes: impl Read) -> Result<Self, DatasetError> {
        let dimensions = read_dimensions(&file, content, &mut bytes)?;
        let product = dimensions
            .iter()
            .try_fold(1u64, |product, &dimension| product.checked_mul(dimension as u64));
        let Some(expected) = product.filter(|&product| product <= MOST_ELEMENTS) else {
            return Err(IdxError::TooLarge { file, dimensions }.into());
        };
        // A small file that was compressed may hold more than its size tells.
        Budget::of_machine().take(expected, &file, || size(expected))?;

        // One byte more than promised is asked for, to see the end of the file (where gzip checks its sum) or that
        // it does not come.
        let mut bytes = read_at_most(&file, &mut bytes, expected + 1)?;
        let found = bytes.len() as u64;
        if found < expected {
            return Err(IdxError::Truncated { file, expected, found }.into());
        }
        if found > expected {
            return Err(IdxError::Trailing { file, expected }.into());
        }
        // Growing has left up to as much again unused, for as long as the dataset lives.
        bytes.shrink_to_fit();
        Ok(Self {
            file,
            dimensions,
            bytes,
        })
    }
}

/// Reads the header. None of the dimensions that it gives is zero.
fn read_dimensions(file: &Path, content: Content, source: &mut impl Read) -> Result<Vec<usize>, DatasetError> {
    let start = read_at_most(file, source, 4)?;
    let file = file.to_owned();
    let [0, 0, element, rank] = start[..] else {
        return Err(IdxError::NotIdx { file, start }.into());
    };
    if element != UNSIGNED_BYTE {
        return Err(IdxError::NotBytes { file, found: element }.into());
    }
    let (ranks, expected) = match content {
        Content::Labels => (1..=1, "labels"),
        Content::Images => (2..=4, "images"),
    };
    if !ranks.contains(&rank) {
        return Err(IdxError::WrongContent {
            file,
            dimensions: rank,
            expected,
        }
        .into());
    }

    let length = 4 * u64::from(rank);
    let header = read_at_most(&file, source, length)?;
    let found = header.len() as u64;
    if found < length {
        return Err(IdxError::Truncated {
            file,
            expected: length,
            found,
        }
        .into());
    }
    let (words, _) = header.as_chunks();
    let dimensions: Vec<usize> = words.iter().map(|&word| u32::from_be_bytes(word) as usize).collect();
    if dimensions.contains(&0) {
        return Err(IdxError::Empty { file, dimensions }.into());
    }
    Ok(dimensions)
}

/// Reads up to `limit` bytes, fewer only where the source ends.
fn read_at_most(file: &Path, source: &mut impl Read, limit: u64) -> Result<Vec<u8>, DatasetError> {
    let mut bytes = Vec::new();
    let read = source.take(limit).read_to_end(&mut bytes);
    read.map_err(DatasetError::read(file))?;
    Ok(bytes)
}
