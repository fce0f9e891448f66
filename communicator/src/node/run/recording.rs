//! Telling everybody what this node did, once a second.

use std::time::Instant;

use protocol::wire::control::Word;

use super::RunState;
use crate::node::membership::MembershipMessage;
use crate::node::stats::StatsMessage;

impl RunState {
    /// Tells everybody what this node did, when a record is due.
    pub(super) fn record(&mut self) {
        let now = Instant::now();
        let Some(elapsed) = self.records.take_due(now) else {
            return;
        };
        let pids = self.workers.values().map(|worker| worker.info.pid);
        let usage = self.usage.read(now, pids);
        let exchange = self.exchange.as_ref().map(|(run, _)| *run);
        let mut record = self
            .records
            .make(self.core.report(self.start.elapsed()), exchange, elapsed);
        record.node.clone_from(&self.me.name);
        record.cpu = usage.cpu;
        record.memory_bytes = usage.memory_bytes;
        self.tell_membership(MembershipMessage::Broadcast(Box::new(Word::Stats(Box::new(
            record.clone(),
        )))));
        let _ = self.stats.cast(StatsMessage::Record(Box::new(record)));
    }
}
