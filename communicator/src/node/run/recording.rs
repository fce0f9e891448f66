//! What this node did in the last second, for all who want to know.

use std::time::{Duration, Instant};

use protocol::attach::WorkerStats;
use protocol::control::Word;
use protocol::ids::RunId;
use protocol::stats::StatsRecord;

use super::RunState;
use crate::node::exchange::Report;
use crate::node::membership::MembershipMessage;
use crate::node::stats::StatsMessage;
use crate::usage::UsageMeter;

/// What records are made from.
pub(super) struct Recording {
    usage: UsageMeter,
    recorded: Instant,
    /// The newest word of the exchange.
    report: Option<(RunId, Report)>,
    /// Sums at the last record.
    before: (WorkerStats, Duration),
}

impl Recording {
    pub(super) fn new(usage: UsageMeter, now: Instant) -> Self {
        Self {
            usage,
            recorded: now,
            report: None,
            before: (WorkerStats::default(), Duration::ZERO),
        }
    }

    pub(super) fn reported(&mut self, run: RunId, report: Report) {
        if self.report.as_ref().is_none_or(|(known, _)| *known != run) {
            self.before = (WorkerStats::default(), Duration::ZERO);
        }
        self.report = Some((run, report));
    }
}

impl RunState {
    /// Tells everybody what this node did, once a second.
    pub(super) fn record(&mut self) {
        let elapsed = self.recording.recorded.elapsed();
        if elapsed < self.timing.clocks.record {
            return;
        }
        self.recording.recorded = Instant::now();
        let pids = self.workers.values().map(|worker| worker.info.pid);
        let usage = self.recording.usage.read(Instant::now(), pids);
        let mut record = self.run_record(elapsed);
        record.node.clone_from(&self.me.name);
        record.cpu = usage.cpu;
        record.memory_bytes = usage.memory_bytes;
        self.tell_membership(MembershipMessage::Broadcast(Box::new(Word::Stats(Box::new(
            record.clone(),
        )))));
        let _ = self.stats.cast(StatsMessage::Record(Box::new(record)));
    }

    fn run_record(&mut self, elapsed: Duration) -> StatsRecord {
        let Some(status) = self.core.report(self.start.elapsed()) else {
            return StatsRecord {
                state: "idle".into(),
                ..StatsRecord::default()
            };
        };
        let mut record = StatsRecord {
            run: status.run.to_string(),
            state: status.phase.text().into(),
            accuracy: status.accuracy,
            waiting: status.waiting.into_iter().take(StatsRecord::WAITING_MAX).collect(),
            ..StatsRecord::default()
        };
        let Some((_, report)) = self.recording.report.as_ref().filter(|(run, _)| {
            let exchange = self.exchange.as_ref();
            *run == status.run && exchange.is_some_and(|(name, _)| name == run)
        }) else {
            return record;
        };
        let total = status.stats;
        let (before, paused_before) = std::mem::replace(&mut self.recording.before, (total, report.paused));
        let seconds = elapsed.as_secs_f64();
        let recent = total.since(&before);
        record.samples_per_second = recent.samples as f64 / seconds;
        record.samples = total.samples;
        record.loss = recent.mean_loss();
        record.tau = total.tau;
        record.density = recent.density(report.weights);
        record.bytes_in = report.peers.iter().map(|peer| peer.bytes_in).sum();
        record.bytes_out = if report.peers.is_empty() {
            report.bytes_encoded
        } else {
            report.peers.iter().map(|peer| peer.bytes_out).sum()
        };
        record.staleness = total.staleness;
        record.frontier_lag = report.frontier_lag;
        record.digest = report.digest.to_string();
        record.queue = report.peers.iter().map(|peer| peer.queue).sum();
        record.paused_share = (report.paused.saturating_sub(paused_before).as_secs_f64() / seconds).min(1.0);
        record.exchange_share = recent.exchange_share();
        record.gpu = recent.gpu.as_secs_f64() / seconds;
        record.gpu_memory_bytes = total.gpu_memory;
        record.residual_norm = total.residual_norm;
        record.residual_lost = total.residual_lost;
        record.ledger_samples = report.samples;
        record.repeated_samples = report.repeated;
        record.peers.clone_from(&report.peers);
        record
    }
}
