//! How far an exchange is, as the run has to know it.

use protocol::ids::NodeId;
use protocol::wire::run_plan::RunPlan;

use super::event::{Liveness, Progress};
use crate::exchange::Exchange;

/// Reads off an exchange how far it is. `frozen` is the number of the order since which it takes no batches.
pub(crate) fn progress(
    core: &Exchange,
    plan: &RunPlan,
    me: NodeId,
    liveness: &Liveness,
    frozen: u64,
    is_linked: impl Fn(NodeId) -> bool,
) -> Progress {
    let ledger = core.ledger();
    let total = plan.data.train * u64::from(plan.job.epochs);
    let is_live = |node: NodeId| liveness.live.contains(&node);
    let ready = if plan.is_guest(me) {
        core.is_caught_up(is_live)
    } else if !plan.resumed.is_empty() {
        // Without the checkpoint there is nothing to go on from.
        !lacks_checkpoint(core, plan, me)
    } else {
        let wants = |node| plan.topology().are_linked(me, node);
        liveness
            .live
            .iter()
            .all(|&node| node == me || !wants(node) || is_linked(node))
    };
    Progress {
        ready,
        stranded: core.is_stranded(is_live),
        complete: ledger.cursors().samples_done() >= total,
        fingerprint: core.fingerprint(),
        frozen,
        moved: core.moved(),
        damaged: core.is_damaged(),
        samples: ledger.samples(),
        handed_over: core.is_handed_over(is_live),
    }
}

/// Whether this node lacks the checkpoint that the run goes on from.
pub(crate) fn lacks_checkpoint(core: &Exchange, plan: &RunPlan, me: NodeId) -> bool {
    let resumed = plan.resumed_by(me);
    resumed.is_some_and(|resumed| core.ledger().samples() < resumed.samples)
}
