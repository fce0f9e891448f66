//! Checks the memory that the pages of a Parquet file claim, before any of them is unpacked.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use ::parquet::basic::Compression;
use ::parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};
use flate2::bufread::MultiGzDecoder;

use super::page_header::PageHeader;
use crate::dataset::DatasetError;
use crate::dataset::budget::{Budget, size};

/// Bytes of memory for a value in a Parquet column's dictionary, besides the value's contents.
const VALUE_BYTES: u64 = 32;
/// Bytes of memory for the values of a column that are read at once: 1,024 values with their definition and repetition
/// levels.
const COLUMN_BYTES: u64 = 1024 * 40;
/// Largest compression ratio of gzip, which limits the size that a page can unpack to; the next constant is that of
/// LZ4.
const GZIP_RATIO: u64 = 1032;
const LZ4_RATIO: u64 = 255;

/// Refuses a file if reading one of its row groups would take more memory than the budget.
pub(super) fn check(
    file: &Path,
    opened: &File,
    metadata: &ParquetMetaData,
    budget: Budget,
) -> Result<(), DatasetError> {
    for group in metadata.row_groups() {
        let mut budget = budget;
        for column in group.columns() {
            let needed = column_bytes(opened, column, budget).map_err(DatasetError::read(file))?;
            budget.take(needed, file, || {
                let name = column.column_path().string();
                format!("pages that unpack to {} in column {name}", size(needed))
            })?;
        }
    }
    Ok(())
}

/// Memory that a column takes while it is read: twice its dictionary and its largest page, packed and unpacked.
fn column_bytes(opened: &File, column: &ColumnChunkMetaData, budget: Budget) -> io::Result<u64> {
    let (start, length) = column.byte_range();
    let (mut at, end) = (start, start.saturating_add(length));
    let (mut dictionary, mut page) = (0, 0);
    while at < end {
        (&*opened).seek(SeekFrom::Start(at))?;
        let mut reader = BufReader::new(opened).take(end - at);
        let header = PageHeader::read(&mut reader)?;
        let bytes = header.packed + unpacked(header, column.compression(), &mut reader, budget)?;
        if header.dictionary_values > 0 {
            dictionary += bytes + VALUE_BYTES.saturating_mul(header.dictionary_values);
        } else {
            page = bytes.max(page);
        }
        at += header.length + header.packed;
    }
    Ok(COLUMN_BYTES + 2 * (dictionary + page))
}

/// Returns a bound on the bytes that a Parquet page unpacks to. The library stops at the size that the page claims,
/// except for gzip and LZ4: their claims are accepted if they cannot unpack to more than the budget; otherwise gzip is
/// unpacked on trial, and LZ4 counts with its largest ratio.
fn unpacked(header: PageHeader, codec: Compression, page: impl io::BufRead, budget: Budget) -> io::Result<u64> {
    let most = match codec {
        Compression::GZIP(_) => header.packed.saturating_mul(GZIP_RATIO),
        Compression::LZ4 => header.packed.saturating_mul(LZ4_RATIO),
        _ => return Ok(header.unpacked),
    };
    if most <= budget.room_for(2) {
        return Ok(header.unpacked);
    }
    if matches!(codec, Compression::LZ4) {
        return Ok(most);
    }
    let packed = MultiGzDecoder::new(page.take(header.packed));
    // Unpacking one byte more than claimed shows that the claim is false.
    let found = io::copy(&mut packed.take(header.unpacked + 1), &mut io::sink())?;
    if found > header.unpacked {
        Ok(most)
    } else {
        Ok(header.unpacked)
    }
}
