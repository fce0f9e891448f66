//! Reader of images and labels in four IDX files, the format of MNIST and its successors.

mod error;
mod file;

use std::io::Read;
use std::path::{Path, PathBuf};

use protocol::job::model::Shape;

pub use error::IdxError;
use file::{Content, IdxArray};

use super::samples::Values;
use super::{Answers, Dataset, DatasetError, Known, Samples, Scaling, Target, root, source};

/// Reads a dataset from the four IDX files of a directory.
pub(super) fn open(
    directory: &Path,
    data_root: Option<&Path>,
    known: Option<Known<'_>>,
) -> Result<Dataset, DatasetError> {
    let directory = root::resolve(directory, data_root)?;
    let find = |stem: &str, suffix: &str| -> Result<_, DatasetError> {
        let found = find(&directory, stem, suffix)?;
        // A symbolic link in the directory could still lead out of the root.
        let path = root::resolve(&found, data_root)?;
        let file = source::open(&path)?;
        Ok((path, file))
    };
    let part = |name: &str| {
        LabelledImages::read(
            find(&format!("{name}-images"), "idx3-ubyte")?,
            find(&format!("{name}-labels"), "idx1-ubyte")?,
        )
    };
    assemble(part("train")?, part("t10k")?, known)
}

/// Returns the path of an IDX file in a directory, such as `train-labels` (stem) with the suffix `idx1-ubyte`, under
/// any of the names by which such files are distributed.
fn find(directory: &Path, stem: &str, suffix: &str) -> Result<PathBuf, IdxError> {
    let names = [
        format!("{stem}-{suffix}"),
        format!("{stem}-{suffix}.gz"),
        format!("{stem}.{suffix}"),
        format!("{stem}.{suffix}.gz"),
    ];
    let found = names
        .iter()
        .map(|name| directory.join(name))
        .find(|path| path.is_file());
    found.ok_or_else(|| IdxError::Missing {
        directory: directory.to_owned(),
        tried: names.join(", "),
    })
}

/// The images of the training or the test set, with a label for each.
pub(super) struct LabelledImages {
    images: IdxArray,
    labels: IdxArray,
}

impl LabelledImages {
    /// Reads a file of images and a file of labels, each given with its name for messages.
    pub(super) fn read(
        (images_name, images): (PathBuf, impl Read),
        (labels_name, labels): (PathBuf, impl Read),
    ) -> Result<Self, DatasetError> {
        let labels = IdxArray::read(labels_name, Content::Labels, labels)?;
        let images = IdxArray::read(images_name, Content::Images, images)?;
        if images.dimensions[0] != labels.dimensions[0] {
            return Err(DatasetError::Idx(IdxError::CountsDiffer {
                images: images.dimensions[0],
                images_file: images.file,
                labels: labels.dimensions[0],
                labels_file: labels.file,
            }));
        }
        Ok(Self { images, labels })
    }

    /// Returns the dimensions of one image.
    fn size(&self) -> &[usize] {
        &self.images.dimensions[1..]
    }

    fn into_samples(self, classes: &[String]) -> Result<Samples, IdxError> {
        // A class is named by its label number; one table saves a search per sample.
        let class_of: Vec<Option<u32>> = (0..=u8::MAX)
            .map(|label| classes.iter().position(|class| *class == label.to_string()))
            .map(|position| position.map(|position| position as u32))
            .collect();
        let features = self.size().iter().product();
        let labels = self.labels.bytes.iter().map(|&label| {
            class_of[usize::from(label)].ok_or_else(|| IdxError::unknown_label(&self.labels.file, label, classes))
        });
        let labels = labels.collect::<Result<_, _>>()?;
        Ok(Samples::new(
            features,
            Values::Bytes(self.images.bytes),
            Answers::Labels(labels),
        ))
    }
}

/// Reads images for a model: one file of them, or the test images of a directory.
pub(super) fn inputs(path: &Path, known: Known<'_>) -> Result<Samples, DatasetError> {
    let file = if path.is_dir() {
        find(path, "t10k-images", "idx3-ubyte")?
    } else {
        path.to_owned()
    };
    let images = IdxArray::read(file.clone(), Content::Images, source::open(&file)?)?;
    let input = shape(&images.dimensions[1..]);
    if *known.scaling != Scaling::Unit || input != known.input {
        return Err(DatasetError::OtherInputs {
            file,
            found: format!("images of {input}"),
            expected: match known.scaling {
                Scaling::Unit => format!("images of {}", known.input),
                Scaling::Standard { .. } => "columns of numbers".to_owned(),
            },
        });
    }
    Ok(Samples::unlabelled(input.elements(), Values::Bytes(images.bytes)))
}

/// Makes a dataset of training and test set after checking that their images have the same size, and that a known model
/// takes such data.
pub(super) fn assemble(
    train: LabelledImages,
    test: LabelledImages,
    known: Option<Known<'_>>,
) -> Result<Dataset, DatasetError> {
    let input = shape(train.size());
    if train.size() != test.size() {
        return Err(DatasetError::Idx(IdxError::SizesDiffer {
            test: shape(test.size()),
            test_file: test.images.file,
            train: input,
            train_file: train.images.file,
        }));
    }
    let classes = match known {
        None => {
            let labels = train.labels.bytes.iter().chain(&test.labels.bytes);
            let highest = labels.copied().max().unwrap_or(0);
            (0..=highest).map(|label| label.to_string()).collect()
        }
        Some(Known {
            scaling: Scaling::Unit,
            target: Target::Classes(classes),
            ..
        }) => classes.clone(),
        Some(_) => {
            return Err(DatasetError::OtherInputs {
                file: train.images.file,
                found: "images".to_owned(),
                expected: "columns of numbers".to_owned(),
            });
        }
    };
    let train = train.into_samples(&classes)?;
    let test = test.into_samples(&classes)?;
    Dataset::new(
        input,
        None,
        Vec::new(),
        Target::Classes(classes),
        Scaling::Unit,
        train,
        test,
    )
}

/// Returns the shape of an image with these one to three dimensions.
fn shape(size: &[usize]) -> Shape {
    match *size {
        [channels, height, width] => Shape::Image {
            channels,
            height,
            width,
        },
        [height, width] => Shape::Image {
            channels: 1,
            height,
            width,
        },
        _ => Shape::Flat(size.iter().product()),
    }
}

#[cfg(test)]
mod tests;
