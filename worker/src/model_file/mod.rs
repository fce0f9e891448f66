//! Model files: safetensors with the keys of `torch.nn.Sequential`, and Tau's own facts about the model as metadata.
//!
//! Tensors are stored in the order of the flat index space, so the digest can be recomputed from the file alone. The
//! metadata is one entry, `tau`, which holds JSON, so that a file's bytes depend only on the model and on the batches
//! that it is the sum of.

pub mod assembly;
pub mod first_weights;
pub mod onnx;

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use protocol::job::model::{Layout, ModelError, ModelSpec, PipelineStage, Shape, TensorSlot};
use protocol::job::{Job, JobDraft, JobErrors};
use protocol::log::frontier::Frontier;
use protocol::weights::digest::Digest;
pub use safetensors::tensor::Dtype;
use safetensors::tensor::{SafeTensors, TensorView};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::dataset::{self, ColumnNames, ContentHash, Encoding, Known, Scaling, Target};
use crate::module;

const METADATA_KEY: &str = "tau";

/// The metadata of a model file: everything besides the weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metadata {
    /// Job that trained the model.
    pub job: JobDraft,
    pub input: Shape,
    /// The class or the numbers that the model predicts. In the file this is an entry `classes` or `numbers`.
    #[serde(flatten)]
    pub target: Target,
    /// Names of the table columns that the model was trained on, if they had names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub columns: Option<ColumnNames>,
    /// Conversion of each table column to inputs; empty if each column is one number, used as it is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub encodings: Vec<Encoding>,
    /// Scaling from stored values to the model's inputs.
    pub scaling: Scaling,
    /// Batches that the model is the sum of: the last sequence number of each origin (one life of a worker).
    pub frontier: Vec<(String, u64)>,
    /// Digest of the weights, in hex, by which damage is detected.
    pub digest: String,
    /// Keys of the tensors that were not trained, if the model is a module (a network that is Python code): buffers, frozen
    /// parameters, and tied weights (trained tensors under a further key).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub untrained: Vec<String>,
    /// Digest of the module's code, in hex. The code itself is not in the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Number of the pipeline stage, if the file holds only one stage of a model. The key is `portion`, because stored
    /// files have it.
    #[serde(rename = "portion", default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<usize>,
}

impl Metadata {
    /// Makes the metadata of a trained model.
    #[must_use]
    pub fn new(job: &Job, known: Known<'_>, frontier: &Frontier, digest: Digest) -> Self {
        Self {
            job: job.into(),
            input: known.input,
            target: known.target.clone(),
            columns: known.columns.cloned(),
            encodings: known.encodings.to_vec(),
            scaling: known.scaling.clone(),
            frontier: frontier
                .iter()
                .map(|(origin, sequence)| (origin.to_string(), sequence))
                .collect(),
            digest: digest.to_string(),
            untrained: Vec::new(),
            code: None,
            stage: None,
        }
    }

    /// Returns the metadata of a trained module, with the digest of its code and its untrained tensors.
    #[must_use]
    pub fn of_module(self, code: Option<[u8; 32]>, untrained: &[UntrainedTensor]) -> Self {
        Self {
            code: code.map(|code| ContentHash::from(code).to_string()),
            untrained: untrained.iter().map(|tensor| tensor.key.clone()).collect(),
            ..self
        }
    }

    /// Makes the metadata of one stage of a trained model.
    #[must_use]
    pub fn of_stage(job: &Job, known: Known<'_>, frontier: &Frontier, stage: &PipelineStage, digest: Digest) -> Self {
        // With `layers`, the nodes may have decided into how many stages the model is cut.
        let job = Job {
            exchange: job.exchange.decided(stage.cut),
            ..job.clone()
        };
        Self {
            stage: Some(stage.number),
            ..Self::new(&job, known, frontier, digest)
        }
    }

    /// Returns the facts about data that the model fixes: other data for the model must match them.
    #[must_use]
    pub fn known(&self) -> Known<'_> {
        Known {
            input: self.input,
            target: &self.target,
            columns: self.columns.as_ref(),
            encodings: &self.encodings,
            scaling: &self.scaling,
        }
    }
}

