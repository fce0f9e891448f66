//! Search for the checkpoint from which a run resumes: the nodes that were asked, and the checkpoints that they have.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use protocol::ids::{NodeId, RunId};
use protocol::job::{Job, JobDraft, JobError};
use protocol::reasons::Refusal;
use protocol::wire::control::FoundCheckpoint;
use protocol::wire::run_plan::Resumed;

use super::coordination::ResumePoint;
use super::event::Ticket;

/// A search, under way, for the checkpoints that nodes have of an earlier run.
pub(super) struct CheckpointSearch {
    /// Id of the run that is going to be started.
    pub(super) run: RunId,
    /// Id of the earlier run that is resumed.
    pub(super) resumes: RunId,
    /// Settings that differ from those of the earlier run's job.
    pub(super) changes: Box<JobDraft>,
    pub(super) allow_partial: bool,
    pub(super) ticket: Ticket,
    asked: BTreeSet<NodeId>,
    found: BTreeMap<NodeId, FoundCheckpoint>,
    since: Duration,
}

impl CheckpointSearch {
    pub(super) fn new(
        (run, resumes): (RunId, RunId),
        changes: Box<JobDraft>,
        asked: BTreeSet<NodeId>,
        (allow_partial, ticket): (bool, Ticket),
        now: Duration,
    ) -> Self {
        Self {
            run,
            resumes,
            changes,
            allow_partial,
            ticket,
            asked,
            found: BTreeMap::new(),
            since: now,
        }
    }

    /// Records a node's answer to the search for checkpoints; `None` if the node has none or can no longer answer.
    pub(super) fn answer(&mut self, node: NodeId, found: Option<FoundCheckpoint>) {
        if self.asked.remove(&node) {
            self.found.extend(found.map(|found| (node, found)));
        }
    }

    /// Returns true if the search for checkpoints is over: all asked nodes have answered, or the time limit has passed.
    pub(super) fn is_over(&self, now: Duration, limit: Duration) -> bool {
        self.asked.is_empty() || now.saturating_sub(self.since) > limit
    }

    /// Returns the job and the point from which the run resumes: the checkpoint with the most samples or, for a model
    /// in pipeline stages, such a checkpoint of each stage. Returns refusals if a checkpoint is missing or the changed
    /// job is invalid.
    pub(super) fn result(&self) -> Result<(Box<Job>, ResumePoint), Vec<Refusal>> {
        let Some(FoundCheckpoint { job: before, .. }) = self.furthest(|_| true) else {
            return Err(vec![Refusal::NoCheckpoint(self.resumes)]);
        };
        let job = before.changed((*self.changes).clone());
        let refused = |error: &JobError| Refusal::Job(error.to_string().into());
        let job = job.map_err(|errors| errors.0.iter().map(refused).collect::<Vec<_>>())?;
        let stages = job.exchange.stages();
        let mut checkpoints = Vec::new();
        for stage in 0..stages {
            let Some(found) = self.furthest(|found| usize::from(found.stage) == stage) else {
                return Err(vec![Refusal::NoStageCheckpoint {
                    run: self.resumes,
                    stage: stage as u32 + 1,
                    stages: stages as u32,
                }]);
            };
            checkpoints.push(found.resumed);
        }
        let holds = |(&node, found): (&NodeId, &FoundCheckpoint)| (node, found.stage, found.resumed);
        let mut holders: Vec<(NodeId, u8, Resumed)> = self.found.iter().map(holds).collect();
        // Nodes that hold one of these checkpoints can continue at once, so they come first.
        holders.sort_by_key(|(node, stage, held)| (checkpoints.get(usize::from(*stage)) != Some(held), *node));
        let holders = holders.into_iter().map(|(node, stage, _)| (node, stage)).collect();
        let going_on = ResumePoint {
            checkpoints,
            holders,
            succeeds: None,
        };
        Ok((Box::new(job), going_on))
    }

    fn furthest(&self, is_meant: impl Fn(&FoundCheckpoint) -> bool) -> Option<&FoundCheckpoint> {
        let meant = self.found.values().filter(|found| is_meant(found));
        meant.max_by_key(|found| found.resumed.samples)
    }
}
