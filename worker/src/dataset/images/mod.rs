//! Reader of folders of PNG and JPEG images, one folder per class: `DIR/class/…`, or `DIR/train/class/…` and
//! `DIR/test/class/…`.

mod decode;
mod folders;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use protocol::job::data::ImageOptions;
use rayon::prelude::*;

use decode::Form;
use folders::{FoundFolder, Tree};

use super::budget::{Budget, size};
use super::error::list;
use super::progress::{Progress, Watcher};
use super::samples::Values;
use super::{Answers, Dataset, DatasetError, Known, Samples, Scaling, Target, parts, root};

/// Number of images read between two progress reports.
const TOLD: u64 = 256;

/// Folder of images, with the data root and the callback for progress.
#[derive(Clone, Copy)]
pub(super) struct ImageSource<'a> {
    pub(super) directory: &'a Path,
    pub(super) data_root: Option<&'a Path>,
    pub(super) watcher: Watcher<'a>,
}

/// Reads a dataset from folders of images. If there is no separate test folder, the seed splits the samples.
pub(super) fn open(
    place: ImageSource<'_>,
    options: ImageOptions,
    seed: u64,
    known: Option<Known<'_>>,
) -> Result<Dataset, DatasetError> {
    let directory = root::resolve(place.directory, place.data_root)?;
    if directory.is_file() {
        return Err(DatasetError::Image {
            file: directory,
            why: "is one file: give the folder that holds a folder of images for each class (only 'tau predict' takes \
                  single images)"
                .into(),
        });
    }
    let tree = Tree::find(&directory)?;
    let classes = match known {
        None => tree.classes.clone(),
        Some(known) => known.target.classes().to_vec(),
    };
    let (found, labels) = numbered(&directory, tree.files, &tree.classes, &classes)?;
    let form = form(place, &found, options, known)?;
    let bytes = read(place, &found, form)?;
    let (train, test) = match tree.trained {
        Some(trained) => (
            (0..trained as u32).collect(),
            (trained as u32..found.len() as u32).collect(),
        ),
        None => parts::by_seed(found.len(), options.test_share(), seed),
    };
    let (input, values) = (form.shape(), Values::Bytes(bytes));
    let part = |rows: &[u32]| {
        let chosen = rows.iter().map(|&row| labels[row as usize]).collect();
        let values = parts::pick(&values, rows, input.elements());
        Samples::new(input.elements(), values, Answers::Labels(chosen))
    };
    let (train, test) = (part(&train), part(&test));
    let target = Target::Classes(classes);
    Dataset::new(input, None, Vec::new(), target, Scaling::Unit, train, test)
}

/// Reads images for a model, in the order of their names: one file, or all of a folder with or without class folders
/// (of its test folder if it has one). Also returns each image's path relative to the folder.
pub(super) fn inputs(
    directory: &Path,
    options: ImageOptions,
    known: Known<'_>,
) -> Result<(Samples, Vec<String>), DatasetError> {
    let place = ImageSource {
        directory,
        data_root: None,
        watcher: &|_| {},
    };
    let found = folders::to_predict(directory)?;
    let form = form(place, &found, options, Some(known))?;
    let bytes = read(place, &found, form)?;
    let files = found.iter().map(|file| file.below(directory)).collect();
    let samples = Samples::unlabelled(form.shape().elements(), Values::Bytes(bytes));
    Ok((samples, files))
}

/// Returns the image files and, for each, its label: the position of its class folder's name among `classes`.
fn numbered(
    directory: &Path,
    files: Vec<(usize, FoundFolder)>,
    folders: &[String],
    classes: &[String],
) -> Result<(Vec<FoundFolder>, Vec<u32>), DatasetError> {
    let numbers = folders.iter().map(|folder| {
        let number = classes.iter().position(|class| class == folder);
        number.map(|number| number as u32).ok_or_else(|| DatasetError::Image {
            file: directory.join(folder),
            why: format!(
                "holds images of the class '{folder}', but the model only knows the classes {}: use images of these \
                 classes",
                list(classes)
            ),
        })
    });
    let numbers = numbers.collect::<Result<Vec<u32>, _>>()?;
    let labels = files.iter().map(|(folder, _)| numbers[*folder]).collect();
    Ok((files.into_iter().map(|(_, file)| file).collect(), labels))
}

/// Chooses size and colours of all images: those that the model takes, else the requested ones, else those of the first
/// image.
fn form(
    place: ImageSource<'_>,
    found: &[FoundFolder],
    options: ImageOptions,
    known: Option<Known<'_>>,
) -> Result<Form, DatasetError> {
    let form = match known {
        None => None,
        Some(known) => Some(Form::of_model(known).ok_or_else(|| DatasetError::OtherInputs {
            file: place.directory.to_owned(),
            found: "images".to_owned(),
            expected: format!("samples of {}", known.input),
        })?),
    };
    match (form, found.first()) {
        // A model's images are always resized to its input size.
        (Some(form), _) => Ok(form),
        (None, Some(first)) => Form::of_first(&first.resolved(place.data_root)?, options),
        (None, None) => Err(folders::nothing(place.directory)),
    }
}

/// Decodes all images, on all threads, into one array.
fn read(place: ImageSource<'_>, found: &[FoundFolder], form: Form) -> Result<Vec<u8>, DatasetError> {
    let each = form.shape().elements();
    let needed = (each as u64).saturating_mul(found.len() as u64);
    // Splitting the samples copies them.
    let copied = needed.saturating_mul(2);
    Budget::of_machine().take(copied, place.directory, || format!("images of {}", size(needed)))?;
    let mut bytes = vec![0; each * found.len()];
    let done = AtomicU64::new(0);
    let decode = |(file, to): (&FoundFolder, &mut [u8])| {
        form.decode(&file.resolved(place.data_root)?, to)?;
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        if done.is_multiple_of(TOLD) {
            (place.watcher)(Progress {
                done,
                total: found.len() as u64,
                unit: "images",
            });
        }
        Ok(())
    };
    // Of several errors, that of the first file is reported, whichever thread met one first.
    let read: Vec<Result<(), DatasetError>> = found
        .par_iter()
        .zip(bytes.par_chunks_exact_mut(each))
        .map(decode)
        .filter(Result::is_err)
        .collect();
    read.into_iter().collect::<Result<(), _>>()?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
