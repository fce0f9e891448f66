//! The weights that reached the target come back.
//!
//! Weights are measured while training goes on, so what a run ends with is not what was measured. The worker that has
//! measured it stands by while all others make their last batches. Then it makes one that takes back what has happened
//! since: all replicas become the weights that were measured.

use protocol::ids::NodeId;

use super::active::{ActiveRun, Scope, State};
use super::event::ExchangeOrder;

impl ActiveRun {
    /// A worker here that stands by brings back what it has measured: when all others have made their last batches and this
    /// node has these, so that nothing comes after it, or when it has waited long enough. Of two such workers one does, and
    /// the other closes as all do.
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
