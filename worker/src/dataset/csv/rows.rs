//! Reads the rows of a table, one at a time and with their line numbers.

use std::io::{self, BufRead, BufReader, Chain, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ::csv::{ErrorKind, Reader, ReaderBuilder, StringRecord, Terminator};
use flate2::bufread::MultiGzDecoder;
use protocol::job::data::Separator;

use super::bounded::Bounded;
use super::counted::CountedFile;
use super::{CsvError, Form, Source, separator};
use crate::dataset::budget::{Budget, size};
use crate::dataset::progress::{Progress, Watcher};
use crate::dataset::{DatasetError, kind, source};

const LINE_END: &[u8] = b"\n";
/// First bytes of gzip files.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// Number of bytes of a table that are read at once, and examined to detect the separator.
const START: usize = 1 << 16;
/// Most bytes of memory that one byte of a table's row needs: it may end an empty cell, and each cell and its end are
/// counted twice.
const BYTES_PER_BYTE: u64 = 48;
/// Bytes of memory for a column besides its cells: its name, its rule and its profile.
const BYTES_PER_COLUMN: u64 = 512;
/// Number of table rows read between two progress reports.
const ROWS_TOLD: u64 = 1 << 14;

/// A table's file and the row that was read last.
pub(super) struct Rows<'a> {
    pub(super) file: &'a Path,
    /// Cells of the row that was read last, without spaces around them.
    pub(super) record: StringRecord,
    /// Line on which the row that was read last starts, from 1.
    pub(super) line: u64,
    /// True if the first row surely holds column names, as in text made from a Parquet file.
    pub(super) named: bool,
    reader: Reader<Chain<Bounded, &'static [u8]>>,
    budget: Budget,
    watcher: Watcher<'a>,
    /// Number of bytes of the file that were read; `total` is the size of the file.
    read: Arc<AtomicU64>,
    total: u64,
    /// Number of rows of the table that were read.
    count: u64,
}

impl<'a> Rows<'a> {
    /// Opens a table's file; no row is read yet.
    pub(super) fn open(source: Source<'a>) -> Result<Self, DatasetError> {
        let Source {
            file,
            form,
            watcher,
            budget,
            ..
        } = source;
        let row_max = budget.room_for(BYTES_PER_BYTE);
        let opened = source::open_of_any_size(file)?;
        let total = opened.metadata().map_err(DatasetError::read(file))?.len();
        let read = Arc::new(AtomicU64::new(0));
        let counted = CountedFile {
            file: opened,
            read: Arc::clone(&read),
        };
        let (source, separator) = match form {
            Form::Text(separator) => text(file, counted, separator)?,
            #[cfg(feature = "parquet")]
            Form::Parquet => (super::parquet::open(file, &counted, budget, row_max)?, Separator::Comma),
            #[cfg(not(feature = "parquet"))]
            Form::Parquet => return Err(DatasetError::NoParquet { file: file.to_owned() }),
        };
        let reader = ReaderBuilder::new()
            .delimiter(separator.byte())
            // The caller detects headers by the cells.
            .has_headers(false)
            // The caller checks the number of cells, for a message that names the line.
            .flexible(true)
            // Rows end after the line feed, so that all lines of a row are counted once it is read. The carriage return
            // of Windows files is trimmed like a space.
            .terminator(Terminator::Any(LINE_END[0]))
            // Without this end of the last line, the count of lines could be one short.
            .from_reader(Bounded::new(source, row_max).chain(LINE_END));
        Ok(Self {
            file,
            record: StringRecord::new(),
            line: 0,
            named: matches!(form, Form::Parquet),
            reader,
            budget,
            watcher,
            read,
            total,
            count: 0,
        })
    }

    /// Reads the table's next row that is not blank. Returns false at the end.
    pub(super) fn advance(&mut self) -> Result<bool, DatasetError> {
        loop {
            self.reader.get_mut().get_mut().0.allow_a_row();
            let read = self.reader.read_record(&mut self.record);
            // The reader reports a row's position before blank lines that precede it, so lines are counted back from
            // the end of the row.
            let line_feeds = self.record.as_slice().matches('\n').count() as u64;
            self.line = self.reader.position().line().saturating_sub(1 + line_feeds);
            if !read.map_err(|error| self.explain(error))? {
                return Ok(false);
            }
            // Checked before the cells are copied.
            self.check_columns()?;
            self.record.trim();
            if self.record.iter().ne([""]) {
                self.tell();
                return Ok(true);
            }
        }
    }

    /// Refuses a row with more columns than the budget has room for.
    fn check_columns(&self) -> Result<(), DatasetError> {
        let columns = self.record.len();
        if columns as u64 <= self.budget.room_for(BYTES_PER_COLUMN) {
            return Ok(());
        }
        Err(self.budget.exceeded(self.file, format!("{columns} columns")))
    }

    fn tell(&mut self) {
        self.count += 1;
        if self.count.is_multiple_of(ROWS_TOLD) {
            (self.watcher)(Progress {
                done: self.read.load(Ordering::Relaxed),
                total: self.total,
                unit: "bytes",
            });
        }
    }

    fn explain(&self, error: ::csv::Error) -> DatasetError {
        match error.into_kind() {
            ErrorKind::Io(source) if source.kind() == io::ErrorKind::FileTooLarge => {
                let row_max = size(self.budget.room_for(BYTES_PER_BYTE));
                self.budget.exceeded(self.file, format!("a row of more than {row_max}"))
            }
            ErrorKind::Io(source) => DatasetError::read(self.file)(source),
            // Rows may have any width and are not converted to types, so the error can only be the encoding.
            _ => DatasetError::Csv(CsvError::NotText {
                file: self.file.to_owned(),
                line: self.line,
            }),
        }
    }
}

/// Opens a table of text, compressed or not, and detects its separator.
fn text(
    file: &Path,
    counted: CountedFile,
    separator: Option<Separator>,
) -> Result<(Box<dyn Read>, Separator), DatasetError> {
    let mut plain = BufReader::with_capacity(START, counted);
    let compressed = first(file, &mut plain)?.starts_with(&GZIP);
    let mut source: Box<dyn BufRead> = if compressed {
        Box::new(BufReader::with_capacity(START, MultiGzDecoder::new(plain)))
    } else {
        Box::new(plain)
    };
    let start = first(file, &mut source)?;
    if let Some(found) = kind::of(start) {
        return Err(DatasetError::OtherKind {
            file: file.to_owned(),
            found: found.name,
            expected: "a table of text",
            instead: found.instead,
        });
    }
    let separator = separator.unwrap_or_else(|| separator::find(start));
    Ok((Box::new(source), separator))
}

/// Returns the first bytes of a table's text without consuming them.
fn first<'a>(file: &Path, source: &'a mut impl BufRead) -> Result<&'a [u8], DatasetError> {
    source.fill_buf().map_err(DatasetError::read(file))
}
