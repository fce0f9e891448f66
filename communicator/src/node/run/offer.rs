//! A node's offer to a run: checks that the model fits its data and memory, and computes the first weights.

use std::path::PathBuf;

use protocol::ids::RunId;
use protocol::job::data::DataInfo;
use protocol::job::model::{Layout, ModelError, Partition, PartitionError, PipelineStage, Role, initial_counts};
use protocol::job::{Cut, GROUPS_MAX, Job, PipelineSpec};
use protocol::reasons::Excluded;
use protocol::weights::digest::Digest;
use protocol::wire::control::Offer;
use thiserror::Error;

use crate::ledger::Ledger;
use crate::usage::{self, TooLarge, Workers};

/// Reason for which this node cannot make an offer to take part in a run.
#[derive(Debug, Error)]
pub(super) enum OfferError {
    /// The model does not fit the data.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The model cannot be cut into stages as the job says.
    #[error(transparent)]
    Partition(#[from] PartitionError),
    /// The whole model exceeds this node's memory.
    #[error("{0}: use a smaller model or --minibatch, or spread the model over nodes (--exchange layers)")]
    TooLarge(TooLarge),
    /// A stage of the model exceeds this node's memory, in whatever way the job lets it be cut.
    #[error("with {stages} pipeline stages, {error}{}", if *.is_open {
        ", and the model cannot be cut into more stages: use a smaller model or --minibatch"
    } else {
        ": ask for more groups or slices"
    })]
    StageTooLarge {
        stages: usize,
        error: TooLarge,
        /// True if the job lets Tau choose where the model is cut into stages. Tau has then tried all numbers of
        /// stages, and with each of them a stage exceeds the node's memory.
        is_open: bool,
    },
    /// No worker has sent the weights of the model file or module at this path, with which the run would begin.
    #[error("the node's worker did not send the weights of {}", .0.display())]
    NoFirstWeights(PathBuf),
}

impl From<OfferError> for Excluded {
    fn from(error: OfferError) -> Self {
        Self::Unable(error.to_string().into())
    }
}

/// Works out this node's offer to take part in a run, and the ledger (exact replica of the weights) with which the run
/// would begin: with the weights that a worker has read from a model, or with those that follow from the seed. That
/// takes a while for large models.
pub(super) fn make(
    run: RunId,
    job: &Job,
    first: Option<Vec<i32>>,
    data: DataInfo,
    workers: Workers,
) -> Result<(Offer, Box<Ledger>), OfferError> {
    let job = &job.for_data(data.input);
    if job.model.module().is_some() {
        return of_module(run, job, first, data, workers);
    }
    let layout = Layout::new(&job.model, data.input, data.target.outputs())?;
    // Stages that nodes cut themselves must fit for sure. Otherwise a GPU reports by itself if its memory is too small:
    // an estimate might refuse a model that fits.
    let workers = Workers {
        gpu_bytes: workers.gpu_bytes.filter(|_| job.exchange.leaves_cut_open()),
        ..workers
    };
    if let Some(pipelines) = job.exchange.pipelines() {
        let workers = Workers { count: 1, ..workers };
        return of_stages(run, job, &layout, pipelines, data, workers);
    }
    usage::check_memory(job, &layout, workers).map_err(OfferError::TooLarge)?;
    let counts = match (&job.from, first) {
        (None, _) => initial_counts(&layout, job.seed),
        (Some(_), Some(first)) if first.len() == layout.weights => first,
        (Some(file), _) => return Err(OfferError::NoFirstWeights(file.clone())),
    };
    Ok(with_counts(run, counts, data, workers))
}

/// Works out this node's offer to take part in a run of a module, whose layers only workers know: they have told the
/// first weights. Memory for activations is unknown, so that only weights are counted.
fn of_module(
    run: RunId,
    job: &Job,
    first: Option<Vec<i32>>,
    data: DataInfo,
    workers: Workers,
) -> Result<(Offer, Box<Ledger>), OfferError> {
    let counts = first.ok_or_else(|| OfferError::NoFirstWeights(job.model.to_string().into()))?;
    let layout = Layout::of_tensors([("weights".into(), vec![counts.len()], Role::Weight)])?;
    usage::check_memory(job, &layout, workers).map_err(OfferError::TooLarge)?;
    Ok(with_counts(run, counts, data, workers))
}

