//! What a run has that has not begun here: what its workers found, and what this node offers.

use std::collections::BTreeMap;
use std::time::Duration;

use protocol::job::data::DataInfo;
use protocol::reasons::Excluded;
use protocol::wire::control::Offer;
use protocol::wire::run_plan::RunPlan;

use crate::run::event::WorkerKey;

/// A run that has not begun here.
pub(crate) struct Preparing {
    pub(crate) since: Duration,
    /// What workers said; none while they are at it.
    pub(crate) workers: BTreeMap<WorkerKey, Option<Result<DataInfo, Excluded>>>,
    pub(crate) offer: OfferState,
    /// A run that others have begun without this node, which is going to be its guest.
    pub(crate) joins: Option<RunPlan>,
}

pub(crate) enum OfferState {
    /// Workers are waited for.
    None,
    /// It is being worked out.
    Asked,
    Made(Offer),
    Refused(Excluded),
}

impl Preparing {
    /// All attached workers are asked. With a run to join, it is as its guest.
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

    /// Whose workers have not answered.
    pub(crate) fn is_waiting(&self) -> bool {
        !matches!(self.offer, OfferState::Made(_))
    }

    /// Returns whether a worker is to open the data, which it was not asked for before.
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
