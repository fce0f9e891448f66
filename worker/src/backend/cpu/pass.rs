//! The fused pass after a gradient: optimiser update and comparison with the shared weights, in blocks that stay in the
//! first-level cache.

use std::ops::Range;
use std::time::Duration;

use multiversion::multiversion;
use protocol::weights::changes::CHANGES_MAX;

use crate::backend::turns::{BLOCK, eager_blocks};
use crate::backend::{Compare, Update};
use crate::learning::optimiser::{Factors, Formula, Slices};
use crate::machine::parallel::{Threads, map_parts};
use crate::machine::thread_time::ThreadTimer;
use crate::trainer::quantise::{NotFinite, Reached, quantise};

/// Fewest weights that one thread handles. With fewer, starting a thread costs more than it saves.
const WEIGHTS_PER_THREAD_MIN: usize = 1 << 16;
/// Fewest consecutive blocks of weights whose update is timed. For fewer, reading the clock would distort the time.
const TIMED_BLOCKS_MIN: usize = 16;
/// Slices of both copies of the weights. The worker's own copy moves with every step, and gradients are computed at it;
/// the shared copy moves by batches only, and holds multiples of a fixed step. Their difference is the residual.
pub(super) struct Copies<'a> {
    pub(super) own: &'a mut [f32],
    pub(super) shared: &'a [f32],
}

/// State of the CPU's optimiser pass besides the weights: the optimiser's arrays, and the division of the work among
/// threads.
#[derive(Debug)]
pub(super) struct Pass {
    /// The optimiser's first state array; empty if its rule keeps none.
    pub(super) first: Vec<f32>,
    pub(super) second: Vec<f32>,
    /// One flag per block of weights: true if every step compares the block with the shared copy.
    eager: Vec<bool>,
    /// Index ranges of the weights that weight decay leaves alone, in order.
    undecayed: Vec<Range<usize>>,
    /// Number of weights that each thread handles: a multiple of the block size.
    part: usize,
    /// Buffers for the changes that each thread emits in a step; kept so that a step allocates nothing.
    part_changes: Vec<Vec<u32>>,
    pub(super) changes_max: usize,
}

impl Pass {
    /// Makes an optimiser pass over `weights` weights with `state_arrays` optimiser arrays. Every step compares the
    /// weights in `eager` with the shared copy.
    pub(super) fn new(
        state_arrays: usize,
        weights: usize,
        eager: impl Iterator<Item = Range<usize>>,
        threads: Threads,
    ) -> Self {
        let array = |wanted: bool| vec![0.0; if wanted { weights } else { 0 }];
        let part = weights.div_ceil(threads.0.max(1)).max(WEIGHTS_PER_THREAD_MIN);
        // Threads get whole blocks, so that the blocks do not depend on the number of threads.
        let part = part.next_multiple_of(BLOCK);
        Self {
            first: array(state_arrays > 0),
            second: array(state_arrays > 1),
            eager: eager_blocks(weights, eager),
            undecayed: Vec::new(),
            part,
            part_changes: vec![Vec::new(); weights.div_ceil(part)],
            changes_max: CHANGES_MAX,
        }
    }

    /// Returns the pass with the index ranges of the weights that weight decay leaves alone, in order.
    pub(super) fn without_decay_of(self, undecayed: impl Iterator<Item = Range<usize>>) -> Self {
        Self {
            undecayed: undecayed.collect(),
            ..self
        }
    }

