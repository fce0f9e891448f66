//! Tests of reading IDX files, valid and invalid.

use std::fs;
use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use protocol::job::data::DataSpec;
use tempfile::TempDir;

use super::*;
use crate::dataset::test_support::assert_refused;

const TRAIN_IMAGES: &str = "train-images-idx3-ubyte";
const TRAIN_LABELS: &str = "train-labels-idx1-ubyte";
const TEST_IMAGES: &str = "t10k-images-idx3-ubyte";
const TEST_LABELS: &str = "t10k-labels-idx1-ubyte";

/// Returns the bytes of an IDX file.
fn idx(dimensions: &[u32], data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, dimensions.len() as u8];
    bytes.extend(dimensions.iter().flat_map(|dimension| dimension.to_be_bytes()));
    bytes.extend_from_slice(data);
    bytes
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Makes three training images and one test image of 1 × 2 pixels.
fn small() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, bytes) in [
        (TRAIN_IMAGES, idx(&[3, 1, 2], &[0, 51, 102, 153, 204, 255])),
        (TRAIN_LABELS, idx(&[3], &[0, 2, 1])),
        (TEST_IMAGES, idx(&[1, 1, 2], &[255, 0])),
        (TEST_LABELS, idx(&[1], &[3])),
    ] {
        fs::write(directory.path().join(name), bytes).unwrap();
    }
    directory
}

fn spec(directory: &TempDir) -> DataSpec {
    DataSpec::Idx {
        directory: directory.path().to_owned(),
    }
}

fn open(directory: &TempDir) -> Result<Dataset, DatasetError> {
    Dataset::open(&spec(directory), 0, None)
}

/// Replaces one file of the small dataset and opens the dataset.
fn open_with(name: &str, bytes: impl AsRef<[u8]>) -> Result<Dataset, DatasetError> {
    let directory = small();
    fs::write(directory.path().join(name), bytes).unwrap();
    open(&directory)
}

#[test]
fn four_files_make_a_dataset() {
    let dataset = open(&small()).unwrap();
    let image = Shape::Image {
        channels: 1,
        height: 1,
        width: 2,
    };
    assert_eq!(dataset.input, image);
    assert_eq!(dataset.target.classes(), ["0", "1", "2", "3"]);
    assert_eq!(dataset.scaling, Scaling::Unit);
    assert_eq!(dataset.train.labels(), [0, 2, 1]);
    assert_eq!(dataset.test.labels(), [3]);
    let (mut inputs, mut answers) = (Vec::new(), Answers::default());
    dataset.test.gather(&[0], &mut inputs, &mut answers);
    assert_eq!(inputs, [1.0, 0.0]);
}

#[test]
fn compressed_files_and_dotted_names_hold_the_same() {
    let plain = open(&small()).unwrap();
    let directory = small();
    let path = |name: &str| directory.path().join(name);
    for name in [TRAIN_IMAGES, TEST_LABELS] {
        let bytes = fs::read(path(name)).unwrap();
        fs::write(path(&format!("{name}.gz")), gzip(&bytes)).unwrap();
        fs::remove_file(path(name)).unwrap();
    }
    fs::rename(path(TRAIN_LABELS), path("train-labels.idx1-ubyte")).unwrap();
    let bytes = fs::read(path(TEST_IMAGES)).unwrap();
    fs::write(path("t10k-images.idx3-ubyte.gz"), gzip(&bytes)).unwrap();
    fs::remove_file(path(TEST_IMAGES)).unwrap();
    assert_eq!(open(&directory).unwrap().hash, plain.hash);
}

#[test]
fn dimensions_decide_the_shape() {
    for (dimensions, expected) in [
        (vec![3, 2], Shape::Flat(2)),
        (
            vec![3, 2, 1, 1],
            Shape::Image {
                channels: 2,
                height: 1,
                width: 1,
            },
        ),
    ] {
        let directory = small();
        let mut test = dimensions.clone();
        test[0] = 1;
        fs::write(directory.path().join(TRAIN_IMAGES), idx(&dimensions, &[0; 6])).unwrap();
        fs::write(directory.path().join(TEST_IMAGES), idx(&test, &[0; 2])).unwrap();
        assert_eq!(open(&directory).unwrap().input, expected);
    }
}

#[test]
fn a_missing_file_is_named() {
    let directory = small();
    fs::remove_file(directory.path().join(TEST_LABELS)).unwrap();
    assert_refused(open(&directory), &[TEST_LABELS, "t10k-labels.idx1-ubyte.gz"]);
}

#[test]
fn files_of_another_kind_are_refused() {
    for bytes in [&b""[..], b"\0", b"\x89PNG\r\n", b"1,2,3\n"] {
        assert_refused(open_with(TRAIN_IMAGES, bytes), &[TRAIN_IMAGES, "not an IDX file"]);
    }
    let mut floats = idx(&[3, 1, 2], &[0; 24]);
    floats[2] = 0x0d;
    assert_refused(open_with(TRAIN_IMAGES, floats), &[TRAIN_IMAGES, "0x0d"]);
}

#[test]
fn exchanged_files_are_refused() {
    let labels = idx(&[3], &[0, 1, 2]);
    assert_refused(open_with(TRAIN_IMAGES, labels), &[TRAIN_IMAGES, "images were expected"]);
    let images = idx(&[3, 1, 2], &[0; 6]);
    assert_refused(open_with(TRAIN_LABELS, images), &[TRAIN_LABELS, "labels were expected"]);
    let nothing = idx(&[], &[]);
    assert_refused(open_with(TRAIN_LABELS, nothing), &["0 dimensions"]);
}

