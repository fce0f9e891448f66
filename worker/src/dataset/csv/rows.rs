//! The rows of a file, one at a time and with their line numbers.

use std::fs::File;
use std::io::{Chain, Read};
use std::path::Path;

use ::csv::{ErrorKind, Reader, ReaderBuilder, StringRecord, Terminator};

use super::CsvError;
use crate::dataset::{DatasetError, source};

/// The end of a line.
const LINE_END: &[u8] = b"\n";

/// A file and the row that was read last.
pub(super) struct Rows<'a> {
    pub(super) file: &'a Path,
    /// The cells of the row, without spaces around them.
    pub(super) record: StringRecord,
    /// The line that the row starts on, from 1.
    pub(super) line: u64,
    reader: Reader<Chain<File, &'static [u8]>>,
}

impl<'a> Rows<'a> {
    pub(super) fn open(file: &'a Path) -> Result<Self, DatasetError> {
        let source = source::open(file)?;
        let reader = ReaderBuilder::new()
            // The first row may be a header: the cells tell.
            .has_headers(false)
            // Widths are checked by the caller, for a message that names the line.
            .flexible(true)
            // Rows end after the line feed, so that all lines of a row are counted once it is read. The carriage
            // return of Windows files is trimmed like a space.
            .terminator(Terminator::Any(LINE_END[0]))
            // The last line of a file may lack its end, and the count would be one short.
            .from_reader(source.chain(LINE_END));
        Ok(Self {
            file,
            record: StringRecord::new(),
            line: 0,
            reader,
        })
    }

    /// Steps to the next row that is not blank. Returns whether there is one.
    pub(super) fn advance(&mut self) -> Result<bool, DatasetError> {
        loop {
            let read = self.reader.read_record(&mut self.record);
            // The reader's own position of a row is before any blank lines in front of it, so lines are counted
            // back from the end of the row.
            let line_feeds = self.record.as_slice().matches('\n').count() as u64;
            self.line = self.reader.position().line().saturating_sub(1 + line_feeds);
            if !read.map_err(|error| self.explain(error))? {
                return Ok(false);
            }
            self.record.trim();
            if self.record.iter().ne([""]) {
                return Ok(true);
            }
        }
    }

    fn explain(&self, error: ::csv::Error) -> DatasetError {
        match error.into_kind() {
            ErrorKind::Io(source) => DatasetError::read(self.file)(source),
            // Rows may have any width and are not turned into types: only a wrong encoding is left.
            _ => DatasetError::Csv(CsvError::NotText {
                file: self.file.to_owned(),
                line: self.line,
            }),
        }
    }
}
