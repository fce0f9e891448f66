//! Tests of reading NPZ files, valid and invalid.

use std::io::Write;

use tempfile::TempDir;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use super::*;
use crate::dataset::test_support::{self, assert_refused};

/// Returns the bytes of an array.
fn npy(kind: &str, shape: &str, elements: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': ({shape}), }}\n");
    let mut bytes = b"\x93NUMPY\x01\0".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(elements);
    bytes
}

fn npz(arrays: &[(&str, Vec<u8>)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let file = std::fs::File::create(folder.path().join("data.npz")).unwrap();
    let mut zip = ZipWriter::new(file);
    for (name, bytes) in arrays {
        zip.start_file(format!("{name}.npy"), SimpleFileOptions::default())
            .unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap();
    folder
}

fn opened(folder: &TempDir, options: &str) -> Result<Dataset, DatasetError> {
    test_support::opened("npz", &folder.path().join("data.npz"), options)
}

fn floats(numbers: impl IntoIterator<Item = f32>) -> Vec<u8> {
    numbers.into_iter().flat_map(f32::to_le_bytes).collect()
}

#[test]
fn four_arrays_are_two_parts() {
    let labels: Vec<u8> = [1i64, 0, 1].iter().flat_map(|label| label.to_le_bytes()).collect();
    let folder = npz(&[
        (
            "x_train",
            npy("|u1", "3, 2, 2", &[0, 255, 51, 102, 1, 2, 3, 4, 5, 6, 7, 8]),
        ),
        ("y_train", npy("<i8", "3,", &labels)),
        ("x_test", npy("|u1", "1, 2, 2", &[9; 4])),
        ("y_test", npy("<i8", "1,", &labels[..8])),
    ]);
    let dataset = opened(&folder, "").unwrap();
    assert_eq!(dataset.input.to_string(), "1x2x2");
    assert_eq!(dataset.target.classes(), ["0", "1"]);
    assert_eq!(
        (dataset.train.labels(), dataset.test.labels()),
        (&[1, 0, 1][..], &[1][..])
    );
    assert_eq!(dataset.scaling, Scaling::Unit);
    let spec = format!("npz:{}", folder.path().join("data.npz").display())
        .parse()
        .unwrap();
    let again = Dataset::open_for(&spec, 7, None, dataset.known()).unwrap();
    assert_eq!(again.hash, dataset.hash);
    assert_eq!(Dataset::inputs(&spec, dataset.known()).unwrap().len(), 1);
}

#[test]
fn numbers_are_standardised_and_may_be_predicted() {
    let folder = npz(&[
        ("x", npy("<f4", "50, 2", &floats((0..100u8).map(f32::from)))),
        ("y", npy("<f4", "50, 1", &floats((0..50u8).map(|n| f32::from(n) * 0.5)))),
    ]);
    let dataset = opened(&folder, "").unwrap();
    assert_eq!((dataset.input, dataset.target.numbers().len()), (Shape::Flat(2), 1));
    assert_eq!((dataset.train.len(), dataset.test.len()), (40, 10));
    let classes = opened(&folder, "?target=class&test=0.5").unwrap();
    assert_eq!((classes.target.classes().len(), classes.test.len()), (50, 25));
}

#[test]
fn channels_that_come_last_are_put_first() {
    // Two images of 2 × 2 pixels whose three channels are 1, 2 and 3.
    let pixels: Vec<u8> = [1, 2, 3].repeat(8);
    let folder = npz(&[
        ("x", npy("|u1", "2, 2, 2, 3", &pixels)),
        ("y", npy("|u1", "2,", &[0, 1])),
    ]);
    let dataset = opened(&folder, "?test=0.5").unwrap();
    assert_eq!(dataset.input.to_string(), "3x2x2");
    let (mut inputs, mut answers) = (Vec::new(), Answers::default());
    dataset.train.gather(&[0], &mut inputs, &mut answers);
    let bytes: Vec<u8> = inputs.iter().map(|input| (input * 255.0).round() as u8).collect();
    assert_eq!(bytes, [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]);
}

#[test]
fn wrong_arrays_are_named() {
    let x = || ("x", npy("|u1", "2, 1", &[1, 2]));
    let y = || ("y", npy("|u1", "2,", &[0, 1]));
    for (arrays, says) in [
        (vec![x()], "holds x: give the arrays x_train"),
        (
            vec![x(), ("y", npy("|u1", "3,", &[0, 1, 2]))],
            "x holds 2 samples but the array y holds 3",
        ),
        (
            vec![("x", npy("<c8", "2, 1", &[0; 16])), y()],
            "the array x holds elements of type '<c8'",
        ),
        (
            vec![("x", npy("|u1", "2, 1", &[1])), y()],
            "the array x has 1 of 2 bytes",
        ),
        (
            vec![("x", npy("|u1", "2, 0", &[])), y()],
            "the array x has the shape [2, 0]",
        ),
        (
            vec![("x", npy("<f4", "2, 1", &floats([f32::NAN, 0.0]))), y()],
            "x holds a number that is not finite",
        ),
        (vec![("x", b"nonsense".to_vec()), y()], "x is not a NumPy array"),
        (
            vec![("x", npy("|u1", "99999999999, 99999999999", &[])), y()],
            "too much to load",
        ),
        (
            vec![x(), ("y", npy("|u1", "2, 1, 1", &[0, 1]))],
            "y has the shape [2, 1, 1]",
        ),
    ] {
        assert_refused(opened(&npz(&arrays), ""), &[says]);
    }
    let folder = tempfile::tempdir().unwrap();
    let put = |bytes: &[u8]| std::fs::write(folder.path().join("data.npz"), bytes).unwrap();
    put(b"PAR1");
    assert_refused(opened(&folder, ""), &["is a Parquet file, not an NPZ file"]);
    put(b"1,2\n");
    assert_refused(opened(&folder, ""), &["is not an NPZ file"]);
}
