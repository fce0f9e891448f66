//! Counts what a run does: for the view, the stats and the final line.

use std::time::{Duration, Instant};

use protocol::lattice::Range;
use worker::training::Step;
use worker::training_thread::StepTime;

/// Sums over some time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Sums {
    pub(crate) batches: u64,
    pub(crate) samples: u64,
    pub(crate) changes: u64,
    pub(crate) bytes: u64,
    loss: f64,
    training: Duration,
    exchange: Duration,
}

impl Sums {
    fn add(&mut self, step: &Step, time: StepTime, bytes: usize) {
        self.batches += 1;
        self.samples += step.samples as u64;
        self.changes += step.changes as u64;
        self.bytes += bytes as u64;
        self.loss += f64::from(step.loss) * step.samples as f64;
        self.training += time.training;
        self.exchange += time.exchange;
    }

    /// The mean loss per sample.
    pub(crate) fn loss(&self) -> Option<f64> {
        (self.samples > 0).then(|| self.loss / self.samples as f64)
    }

    /// The fraction of weights changed per batch.
    pub(crate) fn density(&self, weights: usize) -> f64 {
        ratio(self.changes as f64, self.batches as f64 * weights as f64)
    }

    /// The share of the worker's time that the exchange took.
    pub(crate) fn exchange_share(&self) -> f64 {
        let exchange = self.exchange.as_secs_f64();
        ratio(exchange, exchange + self.training.as_secs_f64())
    }
}

/// A ratio, zero of nothing.
pub(crate) fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// All counts of a run.
#[derive(Debug)]
pub(crate) struct Tally {
    /// Since the start.
    pub(crate) total: Sums,
    /// Since the last report.
    pub(crate) recent: Sums,
    /// The τ of the newest batch.
    pub(crate) tau: f64,
    pub(crate) alarmed: bool,
    first: Option<Instant>,
    last: Option<Instant>,
}

impl Tally {
    pub(crate) fn new() -> Self {
        Self {
            total: Sums::default(),
            recent: Sums::default(),
            tau: 0.0,
            alarmed: false,
            first: None,
            last: None,
        }
    }

    /// Counts a step whose batch, of so many bytes, has been applied just now.
    pub(crate) fn add(&mut self, step: &Step, time: StepTime, bytes: usize, now: Instant) {
        self.total.add(step, time, bytes);
        self.recent.add(step, time, bytes);
        self.tau = f64::from(step.tau.value());
        self.alarmed |= step.range == Range::Alarm;
        // The clock starts where the first step did.
        self.first
            .get_or_insert(now.checked_sub(time.training + time.exchange).unwrap_or(now));
        self.last = Some(now);
    }

    /// From the first step to the last batch applied.
    pub(crate) fn seconds(&self) -> f64 {
        match (self.first, self.last) {
            (Some(first), Some(last)) => last.saturating_duration_since(first).as_secs_f64(),
            _ => 0.0,
        }
    }
}
