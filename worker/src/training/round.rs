//! Rounds: a worker that has emitted its contribution waits until the other workers' contributions are in its weights.
//!
//! Where contributions depend on losses, the worker announces its own loss first, and waits for the other workers'
//! losses.

use protocol::job::{Job, RoundWeighting};
use protocol::rng::CounterRng;
use protocol::wire::attach::GoOn;

/// Number of samples on which workers compare their losses. A pass over them costs as much as eight steps of 64
/// samples.
const PROBE: usize = 512;
const PROBE_STREAM: u64 = 0x7072_6f62;

/// A worker's progress in the rounds that all workers make together: it trains, emits its contribution, and waits.
/// Round numbers are labels: a worker that has missed some goes on with the newest.
#[derive(Debug)]
pub(super) struct Round {
    /// Number of the last round whose end the worker has reached.
    number: u64,
    /// Number of the newest round that the worker's node has heard of.
    newest: u64,
    wait: Wait,
    /// Number of sequential averaging steps that the worker has reached in this round; each belongs to one walk of a
    /// sum through all workers.
    pass: u64,
    /// True if the worker has announced that it has nothing to train, so that others do not wait for it.
    is_idle: bool,
    /// Samples on which workers compare their losses, if only the best worker's contribution counts.
    probe: Vec<u32>,
}

/// Event that a worker waits for before it goes on in its rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Nothing,
    /// In its round, the worker waits for the losses of the other workers; it has announced its own.
    Losses,
    /// In its round, the worker waits for nothing: all losses are known, and its contribution is due.
    Due,
    /// In a sequential averaging step, the worker waits for the sum of differences from the workers before it.
    Prefix,
    /// In its round, the worker waits for the contributions of the other workers; its own has left.
    Contributions {
        /// True if the worker's contribution to the round was empty. The worker will then drop its own difference from
        /// the shared weights, and go on from the contributions of the others.
        lost: bool,
    },
}

impl Round {
    /// Creates a worker's round state at the start of a run with this number of samples.
    pub(super) fn new(job: &Job, samples: usize) -> Self {
        Self {
            number: 0,
            newest: 0,
            wait: Wait::Nothing,
            pass: 0,
            is_idle: false,
            probe: probe(job, samples),
        }
    }

    /// Returns the number of the last round whose end the worker has reached.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Returns the samples on which workers compare their losses: the same for all workers.
    pub(super) fn probe(&self) -> &[u32] {
        &self.probe
    }

    /// Joins the rounds of a run in progress, of which `newest` is the newest.
    pub(super) fn begin(&mut self, newest: u64) {
        self.newest = newest;
    }

    /// True if the worker waits for other workers' losses or contributions, or for the mean in a sequential averaging
    /// step.
    pub(super) fn waits(&self) -> bool {
        matches!(self.wait, Wait::Losses | Wait::Prefix | Wait::Contributions { .. })
    }

    /// True if all losses are known and the worker must emit its contribution to the round.
    pub(super) fn is_due(&self) -> bool {
        self.wait == Wait::Due
    }

    /// True if the worker waits for the others' contributions and will then drop its own difference, because it
    /// contributed nothing.
    pub(super) fn drops(&self) -> bool {
        self.wait == Wait::Contributions { lost: true }
    }

    /// Begins the next sequential averaging step, in which the worker waits. Returns the step's number in the round.
    pub(super) fn begin_pass(&mut self) -> u64 {
        self.wait = Wait::Prefix;
        let pass = self.pass;
        self.pass += 1;
        pass
    }

    /// Ends a sequential averaging step. Returns `false` if the worker is not waiting in one.
    pub(super) fn end_pass(&mut self) -> bool {
        let waits = self.wait == Wait::Prefix;
        if waits {
            self.wait = Wait::Nothing;
        }
        waits
    }

    /// Counts a round whose end the worker has reached.
    pub(super) fn arrive(&mut self) {
        self.number = self.number.saturating_add(1).max(self.newest);
        self.pass = 0;
    }

    /// Records that the worker has announced its loss in this round.
    pub(super) fn told_loss(&mut self) {
        self.wait = Wait::Losses;
    }

    /// Records that the worker's contribution has left, after which it waits for the others'. `lost` says that the
    /// contribution was empty, so the worker will drop its own difference from the shared weights.
    pub(super) fn contributed(&mut self, lost: bool) {
        self.wait = Wait::Contributions { lost };
    }

    /// Handles the node's order to go on in a round: all workers that this one waits for have reached the same point of
    /// it. Returns the worker's next action.
    pub(super) fn go_on(&mut self, order: &GoOn) -> Advance {
        if order.round != self.number {
            return Advance::Nothing;
        }
        match (self.wait, order.contribution) {
            (Wait::Losses, Some(_)) => {
                self.wait = Wait::Due;
                Advance::Contribute
            }
            (Wait::Contributions { lost }, None) => {
                self.wait = Wait::Nothing;
                self.newest = order.newest;
                Advance::NextRound { lost }
            }
            _ => Advance::Nothing,
        }
    }

    /// Records that the worker has nothing to train, or trains again. Returns the value before.
    pub(super) fn set_idle(&mut self, is_idle: bool) -> bool {
        std::mem::replace(&mut self.is_idle, is_idle)
    }
}

/// Next action of a worker in its rounds, after the order to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Advance {
    /// Next action of a worker in its rounds: none, because the order was for another round.
    Nothing,
    /// Next action of a worker in its rounds: emit its contribution.
    Contribute,
    /// Next action of a worker in its rounds: begin the next round. If `lost`, the worker contributed nothing to the
    /// round before, and drops its own difference from the shared weights.
    NextRound { lost: bool },
}

/// Draws the samples on which workers compare their losses, the same for all workers; none unless only the best
/// worker's contribution counts.
fn probe(job: &Job, samples: usize) -> Vec<u32> {
    if job.exchange.weighting() != Some(RoundWeighting::Best) {
        return Vec::new();
    }
    let mut random = CounterRng::new(job.seed, PROBE_STREAM);
    let drawn = (0..PROBE.min(samples)).map(|_| random.below(samples as u64) as u32);
    drawn.collect()
}
