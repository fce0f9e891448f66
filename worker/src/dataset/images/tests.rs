//! Tests of reading folders of images, valid and invalid.

use std::path::PathBuf;

use image::{GrayImage, Luma, Rgb, RgbImage};
use protocol::job::model::Shape;
use tempfile::TempDir;

use super::*;
use crate::dataset::test_support::{self, assert_refused};

/// Makes a folder of single-coloured images at these paths.
fn folder(images: &[(&str, u32, [u8; 3])]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (path, side, colour) in images {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        RgbImage::from_pixel(*side, *side, Rgb(*colour)).save(path).unwrap();
    }
    folder
}

fn opened(folder: &Path, options: &str) -> Result<Dataset, DatasetError> {
    test_support::opened("images", folder, options)
}

const RED: [u8; 3] = [255, 0, 51];

#[test]
fn a_model_is_asked_about_one_file_or_a_folder_of_them() {
    let folder = folder(&[
        ("cat/1.png", 2, RED),
        ("dog/1.png", 2, [0; 3]),
        ("dog/2.png", 2, [0; 3]),
    ]);
    let dataset = opened(folder.path(), "").unwrap();
    let named = |path: &str| {
        let spec = format!("images:{}", folder.path().join(path).display());
        Dataset::named_inputs(&spec.parse().unwrap(), dataset.known(), None).unwrap()
    };
    let all = named("");
    assert_eq!(all.files.unwrap(), ["cat/1.png", "dog/1.png", "dog/2.png"]);
    let one = named("cat/1.png");
    assert_eq!((one.samples.len(), one.samples.features()), (1, 12));
    assert!(one.files.unwrap()[0].ends_with("cat/1.png"));
    assert_refused(
        opened(&folder.path().join("cat/1.png"), ""),
        &["is one file", "tau predict"],
    );
}

#[test]
fn folders_are_classes_and_parts() {
    let folder = folder(&[
        ("train/cat/1.png", 2, RED),
        ("train/dog/1.png", 2, [0; 3]),
        ("train/dog/2.PNG", 2, [0; 3]),
        ("test/dog/9.jpg", 2, [0; 3]),
    ]);
    std::fs::write(folder.path().join("train/cat/notes.txt"), "not an image").unwrap();
    let dataset = opened(folder.path(), "").unwrap();
    assert_eq!(dataset.target.classes(), ["cat", "dog"]);
    assert_eq!(
        (dataset.train.labels(), dataset.test.labels()),
        (&[0, 1, 1][..], &[1][..])
    );
    let image = Shape::Image {
        channels: 3,
        height: 2,
        width: 2,
    };
    assert_eq!(dataset.input, image);
    let (mut inputs, mut answers) = (Vec::new(), Answers::default());
    dataset.train.gather(&[0], &mut inputs, &mut answers);
    let expected = [[1.0; 4], [0.0; 4], [0.2; 4]].concat();
    assert!(
        inputs.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-6),
        "{inputs:?}"
    );
    // A model reads the same samples, and predicts the test images.
    let spec = format!("images:{}", folder.path().display()).parse().unwrap();
    let again = Dataset::open_for(&spec, 7, None, dataset.known()).unwrap();
    assert_eq!(again.hash, dataset.hash);
    assert_eq!(Dataset::inputs(&spec, dataset.known()).unwrap().len(), 1);
    let grey = opened(folder.path(), "?colour=grey&size=5x3").unwrap();
    assert_eq!(grey.input.to_string(), "1x3x5");
}

#[test]
fn images_without_parts_are_split_by_the_seed() {
    let images: Vec<(String, [u8; 3])> = (0..10u8)
        .map(|number| {
            (
                format!("{}/{number}.png", if number % 2 == 0 { "a" } else { "b" }),
                [number; 3],
            )
        })
        .collect();
    let images: Vec<(&str, u32, [u8; 3])> = images
        .iter()
        .map(|(path, colour)| (path.as_str(), 1, *colour))
        .collect();
    let folder = folder(&images);
    let dataset = opened(folder.path(), "").unwrap();
    assert_eq!((dataset.train.len(), dataset.test.len()), (8, 2));
    assert_eq!(opened(folder.path(), "").unwrap().hash, dataset.hash);
}

/// Returns the first bytes of a PNG image of this size.
fn png_header(width: u32, height: u32) -> Vec<u8> {
    let mut chunk = b"IHDR".to_vec();
    chunk.extend(width.to_be_bytes());
    chunk.extend(height.to_be_bytes());
    chunk.extend([8, 2, 0, 0, 0]);
    let checksum = crc32fast::hash(&chunk);
    let mut file = b"\x89PNG\r\n\x1a\n\0\0\0\x0d".to_vec();
    file.extend(chunk);
    file.extend(checksum.to_be_bytes());
    // The decoder reads up to the first chunk of image data.
    file.extend(b"\0\0\0\0IDAT\x35\xaf\x06\x1e");
    file
}

#[test]
fn wrong_images_are_named() {
    let images = [("a/1.png", 2, RED), ("a/2.png", 3, RED), ("b/1.png", 2, RED)];
    let ragged = folder(&images);
    assert_refused(opened(ragged.path(), ""), &["2.png", "3x3 pixels", "use size=2x2"]);
    assert!(opened(ragged.path(), "?size=4").is_ok());
    // For a model, images of any size are resized to its input size.
    let known = opened(ragged.path(), "?size=4x4").unwrap();
    let spec = format!("images:{}", ragged.path().display()).parse().unwrap();
    let samples = Dataset::inputs(&spec, known.known()).unwrap();
    assert_eq!((samples.len(), samples.features()), (3, 3 * 4 * 4));
    let put = |bytes: &[u8]| std::fs::write(ragged.path().join("b/1.png"), bytes).unwrap();
    put(b"\x89PNG\r\n\x1a\nnothing more");
    assert_refused(opened(ragged.path(), "?size=2x2"), &["b/1.png", "cannot be decoded"]);
    put(&png_header(20_000, 20_000));
    assert_refused(
        opened(ragged.path(), "?size=2x2"),
        &["b/1.png", "takes more than", "make it smaller"],
    );
    put(b"PK\x03\x04");
    assert_refused(opened(ragged.path(), "?size=2x2"), &["b/1.png", "is a ZIP archive"]);
    let empty = tempfile::tempdir().unwrap();
    assert_refused(opened(empty.path(), ""), &["holds no PNG or JPEG images"]);
    assert_refused(
        opened(&PathBuf::from("no-such-folder"), ""),
        &["no-such-folder could not be read"],
    );
    let half = folder(&[("train/a/1.png", 1, RED), ("train/b/1.png", 1, RED)]);
    assert_refused(opened(half.path(), ""), &["none called 'test'"]);
    let strange = folder(&[
        ("train/a/1.png", 1, RED),
        ("train/b/1.png", 1, RED),
        ("test/c/1.png", 1, RED),
    ]);
    assert_refused(opened(strange.path(), ""), &["a class 'c' that has no training folder"]);
}

#[test]
fn grey_images_have_one_channel() {
    let folder = tempfile::tempdir().unwrap();
    for class in ["a", "b"] {
        std::fs::create_dir(folder.path().join(class)).unwrap();
        let image = GrayImage::from_pixel(2, 1, Luma([51]));
        image.save(folder.path().join(class).join("1.png")).unwrap();
    }
    assert_eq!(opened(folder.path(), "?test=0.5").unwrap().input.to_string(), "1x1x2");
}
