//! Muon's orthogonal updates on a GPU: chooses the kernels and the parts of the gradient. `kernels/muon.cu` does the
//! arithmetic.

use std::time::Duration;

use cudarc::driver::CudaEvent;
use cudarc::driver::sys::CUevent_flags::CU_EVENT_DEFAULT;

use super::abi::{self, Report, Run, SIDE, Turns};
use super::address::DeviceAddress;
use super::error::GpuError;
use super::gpu::{Gpu, Grid};
use super::kernels::{DirectOthers, MuonGather, MuonIterate, MuonTurn};
use super::memory::Array;
use crate::backend::Orthogonal;
use crate::learning::muon::{Block, MuonBlocks, for_others};
use crate::learning::optimiser::{Ahead, Factors};

/// Number of threads that compute a product of [`SIDE`] by [`SIDE`] numbers, 16 numbers each.
const THREADS: usize = (SIDE * SIDE / 16) as usize;
/// Number of threads that compute a symmetric product, two for each 4×4 tile on or above its diagonal, rounded up to
/// whole warps.
const ITERATING_THREADS: usize = {
    let squares = (SIDE / 4) as usize;
    (squares * (squares + 1)).next_multiple_of(32)
};
/// Number of chunks ([`SIDE`] columns of a matrix block) that keeps any GPU busy. With more chunks, each thread block
/// handles more of them.
const CHUNKS_ENOUGH: usize = 264;
/// Most chunks ([`SIDE`] columns) in a run, the columns that one thread block handles; longer runs would be too few to
/// keep the GPU busy.
const RUN_MAX: usize = 8;
/// Most runs (groups of columns) of a matrix block, because one thread block adds up the products of all of them.
const RUNS_MAX: usize = 36;
/// Number of elements of the [`SIDE`] by [`SIDE`] matrices in which Muon's intermediate results lie.
const SQUARE: usize = (SIDE * SIDE) as usize;

/// The parts of a model that Muon updates on the GPU: matrix blocks, and the runs (groups of columns) that they are cut
/// into, with buffers for intermediate results.
pub(super) struct Directions {
    blocks: Array<abi::Block>,
    block_count: usize,
    runs: Array<Run>,
    run_count: usize,
    every: u64,
    /// Products of the runs (some columns of a matrix block each) with their own transposes, which Muon's iteration
    /// begins with.
    products: Array<f32>,
    /// Matrix that each matrix block is multiplied by to become orthogonal.
    factors: Array<f32>,
    /// Indices of the weights outside of matrices, which Adam updates.
    others: Array<u32>,
    other_count: usize,
    begun: CudaEvent,
    done: CudaEvent,
}

/// Addresses of the arrays that a Muon step reads and updates.
#[derive(Clone, Copy)]
pub(super) struct State {
    pub(super) gradient: DeviceAddress<f32>,
    pub(super) first: DeviceAddress<f32>,
    pub(super) second: DeviceAddress<f32>,
    /// Address of the step's results, which hold the factor for clipping the gradient.
    pub(super) report: DeviceAddress<Report>,
}

impl Directions {
    pub(super) fn new(gpu: &Gpu, parts: &MuonBlocks) -> Result<Self, GpuError> {
        let (blocks, runs) = cut(&parts.blocks)?;
        let others: Vec<u32> = parts
            .others
            .iter()
            .cloned()
            .flatten()
            .map(|weight| weight as u32)
            .collect();
        let event = || gpu.stream.context().new_event(Some(CU_EVENT_DEFAULT));
        Ok(Self {
            products: Array::zeros(gpu, runs.len() * SQUARE)?,
            factors: Array::zeros(gpu, blocks.len() * SQUARE)?,
            block_count: blocks.len(),
            blocks: Array::padded(gpu, &blocks, 0)?,
            run_count: runs.len(),
            runs: Array::padded(gpu, &runs, 0)?,
            every: parts.every,
            other_count: others.len(),
            others: Array::padded(gpu, &others, 0)?,
            begun: event()?,
            done: event()?,
        })
    }

