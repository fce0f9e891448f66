//! A worker's sums and readings. Each is declared once, in [`worker_stats!`]; [figures](super::figures)
//! are made of them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ratio;

/// A value as far as its bounds are concerned.
pub(crate) enum Reading {
    /// It is counted.
    Count(u64),
    /// Thread time of all of a node's workers.
    Time(Duration),
    /// A number.
    Finite(f64),
    /// Without bounds: in a run that diverges it is no number.
    Any,
}

/// A kind of sum or reading: how those of several workers, and those of two moments, belong together.
trait Kind<T: Copy> {
    /// The value of two workers. Others' sums are among them: whatever they are, this does not fail.
    fn combined(one: T, other: T) -> T;

    /// The value of several workers from what they add up to.
    fn averaged(sum: T, _workers: f64) -> T {
        sum
    }

    /// The value since an earlier moment.
    fn since(now: T, _before: T) -> T {
        now
    }

    /// The value for a check of its bounds.
    fn reading(_value: T) -> Reading {
        Reading::Any
    }
}

/// Adds up over workers and over time.
struct Sum;

impl Kind<u64> for Sum {
    fn combined(one: u64, other: u64) -> u64 {
        one.saturating_add(other)
    }

    fn since(now: u64, before: u64) -> u64 {
        now.saturating_sub(before)
    }

    fn reading(value: u64) -> Reading {
        Reading::Count(value)
    }
}

impl Kind<Duration> for Sum {
    fn combined(one: Duration, other: Duration) -> Duration {
        one.saturating_add(other)
    }

    fn since(now: Duration, before: Duration) -> Duration {
        now.saturating_sub(before)
    }

    fn reading(value: Duration) -> Reading {
        Reading::Time(value)
    }
}

impl Kind<f64> for Sum {
    fn combined(one: f64, other: f64) -> f64 {
        one + other
    }

    fn since(now: f64, before: f64) -> f64 {
        now - before
    }
}

/// A reading that adds up over workers.
struct Level;

impl Kind<u64> for Level {
    fn combined(one: u64, other: u64) -> u64 {
        one.saturating_add(other)
    }

    fn reading(value: u64) -> Reading {
        Reading::Count(value)
    }
}

/// A reading of which several workers have a mean.
struct Mean;

impl Kind<f64> for Mean {
    fn combined(one: f64, other: f64) -> f64 {
        one + other
    }

    fn averaged(sum: f64, workers: f64) -> f64 {
        sum / workers
    }

    fn reading(value: f64) -> Reading {
        Reading::Finite(value)
    }
}

/// The norm of weights.
struct Norm;

impl Kind<f64> for Norm {
    fn combined(one: f64, other: f64) -> f64 {
        one.hypot(other)
    }
}

/// True if it is of any worker.
struct Any;

impl Kind<bool> for Any {
    fn combined(one: bool, other: bool) -> bool {
        one | other
    }
}

/// Declares sums and readings, one a line: `field: Type, Kind;`. The order is that of the wire.
macro_rules! worker_stats {
    ($(
        #[doc = $about:literal]
        $field:ident: $type:ty, $kind:ty;
    )+) => {
        /// Sums over a worker's run so far, and its newest readings.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
        pub struct WorkerStats {
            $(
                #[doc = $about]
                pub $field: $type,
            )+
        }

        impl WorkerStats {
            /// The sums of several workers; readings are averaged, or added where they add up.
            #[must_use]
            pub fn combined<'a>(all: impl Iterator<Item = &'a Self>) -> Self {
                let mut sum = Self::default();
                let mut workers = 0;
                for one in all {
                    workers += 1;
                    $(sum.$field = <$kind as Kind<$type>>::combined(sum.$field, one.$field);)+
                }
                let workers = f64::from(workers.max(1));
                Self {
                    $($field: <$kind as Kind<$type>>::averaged(sum.$field, workers),)+
                }
            }

            /// The work since earlier sums of the same workers. Readings are the newest.
            #[must_use]
            pub fn since(&self, before: &Self) -> Self {
                Self {
                    $($field: <$kind as Kind<$type>>::since(self.$field, before.$field),)+
                }
            }

            /// All values with their names, for a check of their bounds.
            pub(crate) fn readings(&self) -> impl Iterator<Item = (&'static str, Reading)> {
                [$((stringify!($field), <$kind as Kind<$type>>::reading(self.$field)),)+].into_iter()
            }
        }
    };
}