#[test]
fn files_of_the_wrong_length_are_refused() {
    let short = idx(&[3, 1, 2], &[0; 5]);
    let message = [TRAIN_IMAGES, "5 of 6 bytes"];
    assert_refused(open_with(TRAIN_IMAGES, &short), &message);
    assert_refused(open_with(TRAIN_IMAGES, gzip(&short)), &message);
    assert_refused(open_with(TRAIN_IMAGES, &short[..9]), &["5 of 12 bytes"]);
    let long = idx(&[3, 1, 2], &[0; 7]);
    assert_refused(open_with(TRAIN_IMAGES, &long), &["extra bytes after its 6 bytes"]);
    assert_refused(open_with(TRAIN_IMAGES, gzip(&long)), &["extra bytes after its 6 bytes"]);
}

#[test]
fn damaged_compression_is_refused() {
    let whole = gzip(&idx(&[3, 1, 2], &[7; 6]));
    assert_refused(
        open_with(TRAIN_IMAGES, &whole[..whole.len() - 9]),
        &[TRAIN_IMAGES, "could not be read"],
    );
    // The checksum is in the last eight bytes.
    let mut changed = whole;
    let place = changed.len() - 8;
    changed[place] ^= 1;
    assert_refused(open_with(TRAIN_IMAGES, changed), &[TRAIN_IMAGES, "could not be read"]);
}

#[test]
fn a_header_cannot_claim_memory() {
    // Four dimensions whose product exceeds 64 bits, and dimensions whose product exceeds the limit.
    let huge = idx(&[u32::MAX; 4], &[]);
    assert_refused(open_with(TRAIN_IMAGES, huge), &[TRAIN_IMAGES, "too much to load"]);
    let large = idx(&[1 << 17, 1 << 9, 1 << 9], &[]);
    assert_refused(open_with(TRAIN_IMAGES, large), &["too much to load"]);
    // A header may claim 64 MiB, but only the bytes that exist are read.
    let claimed = idx(&[1 << 8, 1 << 9, 1 << 9], &[1, 2, 3]);
    assert_refused(open_with(TRAIN_IMAGES, claimed), &["3 of 67108864 bytes"]);
    // A megabyte of zeros in a kilobyte of file: reading stops one byte after the claimed size.
    let bomb = gzip(&idx(&[3, 1, 2], &vec![0; 1 << 20]));
    assert_refused(open_with(TRAIN_IMAGES, bomb), &["extra bytes after its 6 bytes"]);
}

#[test]
fn parts_that_do_not_belong_together_are_refused() {
    assert_refused(
        open_with(TRAIN_LABELS, idx(&[2], &[0, 1])),
        &[TRAIN_IMAGES, "3 images", TRAIN_LABELS, "2 labels"],
    );
    assert_refused(
        open_with(TEST_IMAGES, idx(&[1, 2, 2], &[0; 4])),
        &[TRAIN_IMAGES, "1x1x2", TEST_IMAGES, "1x2x2"],
    );
}

#[test]
fn empty_files_are_refused() {
    assert_refused(open_with(TEST_LABELS, idx(&[0], &[])), &[TEST_LABELS, "holds no data"]);
    assert_refused(
        open_with(TEST_IMAGES, idx(&[1, 0, 2], &[])),
        &[TEST_IMAGES, "[1, 0, 2]"],
    );
}

#[test]
fn one_class_is_nothing_to_learn() {
    let directory = small();
    fs::write(directory.path().join(TRAIN_LABELS), idx(&[3], &[0; 3])).unwrap();
    fs::write(directory.path().join(TEST_LABELS), idx(&[1], &[0])).unwrap();
    assert_refused(open(&directory), &["every sample of idx:", "the label '0'"]);
}

#[test]
fn a_model_brings_its_own_classes() {
    let directory = small();
    let names = |count: u32| (0..count).map(|n| n.to_string()).collect::<Vec<_>>();
    let open_for = |scaling: &Scaling, classes: &[String]| {
        let known = Known {
            input: Shape::Flat(1),
            target: &Target::Classes(classes.to_vec()),
            columns: None,
            encodings: &[],
            scaling,
        };
        Dataset::open_for(&spec(&directory), 0, None, known)
    };
    assert_eq!(open_for(&Scaling::Unit, &names(10)).unwrap().target.outputs(), 10);
    let unknown = open_for(&Scaling::Unit, &names(3));
    assert_refused(unknown, &[TEST_LABELS, "the label 3", "0, 1, 2"]);
    let columns = Scaling::Standard {
        mean: vec![0.0; 2],
        deviation: vec![1.0; 2],
    };
    assert_refused(open_for(&columns, &names(10)), &["trained on columns of numbers"]);
}

#[cfg(unix)]
#[test]
fn a_file_that_links_out_of_the_root_is_refused() {
    let (directory, outside) = (small(), small());
    let link = directory.path().join(TEST_LABELS);
    fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(outside.path().join(TEST_LABELS), link).unwrap();
    assert!(open(&directory).is_ok());
    let confined = Dataset::open(&spec(&directory), 0, Some(directory.path()));
    assert_refused(confined, &[TEST_LABELS, "outside of the data directory"]);
}