/// Returns the offer and the ledger of a node that begins with these weights.
fn with_counts(run: RunId, counts: Vec<i32>, data: DataInfo, workers: Workers) -> (Offer, Box<Ledger>) {
    let weights = counts.len();
    let ledger = Ledger::new(run, counts);
    (of(workers, data, ledger.digest(), weights, 1), Box::new(ledger))
}

/// Works out this node's offer to take part in a run in pipelines. This node must have memory for any stage, because
/// its own is not known yet; its replica of the weights is made when it is known.
fn of_stages(
    run: RunId,
    job: &Job,
    layout: &Layout,
    pipelines: &PipelineSpec,
    data: DataInfo,
    workers: Workers,
) -> Result<(Offer, Box<Ledger>), OfferError> {
    let (partition, groups) = partition_for(job, layout, pipelines, workers)?;
    let offer = of(workers, data, partition.first_digest(job.seed), layout.weights, groups);
    Ok((offer, Box::new(Ledger::new(run, Vec::new()))))
}

/// Returns the offer with which this node answers a request to prepare for a run.
fn of(workers: Workers, data: DataInfo, digest: Digest, weights: usize, groups: u8) -> Offer {
    Offer {
        data,
        digest,
        weights: weights as u64,
        workers: workers.count,
        groups,
        speed: workers.speed,
        memory_bytes: workers.memory_bytes,
        gpu_bytes: workers.gpu_bytes,
    }
}

/// Cuts the model into the groups of layers that the job asks for, or into as few as fit this node's memory. Returns
/// the number of groups, too.
fn partition_for(
    job: &Job,
    layout: &Layout,
    pipelines: &PipelineSpec,
    workers: Workers,
) -> Result<(Partition, u8), OfferError> {
    let is_open = matches!(pipelines.cut, Cut::Auto);
    let mut groups = if is_open { pipelines.fewest_groups() } else { 0 };
    let mut too_large = None;
    loop {
        let partition = match Partition::new(layout.clone(), &pipelines.decided(Cut::Into(groups))) {
            // A model that needs more groups than there can be does not fit.
            Err(
                error @ (PartitionError::TooFew { .. }
                | PartitionError::TooMany { .. }
                | PartitionError::Undivided { .. }),
            ) => return Err(too_large.unwrap_or(error.into())),
            cut => cut?,
        };
        let fits = |stage: PipelineStage| usage::check_memory(job, &stage.layout, workers);
        let Err(error) = partition.stages().try_for_each(fits) else {
            let groups = partition.groups() as u8;
            return Ok((partition, groups));
        };
        let stages = partition.len();
        let error = OfferError::StageTooLarge { stages, error, is_open };
        if !is_open || usize::from(groups) == GROUPS_MAX {
            return Err(error);
        }
        too_large = Some(error);
        groups += 1;
    }
}

#[cfg(test)]
mod tests {
    use protocol::job::JobDraft;
    use protocol::job::model::Shape;

    use super::*;

    #[test]
    fn a_smaller_gpu_holds_smaller_stages() {
        let draft = JobDraft {
            model: Some("dense 4096, relu, dense 4096, relu, dense 4096, relu, dense 4096, relu, dense".into()),
            exchange: Some("layers".into()),
            optimiser: Some("sgd:0.05".into()),
            ..JobDraft::default()
        };
        let job = draft.resolve().unwrap();
        let layout = Layout::new(&job.model, Shape::Flat(784), 10).unwrap();
        let groups = |gpu_bytes| {
            let workers = Workers::here(1, gpu_bytes);
            partition_for(&job, &layout, job.exchange.pipelines().unwrap(), workers).map(|(_, groups)| groups)
        };
        let fewest = |gpu_bytes| groups(gpu_bytes).unwrap();
        let (cpu, large, small) = (fewest(None), fewest(Some(64 << 30)), fewest(Some(1_500_000_000)));
        assert_eq!(cpu, large);
        assert!(small > large, "{small} and {large}");
        let error = groups(Some(1 << 30)).unwrap_err();
        assert!(
            matches!(&error, OfferError::StageTooLarge { is_open: true, .. }),
            "{error}"
        );
    }
}
