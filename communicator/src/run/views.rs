//! What the node asks its runs: how they stand, and who may call.

use std::time::Duration;

use protocol::ids::{NodeId, RunId};
use protocol::reasons::waiting::WaitingFor;
use protocol::stats::WorkerStats;
use protocol::stats::measured::{Course, Scores};
use protocol::wire::control::{NodeInfo, Phase, RunStatus};

use super::active::{ActiveRun, State};
use super::core::RunCore;

/// A run as records have it.
pub(crate) struct RunReport {
    pub(crate) run: RunId,
    pub(crate) phase: Phase,
    /// What this node's workers did in it.
    pub(crate) stats: WorkerStats,
    /// How good it was found last.
    pub(crate) scores: Option<Scores>,
    /// The evaluations by this node's workers.
    pub(crate) course: Course,
    /// What this node waits for.
    pub(crate) waiting: Vec<WaitingFor>,
}

impl RunCore {
    /// What this node is, for others, has changed.
    pub(crate) fn describe(&mut self, me: NodeInfo) {
        self.me = me;
    }

    /// Whether a node's call for a link would be taken.
    pub(crate) fn expects(&self, run: RunId, from: NodeId) -> bool {
        let run = self
            .current
            .as_ref()
            .filter(|current| current.run == run && current.exchanging().is_some());
        run.and_then(ActiveRun::plan)
            .is_some_and(|plan| plan.participant(from).is_some())
    }

    /// The newest run, as clients see it.
    pub(crate) fn status(&self, now: Duration) -> Option<Box<RunStatus>> {
        let mut status = self.current.as_ref()?.status(now, &self.limits());
        // Who coordinates knows whom all wait for.
        let coordinating = self.coordinating.as_ref().filter(|one| one.run == status.run);
        if let Some(one) = coordinating.filter(|_| status.phase == Phase::Preparing) {
            status.waiting = one.coordination.waiting().collect();
        }
        Some(Box::new(status))
    }

    /// Whether checkpoints are being searched for.
    #[cfg(test)]
    pub(crate) fn is_searching(&self) -> bool {
        self.search.is_some()
    }

    /// How things stand, for whoever looks into a failure.
    #[cfg(test)]
    pub(crate) fn describe_run(&self) -> String {
        self.current.as_ref().map_or_else(String::new, |run| {
            let states: Vec<String> = run
                .members
                .states()
                .iter()
                .map(|(id, state)| format!("    {id} {state:?}"))
                .collect();
            let seats = run
                .exchanging()
                .map(|one| format!("{:?} ready {:?} {:?}", one.seats, one.ready, one.progress));
            let finishing = match &run.state {
                State::Finishing(_, finishing) => format!("{finishing:?}"),
                _ => String::new(),
            };
            format!("  {seats:?}\n  {finishing}\n{}", states.join("\n"))
        })
    }

    /// Whether what this node can offer to this run is waited for.
    pub(crate) fn is_offering(&self, run: RunId) -> bool {
        let current = self.current.as_ref().filter(|current| current.run == run);
        current.is_some_and(ActiveRun::is_offering)
    }

    /// Whether the exchange of this run is waited for.
    pub(crate) fn is_opening(&self, run: RunId) -> bool {
        let current = self.current.as_ref().filter(|current| current.run == run);
        current.is_some_and(|run| matches!(run.state, State::Opening { .. }))
    }

    /// The newest run as records have it.
    pub(crate) fn report(&self, now: Duration) -> Option<RunReport> {
        let run = self.current.as_ref()?;
        Some(RunReport {
            run: run.run,
            phase: run.phase(),
            stats: run.stats(),
            scores: run.scores,
            course: run.course.clone(),
            waiting: run.waiting(now, &self.limits()),
        })
    }
}
