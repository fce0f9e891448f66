//! Orthogonal updates on a GPU: which kernels go over which parts of a gradient. `kernels/muon.cu` does the arithmetic.

use std::time::Duration;

use cudarc::driver::CudaEvent;
use cudarc::driver::sys::CUevent_flags::CU_EVENT_DEFAULT;

use super::abi::{self, Chunk, Report, SIDE, Turns};
use super::address::At;
use super::error::GpuError;
use super::gpu::{Gpu, Grid};
use super::kernels::{DirectOthers, MuonGather, MuonIterate, MuonTurn};
use super::memory::Array;
use crate::backend::Orthogonal;
use crate::learning::muon::{Block, Parts, for_others};
use crate::learning::optimiser::{Ahead, Factors};

/// Threads of a block that multiplies [`SIDE`] by [`SIDE`] numbers, 16 each.
const THREADS: usize = (SIDE * SIDE / 16) as usize;
/// The numbers of a small matrix.
const SQUARE: usize = (SIDE * SIDE) as usize;

/// What is known of a model for them, and room for what is found on the way.
pub(super) struct Directions {
    blocks: Array<abi::Block>,
    block_count: usize,
    chunks: Array<Chunk>,
    chunk_count: usize,
    every: u64,
    /// Every chunk multiplied by itself.
    products: Array<f32>,
    /// What each block is multiplied by.
    factors: Array<f32>,
    /// The weights that are in no matrix.
    others: Array<u32>,
    other_count: usize,
    begun: CudaEvent,
    done: CudaEvent,
}

/// The arrays that a step reads and moves.
#[derive(Clone, Copy)]
pub(super) struct State {
    pub(super) gradient: At<f32>,
    pub(super) first: At<f32>,
    pub(super) second: At<f32>,
    /// It says how the gradient is clipped.
    pub(super) report: At<Report>,
}

impl Directions {
    pub(super) fn new(gpu: &Gpu, parts: &Parts) -> Result<Self, GpuError> {
        let (blocks, chunks) = cut(&parts.blocks)?;
        let others: Vec<u32> = parts
            .others
            .iter()
            .cloned()
            .flatten()
            .map(|weight| weight as u32)
            .collect();
        let event = || gpu.stream.context().new_event(Some(CU_EVENT_DEFAULT));
        Ok(Self {
            products: Array::zeros(gpu, chunks.len() * SQUARE)?,
            factors: Array::zeros(gpu, blocks.len() * SQUARE)?,
            block_count: blocks.len(),
            blocks: Array::padded(gpu, &blocks, 0)?,
            chunk_count: chunks.len(),
            chunks: Array::padded(gpu, &chunks, 0)?,
            every: parts.every,
            other_count: others.len(),
            others: Array::padded(gpu, &others, 0)?,
            begun: event()?,
            done: event()?,
        })
    }

    /// Launches what replaces a gradient by what the weights are to be moved by, times minus the learning rate.
    ///
    /// # Safety
    /// The arrays must have all weights, and live until the stream has come to it.
    pub(super) unsafe fn launch(&self, gpu: &Gpu, state: State, by: Orthogonal) -> Result<(), GpuError> {
        let State {
            gradient,
            first,
            second,
            report,
        } = state;
        let (chunks, blocks) = (self.chunks.at(), self.blocks.at());
        let turns = Turns {
            step: (by.step % self.every) as u32,
            every: self.every as u32,
        };
        let (rule, rate) = for_others(by.muon);
        let others = DirectOthers {
            others: self.others.at(),
            count: self.other_count as u32,
            by: Factors::new(rule, -rate, by.step, Ahead::default()).into(),
            report,
            gradient,
            first,
            second,
        };
        let gather = MuonGather {
            chunks,
            blocks,
            turns,
            momentum: by.muon.momentum,
            report,
            gradient,
            velocity: first,
            products: self.products.at(),
        };
        let iterate = MuonIterate {
            blocks,
            block_count: self.block_count as u32,
            turns,
            iterations: by.muon.steps,
            products: self.products.at(),
            factors: self.factors.at(),
        };
        let turn = MuonTurn {
            chunks,
            blocks,
            turns,
            factors: self.factors.at(),
            gradient,
        };
        let each_chunk = Grid::row(self.chunk_count, THREADS);
        let each_turn = Grid::row(self.block_count.div_ceil(self.every as usize), THREADS);
        let kernels = &gpu.kernels;
        self.begun.record(&gpu.stream)?;
        // SAFETY: blocks, chunks and others lie within the weights, and each has its room.
        unsafe {
            gpu.launch(&kernels.direct_others, Grid::each(self.other_count), others)?;
            gpu.launch(&kernels.muon_gather, each_chunk, gather)?;
            gpu.launch(&kernels.muon_iterate, each_turn, iterate)?;
            gpu.launch(&kernels.muon_turn, each_chunk, turn)?;
        }
        Ok(self.done.record(&gpu.stream)?)
    }

    /// The device's time for what was launched last, once the stream has come to it.
    pub(super) fn time(&self) -> Result<Duration, GpuError> {
        let milliseconds = self.begun.elapsed_ms(&self.done)?;
        Ok(Duration::from_secs_f32(milliseconds.max(0.0) / 1e3))
    }
}

/// Blocks and their chunks as the kernels see them.
fn cut(blocks: &[Block]) -> Result<(Vec<abi::Block>, Vec<Chunk>), GpuError> {
    let mut chunks = Vec::new();
    let mut cut = Vec::new();
    for (number, block) in (0..).zip(blocks) {
        let Block {
            offset,
            rows,
            columns,
            scale,
        } = *block;
        let (size, length) = (rows.min(columns), rows.max(columns));
        if size > SIDE as usize {
            return Err(GpuError::BlockTooLarge(SIDE));
        }
        let (across, along) = if rows <= columns { (columns, 1) } else { (1, columns) };
        cut.push(abi::Block {
            offset: offset as u32,
            size: size as u32,
            length: length as u32,
            across: across as u32,
            along: along as u32,
            first_chunk: chunks.len() as u32,
            scale,
        });
        let firsts = (0..length as u32).step_by(SIDE as usize);
        chunks.extend(firsts.map(|first| Chunk { block: number, first }));
    }
    Ok((cut, chunks))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(offset: usize, rows: usize, columns: usize) -> Block {
        Block {
            offset,
            rows,
            columns,
            scale: 1.0,
        }
    }

    #[test]
    fn every_weight_of_a_block_is_in_one_chunk() {
        let blocks = [
            block(7, 64, 130),
            block(7 + 64 * 130, 10, 64),
            block(9000, 30, 5),
            block(9150, 64, 64),
        ];
        let (cut, chunks) = cut(&blocks).unwrap();
        let mut seen = Vec::new();
        for (number, chunk) in chunks.iter().enumerate() {
            let block = cut[chunk.block as usize];
            assert_eq!(number as u32, block.first_chunk + chunk.first / SIDE);
            for row in 0..block.size {
                for column in chunk.first..block.length.min(chunk.first + SIDE) {
                    seen.push((block.offset + row * block.across + column * block.along) as usize);
                }
            }
        }
        seen.sort_unstable();
        let mut expected: Vec<usize> = blocks.iter().flat_map(Block::range).collect();
        expected.sort_unstable();
        assert_eq!(seen, expected);
    }

    #[test]
    fn blocks_that_have_no_room_are_refused() {
        assert!(matches!(cut(&[block(0, 65, 65)]), Err(GpuError::BlockTooLarge(64))));
        assert!(cut(&[block(0, 65, 64)]).is_ok());
    }
}
