//! Orthogonal updates (Muon): decides which weights form matrices, cuts these into blocks, and picks the blocks of each
//! step. Devices do the arithmetic.
//!
//! A gradient's singular values differ by orders of magnitude: a step along it moves a few directions far and most
//! hardly at all. An orthogonal update moves all directions of a matrix about equally far. Updates of several workers,
//! which add up, then spread over many directions instead of overshooting along a few.
//!
//! Making a whole matrix orthogonal costs far more than a gradient of few samples does. So blocks of its rows are made
//! orthogonal separately, and may take turns.

use std::ops::Range;

use protocol::job::model::{Layout, PipelineStage, Role, TensorSlot};
use protocol::job::optimiser::{Muon, Rule};

/// Learning rate of the weights that Muon leaves to Adam, as a fraction of the matrices' learning rate.
const ADAM_RATE: f32 = 0.1;
/// Decay of Adam's mean of squares for the weights that are not in matrices.
const ADAM_BETA2: f32 = 0.99;

/// Consecutive rows of a matrix of weights whose update the optimiser Muon makes orthogonal together.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Block {
    pub(crate) offset: usize,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// Factor on a Muon block's orthogonal update, besides the learning rate; it depends on the matrix's shape.
    pub(crate) scale: f32,
    /// Number of a Muon block (rows of a matrix) among all blocks of the model, which determines the steps in which it
    /// moves.
    pub(crate) number: u64,
}

impl Block {
    pub(crate) fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.rows * self.columns
    }
}

/// Weights of a model, divided for the optimiser Muon into those that move by orthogonal updates and all others.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MuonBlocks {
    /// Blocks of rows of the model's matrices, which move by orthogonal updates.
    pub(crate) blocks: Vec<Block>,
    /// Index ranges of the weights that are not in matrices, which move by Adam.
    pub(crate) others: Vec<Range<usize>>,
    /// Number of steps in which each block of weights moves once: blocks take turns.
    pub(crate) every: u64,
}

impl MuonBlocks {
    /// Divides a model's weights for the optimiser Muon: matrices into blocks of `muon.block` rows, and all other
    /// weights, which Adam moves, into ranges.
    pub(crate) fn new(layout: &Layout, muon: Muon) -> Self {
        let (matrices, others): (Vec<_>, Vec<_>) = layout.tensors.iter().partition(|tensor| is_matrix(tensor));
        let most = muon.block as usize;
        let count: usize = matrices.iter().map(|tensor| tensor.dims[0].div_ceil(most)).sum();
        // At least three blocks, if there are as many, move in every step: else some batches would be full and others
        // empty.
        let every = (muon.every as usize).min(count / 3).max(1);
        let blocks = matrices.into_iter().flat_map(|tensor| {
            let rows = tensor.dims[0];
            let columns = tensor.elements() / rows;
            let scale = scale(rows, columns) * every as f32;
            (0..rows).step_by(most).map(move |first| Block {
                offset: tensor.offset + first * columns,
                rows: most.min(rows - first),
                columns,
                scale,
                number: 0,
            })
        });
        let numbered = (0..).zip(blocks).map(|(number, block)| Block { number, ..block });
        Self {
            blocks: numbered.collect(),
            others: others.into_iter().map(TensorSlot::range).collect(),
            every: every as u64,
        }
    }

    /// Returns the blocks and ranges that lie in a stage of the model, with indices that count from the stage's first
    /// weight. If a stage holds only part of a block, that part is made orthogonal by itself.
    pub(crate) fn of_stage(self, stage: &PipelineStage) -> Self {
        let local = |range: Range<usize>| {
            stage.tensors().find_map(|(tensor, place)| {
                let (from, to) = (range.start.max(place), range.end.min(place + tensor.elements()));
                (from < to).then(|| tensor.offset + from - place..tensor.offset + to - place)
            })
        };
        let blocks = self.blocks.into_iter().filter_map(|block| {
            let own = local(block.range())?;
            Some(Block {
                offset: own.start,
                rows: own.len() / block.columns,
                ..block
            })
        });
        Self {
            blocks: blocks.collect(),
            others: self.others.into_iter().filter_map(local).collect(),
            every: self.every,
        }
    }

    /// True if this block of weights is updated in step number `step`. Blocks take turns: each is updated once in
    /// `every` steps.
    pub(crate) fn has_turn(&self, block: &Block, step: u64) -> bool {
        (block.number + step).is_multiple_of(self.every)
    }
}

/// True if a tensor is a matrix of at least two rows and two columns, so that making its update orthogonal has an
/// effect.
fn is_matrix(tensor: &TensorSlot) -> bool {
    let rows = tensor.dims.first().copied().unwrap_or_default();
    tensor.role == Role::Weight && rows > 1 && tensor.elements() / rows > 1
}

