//! What a node can offer to a run: whether the model fits its data and its memory, and the first weights.

use protocol::ids::RunId;
use protocol::job::Job;
use protocol::model::{Layout, initial_counts};
use protocol::wire::attach::DataInfo;
use protocol::wire::control::Offer;

use crate::ledger::Ledger;
use crate::usage;

/// Works it out, with the ledger that the run would begin with. That takes a while for large models.
pub(super) fn make(run: RunId, job: &Job, data: DataInfo, workers: usize) -> Result<(Offer, Box<Ledger>), String> {
    let layout = Layout::new(&job.model, data.input, data.classes).map_err(|error| error.to_string())?;
    usage::check_memory(job, &layout, workers)
        .map_err(|error| format!("{error}: use a smaller model or --minibatch"))?;
    let ledger = Ledger::new(run, initial_counts(&layout, job.seed));
    let digest = ledger.digest();
    let offer = Offer { data, digest, workers };
    Ok((offer, Box::new(ledger)))
}
