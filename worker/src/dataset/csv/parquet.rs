//! Reads a Parquet file as the CSV text that it would be saved as: a line of names, then a line for each row.

mod page_header;
mod pages;

use std::fmt::Write as _;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ::parquet::errors::ParquetError;
use ::parquet::file::reader::{FileReader, SerializedFileReader};
use ::parquet::record::reader::RowIter;
use ::parquet::record::{Field, Row};

use super::counted::CountedFile;
use crate::dataset::budget::Budget;
use crate::dataset::{DatasetError, kind};
use crate::machine::panics::without_panic;

/// First bytes of Parquet files.
const MAGIC: &[u8] = b"PAR1";

/// Converts a Parquet file row by row to CSV text, and is read like a file.
struct Text {
    rows: RowIter<'static>,
    /// CSV line of the row that was converted last; `at` is the number of its bytes that the reader has taken.
    line: String,
    at: usize,
    /// Estimated number of bytes of the file that were read, for progress reports; `row_bytes` is the mean per row.
    read: Arc<AtomicU64>,
    row_bytes: f64,
    count: u64,
    /// Most bytes of text in a CSV line; a longer row is an error.
    line_max: u64,
}

/// Opens a Parquet file as a source of CSV text.
pub(super) fn open(
    file: &Path,
    counted: &CountedFile,
    budget: Budget,
    line_max: u64,
) -> Result<Box<dyn Read>, DatasetError> {
    let wrong = |why: String| DatasetError::Parquet {
        file: file.to_owned(),
        why,
    };
    let opened = counted.file.try_clone().map_err(DatasetError::read(file))?;
    let bytes = opened.metadata().map_err(DatasetError::read(file))?.len();
    let mut first = [0; 64];
    let length = (&counted.file).read(&mut first).map_err(DatasetError::read(file))?;
    if !first.starts_with(MAGIC) {
        let found = kind::of(&first[..length]);
        return Err(DatasetError::OtherKind {
            file: file.to_owned(),
            found: found.map_or("of an unknown kind", |found| found.name),
            expected: "a Parquet file",
            instead: found.map_or("write csv:FILE if the file is a table of text", |found| found.instead),
        });
    }
    let broken = |error: ParquetError| wrong(format!("is a broken Parquet file ({error}): create the file again"));
    let reader = caught(|| SerializedFileReader::new(opened)).map_err(broken)?;
    caught(|| Ok(pages::check(file, &counted.file, reader.metadata(), budget))).map_err(broken)??;
    let metadata = reader.metadata().file_metadata();
    let mut line = String::new();
    for (at, column) in metadata.schema().get_fields().iter().enumerate() {
        if !column.is_primitive() {
            let name = column.name();
            return Err(wrong(format!(
                "has a nested column '{name}' (lists or groups): store each of its values in a column of its own"
            )));
        }
        cell(&mut line, at, column.name());
    }
    line.push('\n');
    let rows = metadata.num_rows().max(1);
    Ok(Box::new(Text {
        rows: caught(|| Ok(reader.into_iter())).map_err(broken)?,
        line,
        at: 0,
        read: Arc::clone(&counted.read),
        row_bytes: bytes as f64 / rows as f64,
        count: 0,
        line_max,
    }))
}

