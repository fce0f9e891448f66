//! Getting ready: workers open the data, and the coordinator hears of it.

use std::time::Duration;

use protocol::attach::{DataInfo, ToWorker};
use protocol::control::{Begin, Offer, Participant, Phase};
use protocol::model::{Layout, initial_counts};

use super::{Attached, Context, Current};
use crate::ledger::Ledger;
use crate::node::workers::WorkerHandle;
use crate::usage;

/// How long workers that have not attached yet are waited for.
const WORKERS_LIMIT: Duration = Duration::from_secs(15);

impl Current {
    /// Asks a worker to open the data: in the beginning all, and later those that take the place of another.
    pub(in crate::node::run) fn ask(&mut self, worker: &WorkerHandle) {
        let wanted = match self.phase {
            Phase::Preparing => !self.answered,
            Phase::Training => self.stop.is_none() && self.seats.values().any(|seat| seat.worker.is_none()),
            _ => false,
        };
        if wanted {
            self.prepared.insert(worker.key, None);
            worker.tell(ToWorker::Prepare {
                run: self.run,
                job: self.job.clone(),
            });
        }
    }

    /// Answers the coordinator once all workers have answered this node, or joins the run that had begun.
    pub(super) async fn try_answer(&mut self, context: &Context, attached: &Attached) {
        let waiting = self.since.elapsed() < WORKERS_LIMIT && self.prepared.len() < self.workers_wanted;
        if self.answered || waiting || self.prepared.values().any(Option::is_none) {
            return;
        }
        self.answered = true;
        let answer = self.offer();
        match self.joins.take() {
            None => context.answer(self.coordinator, self.run, answer),
            Some(begin) => match answer {
                Ok(_) => self.begin(begin, context, attached).await,
                Err(reason) => self.withdraw(&reason, context, attached),
            },
        }
    }

    /// Takes no part in a run that goes on.
    pub(super) fn withdraw(&mut self, reason: &str, context: &Context, attached: &Attached) {
        tracing::warn!(reason, "this node takes no part in the run");
        self.withdrawn = true;
        let outcome = Err(format!("this node takes no part in the run: {reason}"));
        self.end(outcome, context, attached);
    }

    /// What others have to know of this node to let it join, if its data is the run's.
    pub(super) fn guest(&self, begin: &Begin, context: &Context) -> Option<Participant> {
        let same = |answer: &Option<Result<DataInfo, String>>| matches!(answer, Some(Ok(data)) if *data == begin.data);
        let ready = self.ledger.is_some() && self.prepared.values().all(same);
        ready.then(|| Participant {
            node: context.me.id,
            name: context.me.name.clone(),
            address: context.me.address,
            workers: self.prepared.len(),
            guest: true,
        })
    }

    fn offer(&mut self) -> Result<Offer, String> {
        let mut found = self.prepared.values().flatten();
        let data = found.next().ok_or("no worker is attached to it")?.clone()?;
        for other in found {
            if *other.as_ref()? != data {
                return Err("its workers do not find the same data".into());
            }
        }
        let layout = Layout::new(&self.job.model, data.input, data.classes).map_err(|error| error.to_string())?;
        let workers = self.prepared.len();
        usage::check_memory(&self.job, &layout, workers)
            .map_err(|error| format!("{error}: use a smaller model or --minibatch"))?;
        let ledger = Ledger::new(self.run, initial_counts(&layout, self.job.seed));
        let digest = ledger.digest();
        self.ledger = Some(ledger);
        Ok(Offer { data, digest, workers })
    }
}
