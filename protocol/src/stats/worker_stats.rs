//! A worker's sums and readings. Each is declared once, in [`worker_stats!`]; [figures](super::figures) are computed
//! from them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ratio;

/// Value of one of a worker's statistics, sorted by the bound that it is checked against when another node sends it.
pub(crate) enum Reading {
    /// Value of a statistic that is a count, which is checked against a maximum.
    Count(u64),
    /// Value of a statistic that is the thread time of all workers of a node, which is checked against a maximum.
    Time(Duration),
    /// Value of a statistic that must be a finite number.
    Finite(f64),
    /// A statistic whose value is not checked: in a run that diverges it may be NaN or infinite.
    Any,
}

/// A kind of worker statistic: the rules by which values of several workers, and of two moments, are combined.
trait Kind<T: Copy> {
    /// Combines the values of a statistic of two workers. Must not panic whatever the values are, because they may come
    /// from other nodes.
    fn combined(one: T, other: T) -> T;

    /// Converts the combined value of several workers' statistic to the value that is reported, such as the mean.
    fn averaged(sum: T, _workers: f64) -> T {
        sum
    }

    /// Returns the statistic's value for the time since an earlier moment: the difference for sums, else the newest
    /// value.
    fn since(now: T, _before: T) -> T {
        now
    }

    /// Returns the statistic's value, sorted by the bound that it is checked against when another node sends it.
    fn reading(_value: T) -> Reading {
        Reading::Any
    }
}

/// Kind of statistic that adds up over workers and over time.
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

/// Kind of statistic whose newest values add up over workers.
struct Level;

impl Kind<u64> for Level {
    fn combined(one: u64, other: u64) -> u64 {
        one.saturating_add(other)
    }

    fn reading(value: u64) -> Reading {
        Reading::Count(value)
    }
}

/// Kind of statistic whose newest values are averaged over workers.
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

/// Kind of statistic whose newest values are norms, combined into the norm of all workers' weights.
struct Norm;

impl Kind<f64> for Norm {
    fn combined(one: f64, other: f64) -> f64 {
        one.hypot(other)
    }
}

/// Kind of statistic that is true if it is true for any worker.
struct Any;

impl Kind<bool> for Any {
    fn combined(one: bool, other: bool) -> bool {
        one | other
    }
}

/// Declares the sums and readings of a worker, one on each line: `field: Type, Kind;`. The order is that of the wire.
macro_rules! worker_stats {
    ($(
        #[doc = $about:literal]
        $field:ident: $type:ty, $kind:ty;
    )+) => {
        /// Statistics of a worker: sums over its run so far, and its newest readings.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
        pub struct WorkerStats {
            $(
                #[doc = $about]
                pub $field: $type,
            )+
        }

        impl WorkerStats {
            /// Combines the statistics of several workers: sums are added; readings are added or averaged, according to
            /// their kind.
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

            /// Returns the statistics of the work since `before`, which is earlier statistics of the same workers.
            /// Readings are the newest ones.
            #[must_use]
            pub fn since(&self, before: &Self) -> Self {
                Self {
                    $($field: <$kind as Kind<$type>>::since(self.$field, before.$field),)+
                }
            }

            /// Returns all statistics with their names, for the check of their bounds.
            pub(crate) fn readings(&self) -> impl Iterator<Item = (&'static str, Reading)> {
                [$((stringify!($field), <$kind as Kind<$type>>::reading(self.$field)),)+].into_iter()
            }
        }
    };
}

worker_stats! {
    /// Number of batches emitted by the worker.
    batches: u64, Sum;
    /// Number of samples trained by the worker.
    samples: u64, Sum;
    /// Number of weight changes emitted by the worker.
    changes: u64, Sum;
    /// Sum of the losses of all samples that the worker trained.
    loss: f64, Sum;
    /// Thread time that the worker spent training.
    training: Duration, Sum;
    /// Thread time of training that the worker spent making updates orthogonal.
    directions: Duration, Sum;
    /// Thread time that the worker spent on the exchange of batches and on waiting for it.
    exchange: Duration, Sum;
    /// Thread time that the worker spent waiting for other workers' rounds.
    waited: Duration, Sum;
    /// Time in which a GPU computed for the worker.
    gpu: Duration, Sum;
    /// Bytes of GPU memory that the worker holds.
    gpu_memory: u64, Level;
    /// Number of the worker's steps after which no batch left, because its node had enough to send.
    throttled: u64, Sum;
    /// Newest τ of the worker, the size of one weight change.
    tau: f64, Mean;
    /// Mean age of other workers' gradients when their batches arrive, in rounds of batches.
    staleness: f64, Mean;
    /// Norm of the worker's residual (changes learned and not sent yet), measured from time to time.
    residual_norm: f64, Norm;
    /// Norm of the residuals (changes learned and not sent) of workers that died, as these workers last reported them.
    residual_lost: f64, Norm;
    /// True if a weight of the worker has gone beyond ±8, half-way to divergence.
    alarmed: bool, Any;
}

impl WorkerStats {
    /// Returns the mean loss per sample; none if there are no samples.
    #[must_use]
    pub fn mean_loss(&self) -> Option<f64> {
        (self.samples > 0).then(|| self.loss / self.samples as f64)
    }

    /// Returns the bytes that sending every step's gradient as `f32` to each other node would have taken. A single node
    /// counts as having one peer, to which its batches would have gone.
    #[must_use]
    pub fn bytes_dense(&self, weights: u64, nodes: usize) -> u64 {
        let gradient = weights.saturating_mul(size_of::<f32>() as u64);
        let peers = nodes.saturating_sub(1).max(1) as u64;
        let steps = self.batches.saturating_add(self.throttled);
        steps.saturating_mul(gradient).saturating_mul(peers)
    }

    /// Returns the share of the weights that a batch changes: changes per weight and batch.
    #[must_use]
    pub fn density(&self, weights: u64) -> f64 {
        ratio(self.changes as f64, self.batches as f64 * weights as f64)
    }

    /// Returns the share of the workers' time that making updates orthogonal took.
    #[must_use]
    pub fn direction_share(&self) -> f64 {
        let all = self.training.saturating_add(self.exchange);
        ratio(self.directions.as_secs_f64(), all.as_secs_f64())
    }

    /// Returns the share of the workers' time in which they waited for other workers' rounds.
    #[must_use]
    pub fn waited_share(&self) -> f64 {
        let all = self.training.saturating_add(self.exchange);
        ratio(self.waited.as_secs_f64(), all.as_secs_f64())
    }

    /// Returns the share of the workers' time that the exchange took.
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
