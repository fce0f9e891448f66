//! Checks that a job can be trained on its data, and computes the layout of its model.

use protocol::job::model::{Layer, Layout, ModelError, Partition, PartitionError, PlacedLayer, Shape};
use protocol::job::split::Split;
use protocol::job::target::TargetInfo;
use protocol::job::{Cut, Job, PipelineSpec};
use thiserror::Error;

use crate::dataset::Dataset;
use crate::task::objective::{Objective, ObjectiveError};

#[derive(Debug, Error)]
pub enum LayoutError {
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Reason why a job cannot be trained on its data: the job distributes samples by class, but the data has no
    /// classes.
    #[error(
        "{setting} distributes samples by their classes, but {data} has no classes: remove {setting}, or use \
         target=class (the code of a module's data: an attribute targets of the training samples)"
    )]
    NoClasses {
        setting: &'static str,
        /// Source of the samples, as the error message names it.
        data: String,
    },
    /// Reason why a job cannot be trained on its data: the loss does not suit the data's target.
    #[error(transparent)]
    Objective(#[from] ObjectiveError),
    /// Reason why a job cannot be trained on its data: the model has one output, which suffices for two classes but not
    /// for two numbers.
    #[error("the model has 1 output, but {data} has {target}: end the model with 'dense'")]
    Outputs {
        /// Source of the samples, as the error message names it.
        data: String,
        target: TargetInfo,
    },
    /// Reason why a job cannot be trained on its data: the job augments images, but the samples are not images.
    #[error("--augment varies images, but the samples of {0} are not images: remove --augment")]
    NoImages(String),
    /// Reason why a job cannot be trained on its data: the crop of the augmentation would shift images out of sight.
    #[error(
        "--augment crop={crop} would shift images of {height} rows and {width} columns out of sight: use a smaller \
         crop"
    )]
    OutOfSight {
        /// Largest shift by the augmentation, in pixels.
        crop: u8,
        height: usize,
        width: usize,
    },
    /// Reason why a job cannot be trained: minibatches of one sample have no variance for a batch norm.
    #[error(
        "a batchnorm over vectors learns nothing from a minibatch of one sample: use a larger --minibatch, or layernorm"
    )]
    OneSample,
    /// Reason why a job cannot be trained: the network cannot be cut into pipeline stages as the job says.
    #[error("--exchange: {0}")]
    Partition(#[from] PartitionError),
    /// Reason why a job cannot be trained: the values that pass between two machines of a pipeline do not fit into one
    /// message.
    #[error(
        "--exchange: {samples} samples of {numbers} numbers each do not fit into one message between two machines: \
         use more micro-batches (micro=), or a smaller --minibatch"
    )]
    Border {
        /// Samples in a micro-batch.
        samples: usize,
        /// Number of values that pass between two machines for each sample, where the network is cut.
        numbers: usize,
    },
}

/// Returns the layout of a job's model for the shape of its data (all layers, shapes and places of weights), and checks
/// that the job can be trained on the data.
pub fn layout_for(job: &Job, dataset: &Dataset) -> Result<Layout, LayoutError> {
    check(job, dataset)?;
    let target = dataset.target.info();
    let layout = Layout::new(&job.model, dataset.input, target.outputs())?;
    if matches!(target, TargetInfo::Numbers(_)) && layout.outputs() != target.outputs() {
        let data = job.data.to_string();
        return Err(LayoutError::Outputs { data, target });
    }
    if job.minibatch == 1 && normalises_vectors(&layout.layers) {
        return Err(LayoutError::OneSample);
    }
    if let Some(pipelines) = job.exchange.pipelines() {
        // If nodes decide the number of groups, their choice is checked again later.
        partition(job, &pipelines.decided(Cut::Into(pipelines.fewest_groups())), &layout)?;
    }
    Ok(layout)
}

/// Checks that a job can be trained on its data, whatever its model.
pub fn check(job: &Job, dataset: &Dataset) -> Result<(), LayoutError> {
    let has_classes = match dataset.target.info() {
        TargetInfo::Classes(_) => true,
        TargetInfo::Numbers(_) => false,
        TargetInfo::Module => dataset.train.labels().iter().any(|&class| class > 0),
    };
    if !has_classes {
        let data = || job.data.to_string();
        let setting = match (job.split, job.balanced) {
            (Split::Class, _) => Some("--split class"),
            (_, true) => Some("--balanced"),
            _ => None,
        };
        if let Some(setting) = setting {
            return Err(LayoutError::NoClasses { setting, data: data() });
        }
    }
    check_augment(job, dataset.input)?;
    Objective::of_job(job, dataset)?;
    Ok(())
}

/// Cuts the job's network into pipeline stages, and checks that the values that pass between them fit into messages.
pub(crate) fn partition(job: &Job, pipelines: &PipelineSpec, layout: &Layout) -> Result<Partition, LayoutError> {
    let partition = Partition::new(layout.clone(), pipelines)?;
    let samples = (job.step_samples() as usize).div_ceil(usize::from(pipelines.micro));
    if !partition.fits_messages(samples) {
        return Err(LayoutError::Border {
            samples,
            numbers: partition.widest(),
        });
    }
    Ok(partition)
}

/// Checks that the data can be augmented as the job says.
fn check_augment(job: &Job, input: Shape) -> Result<(), LayoutError> {
    let crop = job.augment.crop;
    match input {
        _ if job.augment.is_none() => Ok(()),
        Shape::Flat(_) => Err(LayoutError::NoImages(job.data.to_string())),
        Shape::Image { height, width, .. } if usize::from(crop) >= height.min(width) => {
            Err(LayoutError::OutOfSight { crop, height, width })
        }
        Shape::Image { .. } => Ok(()),
    }
}

/// True if a batch norm among the layers normalises vectors, so that only a minibatch's samples give it a variance.
fn normalises_vectors(layers: &[PlacedLayer]) -> bool {
    layers.iter().any(|placed| {
        let own = placed.layer == Layer::BatchNorm && matches!(placed.input, Shape::Flat(_));
        let block = placed.block.as_ref();
        own || block.is_some_and(|block| normalises_vectors(&block.body) || normalises_vectors(&block.skip))
    })
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use protocol::job::JobDraft;

    use super::*;

    #[test]
    fn numbers_are_not_shared_out_by_class() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("prices.csv");
        let rows = (0..50).fold(String::new(), |mut rows, row| {
            let _ = writeln!(rows, "{row},{row}.5");
            rows
        });
        std::fs::write(&path, rows).unwrap();
        let draft = |split: Option<&str>, balanced| JobDraft {
            data: Some(format!("csv:{}", path.display())),
            model: Some("dense 1".into()),
            split: split.map(str::to_owned),
            balanced,
            ..JobDraft::default()
        };
        for (draft, says) in [
            (draft(Some("class"), None), "--split class distributes samples"),
            (draft(None, Some(true)), "--balanced distributes samples"),
            (
                JobDraft {
                    augment: Some("flip".into()),
                    ..draft(None, None)
                },
                "--augment varies images",
            ),
            (
                JobDraft {
                    loss: Some("cross-entropy".into()),
                    ..draft(None, None)
                },
                "has a number to predict",
            ),
            (
                JobDraft {
                    minibatch: Some(1),
                    model: Some("dense 3, residual [ batchnorm ], dense".into()),
                    ..draft(None, None)
                },
                "a minibatch of one sample",
            ),
        ] {
            let job = draft.resolve().unwrap();
            let dataset = Dataset::open(&job.data, 1, None).unwrap();
            let error = layout_for(&job, &dataset).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
