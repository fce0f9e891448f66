//! Whose turn it is: in every step a part of the weights is compared with the shared ones, and the parts take turns.

use std::ops::Range;

use protocol::job::model::{Layout, TensorSlot};

/// Weights per block, the smallest part that can have a turn. Four arrays of it fit into a first-level cache of 32 KiB
/// beside each other, and one is as much as a block of a GPU's threads reads in one go.
pub(super) const BLOCK: usize = 1024;
/// Parts smaller than this are not worth a turn of their own.
pub(super) const WEIGHTS_PER_TURN_MIN: usize = 1 << 14;
/// Tensors of at most so many weights are compared in every step.
const SMALL_TENSOR_MAX: usize = 1 << 15;

/// Which weights are compared in which step.
#[derive(Clone, Debug)]
pub(super) struct Turns {
    weights: usize,
    /// How many comparisons there were.
    pub(super) done: usize,
}

impl Turns {
    pub(super) fn new(weights: usize) -> Self {
        Self { weights, done: 0 }
    }

    /// The weights that are compared in the next step that compares any, if so many parts take turns; whole blocks.
    pub(super) fn next(&mut self, parts: usize) -> Range<usize> {
        let turns = (self.weights / WEIGHTS_PER_TURN_MIN).clamp(1, parts.max(1));
        let at = self.done % turns;
        self.done = self.done.wrapping_add(1);
        let blocks = self.weights.div_ceil(BLOCK);
        let border = |turn: usize| (blocks * turn / turns * BLOCK).min(self.weights);
        border(at)..border(at + 1)
    }
}

/// The tensors that are compared whoever's turn it is: each of their weights matters to all that the model does, and
/// moves often.
pub(super) fn eager_tensors(layout: &Layout) -> impl Iterator<Item = Range<usize>> + '_ {
    let small = layout
        .tensors
        .iter()
        .filter(|tensor| tensor.elements() <= SMALL_TENSOR_MAX);
    small.map(TensorSlot::range)
}

/// The blocks that some ranges of weights touch.
pub(super) fn eager_blocks(weights: usize, eager: impl Iterator<Item = Range<usize>>) -> Vec<bool> {
    let mut blocks = vec![false; weights.div_ceil(BLOCK)];
    for range in eager {
        blocks[range.start / BLOCK..range.end.div_ceil(BLOCK)].fill(true);
    }
    blocks
}