/// A model that was loaded from a file.
#[derive(Clone, Debug)]
pub struct Model {
    pub metadata: Metadata,
    /// Job that trained the model.
    pub job: Job,
    /// Shapes and indices of the model's tensors.
    pub layout: Layout,
    /// Weights of the model in one list, in the order in which the layout numbers them.
    pub weights: Vec<f32>,
    /// Means and variances measured for batch norms, in the order in which the layout numbers them, apart from the
    /// weights.
    pub statistics: Vec<f32>,
    /// Tensors of a module that were not trained.
    pub untrained: Vec<UntrainedTensor>,
}

/// Tensor of a module that is saved with the model and was not trained as such: a buffer, a frozen parameter, or a tied
/// weight (a trained tensor under a further key).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UntrainedTensor {
    pub key: String,
    /// Type of the tensor's numbers.
    pub dtype: Dtype,
    /// Dimensions of the tensor, outermost first.
    pub dims: Vec<usize>,
    /// Numbers of the tensor in little-endian order.
    pub bytes: Vec<u8>,
}

impl Model {
    /// Returns the shapes and numbers of the model that are saved.
    #[must_use]
    pub fn numbers(&self) -> Numbers<'_> {
        Numbers {
            layout: &self.layout,
            weights: &self.weights,
            statistics: &self.statistics,
            untrained: &self.untrained,
        }
    }
}

/// Shapes and numbers of a model to be saved.
#[derive(Clone, Copy, Debug)]
pub struct Numbers<'a> {
    /// Shapes and indices of the model's tensors.
    pub layout: &'a Layout,
    /// Weights of the model in one list, in the order in which the layout numbers them.
    pub weights: &'a [f32],
    /// Means and variances measured for the model's batch norms.
    pub statistics: &'a [f32],
    /// Tensors of a module that were not trained.
    pub untrained: &'a [UntrainedTensor],
}

/// Reason why a model file was not written or not read.
#[derive(Debug, Error)]
pub enum ModelFileError {
    /// The operating system failed to read the file.
    #[error("{file} could not be read")]
    Read { file: PathBuf, source: std::io::Error },
    /// The operating system failed to write the file.
    #[error("{file} could not be written: make room for it, or choose a folder that can hold it")]
    Write { file: PathBuf, source: std::io::Error },
    /// The file is not a model that Tau has saved.
    #[error("{file} is not a model file of Tau's: {why}")]
    NotAModel { file: PathBuf, why: String },
    /// The weights in the file do not match the digest in its metadata.
    #[error("{file} is damaged: its weights have the digest {found}, but its metadata says {expected}")]
    Damaged {
        file: PathBuf,
        /// Digest of the weights in the file, or the reason why they have none.
        found: String,
        /// Digest of the weights that the file's metadata names.
        expected: String,
    },
    /// The layers of the model are code that the file does not hold.
    #[error(
        "the layers of {file} are Python code, {model}: only that code computes the model; tau.load in Python gives the module, \
         and 'tau evaluate' and 'tau predict' take the code with --model-source"
    )]
    IsCode {
        file: PathBuf,
        /// Text of the model in its job, which names the file of code.
        model: String,
    },
}

