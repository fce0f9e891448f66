//! Reads one IDX file: a header of big-endian numbers, then the elements of an array.
//!
//! The header is two zero bytes, the type of the elements, the number of dimensions, and each dimension as a 32-bit
//! number. A header can claim any size, so memory grows only as bytes actually arrive.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;

use super::IdxError;
use crate::dataset::DatasetError;
use crate::dataset::budget::{Budget, size};

/// Code of the element type unsigned byte, the only type that is read from IDX files.
const UNSIGNED_BYTE: u8 = 0x08;

/// Most elements of an array that are accepted: more than any dataset that would be loaded into memory. The limit
/// bounds the size that a small compressed file can unpack to.
const MOST_ELEMENTS: u64 = 1 << 34;

/// First bytes of gzip files. No IDX file starts with them.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Expected contents of an IDX file.
#[derive(Clone, Copy)]
pub(super) enum Content {
    /// The file should hold labels. It has one dimension, with a number for each sample.
    Labels,
    /// The file should hold images. Its dimensions are samples, then optionally channels, then rows and columns; or
    /// samples and features.
    Images,
}

/// An array of bytes and the file that it came from.
#[derive(Debug)]
pub(super) struct IdxArray {
    /// Path of the IDX file, for messages.
    pub(super) file: PathBuf,
    /// Sizes of the array's dimensions, none of which is zero; the first counts samples.
    pub(super) dimensions: Vec<usize>,
    /// Elements of the array, as many as the product of the dimensions.
    pub(super) bytes: Vec<u8>,
}

impl IdxArray {
    /// Reads an IDX file, gzip-compressed or not, to its end.
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
        // A compressed file may unpack to more than its own size.
        Budget::of_machine().take(expected, &file, || size(expected))?;

        // Asks for one byte more, to reach the end of the file, where gzip verifies its checksum, or to notice extra
        // bytes.
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

/// Reads the header of an IDX file and returns the dimensions, none of which is zero.
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

/// Reads up to `limit` bytes, fewer only if the source ends.
fn read_at_most(file: &Path, source: &mut impl Read, limit: u64) -> Result<Vec<u8>, DatasetError> {
    let mut bytes = Vec::new();
    let read = source.take(limit).read_to_end(&mut bytes);
    read.map_err(DatasetError::read(file))?;
    Ok(bytes)
}
