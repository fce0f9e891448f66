//! Finds images and their classes in folders.

use std::fs;
use std::path::{Path, PathBuf};

use crate::dataset::{DatasetError, root};

/// File extensions by which images are found.
const ENDS: [&str; 3] = ["png", "jpg", "jpeg"];
/// Possible names of the folder of test images.
const TESTS: [&str; 4] = ["test", "val", "valid", "validation"];

/// Path of an image that was found in a dataset's folders.
pub(super) struct FoundFolder(PathBuf);

impl FoundFolder {
    /// Returns the image's path to open; a symbolic link that leads out of the data root is refused.
    pub(super) fn resolved(&self, data_root: Option<&Path>) -> Result<PathBuf, DatasetError> {
        root::resolve(&self.0, data_root)
    }

    /// Returns the image's path relative to a folder, for messages.
    pub(super) fn below(&self, directory: &Path) -> String {
        let below = self.0.strip_prefix(directory).ok();
        let below = below.filter(|path| !path.as_os_str().is_empty());
        below.unwrap_or(&self.0).display().to_string()
    }
}

/// All images of a dataset in folders, one folder per class.
pub(super) struct Tree {
    /// Names of the class folders, sorted.
    pub(super) classes: Vec<String>,
    /// Class number and path of each image, sorted; training images come first.
    pub(super) files: Vec<(usize, FoundFolder)>,
    /// Number of training images, if separate folders hold training and test images.
    pub(super) trained: Option<usize>,
}

impl Tree {
    pub(super) fn find(directory: &Path) -> Result<Self, DatasetError> {
        let train = directory.join("train");
        if !train.is_dir() {
            let classes = folders(directory)?;
            let files = files_of(directory, &classes)?;
            return Self::new(directory, classes, files, None);
        }
        let Some(test) = test_folder(directory) else {
            return Err(DatasetError::Image {
                file: directory.to_owned(),
                why: "holds a folder 'train' but none called 'test': add a folder 'test', or put the folders of the \
                     classes side by side"
                    .into(),
            });
        };
        let mut classes = folders(&train)?;
        let trained_classes = classes.len();
        classes.extend(folders(&test)?);
        classes.sort();
        classes.dedup();
        if classes.len() > trained_classes {
            let missing = classes.iter().find(|class| !train.join(class).is_dir());
            return Err(DatasetError::Image {
                file: test,
                why: format!(
                    "holds a class '{}' that has no training folder: remove this class, or add training images of it",
                    missing.map_or("", String::as_str)
                ),
            });
        }
        let mut files = files_of(&train, &classes)?;
        let trained = files.len();
        let tested = files_of(&test, &classes)?;
        if tested.is_empty() {
            return Err(nothing(&test));
        }
        files.extend(tested);
        Self::new(directory, classes, files, Some(trained))
    }

    fn new(
        directory: &Path,
        classes: Vec<String>,
        files: Vec<(usize, FoundFolder)>,
        trained: Option<usize>,
    ) -> Result<Self, DatasetError> {
        if files.is_empty() || trained == Some(0) {
            return Err(nothing(directory));
        }
        Ok(Self {
            classes,
            files,
            trained,
        })
    }
}

/// Finds the images to predict: one file, or all in a folder (in its test folder if it has one).
pub(super) fn to_predict(directory: &Path) -> Result<Vec<FoundFolder>, DatasetError> {
    if directory.is_file() {
        return Ok(vec![FoundFolder(directory.to_owned())]);
    }
    let directory = test_folder(directory).unwrap_or_else(|| directory.to_owned());
    let mut found = images(&directory)?;
    for class in folders(&directory)? {
        found.extend(images(&directory.join(class))?);
    }
    if found.is_empty() {
        return Err(nothing(&directory));
    }
    Ok(found.into_iter().map(FoundFolder).collect())
}

pub(super) fn nothing(directory: &Path) -> DatasetError {
    DatasetError::Image {
        file: directory.to_owned(),
        why: "holds no PNG or JPEG images: use a folder that holds one folder of images for each class".into(),
    }
}

fn test_folder(directory: &Path) -> Option<PathBuf> {
    let folders = TESTS.iter().map(|name| directory.join(name));
    folders.into_iter().find(|folder| folder.is_dir())
}

fn files_of(directory: &Path, classes: &[String]) -> Result<Vec<(usize, FoundFolder)>, DatasetError> {
    let mut files = Vec::new();
    for (number, class) in classes.iter().enumerate() {
        let folder = directory.join(class);
        if folder.is_dir() {
            files.extend(images(&folder)?.into_iter().map(|file| (number, FoundFolder(file))));
        }
    }
    Ok(files)
}

/// Returns the names of the visible folders in a folder, sorted.
fn folders(directory: &Path) -> Result<Vec<String>, DatasetError> {
    let mut names: Vec<String> = entries(directory)?
        .into_iter()
        .filter(|path| path.is_dir())
        .filter_map(|path| path.file_name()?.to_str().map(str::to_owned))
        .filter(|name| !name.starts_with('.'))
        .collect();
    names.sort();
    Ok(names)
}

/// Returns the paths of the images in a folder, sorted.
fn images(directory: &Path) -> Result<Vec<PathBuf>, DatasetError> {
    let is_image = |path: &PathBuf| {
        let end = path.extension().and_then(|end| end.to_str()).unwrap_or_default();
        ENDS.iter().any(|known| end.eq_ignore_ascii_case(known))
    };
    let mut paths: Vec<PathBuf> = entries(directory)?.into_iter().filter(is_image).collect();
    paths.sort();
    Ok(paths)
}

fn entries(directory: &Path) -> Result<Vec<PathBuf>, DatasetError> {
    let entries = fs::read_dir(directory).map_err(DatasetError::read(directory))?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    paths.collect::<Result<_, _>>().map_err(DatasetError::read(directory))
}
