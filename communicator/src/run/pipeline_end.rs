//! End of a run whose model is cut into pipeline stages: every node has its own stage saved, and the node of the first
//! stage has the whole pipeline measured.
//!
//! A worker that dies meanwhile costs a retry: the next worker takes its seat with the ledger, and the leader's worker
//! starts a new pipeline generation.

use std::collections::BTreeSet;

use protocol::ids::NodeId;
use protocol::wire::run_plan::RunPlan;

use super::active::{ActiveRun, Scope, State};
use super::event::{ExchangeOrder, Saving};
use super::states::{Exchanging, Saver};

impl ActiveRun {
    /// Gives the places of workers that were lost at the end to new workers. Once all members have sent their final
    /// reports of the run, orders a worker to save this node's pipeline stage.
    pub(super) fn save_stage(&mut self, scope: &mut Scope<'_>) {
        let living = self.members.waited_for(scope.now, scope.limits);
        let all_settled = living.iter().all(|&node| self.has_settled(node));
        let measures_pipeline = self.measures_pipeline(&living, scope);
        let State::Finishing(exchanging, finishing) = &mut self.state else {
            return;
        };
        if !all_settled {
            finishing.tries = scope.now;
            return;
        }
        reseat(exchanging, scope);
        let seated = exchanging.seats.values().find_map(|seat| seat.worker);
        self.members.own.unmanned = seated.is_none();
        let worker = match finishing.saver {
            Saver::None => seated,
            // The measurement is no longer needed, or cannot succeed.
            Saver::Ordered(worker) if finishing.measures_pipeline && !measures_pipeline => Some(worker),
            _ => None,
        };
        if let Some(worker) = worker {
            finishing.saver = Saver::Ordered(worker);
            finishing.measures_pipeline = measures_pipeline;
            let save = Some(Saving {
                spare: finishing.spare,
                measures_pipeline,
            });
            scope.order(ExchangeOrder::Finish { worker, save });
        }
    }

    /// Returns true if this node has to measure the whole model: it leads a pipeline that has all its nodes, and no
    /// node has measured the model yet.
    fn measures_pipeline(&self, living: &BTreeSet<NodeId>, scope: &Scope<'_>) -> bool {
        let has_ended = |node: NodeId| self.members.state(node).is_some_and(|state| state.ended);
        let is_there = |node: NodeId| living.contains(&node) && !has_ended(node);
        let leads = |plan: &RunPlan| plan.topology().leads_whole_pipeline(scope.me.id, is_there);
        self.plan().is_some_and(leads) && !self.is_measured_by(&self.result_members(scope.me.id, living))
    }
}

/// Gives seats (workers' places in the run) that have lost their worker to workers that have opened the data.
fn reseat(exchanging: &mut Exchanging, scope: &mut Scope<'_>) {
    while let Some((&slot, seat)) = exchanging.seats.iter_mut().find(|(_, seat)| seat.worker.is_none())
        && let Some(worker) = exchanging.ready.pop_first()
    {
        seat.take(worker);
        scope.order(ExchangeOrder::Reseat { worker, slot });
    }
}

#[cfg(test)]
mod tests;
