//! Sends all nodes records of this node's work: once a second, more often when a run begins, and when the run settles
//! and ends.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use protocol::stats::measured::NodeUsage;
use protocol::wire::control::ControlMessage;

use super::RunState;
use crate::log_notices;
use crate::node::membership::MembershipMessage;
use crate::node::stats::StatsMessage;
use crate::node::workers::WorkerHandle;
use crate::run::WorkerKey;

/// Returns the ids of the worker processes, whose use of the machine counts as this node's.
pub(super) fn pids(workers: &BTreeMap<WorkerKey, WorkerHandle>) -> impl Iterator<Item = u32> + '_ {
    workers.values().map(|worker| worker.info.pid)
}

impl RunState {
    /// Sends all nodes a record of this node's statistics, if one is due.
    pub(super) fn record(&mut self) {
        let now = Instant::now();
        if let Some(elapsed) = self.records.take_due(now) {
            self.tell_record(now, elapsed);
        }
    }

    /// Sends all nodes a record of this node's statistics since the last record, due or not.
    pub(super) fn record_now(&mut self) {
        let now = Instant::now();
        let elapsed = self.records.take_now(now);
        self.tell_record(now, elapsed);
    }

    fn tell_record(&mut self, now: Instant, elapsed: Duration) {
        let usage = self.usage.read(now, pids(&self.workers));
        let used = self.used();
        let exchange = self.exchange.as_ref().map(|(run, _)| *run);
        let mut record = self
            .records
            .make(self.core.report(self.start.elapsed()), exchange, elapsed);
        record.node.clone_from(&self.me.name);
        record.cpu = usage.cpu;
        record.memory_bytes = usage.memory_bytes;
        (record.wire_in, record.wire_out) = (used.wire_in, used.wire_out);
        record.processes = used.processes;
        record.said = log_notices::take();
        let record = Box::new(record);
        // Other nodes are sent the very record that is kept here, so a reader that changes nodes recognises it.
        let _ = self.stats.cast(StatsMessage::Record(record.clone()));
        let message = ControlMessage::Stats(record);
        self.tell_membership(MembershipMessage::Broadcast(Box::new(message)));
    }

    /// Returns the resources of its machine that this node has used since the run began here.
    pub(super) fn used(&mut self) -> NodeUsage {
        self.usage.since_begin(pids(&self.workers))
    }
}
