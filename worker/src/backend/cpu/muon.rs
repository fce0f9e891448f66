//! Muon's orthogonal updates on a CPU: replaces the gradient by the direction in which the optimiser moves the weights.

use std::ops::Range;

use multiversion::multiversion;
use protocol::job::optimiser::Muon;

use crate::backend::Orthogonal;
use crate::learning::muon::{Block, MuonBlocks, for_others};
use crate::learning::optimiser::{Ahead, Factors, Formula, Slices, kept};
use crate::machine::parallel::{Threads, map_parts};
use crate::model::ops::orthogonal::{Scratch, orthogonalise};

/// Muon's orthogonal updates: the blocks that a model's matrices are cut into, and the scratch memory of each thread.
#[derive(Debug)]
pub(super) struct Directions {
    parts: MuonBlocks,
    threads: Threads,
    scratch: Vec<Scratch>,
}

/// A block of a weight matrix for Muon, with its slices of the gradient and the velocity.
struct Work<'a> {
    block: &'a Block,
    has_turn: bool,
    gradient: &'a mut [f32],
    velocity: &'a mut [f32],
}

impl Directions {
    pub(super) fn new(parts: MuonBlocks, threads: Threads) -> Self {
        let scratch = (0..threads.0.max(1)).map(|_| Scratch::default()).collect();
        Self {
            parts,
            threads,
            scratch,
        }
    }

    /// Replaces a gradient, scaled by `clip`, by the direction in which Muon moves the weights: they then move by minus
    /// the learning rate times this direction. The optimiser's state arrays are updated, too.
    pub(super) fn replace(
        &mut self,
        gradient: &mut [f32],
        first: &mut [f32],
        second: &mut [f32],
        clip: f32,
        by: Orthogonal,
    ) {
        replace_others(&self.parts.others, gradient, &mut *first, second, clip, by);
        // Many blocks are divided among the threads; with few blocks, each product uses all threads.
        let many = self.parts.blocks.len() >= self.scratch.len();
        let (hands, threads) = if many {
            (self.scratch.len(), Threads(1))
        } else {
            (1, self.threads)
        };
        let works = shared_out(&self.parts, by.step, hands, gradient, first);
        let parts = works.into_iter().zip(&mut self.scratch).collect();
        map_parts(parts, |(works, scratch): (Vec<Work<'_>>, &mut Scratch)| {
            for work in works {
                work.replace(clip, by.muon, scratch, threads);
            }
        });
    }
}

/// Replaces the gradient of weights outside of matrices (biases, norms) by Adam's direction.
fn replace_others(
    others: &[Range<usize>],
    gradient: &mut [f32],
    first: &mut [f32],
    second: &mut [f32],
    clip: f32,
    by: Orthogonal,
) {
    let (rule, rate) = for_others(by.muon);
    let factors = Factors::new(rule, -rate, by.step, Ahead::default());
    for range in others.iter().cloned() {
        let before: Vec<f32> = gradient[range.clone()].to_vec();
        let slices = Slices {
            gradient: &before,
            first: &mut first[range.clone()],
            second: &mut second[range.clone()],
            update: &mut gradient[range],
        };
        Formula::of(rule).update(&factors, clip, slices);
    }
}

/// Divides all blocks of matrices, with their slices of the arrays, among `hands` threads. Only blocks that Muon
/// updates in this step cost time, so each thread gets about equally many of these.
fn shared_out<'a>(
    parts: &'a MuonBlocks,
    step: u64,
    hands: usize,
    mut gradient: &'a mut [f32],
    mut velocity: &'a mut [f32],
) -> Vec<Vec<Work<'a>>> {
    let mut works: Vec<Vec<Work<'_>>> = (0..hands).map(|_| Vec::new()).collect();
    let (mut at, mut turns) = (0, 0);
    for block in &parts.blocks {
        let range = block.range();
        let has_turn = parts.has_turn(block, step);
        turns += usize::from(has_turn);
        let (of_gradient, of_velocity);
        (of_gradient, gradient) = gradient.split_at_mut(range.end - at);
        (of_velocity, velocity) = velocity.split_at_mut(range.end - at);
        works[turns % hands].push(Work {
            block,
            has_turn,
            gradient: &mut of_gradient[range.start - at..],
            velocity: &mut of_velocity[range.start - at..],
        });
        at = range.end;
    }
    works
}

impl Work<'_> {
    fn replace(self, clip: f32, muon: Muon, scratch: &mut Scratch, threads: Threads) {
        let Muon { momentum, steps, .. } = muon;
        if !self.has_turn {
            gather(momentum, clip, self.gradient, self.velocity);
            self.gradient.fill(0.0);
            return;
        }
        look_on(momentum, clip, self.gradient, self.velocity);
        let Block {
            rows, columns, scale, ..
        } = *self.block;
        orthogonalise(self.gradient, (rows, columns), steps, scale, scratch, threads);
    }
}

/// Adds a gradient, times `clip`, to the velocity of a matrix block that does not move in this step: `v = μ v + g`,
/// where `μ` is the momentum.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn gather(momentum: f32, clip: f32, gradient: &[f32], velocity: &mut [f32]) {
    for (g, v) in gradient.iter().zip(velocity) {
        *v = kept(momentum * *v + clip * *g);
    }
}

/// Adds a gradient, times `clip`, to the velocity (`v = μ v + g`, where `μ` is the momentum), and replaces the gradient
/// by the velocity that a second gradient like this one would give (Nesterov: `g = g + μ v`).
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn look_on(momentum: f32, clip: f32, gradient: &mut [f32], velocity: &mut [f32]) {
    for (g, v) in gradient.iter_mut().zip(velocity) {
        let clipped = clip * *g;
        *v = kept(momentum * *v + clipped);
        *g = clipped + momentum * *v;
    }
}
