//! Writes arrays and images in the dataset formats, for the corpus.

use std::io::Write;

use flate2::Compression;
use flate2::write::ZlibEncoder;

use crate::engine::add_to_corpus;

/// Returns an array in `NumPy`'s format.
fn npy(kind: &str, shape: &str, elements: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': ({shape}), }}\n");
    let mut bytes = b"\x93NUMPY\x01\0".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(elements);
    bytes
}

/// Returns a ZIP archive of files without compression.
fn zip(files: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    for (name, contents) in files {
        let (sum, length) = (crc32fast::hash(contents), contents.len() as u32);
        let mut about = Vec::new();
        about.extend([20, 0, 0, 0, 0, 0, 0, 0, 33, 0]);
        about.extend(sum.to_le_bytes());
        about.extend(length.to_le_bytes().repeat(2));
        about.extend((name.len() as u16).to_le_bytes());
        about.extend([0, 0]);
        directory.extend(b"PK\x01\x02\x14\0");
        directory.extend(&about);
        directory.extend([0; 10]);
        directory.extend((bytes.len() as u32).to_le_bytes());
        directory.extend(name.as_bytes());
        bytes.extend(b"PK\x03\x04");
        bytes.extend(about);
        bytes.extend(name.as_bytes());
        bytes.extend(contents);
    }
    let (start, count) = (bytes.len() as u32, files.len() as u16);
    bytes.extend(&directory);
    bytes.extend(b"PK\x05\x06\0\0\0\0");
    bytes.extend(count.to_le_bytes().repeat(2));
    bytes.extend((directory.len() as u32).to_le_bytes());
    bytes.extend(start.to_le_bytes());
    bytes.extend([0, 0]);
    bytes
}

/// Returns a grey PNG image of three by two pixels.
pub(crate) fn png() -> Vec<u8> {
    let mut bytes = b"\x89PNG\r\n\x1a\n".to_vec();
    let mut chunk = |kind: &[u8], contents: &[u8]| {
        let body = [kind, contents].concat();
        bytes.extend((contents.len() as u32).to_be_bytes());
        bytes.extend(&body);
        bytes.extend(crc32fast::hash(&body).to_be_bytes());
    };
    chunk(b"IHDR", &[0, 0, 0, 3, 0, 0, 0, 2, 8, 0, 0, 0, 0]);
    let mut pixels = ZlibEncoder::new(Vec::new(), Compression::fast());
    pixels.write_all(&[0, 1, 2, 3, 0, 250, 251, 252]).unwrap();
    chunk(b"IDAT", &pixels.finish().unwrap());
    chunk(b"IEND", &[]);
    bytes
}

pub(super) fn archives() {
    let labels = |count: u8| {
        npy(
            "|u1",
            &format!("{count},"),
            &(0..count).map(|n| n % 2).collect::<Vec<_>>(),
        )
    };
    let floats: Vec<u8> = (0..12u8).flat_map(|number| f32::from(number).to_le_bytes()).collect();
    let parts = zip(&[
        ("x_train.npy", npy("|u1", "3, 2, 2", &[7; 12])),
        ("y_train.npy", labels(3)),
        ("x_test.npy", npy("|u1", "2, 2, 2", &[9; 8])),
        ("y_test.npy", labels(2)),
    ]);
    add_to_corpus("npz", "parts", &parts);
    add_to_corpus(
        "npz",
        "numbers",
        &zip(&[("x.npy", npy("<f4", "6, 2", &floats)), ("y.npy", labels(6))]),
    );
    let image = |label: u8| [vec![0, label], vec![label; 3 * 32 * 32]].concat();
    add_to_corpus("cifar", "two", &[image(7), image(99)].concat());
    add_to_corpus("image", "grey", &png());
    for (name, text) in [
        ("texts", "colour;size;kind\nred;1;a\nblue;;b\nred;3;a\n;4;b\n"),
        ("tabs", "n\tname\tk\n1\tx\t0.5\nNA\ty\t1.5\n2\tx\t2.5\n"),
    ] {
        add_to_corpus("table", name, text.as_bytes());
    }
}