/// Returns the factor on the orthogonal update of a matrix of this shape. If the matrix has more rows than columns, an
/// orthogonal update spreads over more outputs, each of which moves less; the factor makes up for that. The factor is
/// limited, because with very few inputs each weight would move too far.
fn scale(rows: usize, columns: usize) -> f32 {
    const MOST: f32 = 8.0;
    (rows as f32 / columns as f32).sqrt().clamp(1.0, MOST)
}

/// Returns the rule for weights that are not in matrices, and their learning rate as a fraction of the matrices'.
pub(crate) fn for_others(muon: Muon) -> (Rule, f32) {
    let rule = Rule::Adam {
        beta1: muon.momentum,
        beta2: ADAM_BETA2,
        epsilon: 1e-8,
    };
    (rule, ADAM_RATE)
}

#[cfg(test)]
mod tests {
    use protocol::job::JobDraft;
    use protocol::job::model::{Partition, Shape};
    use protocol::job::optimiser::Optimiser;

    use super::*;

    fn muon(text: &str) -> Muon {
        match text.parse::<Optimiser>().unwrap().rule {
            Rule::Muon(muon) => muon,
            other => panic!("{other:?}"),
        }
    }

    fn parts(model: &str, input: Shape, text: &str) -> (Layout, MuonBlocks) {
        let layout = Layout::new(&model.parse().unwrap(), input, 3).unwrap();
        let parts = MuonBlocks::new(&layout, muon(text));
        (layout, parts)
    }

    #[test]
    fn every_weight_is_in_one_part() {
        let image = Shape::Image {
            channels: 2,
            height: 8,
            width: 8,
        };
        for (model, input) in [
            ("dense 70, relu, dense 3", Shape::Flat(9)),
            ("conv 5 3x3, relu, flatten, dense 3", image),
        ] {
            let (layout, parts) = parts(model, input, "muon:0.1,block=32");
            let mut ranges: Vec<Range<usize>> = parts.blocks.iter().map(Block::range).collect();
            ranges.extend(parts.others);
            ranges.sort_by_key(|range| range.start);
            assert_eq!(ranges[0].start, 0);
            assert_eq!(ranges.last().unwrap().end, layout.weights);
            assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start), "{ranges:?}");
        }
    }

    #[test]
    fn every_weight_of_a_stage_is_in_one_part() {
        let (layout, parts) = parts(
            "dense 70, relu, dense 40, relu, dense 3",
            Shape::Flat(9),
            "muon:0.1,block=32",
        );
        let draft = JobDraft {
            exchange: Some("layers:groups=1,slices=3".into()),
            ..JobDraft::default()
        };
        let pipelines = *draft.resolve().unwrap().exchange.pipelines().unwrap();
        for stage in Partition::new(layout, &pipelines).unwrap().stages() {
            let own = parts.clone().of_stage(&stage);
            let mut ranges: Vec<Range<usize>> = own.blocks.iter().map(Block::range).collect();
            ranges.extend(own.others);
            ranges.sort_by_key(|range| range.start);
            assert_eq!(ranges.first().map(|first| first.start), Some(0));
            assert_eq!(ranges.last().unwrap().end, stage.layout.weights);
            assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start), "{ranges:?}");
        }
    }

    #[test]
    fn matrices_are_cut_into_rows_and_biases_are_none() {
        let (_, parts) = parts("dense 70, relu, dense 3", Shape::Flat(9), "muon:0.1,block=16,every=2");
        let shapes: Vec<(usize, usize)> = parts.blocks.iter().map(|block| (block.rows, block.columns)).collect();
        assert_eq!(shapes, [(16, 9), (16, 9), (16, 9), (16, 9), (6, 9), (3, 70)]);
        assert_eq!(parts.others.len(), 2);
        // Each block moves in one of two steps, and twice as far.
        assert!((parts.blocks[0].scale - 2.0 * (70f32 / 9.0).sqrt()).abs() < 1e-6);
        assert!((parts.blocks[5].scale - 2.0).abs() < 1e-6);
    }

    #[test]
    fn each_block_has_its_turn_once_in_so_many_steps_unless_there_are_few() {
        for (model, every) in [("dense 768, relu, dense 3", 4), ("dense 70, relu, dense 3", 1)] {
            let (_, parts) = parts(model, Shape::Flat(9), "muon:0.1,every=4");
            for block in &parts.blocks {
                for first in 1..20 {
                    let turns = (first..first + every).filter(|&step| parts.has_turn(block, step));
                    assert_eq!(turns.count(), 1, "{model}");
                }
            }
        }
    }
}
