//! Assembles the files of all stages of a model, as the nodes of a pipeline saved them, into one model file.

use protocol::job::model::{Layout, Partition, TensorSlot};
use protocol::weights::digest::Digest;
use safetensors::tensor::SafeTensors;
use thiserror::Error;

use crate::model_file::{Numbers, metadata_of, numbers_of, serialise};

/// Reason why a model file cannot be assembled from the files of its pipeline stages.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AssemblyError {
    /// Some layers are in none of the stage files.
    #[error("the file of the pipeline stage that holds tensor '{0}' is missing")]
    Missing(String),
    /// The file of a pipeline stage cannot be read.
    #[error("the file of a pipeline stage cannot be read: {0}")]
    Unreadable(String),
    /// The stage files belong to different models.
    #[error("the files of the pipeline stages belong to different models")]
    Different,
}

/// Returns the bytes of the model file that these files of pipeline stages make up. Their order does not matter, nor do
/// duplicates.
pub fn assemble(stages: &[Vec<u8>]) -> Result<Vec<u8>, AssemblyError> {
    let unreadable = |why: String| AssemblyError::Unreadable(why);
    let mut all = Vec::new();
    for bytes in stages {
        let tensors = SafeTensors::deserialize(bytes).map_err(|error| unreadable(error.to_string()))?;
        all.push((metadata_of(bytes).map_err(unreadable)?, tensors));
    }
    let Some((first, _)) = all.first() else {
        return Err(unreadable("no file was given".into()));
    };
    let mut metadata = first.clone();
    let alike = |(other, _): &(crate::model_file::Metadata, SafeTensors<'_>)| {
        (&other.job, other.input, &other.target) == (&metadata.job, metadata.input, &metadata.target)
    };
    if !all.iter().all(alike) {
        return Err(AssemblyError::Different);
    }
    let job = metadata
        .job
        .clone()
        .resolve()
        .map_err(|errors| unreadable(errors.to_string()))?;
    let layout = Layout::new(&job.model, metadata.input, metadata.target.outputs())
        .map_err(|error| unreadable(error.to_string()))?;
    let pipelines = job.exchange.pipelines().ok_or(AssemblyError::Different)?;
    let partition = Partition::new(layout.clone(), pipelines).map_err(|error| unreadable(error.to_string()))?;
    let mut pieces: Vec<(usize, usize, TensorSlot)> = Vec::new();
    for stage in partition.stages() {
        let tensors = stage.tensors();
        pieces.extend(tensors.map(|(tensor, place)| (place, stage.number, tensor.clone())));
    }
    pieces.sort_by_key(|(place, ..)| *place);
    // Memory grows with the tensors that exist, not with the metadata's claims.
    let mut weights = Vec::new();
    for (_, stage, slot) in &pieces {
        let holder = all.iter().find(|(metadata, _)| metadata.stage == Some(*stage));
        let (_, tensors) = holder.ok_or_else(|| AssemblyError::Missing(slot.key.clone()))?;
        weights.extend(numbers_of(tensors, std::slice::from_ref(slot)).map_err(unreadable)?);
    }
    let digest = Digest::of_weights(&weights)
        .ok_or_else(|| unreadable("a weight is not a multiple of 2^-20 below 16".into()))?;
    metadata.digest = digest.to_string();
    metadata.stage = None;
    // Each stage has batches of its own.
    let frontiers = all.iter().flat_map(|(metadata, _)| metadata.frontier.iter().cloned());
    metadata.frontier = frontiers.collect();
    metadata.frontier.sort();
    metadata.frontier.dedup();
    let numbers = Numbers {
        layout: &layout,
        weights: &weights,
        statistics: &[],
        untrained: &[],
    };
    serialise(numbers, &metadata).map_err(|error| unreadable(error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use protocol::ids::OriginId;
    use protocol::job::model::{Partition, Shape, initial_counts};
    use protocol::job::{Cut, JobDraft};
    use protocol::log::frontier::Frontier;
    use protocol::weights::lattice::weight_of;

    use super::*;
    use crate::dataset::{Known, Scaling, Target};
    use crate::model_file::{Metadata, parse};

    #[test]
    fn stages_make_the_file_of_one_machine() {
        for (exchange, decided, stages) in [
            ("layers:groups=3", None, 3),
            ("layers:groups=1,slices=2", None, 2),
            ("layers:groups=2,slices=2", None, 4),
            // The job leaves the number of stages to the nodes.
            ("layers", Some(Cut::Into(3)), 3),
            ("layers", Some("2+6".parse().unwrap()), 3),
        ] {
            check(exchange, decided, stages);
        }
    }

    fn check(exchange: &str, decided: Option<Cut>, stages: u64) {
        let draft = JobDraft {
            model: Some("dense 7, relu, dense 6, relu, dense 5, relu, dense".into()),
            exchange: Some(exchange.into()),
            ..JobDraft::default()
        };
        let job = draft.resolve().unwrap();
        let pipelines = job.exchange.pipelines().unwrap();
        let pipelines = decided.map_or(*pipelines, |cut| pipelines.decided(cut));
        let layout = Layout::new(&job.model, Shape::Flat(4), 2).unwrap();
        let target = Target::Classes(vec!["a".into(), "b".into()]);
        let known = Known {
            input: Shape::Flat(4),
            target: &target,
            columns: None,
            encodings: &[],
            scaling: &Scaling::Unit,
        };
        let partition = Partition::new(layout.clone(), &pipelines).unwrap();
        let file = |number: u64| {
            let stage = partition.stage(number as usize);
            let counts = stage.initial_counts(3);
            let weights: Vec<f32> = counts.iter().copied().map(weight_of).collect();
            let mut frontier = Frontier::default();
            frontier.raise(OriginId(number), number + 1);
            let metadata = Metadata::of_stage(&job, known, &frontier, &stage, stage.digest(&counts));
            let numbers = Numbers {
                layout: &stage.layout,
                weights: &weights,
                statistics: &[],
                untrained: &[],
            };
            serialise(numbers, &metadata).unwrap()
        };
        let files: Vec<Vec<u8>> = (0..stages).rev().chain([0]).map(file).collect();
        let whole = assemble(&files).unwrap();
        let model = parse(Path::new("whole"), &whole).unwrap();
        let counts = initial_counts(&layout, 3);
        let expected: Vec<f32> = counts.iter().copied().map(weight_of).collect();
        assert_eq!(model.weights, expected);
        assert_eq!(model.metadata.digest, Digest::of_counts(&counts).to_string());
        assert_eq!(model.metadata.frontier.len(), stages as usize);
        assert_eq!(model.metadata.stage, None);
        let missing = assemble(&files[..stages as usize - 1]).unwrap_err();
        assert!(matches!(missing, AssemblyError::Missing(_)), "{missing}");
        assert!(assemble(&[file(0), b"no file".to_vec()]).is_err());
        assert!(assemble(&[]).is_err());
    }
}
