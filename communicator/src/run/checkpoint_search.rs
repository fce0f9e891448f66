//! Looking for the checkpoint that a run goes on from: who was asked, and who has what.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use protocol::ids::{NodeId, RunId};
use protocol::job::{Job, JobDraft, JobError};
use protocol::reasons::Refusal;
use protocol::wire::control::FoundCheckpoint;
use protocol::wire::run_plan::Resumed;

use super::coordination::ResumePoint;
use super::event::Ticket;

/// A search under way.
pub(super) struct CheckpointSearch {
    /// The run that is going to be.
    pub(super) run: RunId,
    /// The earlier one.
    pub(super) resumes: RunId,
    /// What is to be another way than in its job.
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

    /// A node has looked, or cannot any more.
    pub(super) fn answer(&mut self, node: NodeId, found: Option<FoundCheckpoint>) {
        if self.asked.remove(&node) {
            self.found.extend(found.map(|found| (node, found)));
        }
    }

    /// Whether nobody is waited for.
    pub(super) fn is_over(&self, now: Duration, limit: Duration) -> bool {
        self.asked.is_empty() || now.saturating_sub(self.since) > limit
    }

    /// What the run goes on with, and from where: the checkpoint with the most samples in it, or that of each stage where the
    /// network is spread over nodes. Otherwise the reasons against it.
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
        // Those that can go on at once come first.
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