worker_stats! {
    /// Batches emitted.
    batches: u64, Sum;
    /// Samples trained.
    samples: u64, Sum;
    /// Changes emitted.
    changes: u64, Sum;
    /// Sum of the losses of all samples.
    loss: f64, Sum;
    /// Thread time of training.
    training: Duration, Sum;
    /// The part of it in which updates were made orthogonal.
    directions: Duration, Sum;
    /// Thread time of the exchange, and waits for it.
    exchange: Duration, Sum;
    /// The part of it in which others' rounds were waited for.
    waited: Duration, Sum;
    /// Time in which a GPU was at work for the worker.
    gpu: Duration, Sum;
    /// Bytes of a GPU's memory that the worker holds.
    gpu_memory: u64, Level;
    /// Steps after which nothing left, because the worker was throttled.
    throttled: u64, Sum;
    /// The newest τ.
    tau: f64, Mean;
    /// How stale others' batches were on arrival, in rounds.
    staleness: f64, Mean;
    /// Norm of the residual, now and then.
    residual_norm: f64, Norm;
    /// Norm of what was lost with workers that died: their residuals, when they were last told.
    residual_lost: f64, Norm;
    /// Whether a weight has gone beyond ±8.
    alarmed: bool, Any;
}

impl WorkerStats {
    /// The mean loss per sample; none without any.
    #[must_use]
    pub fn mean_loss(&self) -> Option<f64> {
        (self.samples > 0).then(|| self.loss / self.samples as f64)
    }

    /// What every step's gradient as `f32` to every other of so many nodes would have cost. A single node counts as having one
    /// peer, to which its batches would have gone.
    #[must_use]
    pub fn bytes_dense(&self, weights: u64, nodes: usize) -> u64 {
        let gradient = weights.saturating_mul(size_of::<f32>() as u64);
        let peers = nodes.saturating_sub(1).max(1) as u64;
        let steps = self.batches.saturating_add(self.throttled);
        steps.saturating_mul(gradient).saturating_mul(peers)
    }

    /// Changes per weight and batch.
    #[must_use]
    pub fn density(&self, weights: u64) -> f64 {
        ratio(self.changes as f64, self.batches as f64 * weights as f64)
    }

    /// The share of the workers' time that making updates orthogonal took.
    #[must_use]
    pub fn direction_share(&self) -> f64 {
        let all = self.training.saturating_add(self.exchange);
        ratio(self.directions.as_secs_f64(), all.as_secs_f64())
    }

    /// The share of the workers' time in which they waited for others' rounds.
    #[must_use]
    pub fn waited_share(&self) -> f64 {
        let all = self.training.saturating_add(self.exchange);
        ratio(self.waited.as_secs_f64(), all.as_secs_f64())
    }

    /// The share of the workers' time that the exchange took.
    #[must_use]
    pub fn exchange_share(&self) -> f64 {
        let exchange = self.exchange.as_secs_f64();
        ratio(exchange, exchange + self.training.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_add_up() {
        let one = WorkerStats {
            samples: 10,
            tau: 1.0,
            residual_norm: 3.0,
            ..WorkerStats::default()
        };
        let other = WorkerStats {
            samples: 5,
            tau: 2.0,
            residual_norm: 4.0,
            alarmed: true,
            ..WorkerStats::default()
        };
        let both = WorkerStats::combined([one, other].iter());
        assert_eq!(
            (both.samples, both.tau, both.residual_norm, both.alarmed),
            (15, 1.5, 5.0, true)
        );
        assert_eq!(WorkerStats::combined([].iter()), WorkerStats::default());
    }

    #[test]
    fn shares_are_of_what_was_done_since() {
        let at = |times: u32| WorkerStats {
            batches: 2 * u64::from(times),
            samples: 10 * u64::from(times),
            changes: 6 * u64::from(times),
            loss: 5.0 * f64::from(times),
            training: Duration::from_secs(3) * times,
            directions: Duration::from_secs(2) * times,
            exchange: Duration::from_secs(1) * times,
            waited: Duration::from_millis(500) * times,
            tau: f64::from(times),
            ..WorkerStats::default()
        };
        let since = at(3).since(&at(1));
        assert_eq!(since, WorkerStats { tau: 3.0, ..at(2) });
        assert_eq!((since.mean_loss(), since.density(100)), (Some(0.5), 0.03));
        assert_eq!((since.exchange_share(), since.direction_share()), (0.25, 0.5));
        assert_eq!(since.waited_share(), 0.125);
        let nothing = WorkerStats::default();
        assert_eq!(
            (nothing.mean_loss(), nothing.density(100), nothing.exchange_share()),
            (None, 0.0, 0.0)
        );
    }
}
