//! Fuzz targets that decode files: models, datasets, credentials.

use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use communicator::transport::{AcceptLimits, Acceptor, Credentials, Security};
use protocol::job::JobDraft;
use protocol::job::data::{DataSpec, TableOptions, TestSplit};
use protocol::job::model::{Layout, Partition, Shape};
use protocol::log::frontier::Frontier;
use protocol::weights::lattice::weight_of;
use tempfile::TempDir;
use worker::dataset::{Answers, Dataset, Known, Scaling, Target};
use worker::model_file::assembly::assemble;
use worker::model_file::{self, Metadata, Numbers};

use crate::engine::Check;
use crate::seeds;

thread_local! {
    static FOLDER: TempDir = tempfile::tempdir().unwrap();
}

fn path(name: &str) -> PathBuf {
    FOLDER.with(|folder| folder.path().join(name))
}

/// Writes a file that only its owner can read.
fn write(path: &Path, bytes: &[u8]) {
    use std::io::Write;
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(path).unwrap().write_all(bytes).unwrap();
}

pub(crate) fn model(bytes: &[u8]) -> Option<Check> {
    let model = model_file::parse(Path::new("model"), bytes).ok()?;
    Some(Box::new(move || {
        assert_eq!(model.weights.len(), model.layout.weights);
        let path = path("model");
        model_file::save(&path, model.numbers(), &model.metadata).unwrap();
        let again = model_file::load(&path).unwrap();
        assert_eq!(
            (again.metadata, again.job, again.layout, again.weights),
            (model.metadata, model.job, model.layout, model.weights)
        );
    }))
}

/// Returns the file of one of the two stages of a model, as the node that holds the stage saves it.
pub(crate) fn stage_file(number: usize) -> Vec<u8> {
    let draft = JobDraft {
        model: Some("dense 4, relu, dense".into()),
        exchange: Some("layers:groups=2".into()),
        ..JobDraft::default()
    };
    let job = draft.resolve().unwrap();
    let layout = Layout::new(&job.model, Shape::Flat(3), 2).unwrap();
    let stage = Partition::new(layout, job.exchange.pipelines().unwrap())
        .unwrap()
        .stage(number);
    let counts = stage.initial_counts(1);
    let weights: Vec<f32> = counts.iter().copied().map(weight_of).collect();
    let target = Target::Classes(["no", "yes"].map(String::from).to_vec());
    let known = Known {
        input: Shape::Flat(3),
        target: &target,
        columns: None,
        encodings: &[],
        scaling: &Scaling::Unit,
    };
    let metadata = Metadata::of_stage(&job, known, &Frontier::default(), &stage, stage.digest(&counts));
    let numbers = Numbers {
        layout: &stage.layout,
        weights: &weights,
        statistics: &[],
        untrained: &[],
    };
    let file = tempfile::NamedTempFile::new().unwrap();
    model_file::save(file.path(), numbers, &metadata).unwrap();
    std::fs::read(file.path()).unwrap()
}

/// Assembles a model from these bytes as its first stage and a valid second stage.
pub(crate) fn stages(bytes: &[u8]) -> Option<Check> {
    static SECOND: OnceLock<Vec<u8>> = OnceLock::new();
    let second = SECOND.get_or_init(|| stage_file(1));
    let whole = assemble(&[bytes.to_vec(), second.clone()]).ok()?;
    Some(Box::new(move || {
        let model = model_file::parse(Path::new("model"), &whole);
        // Invalid descriptions of the inputs are found only when the model is read.
        if let Ok(model) = model {
            assert_eq!(model.weights.len(), model.layout.weights);
        }
    }))
}

/// Returns the checks for an opened dataset.
fn check_dataset(spec: DataSpec, dataset: Dataset) -> Check {
    Box::new(move || {
        for part in [&dataset.train, &dataset.test] {
            assert_eq!(part.features(), dataset.input.elements());
            let all: Vec<u32> = (0..part.len() as u32).collect();
            let (mut inputs, mut answers) = (Vec::new(), Answers::default());
            part.gather(&all, &mut inputs, &mut answers);
            assert!(inputs.iter().all(|input| input.is_finite()), "an input is no number");
            let labels = answers.labels();
            assert!(labels.iter().all(|&label| (label as usize) < dataset.target.outputs()));
            assert!(answers.numbers().iter().all(|number| number.is_finite()));
        }
        let again = Dataset::open(&spec, 1, None).unwrap();
        assert_eq!(again.hash, dataset.hash);
        // A model that was trained on this data opens the same test samples.
        let known = Dataset::open_for(&spec, 1, None, dataset.known()).unwrap();
        assert_eq!((known.test, known.input), (dataset.test, dataset.input));
    })
}

