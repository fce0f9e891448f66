//! Initial weights of a run that begins from a model file: tensors that fit are taken, and the others are drawn at
//! random.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use protocol::job::Job;
use protocol::job::model::Layout;
use protocol::weights::lattice::{RANGE_ALARM_STEPS, STEPS_PER_UNIT, nearest_count};
use safetensors::tensor::{Dtype, SafeTensors};
use thiserror::Error;

use crate::dataset::{self, DatasetError};
use crate::model_file::{self, ModelFileError};

/// Largest magnitude of an initial weight: from here on training would log warnings.
const WEIGHT_MAX: f32 = (RANGE_ALARM_STEPS / STEPS_PER_UNIT) as f32;

/// Initial weights of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstWeights {
    /// All weights, as whole multiples of the step between two neighbouring values that a weight can have.
    pub counts: Vec<i32>,
    /// Keys of the tensors that begin at random, because the file does not have them or has them in another form.
    pub afresh: Vec<String>,
}

/// Reason why a run cannot begin with the weights of a file.
#[derive(Debug, Error)]
pub enum FirstWeightsError {
    /// The file for initial weights cannot be opened on this node.
    #[error(transparent)]
    Open(#[from] DatasetError),
    /// The operating system failed to read the file.
    #[error("{file} could not be read")]
    Read { file: PathBuf, source: std::io::Error },
    /// The file for initial weights holds no tensors.
    #[error(
        "{file} is not a safetensors file: {why}; use a model that Tau has saved, or a file with keys like '0.weight'"
    )]
    NoTensors { file: PathBuf, why: String },
    /// The file was saved by Tau and is damaged.
    #[error(transparent)]
    Model(#[from] ModelFileError),
    /// No tensor of the file fits the model.
    #[error(
        "no tensor in {file} fits this model: the file has {found}, and the model needs {needed}; use a file with \
         layers of the same sizes"
    )]
    NothingFits {
        file: PathBuf,
        /// Tensors that the file has, as the error message lists them.
        found: String,
        /// Tensors that the model needs, as the error message lists them.
        needed: String,
    },
    /// A weight lies outside of the allowed range.
    #[error(
        "tensor '{tensor}' in {file} has a weight of {weight}, but weights must lie within ±{WEIGHT_MAX}: scale the \
         tensor down"
    )]
    OutOfRange {
        file: PathBuf,
        /// Key of the tensor that has the weight out of range.
        tensor: String,
        weight: f32,
    },
}

/// Reads the initial weights of a job from the model file that it names; `None` if it names none. Tensors that the file
/// lacks keep the weights that `initial` draws. Files are opened under the same rules as data.
pub fn open(
    job: &Job,
    layout: &Layout,
    initial: impl FnOnce() -> Vec<i32>,
    root: Option<&Path>,
) -> Result<Option<FirstWeights>, FirstWeightsError> {
    let Some(file) = &job.from else {
        return Ok(None);
    };
    let mut bytes = Vec::new();
    let read = dataset::open_file(file, root)?.read_to_end(&mut bytes);
    read.map_err(|source| FirstWeightsError::Read {
        file: file.clone(),
        source,
    })?;
    parse(file, &bytes, layout, initial()).map(Some)
}

/// Reads initial weights from a file's bytes. Tensors that the file lacks keep the weights of `counts`. The path is for
/// messages.
pub fn parse(
    file: &Path,
    bytes: &[u8],
    layout: &Layout,
    mut counts: Vec<i32>,
) -> Result<FirstWeights, FirstWeightsError> {
    let no_tensors = |why: String| FirstWeightsError::NoTensors { file: file.into(), why };
    let tensors = SafeTensors::deserialize(bytes).map_err(|error| no_tensors(error.to_string()))?;
    // A file that Tau has saved contains a digest of its weights.
    if model_file::is_own(bytes) {
        model_file::parse(file, bytes)?;
    }
    let mut afresh = Vec::new();
    for slot in &layout.tensors {
        let fits =
            |tensor: &safetensors::tensor::TensorView<'_>| tensor.dtype() == Dtype::F32 && tensor.shape() == slot.dims;
        let Some(tensor) = tensors.tensor(&slot.key).ok().filter(fits) else {
            afresh.push(slot.key.clone());
            continue;
        };
        let (floats, _) = tensor.data().as_chunks::<4>();
        for (count, &bytes) in counts[slot.range()].iter_mut().zip(floats) {
            let weight = f32::from_le_bytes(bytes);
            // NaN is not within the range either.
            if !(-WEIGHT_MAX..=WEIGHT_MAX).contains(&weight) {
                return Err(FirstWeightsError::OutOfRange {
                    file: file.into(),
                    tensor: slot.key.clone(),
                    weight,
                });
            }
            *count = nearest_count(weight);
        }
    }
    if afresh.len() == layout.tensors.len() {
        let found = tensors.iter().map(|(key, tensor)| shown(key, tensor.shape()));
        let needed = layout.tensors.iter().map(|slot| shown(&slot.key, &slot.dims));
        return Err(FirstWeightsError::NothingFits {
            file: file.into(),
            found: listed(found),
            needed: listed(needed),
        });
    }
    Ok(FirstWeights { counts, afresh })
}

