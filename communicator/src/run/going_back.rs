//! Restoring measured weights at the end of a run: those that reached the target, or the best ones.
//!
//! Training goes on while weights are measured, so the last weights of a run are not the measured ones. The worker that
//! has measured the weights to be kept stands by while all others make their last batches. Then it makes one batch that
//! undoes all later changes: all replicas return to the measured weights.

use protocol::ids::NodeId;

use super::active::{ActiveRun, Scope, State};
use super::event::ExchangeOrder;

impl ActiveRun {
    /// Lets the worker of this node that has measured weights with which the run is to end restore them. It does so
    /// when all others have made their last batches and this node has them, so that no batch comes later, or when it
    /// has `waited` long enough. If a node with a lower id has such a worker, too, this node's worker closes its origin
    /// (stream of batches) instead.
    pub(super) fn go_back(&mut self, waited: bool, scope: &mut Scope<'_>) {
        let me = scope.me.id;
        let mut others = self.members.waited_for(scope.now, scope.limits);
        others.remove(&me);
        let is_first = |node: &NodeId| *node < me && self.members.state(*node).is_some_and(|one| one.stands_by);
        let (yields, together) = (others.iter().any(is_first), self.members.stand_together(&others));
        let State::Settling(exchanging, _) = &mut self.state else {
            return;
        };
        let Some(worker) = exchanging.stands_by.filter(|_| !exchanging.goes_back) else {
            return;
        };
        if yields {
            exchanging.stands_by = None;
            scope.order(ExchangeOrder::StopWorkers { stands_by: None });
        } else if waited || together && exchanging.is_closed_but_for_it() {
            exchanging.goes_back = true;
            scope.order(ExchangeOrder::GoBack(worker));
        }
    }
}
