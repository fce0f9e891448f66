//! Reader of CIFAR-10 and CIFAR-100 in their binary format: records of one or two label bytes and 3 × 32 × 32 pixel
//! bytes.

use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use protocol::job::model::Shape;

use super::samples::Values;
use super::{Answers, Dataset, DatasetError, Known, Samples, Scaling, Target, root, source};

/// Bytes of an image: three colours of 32 × 32 pixels.
const IMAGE: usize = 3 * 32 * 32;
const INPUT: Shape = Shape::Image {
    channels: 3,
    height: 32,
    width: 32,
};

/// File names and format of CIFAR-10 or CIFAR-100.
struct Version {
    /// Folder that the dataset's archive unpacks to.
    folder: &'static str,
    train: &'static [&'static str],
    test: &'static str,
    /// Number of label bytes before each image; the last one is the class.
    labels: usize,
    classes: usize,
    /// Name of the file that lists the class names, one per line.
    names: &'static str,
}

const VERSIONS: [Version; 2] = [
    Version {
        folder: "cifar-10-batches-bin",
        train: &[
            "data_batch_1.bin",
            "data_batch_2.bin",
            "data_batch_3.bin",
            "data_batch_4.bin",
            "data_batch_5.bin",
        ],
        test: "test_batch.bin",
        labels: 1,
        classes: 10,
        names: "batches.meta.txt",
    },
    Version {
        folder: "cifar-100-binary",
        train: &["train.bin"],
        test: "test.bin",
        labels: 2,
        classes: 100,
        names: "fine_label_names.txt",
    },
];

/// Reads a CIFAR dataset from a directory, or from the folder in it that the archive unpacks to.
pub(super) fn open(
    directory: &Path,
    data_root: Option<&Path>,
    known: Option<Known<'_>>,
) -> Result<Dataset, DatasetError> {
    let directory = root::resolve(directory, data_root)?;
    let (version, folder) = find(&directory)?;
    let classes = match known {
        None => names(version, &folder, data_root)?,
        Some(known) => {
            let classes = known.target.classes();
            if known.input != INPUT || *known.scaling != Scaling::Unit || classes.len() != version.classes {
                return Err(DatasetError::OtherInputs {
                    file: folder,
                    found: format!("images of {INPUT} in {} classes", version.classes),
                    expected: format!("samples of {} with {}", known.input, known.target.info()),
                });
            }
            classes.to_vec()
        }
    };
    let read = |names: &[&str]| {
        let (mut labels, mut images) = (Vec::new(), Vec::new());
        for name in names {
            let path = root::resolve(&folder.join(name), data_root)?;
            read_file(&path, version, &mut labels, &mut images)?;
        }
        Ok::<_, DatasetError>(Samples::new(IMAGE, Values::Bytes(images), Answers::Labels(labels)))
    };
    let (train, test) = (read(version.train)?, read(&[version.test])?);
    let target = Target::Classes(classes);
    Dataset::new(INPUT, None, Vec::new(), target, Scaling::Unit, train, test)
}

fn find(directory: &Path) -> Result<(&'static Version, PathBuf), DatasetError> {
    let places = VERSIONS
        .iter()
        .flat_map(|version| [directory.to_owned(), directory.join(version.folder)].map(|folder| (version, folder)));
    let mut found = places.filter(|(version, folder)| folder.join(version.test).is_file());
    found.next().ok_or_else(|| DatasetError::NoCifar {
        directory: directory.to_owned(),
    })
}

