//! The progress of an exchange, as the run's core needs it.

use protocol::ids::NodeId;
use protocol::wire::run_plan::RunPlan;

use super::RunExchange;
use crate::ledger::Ledger;
use crate::run::Progress;

/// Computes the state of an exchange that decides how the run goes on: whether workers may begin, which batches are
/// applied, and whether all peers have this node's batches.
pub(super) fn progress(of: &RunExchange) -> Progress {
    let RunExchange {
        me,
        plan,
        exchange,
        freeze,
        linked,
        ..
    } = of;
    let (ledger, live) = (exchange.ledger(), &of.pipeline.liveness().live);
    let total = plan.data.train * u64::from(plan.job.epochs);
    let is_live = |node: NodeId| live.contains(&node);
    let ready = if plan.is_newcomer(*me) {
        exchange.is_caught_up(is_live)
    } else if !plan.resumed.is_empty() {
        // Without the checkpoint, the node has no weights to continue from.
        !exchange.is_newcomer()
    } else {
        let wants = |node: NodeId| node != *me && plan.topology().are_linked(*me, node);
        live.iter().all(|&node| !wants(node) || linked.contains(&node))
    };
    Progress {
        ready,
        stranded: exchange.is_stranded(is_live),
        complete: ledger.cursors().samples_done() >= total,
        fingerprint: exchange.fingerprint(),
        frozen: *freeze,
        moved: exchange.moved(),
        damaged: exchange.is_damaged(),
        samples: ledger.samples(),
        handed_over: exchange.is_handed_over(is_live),
    }
}

/// Returns true if this node, at the beginning of its exchange, has the weights with which the run begins, so that it needs
/// no snapshot: the first weights or, if the run continues from a checkpoint, that checkpoint.
pub(super) fn has_first_weights(ledger: &Ledger, plan: &RunPlan, me: NodeId) -> bool {
    let has_checkpoint = plan.resumed_by(me).is_none_or(|resumed| ledger.is_that_of(resumed));
    has_checkpoint && !plan.is_newcomer(me)
}
