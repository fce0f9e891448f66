//! Datasets in the supported formats, for the corpus.

use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::Write;

use crate::engine::add_to_corpus;

pub(crate) const TRAIN_IMAGES: &str = "train-images-idx3-ubyte";
pub(crate) const TRAIN_LABELS: &str = "train-labels-idx1-ubyte";
const TEST_IMAGES: &str = "t10k-images-idx3-ubyte";
const TEST_LABELS: &str = "t10k-labels-idx1-ubyte";

/// Returns the bytes of an IDX file.
fn idx(dimensions: &[u32], data: impl Iterator<Item = u8>) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, dimensions.len() as u8];
    bytes.extend(dimensions.iter().flat_map(|dimension| dimension.to_be_bytes()));
    bytes.extend(data);
    bytes
}

/// Returns the files of an IDX dataset with six training and three test images.
pub(crate) fn idx_files() -> [(&'static str, Vec<u8>); 4] {
    let images = |count: u32| idx(&[count, 4, 3], (0..count as u8 * 12).map(|pixel| pixel * 3));
    let labels = |count: u32| idx(&[count], (0..count as u8).map(|sample| sample % 3));
    [
        (TRAIN_IMAGES, images(6)),
        (TRAIN_LABELS, labels(6)),
        (TEST_IMAGES, images(3)),
        (TEST_LABELS, labels(3)),
    ]
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub(super) fn datasets() {
    let [(_, images), (_, labels), ..] = idx_files();
    add_to_corpus("idx", "images", &images);
    add_to_corpus("idx", "labels", &labels);
    add_to_corpus("idx", "images-gz", &gzip(&images));
    for (name, text) in [
        ("header", "x,y,side\n1,2.5,left\n-3e2,4,right\n5,6,left\n7,8,right\n"),
        ("plain", "1,2,3\r\n4,5,6\r\n\r\n7,8,9\r\n1,1,3"),
        ("quoted", "\"a \"\"b\"\"\",\"c,d\"\n1 , x\n\"2\",\"y\ny\"\n3,x\n"),
        ("extremes", "a,class\n3.4e38,1\n-3.4e38,10\n1e-45,9\n0,1\n"),
    ] {
        add_to_corpus("csv", name, text.as_bytes());
    }
}
