//! Turns: each step compares one part of the own weights with the shared ones, and the parts take turns.

use std::ops::Range;

use protocol::job::model::{Layout, TensorSlot};

/// Number of weights in a block, the smallest part of a model that a step compares or skips. Four arrays of a block fit
/// together into a first-level cache of 32 KiB, and a GPU's thread block reads one block at once.
pub(super) const BLOCK: usize = 1024;
/// Fewest weights that one step compares with the shared copy; small models are compared in fewer steps.
pub(super) const WEIGHTS_PER_TURN_MIN: usize = 1 << 14;
/// Most weights of a tensor that every step compares with the shared copy.
const SMALL_TENSOR_MAX: usize = 1 << 15;

/// Decides which weights a step compares with the shared copy: a range of blocks that advances with each comparison.
#[derive(Clone, Debug)]
pub(super) struct Turns {
    weights: usize,
    /// Number of times that part of the weights was compared with the shared copy so far.
    pub(super) done: usize,
}

impl Turns {
    pub(super) fn new(weights: usize) -> Self {
        Self { weights, done: 0 }
    }

    /// Returns the range of weights, as whole blocks, to compare with the shared copy in the next step. At most `parts`
    /// steps cover all weights.
    pub(super) fn next(&mut self, parts: usize) -> Range<usize> {
        let turns = (self.weights / WEIGHTS_PER_TURN_MIN).clamp(1, parts.max(1));
        let at = self.done % turns;
        self.done = self.done.wrapping_add(1);
        let blocks = self.weights.div_ceil(BLOCK);
        let border = |turn: usize| (blocks * turn / turns * BLOCK).min(self.weights);
        border(at)..border(at + 1)
    }
}

/// Returns the small tensors, which every step compares with the shared copy because each of their weights affects all
/// outputs of the model and moves often.
pub(super) fn eager_tensors(layout: &Layout) -> impl Iterator<Item = Range<usize>> + '_ {
    let small = layout
        .tensors
        .iter()
        .filter(|tensor| tensor.elements() <= SMALL_TENSOR_MAX);
    small.map(TensorSlot::range)
}

/// Returns one flag per block of weights: true if the block holds weights of an `eager` range, which every step
/// compares with the shared copy.
pub(super) fn eager_blocks(weights: usize, eager: impl Iterator<Item = Range<usize>>) -> Vec<bool> {
    let mut blocks = vec![false; weights.div_ceil(BLOCK)];
    for range in eager {
        blocks[range.start / BLOCK..range.end.div_ceil(BLOCK)].fill(true);
    }
    blocks
}