    /// Moves the own weights by a gradient scaled by `clip`, and replaces the contents of `changes` by the changes to
    /// emit: movements by ±τ towards the own weights (none without a comparison).
    ///
    /// Returns an estimate of the time that the pass would have taken without a comparison: this much counts as
    /// training, the rest of the pass as exchange. The estimate is based on the blocks that were not compared; `None`
    /// if all were.
    pub(super) fn update(
        &mut self,
        gradient: &[f32],
        update: &Update,
        clip: f32,
        Copies { own, shared }: Copies<'_>,
        changes: &mut Vec<u32>,
    ) -> Result<Option<Duration>, NotFinite> {
        let part = self.part;
        let compare = update
            .compare
            .as_ref()
            .map(|by| Comparison::new(by, &self.eager, self.changes_max, gradient.len()));
        let (mut first, mut second) = (self.first.chunks_mut(part), self.second.chunks_mut(part));
        let parts = gradient
            .chunks(part)
            .zip(own.chunks_mut(part).zip(shared.chunks(part)))
            .zip(std::mem::take(&mut self.part_changes))
            .enumerate()
            .map(|(at, ((gradient, (own, shared)), changes))| ThreadSlice {
                offset: at * part,
                gradient,
                first: first.next().unwrap_or_default(),
                second: second.next().unwrap_or_default(),
                copies: Copies { own, shared },
                changes,
            })
            .collect();
        let undecayed = &self.undecayed;
        let results = map_parts(parts, |part: ThreadSlice<'_>| {
            part.update(update.formula, &update.factors, clip, undecayed, compare.as_ref())
        });
        changes.clear();
        let mut all = Ok(());
        let mut plain = Plain::default();
        for done in results {
            all = all.and(done.result);
            plain.time += done.plain.time;
            plain.weights += done.plain.weights;
            // The slices are in the order of their indices, so the concatenated changes are sorted, too.
            changes.extend_from_slice(&done.changes);
            self.part_changes.push(done.changes);
        }
        all.map(|()| plain.scaled_to(own.len()))
    }

    /// Compares the own with the shared weights, and replaces the contents of `changes` by the changes to emit.
    pub(super) fn release(
        &self,
        own: &[f32],
        shared: &[f32],
        compare: &Compare,
        changes: &mut Vec<u32>,
    ) -> Result<(), NotFinite> {
        changes.clear();
        let comparison = Comparison::new(compare, &self.eager, self.changes_max, own.len());
        let mut velocity = self.first.chunks(BLOCK);
        for (block, (own, shared)) in own.chunks(BLOCK).zip(shared.chunks(BLOCK)).enumerate() {
            let velocity = velocity.next().unwrap_or_default();
            if comparison.includes(block * BLOCK) {
                comparison.block(own, shared, velocity, 0, block * BLOCK, changes)?;
            }
        }
        Ok(())
    }
}

/// One thread's slices of the weights, the gradient and the optimiser's arrays. Arrays that the rule lacks are empty.
struct ThreadSlice<'a> {
    /// Index in the model of the slice's first weight.
    offset: usize,
    gradient: &'a [f32],
    first: &'a mut [f32],
    second: &'a mut [f32],
    copies: Copies<'a>,
    changes: Vec<u32>,
}

impl ThreadSlice<'_> {
    fn update(
        mut self,
        formula: Formula,
        factors: &Factors,
        clip: f32,
        undecayed: &[Range<usize>],
        compare: Option<&Comparison<'_>>,
    ) -> Done {
        self.changes.clear();
        let mut result = Ok(());
        let mut plain = Plain::default();
        let mut update = [0.0; BLOCK];
        let mut first = self.first.chunks_mut(BLOCK);
        let mut second = self.second.chunks_mut(BLOCK);
        let copies = self.copies.own.chunks_mut(BLOCK).zip(self.copies.shared.chunks(BLOCK));
        let mut blocks = self.gradient.chunks(BLOCK).zip(copies).enumerate().peekable();
        // Each iteration handles a run of consecutive blocks that are all compared or all not.
        while let Some((block, _)) = blocks.peek() {
            let compare_at = |block: usize| compare.filter(|it| it.includes(self.offset + block * BLOCK));
            let compare = compare_at(*block);
            let timer = ThreadTimer::start();
            let mut weights = 0;
            while let Some((block, (gradient, (own, shared)))) =
                blocks.next_if(|(block, _)| compare_at(*block).is_some() == compare.is_some())
            {
                let update = &mut update[..gradient.len()];
                let first = first.next().unwrap_or_default();
                let second = second.next().unwrap_or_default();
                let slices = Slices {
                    gradient,
                    first,
                    second,
                    update,
                };
                formula.update(factors, clip, slices);
                move_by(update, factors.shrink, undecayed, self.offset + block * BLOCK, own);
                weights += own.len();
                if let Some(compare) = compare {
                    let (start, index) = (self.offset, self.offset + block * BLOCK);
                    let done = compare.block(own, shared, first, start, index, &mut self.changes);
                    result = result.and(done);
                }
            }
            if compare.is_none() && weights >= TIMED_BLOCKS_MIN * BLOCK {
                plain.time += timer.elapsed();
                plain.weights += weights;
            }
        }
        Done {
            changes: self.changes,
            result,
            plain,
        }
    }
}