/// Turns reaching the user's file size limit (`ulimit -f`) into an error like a full disk. Otherwise the system would
/// kill the process in the middle of a write and leave a partial file.
pub fn outlive_file_limits() {
    // SAFETY: ignoring a signal runs no code of ours.
    #[cfg(unix)]
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

/// Writes a model file as a whole or not at all.
pub fn save(path: &Path, numbers: Numbers<'_>, metadata: &Metadata) -> Result<(), ModelFileError> {
    let io = |source| ModelFileError::Write {
        file: path.into(),
        source,
    };
    let bytes = serialise(numbers, metadata)
        .map_err(std::io::Error::other)
        .map_err(io)?;
    whole_file::make_folder_of(path).map_err(io)?;
    whole_file::write(path, |file| file.write_all(&bytes)).map_err(io)
}

pub(crate) fn serialise(
    numbers: Numbers<'_>,
    metadata: &Metadata,
) -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>> {
    let Numbers {
        layout,
        weights,
        statistics,
        untrained,
    } = numbers;
    let bytes = |values: &[f32]| -> Vec<u8> { values.iter().flat_map(|value| value.to_le_bytes()).collect() };
    let (weights, statistics) = (bytes(weights), bytes(statistics));
    let mut views = Vec::new();
    for (slots, bytes) in [(&layout.tensors, &weights), (&layout.statistics, &statistics)] {
        for tensor in slots {
            let range = tensor.range();
            let part = &bytes[range.start * size_of::<f32>()..range.end * size_of::<f32>()];
            views.push((
                tensor.key.as_str(),
                TensorView::new(Dtype::F32, tensor.dims.clone(), part)?,
            ));
        }
    }
    for tensor in untrained {
        let view = TensorView::new(tensor.dtype, tensor.dims.clone(), &tensor.bytes)?;
        views.push((tensor.key.as_str(), view));
    }
    let text = serde_json::to_string(metadata)?;
    Ok(safetensors::serialize(
        views,
        Some(HashMap::from([(METADATA_KEY.into(), text)])),
    )?)
}

/// Reads the file of a model that is to be computed here, and checks that it is complete and undamaged. Fails if the
/// model's layers are code.
pub fn load_to_compute(path: &Path) -> Result<Model, ModelFileError> {
    let model = load(path)?;
    match model.job.model {
        ModelSpec::Layers(_) => Ok(model),
        ModelSpec::Module(_) => Err(ModelFileError::IsCode {
            file: path.into(),
            model: model.job.model.to_string(),
        }),
    }
}

/// Reads a model file and checks that it is complete and undamaged.
pub fn load(path: &Path) -> Result<Model, ModelFileError> {
    let bytes = std::fs::read(path).map_err(|source| ModelFileError::Read {
        file: path.into(),
        source,
    })?;
    parse(path, &bytes)
}

/// True if a safetensors file was saved by Tau.
#[must_use]
pub fn is_own(bytes: &[u8]) -> bool {
    let read = SafeTensors::read_metadata(bytes);
    let entries = read.as_ref().ok().and_then(|(_, header)| header.metadata().as_ref());
    entries.is_some_and(|entries| entries.contains_key(METADATA_KEY))
}

/// Parses the bytes of a model file and checks that they are complete and undamaged. `path` is only for error messages.
pub fn parse(path: &Path, bytes: &[u8]) -> Result<Model, ModelFileError> {
    let not_a_model = |why: String| ModelFileError::NotAModel { file: path.into(), why };
    let metadata = metadata_of(bytes).map_err(not_a_model)?;
    let job = metadata
        .job
        .clone()
        .resolve()
        .map_err(|JobErrors(errors)| not_a_model(errors.first().map_or_else(String::new, ToString::to_string)))?;
    let tensors = SafeTensors::deserialize(bytes).map_err(|error| not_a_model(error.to_string()))?;
    let is_untrained = |key: &str| metadata.untrained.iter().any(|untrained| untrained == key);
    let layout = match &job.model {
        ModelSpec::Layers(_) => Layout::new(&job.model, metadata.input, metadata.target.outputs()),
        ModelSpec::Module(_) => {
            let trained = tensors.iter().filter(|(key, _)| !is_untrained(key));
            Layout::of_tensors(trained.map(|(key, tensor)| {
                let dims = tensor.shape().to_vec();
                let role = module::role(key, &dims);
                (key.to_owned(), dims, role)
            }))
        }
    };
    let layout = layout.map_err(|error: ModelError| not_a_model(error.to_string()))?;
    let inputs = metadata.input.elements();
    let columns = match metadata.encodings.as_slice() {
        [] => inputs,
        encodings if dataset::width(encodings) == Some(inputs) => encodings.len(),
        _ => {
            return Err(not_a_model(
                "its columns do not add up to the number of inputs that the model takes".into(),
            ));
        }
    };
    let named = metadata.columns.as_ref().map(|columns| columns.features.len());
    if named.is_some_and(|named| named != columns) {
        return Err(not_a_model(
            "the number of column names differs from the number of columns".into(),
        ));
    }
    if !metadata.target.is_sound() {
        return Err(not_a_model(
            "the mean or deviation of a number to predict is not valid".into(),
        ));
    }
    if !metadata.scaling.fits(metadata.input.elements()) {
        return Err(not_a_model(
            "its inputs cannot be scaled: a mean or deviation is not valid".into(),
        ));
    }
    let weights = numbers_of(&tensors, &layout.tensors).map_err(not_a_model)?;
    let statistics = numbers_of(&tensors, &layout.statistics).map_err(not_a_model)?;
    if !statistics.iter().all(|value| value.is_finite()) {
        return Err(not_a_model("its batch norm statistics are not finite".into()));
    }
    let found = Digest::of_weights(&weights).map(|digest| digest.to_string());
    if found.as_ref() != Some(&metadata.digest) {
        return Err(ModelFileError::Damaged {
            file: path.into(),
            found: found.unwrap_or("none, because a weight is not a multiple of 2^-20 below 16".into()),
            expected: metadata.digest,
        });
    }
    let untrained = tensors.iter().filter(|(key, _)| is_untrained(key));
    let untrained = untrained.map(|(key, tensor)| UntrainedTensor {
        key: key.to_owned(),
        dtype: tensor.dtype(),
        dims: tensor.shape().to_vec(),
        bytes: tensor.data().to_vec(),
    });
    let untrained = untrained.collect();
    Ok(Model {
        metadata,
        job,
        layout,
        weights,
        statistics,
        untrained,
    })
}

/// Returns the metadata in the bytes of a model file.
pub(crate) fn metadata_of(bytes: &[u8]) -> Result<Metadata, String> {
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(|error| error.to_string())?;
    let text = header.metadata().as_ref().and_then(|entries| entries.get(METADATA_KEY));
    let text = text.ok_or("the metadata of the file has no entry 'tau'")?;
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// Returns the numbers of tensors in one list, in the order of `slots`. Memory grows with the tensors that exist in the
/// file, not with the sizes that its metadata claims.
pub(crate) fn numbers_of(tensors: &SafeTensors<'_>, slots: &[TensorSlot]) -> Result<Vec<f32>, String> {
    let mut numbers = Vec::new();
    for slot in slots {
        let tensor = tensors
            .tensor(&slot.key)
            .map_err(|_| format!("the file has no tensor '{}'", slot.key))?;
        if tensor.dtype() != Dtype::F32 || tensor.shape() != slot.dims {
            return Err(format!(
                "tensor '{}' is {:?} {:?}, but the layers of the model need F32 {:?}",
                slot.key,
                tensor.dtype(),
                tensor.shape(),
                slot.dims
            ));
        }
        let (floats, _) = tensor.data().as_chunks::<4>();
        numbers.extend(floats.iter().map(|&bytes| f32::from_le_bytes(bytes)));
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use protocol::job::model::initial_counts;
    use protocol::weights::lattice::weight_of;

    use super::*;

    fn numbers<'a>(layout: &'a Layout, weights: &'a [f32]) -> Numbers<'a> {
        Numbers {
            layout,
            weights,
            statistics: &[],
            untrained: &[],
        }
    }

    fn model() -> (Layout, Vec<f32>, Metadata) {
        let draft = JobDraft {
            model: Some(
                "conv 2 3x3, relu, flatten, dense 11, tanh, dense 9, tanh, dense 8, tanh, dense 7, dense 3".into(),
            ),
            ..JobDraft::default()
        };
        let job = draft.resolve().unwrap();
        let input = Shape::Image {
            channels: 1,
            height: 5,
            width: 4,
        };
        let layout = Layout::new(&job.model, input, 3).unwrap();
        let counts = initial_counts(&layout, 1);
        let weights = counts.iter().copied().map(weight_of).collect();
        let target = Target::Classes(["a", "b", "c"].map(String::from).to_vec());
        let scaling = Scaling::Standard {
            mean: vec![1.5; 20],
            deviation: vec![0.1; 20],
        };
        let digest = Digest::of_counts(&counts);
        let known = Known {
            input,
            target: &target,
            columns: None,
            encodings: &[],
            scaling: &scaling,
        };
        let metadata = Metadata::new(&job, known, &Frontier::default(), digest);
        (layout, weights, metadata)
    }

    #[test]
    fn a_model_comes_back_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let (layout, weights, metadata) = model();
        save(&path, numbers(&layout, &weights), &metadata).unwrap();
        let first = std::fs::read(&path).unwrap();
        save(&path, numbers(&layout, &weights), &metadata).unwrap();
        assert_eq!(
            std::fs::read(&path).unwrap(),
            first,
            "the same model must give the same bytes"
        );
        let model = load(&path).unwrap();
        assert_eq!(
            (model.weights, model.metadata, model.layout),
            (weights, metadata, layout)
        );
        assert_eq!(
            std::fs::read_dir(folder.path()).unwrap().count(),
            1,
            "a temporary file was left behind"
        );
    }

    #[test]
    fn numbers_come_back_to_the_last_bit() {
        let (layout, weights, mut metadata) = model();
        // Found by the fuzzer: a JSON reader that rounds wrongly returns the next number.
        metadata.job.max_seconds = Some(0.046_116_860_184_273_877);
        let bytes = serialise(numbers(&layout, &weights), &metadata).unwrap();
        assert_eq!(parse(Path::new("model"), &bytes).unwrap().metadata, metadata);
    }

    #[test]
    fn tensors_lie_in_the_order_of_the_flat_index_space() {
        let (layout, weights, metadata) = model();
        let bytes = serialise(numbers(&layout, &weights), &metadata).unwrap();
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        assert!(layout.tensors.len() == 12 && layout.tensors[2].key == "10.bias");
        for slot in &layout.tensors {
            let info = header.info(&slot.key).unwrap();
            assert_eq!(info.data_offsets.0, slot.offset * 4, "{}", slot.key);
        }
    }

    #[test]
    fn foreign_and_damaged_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        assert!(load(&path).unwrap_err().to_string().contains("could not be read"));
        std::fs::write(&path, b"hello").unwrap();
        assert!(load(&path).unwrap_err().to_string().contains("is not a model file"));
        let (layout, mut weights, metadata) = model();
        let bytes = serialise(numbers(&layout, &weights), &metadata).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 4]).unwrap();
        assert!(matches!(load(&path), Err(ModelFileError::NotAModel { .. })));
        for input in [
            Shape::Flat(1 << 60),
            Shape::Image {
                channels: 1,
                height: 900,
                width: 900,
            },
        ] {
            let greedy = Metadata {
                input,
                ..metadata.clone()
            };
            std::fs::write(&path, serialise(numbers(&layout, &weights), &greedy).unwrap()).unwrap();
            assert!(matches!(load(&path), Err(ModelFileError::NotAModel { .. })));
        }
        let unscaled = Metadata {
            scaling: Scaling::Standard {
                mean: vec![0.0; 20],
                deviation: vec![0.0; 20],
            },
            ..metadata.clone()
        };
        std::fs::write(&path, serialise(numbers(&layout, &weights), &unscaled).unwrap()).unwrap();
        assert!(load(&path).unwrap_err().to_string().contains("scaled"));
        weights[7] += 0.5;
        save(&path, numbers(&layout, &weights), &metadata).unwrap();
        assert!(matches!(load(&path), Err(ModelFileError::Damaged { .. })));
        weights[7] = 0.1;
        save(&path, numbers(&layout, &weights), &metadata).unwrap();
        assert!(load(&path).unwrap_err().to_string().contains("not a multiple of 2^-20"));
    }

    #[test]
    fn nothing_is_left_where_nothing_can_be_written() {
        let (layout, weights, metadata) = model();
        let error = save(
            Path::new("/dev/null/model.safetensors"),
            numbers(&layout, &weights),
            &metadata,
        )
        .unwrap_err();
        assert!(error.to_string().contains("could not be written"), "{error}");
    }
}
