//! A node that is about to end leaves its run first: its workers send what they have learned and close, the other nodes
//! get all of their batches, and a checkpoint is kept in case the others end, too.

use std::time::Duration;

use protocol::reasons::{Excluded, RunFailure};

use super::active::{ActiveRun, Scope, State};
use super::core::RunCore;
use super::event::{ExchangeOrder, RunEffect};
use crate::log_context::NEWS;
use crate::planted::{Bug, planted};

/// Progress of this node in leaving a run that goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Leaving {
    /// State of leaving: the node stays in the run.
    #[default]
    No,
    /// State of leaving: workers were told to close their origins (streams of batches), and this node's replica is
    /// being written to a checkpoint.
    Asked,
    /// State of leaving: the node's checkpoint is written, or could not be written.
    Kept,
}

impl RunCore {
    /// Makes this node, which is about to end, leave its run and join no other.
    pub(super) fn leave(&mut self, now: Duration, effects: &mut Vec<RunEffect>) {
        if std::mem::replace(&mut self.leaving, true) {
            return;
        }
        self.with_run(now, effects, ActiveRun::leave);
    }

    /// Reports, once, that this node has left its run and may end.
    pub(super) fn tell_left(&mut self, effects: &mut Vec<RunEffect>) {
        let is_free = self.current.as_ref().is_none_or(ActiveRun::is_over);
        if self.leaving && is_free && !std::mem::replace(&mut self.has_left, true) {
            effects.push(RunEffect::Left);
        }
    }
}

impl ActiveRun {
    /// Starts to leave the run. If its participants already agree on its end, this node ends it together with them.
    pub(super) fn leave(&mut self, scope: &mut Scope<'_>) {
        match &self.state {
            State::Preparing(_) if self.coordinator == scope.me.id && self.is_being_prepared() => {
                self.fail(RunFailure::CoordinatorEnds, scope);
            }
            State::Preparing(_) | State::Opening { .. } => self.withdraw(Excluded::AboutToEnd, scope),
            State::Training(_) if planted(Bug::LeavesAtOnce) => self.withdraw(Excluded::AskedToEnd, scope),
            // Without weights of the run there is nothing to keep or to hand over.
            State::Training(exchanging) if exchanging.is_behind(scope.me.id) => {
                self.withdraw(Excluded::AskedToEnd, scope);
            }
            State::Training(_) => {
                self.leaving = Leaving::Asked;
                tracing::info!(
                    target: NEWS,
                    event = "leaving_run",
                    "this node leaves the run: its workers send their remaining changes"
                );
                scope.order(ExchangeOrder::Keep);
                if self.plan().is_some_and(|plan| plan.topology().hands_over()) {
                    scope.order(ExchangeOrder::LeaveWorkers);
                }
            }
            State::Settling(..) | State::Finishing(..) | State::Ended(_) => {}
        }
    }

    /// Records that the checkpoint of a leaving node is written, or could not be.
    pub(super) fn kept_on_leaving(&mut self, kept: &Result<std::path::PathBuf, String>) {
        if self.leaving != Leaving::Asked {
            return;
        }
        self.leaving = Leaving::Kept;
        match kept {
            Ok(path) => tracing::info!(
                target: NEWS,
                event = "checkpoint_kept",
                path = %path.display(),
                "this node's weights are kept in a checkpoint: 'tau start --resume {}' goes on from it",
                self.run
            ),
            Err(error) => tracing::warn!(
                event = "checkpoint_lost",
                error,
                "this node's weights could not be saved in a checkpoint"
            ),
        }
    }

    /// Advances this node's departure from the run; returns true if the node is leaving. It leaves the run when its
    /// workers have closed their origins (streams of batches) and the others have all of their batches.
    pub(super) fn go_on_leaving(&mut self, scope: &mut Scope<'_>) -> bool {
        if self.leaving == Leaving::No {
            return false;
        }
        let State::Training(exchanging) = &self.state else {
            return false;
        };
        let handed_over = exchanging.is_closed() && exchanging.progress.handed_over;
        if self.leaving == Leaving::Kept && (handed_over || !exchanging.plan.topology().hands_over()) {
            self.take_leave(scope);
        }
        true
    }

    /// Leaves the run at once because the time for leaving is over. Batches that the others do not have yet are lost.
    pub(super) fn leave_unfinished(&mut self, scope: &mut Scope<'_>) {
        if self.leaving != Leaving::No && matches!(self.state, State::Training(_)) {
            self.take_leave(scope);
        }
    }

    /// Withdraws from the run, and reports the norm of what this node's workers have learned and not sent.
    fn take_leave(&mut self, scope: &mut Scope<'_>) {
        if let State::Training(exchanging) = &self.state {
            let stats = exchanging.stats();
            self.members.own.residual_lost = stats.residual_lost.hypot(stats.residual_norm);
        }
        self.withdraw(Excluded::AskedToEnd, scope);
    }
}
