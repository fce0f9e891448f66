//! Tests that small files that would fill the memory are refused, under a small budget, before they are unpacked.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use protocol::job::data::DataSpec;

use super::tests::{assert_refused, file};
use super::*;

/// Memory limit in bytes that each file of these tests exceeds.
const BUDGET: u64 = 1 << 20;

fn zipped(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

fn opened(text: &[u8], options: &str, bytes: u64) -> Result<Dataset, DatasetError> {
    let (_folder, spec) = file(text, options);
    let DataSpec::Csv { file, table, .. } = &spec else {
        panic!("the data must be a CSV table");
    };
    let source = Source {
        budget: Budget::of(bytes),
        ..Source::new(file, Form::Text(None), &|_| {})
    };
    super::open(source, None, table, 7, None)
}

/// Returns 5,000 lines of a table, each made from its row number.
fn rows(cells: impl Fn(usize) -> String) -> String {
    (0..5000).map(|row| cells(row) + "\n").collect()
}

#[test]
fn a_row_is_bounded_before_its_cells_are_made() {
    let (wide, long) = ("0,".repeat(100_000), "x".repeat(200_000));
    for (text, says) in [
        (format!("{wide}\n"), "a row of more than"),
        (format!("{long},1\n"), "a row of more than"),
        (format!("\"{}\",1\n", long.replace('x', "x\n")), "a row of more than"),
        // Lines are short, but there are too many columns.
        (",".repeat(5000) + "\n", "5001 columns"),
    ] {
        for bytes in [zipped(&text), text.into_bytes()] {
            assert_refused(opened(&bytes, "", BUDGET), says);
        }
    }
    // Every row has as much room as the first.
    let many: String = rows(|row| format!("{row},{}", row % 2));
    assert!(opened(&zipped(&many), "", BUDGET).is_ok());
}

#[test]
fn texts_labels_and_words_are_bounded_together() {
    let long = |row: usize| format!("x{row:0>2000},{}", row % 2);
    for (text, options, says) in [
        (rows(|row| format!("1,label {row}")), "", "too many labels"),
        (rows(|row| long(row % 900)), "?onehot=0", "too much different text"),
        (rows(long), "?text=hash:8", "too much different text"),
        (
            rows(|row| "a ".repeat(100) + &format!(",{}", row % 2)),
            "?words=0:16",
            "too many words",
        ),
    ] {
        assert_refused(opened(&zipped(&text), options, BUDGET), says);
        let _ = opened(&zipped(&text), options, u64::MAX).unwrap();
    }
}
