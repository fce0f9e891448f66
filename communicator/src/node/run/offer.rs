//! What a node can offer to a run: whether the model fits its data and its memory, and the first weights.

use protocol::ids::RunId;
use protocol::job::Job;
use protocol::model::{Layout, initial_counts};
use protocol::wire::attach::DataInfo;
use protocol::wire::control::Offer;

use crate::ledger::Ledger;
use crate::usage;

/// Works it out, with the ledger that the run would begin with: with the counts that a worker has found in a model, or those
/// that follow from the seed. That takes a while for large models.
pub(super) fn make(
    run: RunId,
    job: &Job,
    first: Option<Vec<i32>>,
    data: DataInfo,
    workers: usize,
) -> Result<(Offer, Box<Ledger>), String> {
    let layout = Layout::new(&job.model, data.input, data.target.outputs()).map_err(|error| error.to_string())?;
    usage::check_memory(job, &layout, workers)
        .map_err(|error| format!("{error}: use a smaller model or --minibatch"))?;
    let counts = match (&job.from, first) {
        (None, _) => initial_counts(&layout, job.seed),
        (Some(_), Some(first)) if first.len() == layout.weights => first,
        (Some(file), _) => return Err(format!("its worker has not told the weights of {}", file.display())),
    };
    let ledger = Ledger::new(run, counts);
    let digest = ledger.digest();
    let offer = Offer { data, digest, workers };
    Ok((offer, Box::new(ledger)))
}
