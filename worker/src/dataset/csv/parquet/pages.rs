//! The memory that the pages of a Parquet file claim, before any of them is unpacked.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use ::parquet::basic::Compression;
use ::parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};
use flate2::bufread::MultiGzDecoder;

use super::page_header::PageHeader;
use crate::dataset::DatasetError;
use crate::dataset::budget::{Budget, size};

/// Memory of a value in a dictionary besides its bytes.
const VALUE_BYTES: u64 = 32;
/// Memory of a column's values that are read at a time: 1,024 of them, with their levels.
const COLUMN_BYTES: u64 = 1024 * 40;
/// The most bytes that gzip and LZ4 make of one.
const GZIP_RATIO: u64 = 1032;
const LZ4_RATIO: u64 = 255;

/// Refuses a file of which some group of rows takes more than the budget while it is read.
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

/// The memory of a column while it is read: its dictionary and its largest page, as pages and as the values of a row.
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

/// The most bytes that a page may unpack to. The library stops at the size that a page claims, but for two codecs: these
/// are believed where they cannot make more than the budget, and gzip is tried out otherwise.
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
    // One byte more than claimed tells that it lies.
    let found = io::copy(&mut packed.take(header.unpacked + 1), &mut io::sink())?;
    if found > header.unpacked {
        Ok(most)
    } else {
        Ok(header.unpacked)
    }
}