fn shown(key: &str, dims: &[usize]) -> String {
    let sides: Vec<String> = dims.iter().map(ToString::to_string).collect();
    format!("{key} of {}", sides.join("x"))
}

/// Lists at most four items for error messages.
fn listed(all: impl Iterator<Item = String>) -> String {
    const SHOWN_MAX: usize = 4;
    let mut all: Vec<String> = all.collect();
    all.sort();
    let more = all.len() > SHOWN_MAX;
    all.truncate(SHOWN_MAX);
    match (all.is_empty(), more) {
        (true, _) => "no tensors".into(),
        (false, true) => format!("{}, …", all.join(", ")),
        (false, false) => all.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use protocol::job::model::{Shape, initial_counts};
    use protocol::weights::lattice::{count_of, weight_of};
    use safetensors::tensor::TensorView;

    use super::*;

    fn layout(model: &str, classes: usize) -> Layout {
        Layout::new(&model.parse().unwrap(), Shape::Flat(3), classes).unwrap()
    }

    /// Returns a file of these weights, as other programs write it.
    fn file(layout: &Layout, weights: &[f32]) -> Vec<u8> {
        let bytes: Vec<u8> = weights.iter().flat_map(|weight| weight.to_le_bytes()).collect();
        let views = layout.tensors.iter().map(|slot| {
            let part = &bytes[slot.range().start * 4..slot.range().end * 4];
            let view = TensorView::new(Dtype::F32, slot.dims.clone(), part).unwrap();
            (slot.key.clone(), view)
        });
        safetensors::serialize(views, None).unwrap()
    }

    fn parsed(layout: &Layout, bytes: &[u8]) -> Result<FirstWeights, FirstWeightsError> {
        parse(Path::new("m.safetensors"), bytes, layout, initial_counts(layout, 7))
    }

    #[test]
    fn what_fits_is_taken_and_the_rest_is_named() {
        let layouts = [layout("dense 4, relu, dense 2", 2), layout("dense 4, relu, dense 5", 5)];
        let weights: Vec<f32> = initial_counts(&layouts[0], 3).into_iter().map(weight_of).collect();
        let bytes = file(&layouts[0], &weights);
        let all = parsed(&layouts[0], &bytes).unwrap();
        assert_eq!(all.afresh, [""; 0]);
        assert_eq!(all.counts, initial_counts(&layouts[0], 3));
        let some = parsed(&layouts[1], &bytes).unwrap();
        assert_eq!(some.afresh, ["2.bias", "2.weight"]);
        let (body, head) = (&layouts[1].tensors[1], &layouts[1].tensors[3]);
        assert_eq!(some.counts[body.range()], all.counts[layouts[0].tensors[1].range()]);
        assert_eq!(some.counts[head.range()], initial_counts(&layouts[1], 7)[head.range()]);
    }

    #[test]
    fn weights_of_other_programs_are_rounded_to_the_lattice() {
        let layout = layout("dense 2", 2);
        let first = parsed(&layout, &file(&layout, &[0.1; 8])).unwrap();
        assert!(first.counts.iter().all(|&count| count == nearest_count(0.1)));
        assert_eq!(count_of(0.1), None, "0.1 must not lie on the lattice");
    }

    #[test]
    fn what_cannot_be_begun_with_is_refused_in_a_sentence() {
        let layout = layout("dense 2", 2);
        let error = |bytes: &[u8]| parsed(&layout, bytes).unwrap_err().to_string();
        assert!(error(b"hello").contains("is not a safetensors file"));
        let other = self::layout("dense 4, relu, dense 3, relu, dense 2", 2);
        let none = error(&file(&other, &vec![0.0; other.weights]));
        assert!(
            none.contains("the file has 0.bias of 4, 0.weight of 4x3, 2.bias of 3, 2.weight of 3x4, …"),
            "{none}"
        );
        assert!(none.contains("the model needs 0.bias of 2, 0.weight of 2x3"), "{none}");
        for wrong in [9.0, f32::NAN, f32::INFINITY] {
            assert!(error(&file(&layout, &[wrong; 8])).contains("within ±8"), "{wrong}");
        }
        assert!(parsed(&layout, &file(&layout, &[-8.0; 8])).is_ok());
    }
}
