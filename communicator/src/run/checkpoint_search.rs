//! Looking for the checkpoint that a run goes on from: who was asked, and who has what.

use std::collections::BTreeSet;
use std::time::Duration;

use protocol::ids::{NodeId, RunId};
use protocol::job::JobDraft;
use protocol::wire::control::Found;

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
    found: Vec<Found>,
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
            found: Vec::new(),
            since: now,
        }
    }

    /// A node has looked, or cannot any more.
    pub(super) fn answer(&mut self, node: NodeId, found: Option<Found>) {
        if self.asked.remove(&node) {
            self.found.extend(found);
        }
    }

    /// Whether nobody is waited for.
    pub(super) fn is_over(&self, now: Duration, limit: Duration) -> bool {
        self.asked.is_empty() || now.saturating_sub(self.since) > limit
    }

    /// The checkpoint with the most samples in it.
    pub(super) fn furthest(&self) -> Option<&Found> {
        self.found.iter().max_by_key(|found| found.resumed.samples)
    }
}
