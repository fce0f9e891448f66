//! Pending work: the cursors, samples and loss of steps that no batch counts yet.

use protocol::log::batch::CURSORS_MAX;
use protocol::log::cursor::CursorAdvance;

/// Samples, loss and shard positions (cursors) of the steps since the worker's last batch. The next batch counts all of
/// them, so there are never more cursors than a batch can move.
#[derive(Debug, Default)]
pub(super) struct Pending {
    pub(super) cursors: Vec<CursorAdvance>,
    pub(super) samples: u32,
    pub(super) loss: f64,
}

impl Pending {
    pub(super) fn is_empty(&self) -> bool {
        self.samples == 0 && self.cursors.is_empty()
    }

    /// Creates the contents of a batch that only announces a worker's loss to the others and counts no samples.
    pub(super) fn of_loss(loss: f32) -> Self {
        Self {
            loss: f64::from(loss),
            ..Self::default()
        }
    }

    /// Returns the mean loss that the next batch states: that of its samples or, if it counts no samples, the loss that
    /// it announces.
    pub(super) fn mean_loss(&self) -> f32 {
        (self.loss / f64::from(self.samples.max(1))) as f32
    }

    /// Adds a step to those that the next batch will count. Its minibatch moved at most [`Pending::cursors_left`]
    /// cursors.
    pub(super) fn add(&mut self, advances: &[CursorAdvance], samples: usize, loss: f32) {
        self.add_samples(advances, samples);
        self.add_loss(samples, loss);
    }

    /// Adds the mean loss of a step whose samples were added before.
    pub(super) fn add_loss(&mut self, samples: usize, loss: f32) {
        self.loss += f64::from(loss) * samples as f64;
    }

    /// Adds the samples of a step, whose loss is not known yet.
    pub(super) fn add_samples(&mut self, advances: &[CursorAdvance], samples: usize) {
        for &advance in advances {
            match self.cursors.iter_mut().find(|known| known.shard == advance.shard) {
                Some(known) => known.done = known.done.max(advance.done),
                None => self.cursors.push(advance),
            }
        }
        self.samples += samples as u32;
    }

    /// True if the samples that wait to be counted by the next batch are of another epoch than the minibatch with these
    /// cursors (shard positions).
    pub(super) fn is_of_another_epoch(&self, advances: &[CursorAdvance]) -> bool {
        let epoch = |cursors: &[CursorAdvance]| cursors.first().map(|cursor| cursor.shard.epoch);
        epoch(&self.cursors).is_some_and(|own| Some(own) != epoch(advances))
    }

    /// Returns the number of cursors (shard positions) that the next minibatch may move. One is kept free for the
    /// minibatch after it, in case no batch leaves between the two.
    pub(super) fn cursors_left(&self) -> usize {
        (CURSORS_MAX - 1).saturating_sub(self.cursors.len()).max(1)
    }

    /// True if another step can be made before a batch must count the steps so far. For that step's minibatch, half of
    /// all cursors (shard positions) that a batch holds are kept free: it moves one or two, and rarely many, so it need
    /// not be made smaller.
    pub(super) fn may_grow(&self) -> bool {
        self.cursors.len() < CURSORS_MAX / 2
    }
}
