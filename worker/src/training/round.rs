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

/// A worker's progress in the rounds that all workers make together. Round numbers are labels: a worker that has missed
/// some goes on with the newest.
#[derive(Debug)]
pub(super) struct Round {
    /// The last round that the worker has reached.
    number: u64,
    /// The newest round that its node has heard of.
    newest: u64,
    wait: Wait,
    /// Number of sequential averaging steps that the worker has reached in this round.
    pass: u64,
    /// True if the worker has announced that it has nothing to train.
    is_idle: bool,
    /// Samples on which workers compare their losses, if only the best worker's contribution counts.
    probe: Vec<u32>,
}

/// The event that a worker waits for in its rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Nothing,
    /// The losses of the other workers; it has announced its own.
    Losses,
    /// Nothing: all losses are known, and its contribution is due.
    Due,
    /// The mean of the workers before it, in a sequential averaging step.
    Prefix,
    /// The contributions of the other workers; its own has left.
    Contributions {
        /// True if the worker's difference since the round before is dropped.
        lost: bool,
    },
}

impl Round {
    /// Creates the state before the first round of a run with this many samples.
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

    /// The last round that the worker has reached.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Samples on which workers compare their losses: the same for all workers.
    pub(super) fn probe(&self) -> &[u32] {
        &self.probe
    }

    /// Joins a run whose newest round is this.
    pub(super) fn begin(&mut self, newest: u64) {
        self.newest = newest;
    }

    /// True if the worker does nothing until a message about the others comes.
    pub(super) fn waits(&self) -> bool {
        matches!(self.wait, Wait::Losses | Wait::Prefix | Wait::Contributions { .. })
    }

    /// True if the worker's contribution is due.
    pub(super) fn is_due(&self) -> bool {
        self.wait == Wait::Due
    }

    /// True if the worker waits to drop its difference.
    pub(super) fn drops(&self) -> bool {
        self.wait == Wait::Contributions { lost: true }
    }

    /// Reaches the next sequential averaging step, and waits. Returns the step's number in the round.
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

    /// Reaches the next round.
    pub(super) fn arrive(&mut self) {
        self.number = self.number.saturating_add(1).max(self.newest);
        self.pass = 0;
    }

    /// Records that the worker has announced its loss in this round.
    pub(super) fn told_loss(&mut self) {
        self.wait = Wait::Losses;
    }

    /// Records that the worker's contribution has left. If it was empty, the difference since the round before is
    /// `lost`.
    pub(super) fn contributed(&mut self, lost: bool) {
        self.wait = Wait::Contributions { lost };
    }

    /// Handles the order to go on: all workers that the barrier waits for have come as far. Returns the worker's next
    /// action.
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

/// A worker's next action in its rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Advance {
    /// No action: the order was for another round.
    Nothing,
    /// Emit the worker's contribution to the round.
    Contribute,
    /// Begin the next round, without the difference since the last one if it is `lost`.
    NextRound { lost: bool },
}

/// Draws the samples on which workers compare their losses, if only the best contribution counts. The same for all
/// workers.
fn probe(job: &Job, samples: usize) -> Vec<u32> {
    if job.exchange.weighting() != Some(RoundWeighting::Best) {
        return Vec::new();
    }
    let mut random = CounterRng::new(job.seed, PROBE_STREAM);
    let drawn = (0..PROBE.min(samples)).map(|_| random.below(samples as u64) as u32);
    drawn.collect()
}