/// Opens an IDX dataset with these bytes as one of its four files, beside three valid ones.
pub(crate) fn idx(bytes: &[u8]) -> Option<Check> {
    let directory = path("idx");
    if !directory.exists() {
        std::fs::create_dir(&directory).unwrap();
        for (name, contents) in seeds::idx_files() {
            write(&directory.join(name), &contents);
        }
    }
    // The rank distinguishes labels from images.
    let labels = bytes.get(3) == Some(&1);
    let name = if labels {
        seeds::TRAIN_LABELS
    } else {
        seeds::TRAIN_IMAGES
    };
    write(&directory.join(name), bytes);
    let spec = DataSpec::Idx {
        directory: directory.clone(),
    };
    let opened = Dataset::open(&spec, 1, None);
    // Restored because the next input may replace the other file.
    let restore = move || {
        for (right, contents) in seeds::idx_files() {
            if right == name {
                write(&directory.join(name), &contents);
            }
        }
    };
    let Ok(dataset) = opened else {
        restore();
        return None;
    };
    let check = check_dataset(spec, dataset);
    Some(Box::new(move || {
        check();
        restore();
    }))
}

pub(crate) fn csv(bytes: &[u8]) -> Option<Check> {
    let file = path("data.csv");
    write(&file, bytes);
    let spec = DataSpec::Csv {
        file,
        separator: None,
        table: TableOptions {
            test_split: TestSplit::Share(0.3),
            ..TableOptions::default()
        },
    };
    let dataset = Dataset::open(&spec, 1, None).ok()?;
    Some(check_dataset(spec, dataset))
}

/// Opens a table with any kinds of columns: texts become categories, and missing values are filled in.
pub(crate) fn table(bytes: &[u8]) -> Option<Check> {
    let file = path("table.csv");
    write(&file, bytes);
    let spec: DataSpec = format!("csv:{}?text=onehot&missing=mean&test=0.3", file.display())
        .parse()
        .unwrap();
    let dataset = Dataset::open(&spec, 1, None).ok()?;
    Some(check_dataset(spec, dataset))
}

pub(crate) fn npz(bytes: &[u8]) -> Option<Check> {
    let file = path("data.npz");
    write(&file, bytes);
    let spec: DataSpec = format!("npz:{}?test=0.3", file.display()).parse().unwrap();
    let dataset = Dataset::open(&spec, 1, None).ok()?;
    Some(check_dataset(spec, dataset))
}

/// Opens images and labels in CIFAR-100's format, with the same file for training and testing.
pub(crate) fn cifar(bytes: &[u8]) -> Option<Check> {
    let directory = path("cifar");
    std::fs::create_dir_all(&directory).unwrap();
    for name in ["train.bin", "test.bin"] {
        write(&directory.join(name), bytes);
    }
    let spec: DataSpec = format!("cifar:{}", directory.display()).parse().unwrap();
    let dataset = Dataset::open(&spec, 1, None).ok()?;
    Some(check_dataset(spec, dataset))
}

/// Opens a dataset of two images: this one and a valid one.
pub(crate) fn image(bytes: &[u8]) -> Option<Check> {
    let directory = path("images");
    for (class, contents) in [("a", bytes), ("b", &seeds::png())] {
        std::fs::create_dir_all(directory.join(class)).unwrap();
        write(&directory.join(class).join("1.png"), contents);
    }
    let spec: DataSpec = format!("images:{}?size=4x4&test=0.5", directory.display())
        .parse()
        .unwrap();
    let dataset = Dataset::open(&spec, 1, None).ok()?;
    Some(check_dataset(spec, dataset))
}

/// Reads credentials and builds a TLS acceptor from them.
pub(crate) fn credentials(bytes: &[u8]) -> Option<Check> {
    let file = path("cluster.pem");
    write(&file, bytes);
    let security = Security::Credentials(Arc::new(Credentials::read(&file).ok()?));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .unwrap();
    let acceptor = runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        Acceptor::new(listener, &security, AcceptLimits::default())
    });
    acceptor.ok()?;
    Some(Box::new(|| {}))
}
