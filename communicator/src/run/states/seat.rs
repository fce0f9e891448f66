//! A seat: the place of one worker on this node in a run. Workers come and go; the seat stays.

use protocol::stats::WorkerStats;
use protocol::weights::digest::Digest;
use protocol::wire::attach::Missing;

use crate::run::event::WorkerKey;

#[expect(clippy::struct_excessive_bools, reason = "the flags are independent of each other")]
#[derive(Debug, Default)]
pub(crate) struct Seat {
    /// The worker that has this seat (a place for one worker in the run), if any.
    pub(crate) worker: Option<WorkerKey>,
    /// Statistics of the workers that had this seat (a place in the run) before.
    before: WorkerStats,
    /// Statistics of the worker that has this seat (a place in the run) now.
    now: WorkerStats,
    /// Samples for which this seat's worker waits, because it has none to train; `None` if it has some.
    pub(crate) starved: Option<Vec<Missing>>,
    /// True if the present worker's origin (its stream of batches) is closed.
    pub(crate) closed: bool,
    /// True if the last worker of this seat (a place in the run) was lost before it closed its origin (stream of
    /// batches).
    pub(crate) lost: bool,
    /// True if the worker was ordered to report the digest of its weights, because all batches of the run have come.
    pub(crate) ordered: bool,
    /// True if the worker has applied all batches of the run and reported the digest of its weights.
    pub(crate) finished: bool,
    /// Digest of the worker's weights at the end of the run; `None` if a weight has left the range of the lattice (the
    /// grid of values that weights may have).
    pub(crate) digest: Option<Digest>,
}

impl Seat {
    pub(crate) fn take(&mut self, worker: WorkerKey) {
        *self = Self {
            worker: Some(worker),
            before: WorkerStats {
                residual_norm: 0.0,
                gpu_memory: 0,
                ..self.stats()
            },
            ..Self::default()
        };
    }

    pub(crate) fn leave(&mut self) {
        self.worker = None;
        self.starved = None;
        self.now.gpu_memory = 0;
        if !self.closed {
            self.lost = true;
            self.now.residual_lost = std::mem::take(&mut self.now.residual_norm);
        }
    }

    pub(crate) fn count(&mut self, stats: WorkerStats) {
        self.now = stats;
    }

    /// Returns the statistics of this seat (a place for one worker) over the whole run: sums over all its workers, and
    /// the present worker's τ, staleness, residual norm and GPU memory.
    pub(crate) fn stats(&self) -> WorkerStats {
        let sums = WorkerStats::combined([self.before, self.now].iter());
        WorkerStats {
            tau: self.now.tau,
            staleness: self.now.staleness,
            residual_norm: self.now.residual_norm,
            gpu_memory: self.now.gpu_memory,
            ..sums
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_here_stays_done() {
        let mut seat = Seat::default();
        let key = |_| WorkerKey::default();
        seat.take(key(1));
        let done = |samples, tau| WorkerStats {
            samples,
            tau,
            ..WorkerStats::default()
        };
        seat.count(done(10, 0.5));
        seat.leave();
        seat.take(key(2));
        seat.count(done(5, 0.25));
        seat.count(done(7, 0.25));
        assert_eq!((seat.stats().samples, seat.stats().tau), (17, 0.25));
    }

    #[test]
    fn a_residual_is_lost_with_its_worker_unless_that_has_closed() {
        let mut seat = Seat::default();
        let with_residual = |residual_norm| WorkerStats {
            residual_norm,
            ..WorkerStats::default()
        };
        for (norm, closed) in [(3.0, false), (4.0, false), (9.0, true)] {
            seat.take(WorkerKey::default());
            seat.count(with_residual(norm));
            seat.closed = closed;
            seat.leave();
        }
        assert_eq!(seat.stats().residual_lost, 5.0);
    }
}