/// Result of the optimiser pass over one thread's slice of the weights.
struct Done {
    changes: Vec<u32>,
    result: Result<(), NotFinite>,
    plain: Plain,
}

/// Thread time that a pass spent on updating weights without comparing them with the shared copy, and the number of
/// these weights.
#[derive(Default)]
struct Plain {
    time: Duration,
    weights: usize,
}

impl Plain {
    /// Extrapolates the measured time of the update to this many weights; `None` if it was measured on none.
    fn scaled_to(&self, weights: usize) -> Option<Duration> {
        (self.weights > 0).then(|| self.time.mul_f64(weights as f64 / self.weights as f64))
    }
}

/// A comparison of a worker's own with the shared weights, with the limit on the number of changes in a batch.
struct Comparison<'a> {
    by: &'a Compare,
    eager: &'a [bool],
    changes_max: usize,
    weights: usize,
}

impl<'a> Comparison<'a> {
    fn new(by: &'a Compare, eager: &'a [bool], changes_max: usize, weights: usize) -> Self {
        Self {
            by,
            eager: if by.eager { eager } else { &[] },
            changes_max,
            weights,
        }
    }

    /// True if the block of weights that begins at `index` is compared with the shared copy in this step.
    fn includes(&self, index: usize) -> bool {
        self.by.turn.contains(&index) || self.eager.get(index / BLOCK).is_some_and(|&eager| eager)
    }

    /// Compares one block of own and shared weights, and appends the changes to emit. `start` is the index of the
    /// thread's first weight, `index` that of the block's first weight.
    fn block(
        &self,
        own: &[f32],
        shared: &[f32],
        velocity: &[f32],
        start: usize,
        index: usize,
        changes: &mut Vec<u32>,
    ) -> Result<(), NotFinite> {
        let changes_max = self.allowance(index + own.len()) - self.allowance(start);
        let reached = Reached::new(own, self.by.ahead, velocity);
        quantise(reached, shared, self.by.tau, index, changes_max, changes)
    }

    /// Number of changes that the weights below `index` may have together. A batch's capacity is divided evenly over
    /// the weights, so that no part of a model waits for ever behind another.
    fn allowance(&self, index: usize) -> usize {
        (self.changes_max as u64 * index as u64 / self.weights.max(1) as u64) as usize
    }
}

/// Moves the own weights, the first of which has this index, by an update and weight decay. Weights in `undecayed` (index
/// ranges in order) are moved by the update alone.
fn move_by(update: &[f32], shrink: f32, undecayed: &[Range<usize>], index: usize, own: &mut [f32]) {
    let from = undecayed.partition_point(|range| range.end <= index);
    let mut done = 0;
    for range in &undecayed[from..] {
        if range.start >= index + own.len() {
            break;
        }
        let (start, end) = (range.start.saturating_sub(index), (range.end - index).min(own.len()));
        move_and_shrink(&update[done..start], shrink, &mut own[done..start]);
        move_and_shrink(&update[start..end], 0.0, &mut own[start..end]);
        done = end;
    }
    move_and_shrink(&update[done..], shrink, &mut own[done..]);
}

/// Moves the own weights by an update and weight decay: `own += update - shrink · own`.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn move_and_shrink(update: &[f32], shrink: f32, own: &mut [f32]) {
    for (own, update) in own.iter_mut().zip(update) {
        *own += update - shrink * *own;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_move_by_an_update_and_shrink_by_a_part_of_themselves() {
        let mut own = [4.0, -8.0];
        move_by(&[0.5, -1.0], 0.25, &[], 0, &mut own);
        assert_eq!(own, [3.5, -7.0]);
    }

    #[test]
    fn weights_that_do_not_decay_are_moved_by_the_update_alone() {
        // The block holds the weights from 10 to 15; ranges reach into it, lie within it and leave it.
        for (undecayed, kept) in [
            (vec![], 0b00_0000),
            (vec![3..5, 8..11, 13..14], 0b00_1001),
            (vec![0..12, 12..16], 0b11_1111),
            (vec![12..13, 13..40], 0b11_1100),
            (vec![0..10, 16..20], 0b00_0000),
        ] {
            let mut own = [4.0; 6];
            move_by(&[1.0; 6], 0.25, &undecayed, 10, &mut own);
            let expected: Vec<f32> = (0..6).map(|at| if kept >> at & 1 == 1 { 5.0 } else { 4.0 }).collect();
            assert_eq!(own, expected[..], "{undecayed:?}");
        }
    }
}