/// Returns the names of CIFAR's classes, or their numbers if the file of names is missing or wrong.
fn names(version: &Version, folder: &Path, data_root: Option<&Path>) -> Result<Vec<String>, DatasetError> {
    let mut text = String::new();
    match root::resolve(&folder.join(version.names), data_root).and_then(|path| source::open(&path)) {
        // A file that is not text counts as one without names.
        Ok(mut file) => drop(file.read_to_string(&mut text)),
        Err(DatasetError::Read { source, .. }) if source.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let names: Vec<String> = text
        .lines()
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect();
    if names.len() == version.classes {
        return Ok(names);
    }
    Ok((0..version.classes).map(|class| class.to_string()).collect())
}

fn read_file(path: &Path, version: &Version, labels: &mut Vec<u32>, images: &mut Vec<u8>) -> Result<(), DatasetError> {
    let mut bytes = Vec::new();
    let read = source::open(path)?.read_to_end(&mut bytes);
    read.map_err(DatasetError::read(path))?;
    let wrong = |why: String| DatasetError::BadCifar {
        file: path.to_owned(),
        why,
    };
    let record = version.labels + IMAGE;
    if bytes.is_empty() || !bytes.len().is_multiple_of(record) {
        return Err(wrong(format!(
            "has {} bytes, which is not a multiple of {record}, the size of a record",
            bytes.len()
        )));
    }
    for record in bytes.chunks_exact(record) {
        let label = record[version.labels - 1];
        if usize::from(label) >= version.classes {
            return Err(wrong(format!(
                "has the label {label}, but this dataset has only {} classes",
                version.classes
            )));
        }
        labels.push(u32::from(label));
        images.extend_from_slice(&record[version.labels..]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(labels: &[&[u8]]) -> Vec<u8> {
        let records = labels.iter().map(|label| [*label, &[label[0]; IMAGE]].concat());
        records.collect::<Vec<_>>().concat()
    }

    #[test]
    fn both_versions_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("cifar-10-batches-bin");
        std::fs::create_dir(&inner).unwrap();
        for name in VERSIONS[0].train {
            std::fs::write(inner.join(name), records(&[&[3], &[9]])).unwrap();
        }
        std::fs::write(inner.join("test_batch.bin"), records(&[&[1]])).unwrap();
        let ten = open(folder.path(), None, None).unwrap();
        assert_eq!((ten.train.len(), ten.test.len(), ten.target.outputs()), (10, 1, 10));
        assert_eq!((ten.train.labels()[1], ten.input), (9, INPUT));
        std::fs::write(inner.join("batches.meta.txt"), "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n\n").unwrap();
        assert_eq!(open(&inner, None, None).unwrap().target.classes()[9], "j");
        let known = open(folder.path(), None, Some(ten.known())).unwrap();
        assert_eq!(known.hash, ten.hash);

        let hundred = tempfile::tempdir().unwrap();
        std::fs::write(hundred.path().join("train.bin"), records(&[&[0, 99], &[1, 5]])).unwrap();
        std::fs::write(hundred.path().join("test.bin"), records(&[&[1, 7]])).unwrap();
        let read = open(hundred.path(), None, None).unwrap();
        assert_eq!((read.train.labels(), read.target.outputs()), (&[99, 5][..], 100));
        let other = open(hundred.path(), None, Some(ten.known())).unwrap_err().to_string();
        assert!(other.contains("100 classes"), "{other}");
    }

    #[cfg(unix)]
    #[test]
    fn names_of_classes_are_read_like_all_data() {
        let outer = tempfile::tempdir().unwrap();
        let root = outer.path().join("root");
        std::fs::create_dir(&root).unwrap();
        std::fs::write(root.join("train.bin"), records(&[&[0, 99]])).unwrap();
        std::fs::write(root.join("test.bin"), records(&[&[1, 7]])).unwrap();
        assert!(open(&root, Some(&root), None).is_ok(), "names must not be needed");
        let names: Vec<String> = (0..100).map(|class| format!("secret {class}")).collect();
        std::fs::write(outer.path().join("names"), names.join("\n")).unwrap();
        std::os::unix::fs::symlink("../names", root.join("fine_label_names.txt")).unwrap();
        assert_eq!(open(&root, None, None).unwrap().target.classes()[9], "secret 9");
        let error = open(&root, Some(&root), None).unwrap_err();
        assert!(matches!(error, DatasetError::OutsideRoot { .. }), "{error}");
    }

    #[test]
    fn wrong_files_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |says: &str| {
            let error = open(folder.path(), None, None).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        };
        refused("holds neither test_batch.bin");
        std::fs::write(folder.path().join("train.bin"), records(&[&[0, 100]])).unwrap();
        std::fs::write(folder.path().join("test.bin"), records(&[&[0, 1]])).unwrap();
        refused("the label 100");
        std::fs::write(folder.path().join("train.bin"), [0; 100]).unwrap();
        refused("has 100 bytes, which is not a multiple of 3074");
    }
}
