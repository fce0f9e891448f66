//! Data of a run that has not begun on this node: the workers' answers, and this node's offer.

use std::collections::BTreeMap;
use std::time::Duration;

use protocol::job::data::DataInfo;
use protocol::reasons::Excluded;
use protocol::wire::control::Offer;
use protocol::wire::run_plan::RunPlan;

use crate::run::event::WorkerKey;

/// Data of a run that has not begun on this node.
pub(crate) struct Preparing {
    pub(crate) since: Duration,
    /// Workers that were asked to open the run's data, with their answers; `None` for a worker that has not answered
    /// yet.
    pub(crate) workers: BTreeMap<WorkerKey, Option<Result<DataInfo, Excluded>>>,
    pub(crate) offer: OfferState,
    /// Plan of a run that others have begun and that this node is going to join as a guest (late).
    pub(crate) joins: Option<RunPlan>,
}

pub(crate) enum OfferState {
    /// The offer (the data and resources that this node would contribute) was not asked for yet, because workers are
    /// still opening the data.
    None,
    /// The offer (the data and resources that this node would contribute) is being worked out.
    Asked,
    Made(Offer),
    Refused(Excluded),
}

impl Preparing {
    /// Starts the preparation of a run. With a plan in `joins`, this node is going to be a guest of that run.
    pub(crate) fn new(joins: Option<RunPlan>, now: Duration) -> Self {
        Self {
            since: now,
            workers: BTreeMap::new(),
            offer: OfferState::None,
            joins,
        }
    }

    pub(crate) fn is_guest(&self) -> bool {
        self.joins.is_some()
    }

    /// Returns true while this node has not made its offer (the data and resources that it would contribute).
    pub(crate) fn is_waiting(&self) -> bool {
        !matches!(self.offer, OfferState::Made(_))
    }

    /// Returns true if a worker is to be asked to open the run's data, and marks it as asked. Each worker is asked
    /// once.
    pub(crate) fn ask_if_wanted(&mut self, worker: WorkerKey) -> bool {
        let wanted = matches!(self.offer, OfferState::None) && !self.workers.contains_key(&worker);
        if wanted {
            self.workers.insert(worker, None);
        }
        wanted
    }

    pub(crate) fn answer(&self) -> Result<DataInfo, Excluded> {
        let mut found = self.workers.values().flatten();
        let data = found.next().ok_or(Excluded::NoWorker)?.clone()?;
        for other in found {
            if *other.as_ref().map_err(Excluded::clone)? != data {
                return Err(Excluded::WorkersDisagree);
            }
        }
        Ok(data)
    }
}
