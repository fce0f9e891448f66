//! What this node did in the last second.

use std::time::Duration;

use protocol::attach::WorkerStats;
use protocol::stats::StatsRecord;
use ractor::rpc::CallResult;

use super::Current;
use crate::node::exchange::ExchangeMessage;
use crate::node::run::seat::Seat;

impl Current {
    /// What this node's workers did so far.
    pub(super) fn stats(&self) -> WorkerStats {
        let stats: Vec<WorkerStats> = self.seats.values().map(Seat::stats).collect();
        WorkerStats::combined(stats.iter())
    }

    pub(in crate::node::run) async fn record(&mut self, elapsed: Duration) -> StatsRecord {
        let mut record = StatsRecord {
            run: self.run.to_string(),
            state: self.phase.text().into(),
            accuracy: self.scores.map(|scores| scores.accuracy),
            ..StatsRecord::default()
        };
        let report = match &self.exchange {
            Some(exchange) => exchange.call(ExchangeMessage::Report, Some(elapsed)).await,
            None => return record,
        };
        let Ok(CallResult::Success(report)) = report else {
            return record;
        };
        let total = self.stats();
        let (before, paused_before) = std::mem::replace(&mut self.recorded, (total, report.paused));
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
        record.repeated_samples = report.repeated;
        record.peers = report.peers;
        record
    }
}