    /// Launches Muon's kernels, which replace a gradient by the direction in which the weights are to move: they then
    /// move by minus the learning rate times this direction.
    ///
    /// # Safety
    /// The arrays must have all weights, and live until the kernels have run.
    pub(super) unsafe fn launch(&self, gpu: &Gpu, state: State, by: Orthogonal) -> Result<(), GpuError> {
        let State {
            gradient,
            first,
            second,
            report,
        } = state;
        let (runs, blocks) = (self.runs.at(), self.blocks.at());
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
            runs,
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
            turns,
            iterations: by.muon.steps,
            products: self.products.at(),
            factors: self.factors.at(),
        };
        let turn = MuonTurn {
            runs,
            blocks,
            turns,
            factors: self.factors.at(),
            gradient,
        };
        let each_run = Grid::row(self.run_count, THREADS);
        let each_block = Grid::row(self.block_count, ITERATING_THREADS);
        let kernels = &gpu.kernels;
        self.begun.record(&gpu.stream)?;
        // SAFETY: blocks, runs and other weights lie within the arrays, and each run and block has its own buffer.
        unsafe {
            gpu.launch(&kernels.direct_others, Grid::each(self.other_count), others)?;
            gpu.launch(&kernels.muon_gather, each_run, gather)?;
            gpu.launch(&kernels.muon_iterate, each_block, iterate)?;
            gpu.launch(&kernels.muon_turn, each_run, turn)?;
        }
        Ok(self.done.record(&gpu.stream)?)
    }

    /// Returns the GPU time of Muon's last launch, valid once the stream was waited for.
    pub(super) fn time(&self) -> Result<Duration, GpuError> {
        let milliseconds = self.begun.elapsed_ms(&self.done)?;
        Ok(Duration::from_secs_f32(milliseconds.max(0.0) / 1e3))
    }
}

/// Converts matrix blocks to the kernels' form, and cuts them into runs (groups of columns).
fn cut(blocks: &[Block]) -> Result<(Vec<abi::Block>, Vec<Run>), GpuError> {
    let side = SIDE as usize;
    let length_of = |block: &Block| block.rows.max(block.columns);
    let chunks: usize = blocks.iter().map(|block| length_of(block).div_ceil(side)).sum();
    let mut runs = Vec::new();
    let mut cut = Vec::new();
    for (at, block) in (0..).zip(blocks) {
        let Block {
            offset,
            rows,
            columns,
            scale,
            number,
        } = *block;
        let (size, length) = (rows.min(columns), length_of(block));
        if size > side {
            return Err(GpuError::BlockTooLarge(SIDE));
        }
        let few = (chunks / CHUNKS_ENOUGH).clamp(1, RUN_MAX);
        let run = side * few.max(length.div_ceil(side * RUNS_MAX));
        let (across, along) = if rows <= columns { (columns, 1) } else { (1, columns) };
        cut.push(abi::Block {
            offset: offset as u32,
            size: size as u32,
            length: length as u32,
            across: across as u32,
            along: along as u32,
            first_run: runs.len() as u32,
            runs: length.div_ceil(run) as u32,
            number: number as u32,
            scale,
        });
        runs.extend((0..length).step_by(run).map(|first| Run {
            block: at,
            first: first as u32,
            end: length.min(first + run) as u32,
        }));
    }
    Ok((cut, runs))
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
            number: 0,
        }
    }

    fn assert_all_are_covered(blocks: &[Block]) {
        let (cut, runs) = cut(blocks).unwrap();
        let mut seen = Vec::new();
        for (number, run) in (0..).zip(&runs) {
            let block = cut[run.block as usize];
            assert!((block.first_run..block.first_run + block.runs).contains(&number));
            for row in 0..block.size {
                for column in run.first..run.end {
                    seen.push((block.offset + row * block.across + column * block.along) as usize);
                }
            }
        }
        seen.sort_unstable();
        let mut expected: Vec<usize> = blocks.iter().flat_map(Block::range).collect();
        expected.sort_unstable();
        assert_eq!(seen, expected);
        assert!(cut.iter().all(|block| block.runs as usize <= RUNS_MAX));
    }

    #[test]
    fn every_weight_of_a_block_is_in_one_run() {
        assert_all_are_covered(&[
            block(7, 64, 130),
            block(7 + 64 * 130, 10, 64),
            block(9000, 30, 5),
            block(9150, 64, 64),
        ]);
        let many: Vec<Block> = (0..70).map(|number| block(number * 2 * 1300, 2, 1300)).collect();
        assert_all_are_covered(&many);
        assert_all_are_covered(&[block(0, 3, 64 * 144 + 1)]);
    }

    #[test]
    fn blocks_that_have_no_room_are_refused() {
        assert!(matches!(cut(&[block(0, 65, 65)]), Err(GpuError::BlockTooLarge(64))));
        assert!(cut(&[block(0, 65, 64)]).is_ok());
    }
}
