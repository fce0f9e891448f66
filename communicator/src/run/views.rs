//! Views of a node's runs for its other actors: their state, and the peers that may link to them.

use std::time::Duration;

use protocol::ids::{NodeId, RunId};
use protocol::reasons::waiting::WaitingFor;
use protocol::stats::WorkerStats;
use protocol::stats::measured::{Course, Scores};
use protocol::wire::control::{NodeInfo, Phase, RunStatus};

use super::active::{ActiveRun, State};
use super::core::RunCore;

/// Summary of a run for the records that this node makes every second.
pub(crate) struct RunReport {
    pub(crate) run: RunId,
    pub(crate) phase: Phase,
    /// Summed statistics of this node's workers in the run.
    pub(crate) stats: WorkerStats,
    /// Newest evaluation scores of the model.
    pub(crate) scores: Option<Scores>,
    /// Evaluations that this node's workers have made in the run.
    pub(crate) course: Course,
    /// Things for which this node waits before the run can begin or end.
    pub(crate) waiting: Vec<WaitingFor>,
}

impl RunCore {
    /// Replaces this node's own description, which others see.
    pub(crate) fn describe(&mut self, me: NodeInfo) {
        self.me = me;
    }

    /// Returns true if this node would accept a data link of this run that node `from` dials.
    pub(crate) fn expects(&self, run: RunId, from: NodeId) -> bool {
        let run = self
            .current
            .as_ref()
            .filter(|current| current.run == run && current.exchanging().is_some());
        run.and_then(ActiveRun::plan)
            .is_some_and(|plan| plan.participant(from).is_some())
    }

    /// Returns the status of the newest run, as clients see it.
    pub(crate) fn status(&self, now: Duration) -> Option<Box<RunStatus>> {
        let mut status = self.current.as_ref()?.status(now, &self.limits());
        // The coordinator knows the nodes for which all wait.
        let coordinating = self.coordinating.as_ref().filter(|one| one.run == status.run);
        if let Some(one) = coordinating.filter(|_| status.phase == Phase::Preparing) {
            status.waiting = one.coordination.waiting().collect();
        }
        Some(Box::new(status))
    }

    /// Returns true if this node searches for checkpoints.
    #[cfg(test)]
    pub(crate) fn is_searching(&self) -> bool {
        self.search.is_some()
    }

    /// Describes the newest run for the message of a failed test.
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

    /// Returns true if this node's offer to this run (the data and resources that it would contribute) is being worked
    /// out.
    pub(crate) fn is_offering(&self, run: RunId) -> bool {
        let current = self.current.as_ref().filter(|current| current.run == run);
        current.is_some_and(ActiveRun::is_offering)
    }

    /// Returns true if the exchange of this run is being started.
    pub(crate) fn is_opening(&self, run: RunId) -> bool {
        let current = self.current.as_ref().filter(|current| current.run == run);
        current.is_some_and(|run| matches!(run.state, State::Opening { .. }))
    }

    /// Returns the summary of the newest run for records.
    pub(crate) fn report(&self, now: Duration) -> Option<RunReport> {
        let run = self.current.as_ref()?;
        Some(RunReport {
            run: run.run,
            phase: run.phase(),
            stats: run.stats(),
            scores: run.scores.clone(),
            course: run.course.clone(),
            waiting: run.waiting(now, &self.limits()),
        })
    }
}