/// Runs a function of the Parquet library and turns its panics into errors: a malformed file must not end the process.
fn caught<T>(read: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, ParquetError> {
    let inconsistent = || ParquetError::General("the contents of the file are inconsistent".into());
    without_panic(read).unwrap_or_else(|| Err(inconsistent()))
}

impl Text {
    /// Converts the next row to a CSV line. Returns false at the end of the file.
    fn advance(&mut self) -> io::Result<bool> {
        let next = caught(|| self.rows.next().transpose());
        let broken = |error: ParquetError| io::Error::other(format!("row {}: {error}", self.count + 1));
        let Some(row) = next.map_err(broken)? else {
            return Ok(false);
        };
        self.count += 1;
        self.read
            .store((self.count as f64 * self.row_bytes) as u64, Ordering::Relaxed);
        self.line.clear();
        self.at = 0;
        let bytes: usize = row.get_column_iter().map(|(_, field)| text_bytes(field)).sum();
        if bytes as u64 > self.line_max {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        write(&mut self.line, &row).map_err(|name| {
            io::Error::other(format!(
                "column '{name}' holds values that are neither numbers nor text"
            ))
        })?;
        Ok(true)
    }
}

impl Read for Text {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.at == self.line.len() && !self.advance()? {
            return Ok(0);
        }
        let mut left = &self.line.as_bytes()[self.at..];
        let count = left.read(to)?;
        self.at += count;
        Ok(count)
    }
}

/// Returns the bytes of a Parquet value that is a text; 0 for other values, which are short.
fn text_bytes(field: &Field) -> usize {
    match field {
        Field::Str(text) => text.len(),
        _ => 0,
    }
}

/// Writes a row as a CSV line; on failure returns the name of the column that cannot be written.
fn write(line: &mut String, row: &Row) -> Result<(), String> {
    for (at, (name, field)) in row.get_column_iter().enumerate() {
        match field {
            Field::Null => cell(line, at, ""),
            Field::Bool(value) => cell(line, at, if *value { "1" } else { "0" }),
            Field::Str(text) => cell(line, at, text),
            Field::Float(number) if number.is_nan() => cell(line, at, ""),
            Field::Double(number) if number.is_nan() => cell(line, at, ""),
            // Floats with all their digits; other values as the library formats them.
            Field::Float(number) => cell(line, at, &number.to_string()),
            Field::Double(number) => cell(line, at, &number.to_string()),
            Field::Bytes(_) | Field::Group(_) | Field::ListInternal(_) | Field::MapInternal(_) => {
                return Err(name.clone());
            }
            other => cell(line, at, &other.to_string()),
        }
    }
    line.push('\n');
    Ok(())
}

/// Writes one quoted cell to a CSV line, with quotes inside doubled.
fn cell(line: &mut String, at: usize, text: &str) {
    let comma = if at == 0 { "" } else { "," };
    let _ = write!(line, "{comma}\"{}\"", text.replace('"', "\"\""));
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use ::parquet::basic::{Compression, GzipLevel, ZstdLevel};
    use ::parquet::data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, Int32Type};
    use ::parquet::file::properties::WriterProperties;
    use ::parquet::file::writer::SerializedFileWriter;
    use ::parquet::schema::parser::parse_message_type;
    use protocol::job::data::DataSpec;

    use super::page_header::PageHeader;
    use super::*;
    use crate::dataset::Dataset;

    const ROWS: i32 = 40;

    /// Makes a table with a column of each supported type, one of them with gaps.
    fn table(folder: &Path) -> PathBuf {
        let path = folder.join("table.parquet");
        let schema = "message t { required int32 c0; optional double price; required boolean sold; required binary \
                      kind (UTF8); required binary label (UTF8); }";
        let schema = Arc::new(parse_message_type(schema).unwrap());
        let file = std::fs::File::create(&path).unwrap();
        let mut writer = SerializedFileWriter::new(file, schema, Arc::default()).unwrap();
        let mut group = writer.next_row_group().unwrap();
        let texts = |text: fn(i32) -> &'static str| -> Vec<ByteArray> {
            (0..ROWS).map(|row| ByteArray::from(text(row))).collect()
        };
        let mut number = 0;
        while let Some(mut column) = group.next_column().unwrap() {
            match number {
                0 => column
                    .typed::<Int32Type>()
                    .write_batch(&(0..ROWS).collect::<Vec<_>>(), None, None)
                    .map(drop),
                1 => {
                    let there: Vec<i16> = (0..ROWS).map(|row| i16::from(row % 4 > 0)).collect();
                    let known: Vec<f64> = (0..ROWS)
                        .filter(|row| row % 4 > 0)
                        .map(|row| f64::from(row) / 3.0)
                        .collect();
                    column
                        .typed::<DoubleType>()
                        .write_batch(&known, Some(&there), None)
                        .map(drop)
                }
                2 => {
                    let sold: Vec<bool> = (0..ROWS).map(|row| row % 3 == 0).collect();
                    column.typed::<BoolType>().write_batch(&sold, None, None).map(drop)
                }
                3 => {
                    let kinds = texts(|row| if row % 2 == 0 { "a, \"b\"\nc" } else { "d" });
                    column
                        .typed::<ByteArrayType>()
                        .write_batch(&kinds, None, None)
                        .map(drop)
                }
                _ => {
                    let labels = texts(|row| if row % 2 == 0 { "no" } else { "yes" });
                    column
                        .typed::<ByteArrayType>()
                        .write_batch(&labels, None, None)
                        .map(drop)
                }
            }
            .unwrap();
            column.close().unwrap();
            number += 1;
        }
        group.close().unwrap();
        writer.close().unwrap();
        path
    }

    fn opened(kind: &str, path: &Path, options: &str) -> Result<Dataset, String> {
        let spec: DataSpec = format!("{kind}:{}{options}", path.display()).parse().unwrap();
        Dataset::open(&spec, 1, None).map_err(|error| protocol::sentence::sentence(&error))
    }

    #[test]
    fn a_table_is_the_same_as_its_text() {
        let folder = tempfile::tempdir().unwrap();
        let path = table(folder.path());
        let mut text = String::from("c0,price,sold,kind,label\n");
        for row in 0..ROWS {
            let price = if row % 4 > 0 {
                (f64::from(row) / 3.0).to_string()
            } else {
                String::new()
            };
            let kind = if row % 2 == 0 { "\"a, \"\"b\"\"\nc\"" } else { "d" };
            let label = if row % 2 == 0 { "no" } else { "yes" };
            let _ = writeln!(text, "{row},{price},{},{kind},{label}", i32::from(row % 3 == 0));
        }
        let csv = folder.path().join("table.csv");
        std::fs::write(&csv, text).unwrap();
        let options = "?missing=mean&onehot=kind";
        let (parquet, csv) = (
            opened("parquet", &path, options).unwrap(),
            opened("csv", &csv, options).unwrap(),
        );
        assert_eq!((parquet.hash, parquet.columns), (csv.hash, csv.columns));
    }

    #[test]
    fn what_is_no_table_is_named_and_nothing_ends_the_process() {
        let folder = tempfile::tempdir().unwrap();
        let path = table(folder.path());
        let refused = |path: &Path, says: &str| {
            let error = opened("parquet", path, "?missing=mean&onehot=kind").unwrap_err();
            assert!(error.contains(says), "{error}");
        };
        let other = folder.path().join("other");
        std::fs::write(&other, "a,b\n1,2\n").unwrap();
        refused(&other, "not a Parquet file: write csv:FILE");
        std::fs::write(&other, b"\x93NUMPY\x01").unwrap();
        refused(&other, "is a NumPy array, not a Parquet file");
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&other, &whole[..whole.len() / 2]).unwrap();
        refused(&other, "is a broken Parquet file");
        // Whichever byte is changed, the result is a dataset or an error.
        for at in (4..whole.len()).step_by(7) {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x5a;
            std::fs::write(&other, bytes).unwrap();
            let _ = opened("parquet", &other, "?missing=mean&onehot=kind");
        }
    }

    /// Makes a file with a text of zeros in each of two rows.
    fn zeros(path: &Path, letters: usize, codec: Compression) {
        let schema = Arc::new(parse_message_type("message t { required binary a (UTF8); required int32 b; }").unwrap());
        let properties = WriterProperties::builder().set_compression(codec).build();
        let file = std::fs::File::create(path).unwrap();
        let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties)).unwrap();
        let mut group = writer.next_row_group().unwrap();
        let mut texts = group.next_column().unwrap().unwrap();
        let text = ByteArray::from(vec![b'0'; letters]);
        let written = texts
            .typed::<ByteArrayType>()
            .write_batch(&[text.clone(), text], None, None);
        written.unwrap();
        texts.close().unwrap();
        let mut numbers = group.next_column().unwrap().unwrap();
        numbers.typed::<Int32Type>().write_batch(&[0, 1], None, None).unwrap();
        numbers.close().unwrap();
        group.close().unwrap();
        writer.close().unwrap();
    }

    #[test]
    fn pages_are_bounded_before_they_are_unpacked() {
        const LETTERS: usize = 1 << 20;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("zeros.parquet");
        let open = |budget: u64| {
            let counted = CountedFile {
                file: std::fs::File::open(&path).unwrap(),
                read: Arc::default(),
            };
            super::open(&path, &counted, Budget::of(budget), u64::MAX).map(|mut text| {
                let mut read = Vec::new();
                text.read_to_end(&mut read).unwrap();
                read.len()
            })
        };
        for codec in [
            Compression::UNCOMPRESSED,
            Compression::SNAPPY,
            Compression::GZIP(GzipLevel::default()),
            Compression::ZSTD(ZstdLevel::default()),
        ] {
            zeros(&path, LETTERS, codec);
            let error = open(LETTERS as u64).unwrap_err().to_string();
            assert!(error.contains("holds pages that unpack to"), "{codec}: {error}");
            assert!(open(20 * LETTERS as u64).unwrap() > 2 * LETTERS, "{codec}");
        }
        // A page that claims less than it holds.
        zeros(&path, LETTERS, Compression::GZIP(GzipLevel::default()));
        let whole = std::fs::read(&path).unwrap();
        let length = PageHeader::read(&whole[4..]).unwrap().unpacked;
        let claim = |mut number: u64, length: usize| {
            number <<= 1;
            let mut bytes: Vec<u8> = (0..length).map(|at| (number >> (7 * at)) as u8 | 0x80).collect();
            bytes[length - 1] &= 0x7f;
            bytes
        };
        let said = claim(length, 4);
        let at = whole.windows(4).position(|some| *some == said).unwrap();
        let mut lying = whole.clone();
        lying[at..at + 4].copy_from_slice(&claim(100, 4));
        std::fs::write(&path, lying).unwrap();
        let error = open(LETTERS as u64).unwrap_err().to_string();
        assert!(error.contains("holds pages that unpack to"), "{error}");
    }
}
