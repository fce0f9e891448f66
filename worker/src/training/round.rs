//! Rounds: a worker that has let out its contribution waits until the others' are in the weights.
//!
//! Where contributions follow losses, it tells its own first, and waits until the others have told theirs.

use protocol::job::{Job, RoundWeighting};
use protocol::rng::CounterRng;
use protocol::wire::attach::GoOn;

/// Samples on which workers compare themselves. A pass over them costs as much as eight steps of 64 samples.
const PROBE: usize = 512;
const PROBE_STREAM: u64 = 0x7072_6f62;

/// A worker's progress in the rounds that all make together. Their numbers are labels: a worker that has missed some goes on
/// with the newest.
#[derive(Debug)]
pub(super) struct Round {
    /// The last round that the worker has come to.
    number: u64,
    /// The newest round that its node has heard of.
    newest: u64,
    wait: Wait,
    /// The averaging steps of this round that the worker has come to.
    pass: u64,
    /// The worker has said that it has nothing to train.
    is_idle: bool,
    /// Samples on which workers compare themselves, where the best one's weights count.
    probe: Vec<u32>,
}

/// What a worker waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Nothing,
    /// It has told its loss, and the others are to tell theirs.
    Losses,
    /// They have: its contribution is due.
    Due,
    /// It has come to an averaging step, and goes on from the mean of the workers before it.
    Prefix,
    /// Its contribution is out, and the others' are to come.
    Contributions {
        /// The worker's difference since the round before counts for nothing.
        lost: bool,
    },
}

impl Round {
    /// Before the first round of a run with this many samples.
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

    /// The last round that the worker has come to.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The samples on which workers compare themselves: the same for all.
    pub(super) fn probe(&self) -> &[u32] {
        &self.probe
    }

    /// The worker comes to a run whose newest round is this.
    pub(super) fn begin(&mut self, newest: u64) {
        self.newest = newest;
    }

    /// Whether the worker does nothing until it hears of the others.
    pub(super) fn waits(&self) -> bool {
        matches!(self.wait, Wait::Losses | Wait::Prefix | Wait::Contributions { .. })
    }

    /// Whether a contribution is due.
    pub(super) fn is_due(&self) -> bool {
        self.wait == Wait::Due
    }

    /// Whether the worker waits to drop its difference.
    pub(super) fn drops(&self) -> bool {
        self.wait == Wait::Contributions { lost: true }
    }

    /// Comes to the next averaging step, and waits. Returns its number in the round.
    pub(super) fn begin_pass(&mut self) -> u64 {
        self.wait = Wait::Prefix;
        let pass = self.pass;
        self.pass += 1;
        pass
    }

    /// Goes on with an averaging step. Returns `false` if the worker does not wait for that.
    pub(super) fn end_pass(&mut self) -> bool {
        let waits = self.wait == Wait::Prefix;
        if waits {
            self.wait = Wait::Nothing;
        }
        waits
    }

    /// Comes to the next round.
    pub(super) fn arrive(&mut self) {
        self.number = self.number.saturating_add(1).max(self.newest);
        self.pass = 0;
    }

    /// The worker has told its loss of this round.
    pub(super) fn told_loss(&mut self) {
        self.wait = Wait::Losses;
    }

    /// The worker's contribution is out. If it is empty, its difference since the round before is `lost`.
    pub(super) fn contributed(&mut self, lost: bool) {
        self.wait = Wait::Contributions { lost };
    }

    /// All others that are waited for have come as far in a round. Returns how the worker goes on.
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

    /// The worker trains, or says that it has nothing to train. Returns whether it had said so before.
    pub(super) fn set_idle(&mut self, is_idle: bool) -> bool {
        std::mem::replace(&mut self.is_idle, is_idle)
    }
}

/// How a worker goes on in its rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Advance {
    /// As before: the order is of another round.
    Nothing,
    /// With its contribution.
    Contribute,
    /// With the next round; without its difference since the last one, if that is lost.
    NextRound { lost: bool },
}

/// The samples on which workers compare themselves, where the best one's weights count: the same for all.
fn probe(job: &Job, samples: usize) -> Vec<u32> {
    if job.exchange.weighting() != Some(RoundWeighting::Best) {
        return Vec::new();
    }
    let mut random = CounterRng::new(job.seed, PROBE_STREAM);
    let drawn = (0..PROBE.min(samples)).map(|_| random.below(samples as u64) as u32);
    drawn.collect()
}
