//! The arrays of a worker on a GPU, and the order in which kernels go over them.

use std::borrow::Cow;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use protocol::job::model::Layout;
use protocol::job::optimiser::{Muon, Rule};
use protocol::weights::changes::CHANGES_MAX;
use protocol::weights::contribution::Contribution;
use protocol::weights::dense::Dense;
use protocol::weights::digest::Digest;
use protocol::weights::lattice::{Range, RangeError, Tau, weight_of};
use protocol::weights::sums::Sums;

use super::abi::{self, Report};
use super::address::DeviceAddress;
use super::error::GpuError;
use super::gpu::{Gpu, Grid};
use super::gradient_source::{CudaGradientSource, Loss};
use super::inbox::{Inbox, Target};
use super::kernels::{self, CountDue, Emit, LossAndClip, SampleResidual, SumSquares, TellHost};
use super::memory::{Array, Pinned};
use super::muon::{Directions, State};
use super::stage::CudaLayers;
use super::weights::OwnWeights;
use crate::backend::turns::{BLOCK, eager_blocks, eager_tensors};
use crate::backend::{self, Backend, Compare, Orthogonal, Update, Updated};
use crate::learning::muon::MuonBlocks;
use crate::learning::optimiser::Formula;
use crate::stage::{Advance, HoldsStage, StageArrays, StageModel};
use crate::trainer::quantise::{REPEATS_MAX, Reached};
use crate::trainer::{TrainError, difference};

const TILE_THREADS: usize = abi::TILE_THREADS as usize;
/// Blocks that add up squares.
const SQUARE_PARTS: usize = 1024;
/// Blocks that compute a digest.
const DIGEST_BLOCKS: usize = 1024;
/// Blocks that tell the host of a step: as many as keep the bus busy.
const TELLING_BLOCKS: usize = 32;

/// The arrays of a worker, on a GPU.
pub struct CudaBackend<S> {
    gradient_source: S,
    weights: usize,
    /// Blocks of weights; the last one is filled up with zeros, which stay.
    tiles: usize,
    own: OwnWeights,
    shared: Array<f32>,
    gradient: Array<f32>,
    /// The loss that the gradient is of.
    loss: Loss,
    /// The optimiser's state; empty where the rule keeps none.
    first: Array<f32>,
    second: Array<f32>,
    /// Where the rule makes gradients orthogonal.
    directions: Option<Directions>,
    /// A bit for each block that is compared in every step.
    eager: Array<u32>,
    /// What is due in each block, and in each group of blocks.
    counts: Array<u32>,
    groups: Array<u32>,
    words: Array<u32>,
    squares: Array<f64>,
    /// A loss of nothing, where the host knows the true one.
    nothing: Array<f32>,
    /// Two reports: what others' batches do between two steps belongs to the next one.
    reports: Array<Report>,
    steps: u64,
    /// Changes of others that wait. Whoever looks at the weights has them applied first.
    inbox: RefCell<Inbox>,
    told_report: Pinned<Report>,
    told_words: Pinned<u32>,
    /// How far out the shared weights were after the last step.
    range: Range,
    /// Bytes that went over the bus, but for the inbox's.
    bytes: u64,
    gpu: Rc<Gpu>,
}

/// A bit for each block that is compared in every step.
fn eager_bits(layout: &Layout) -> Vec<u32> {
    let blocks = eager_blocks(layout.weights, eager_tensors(layout));
    let message = |blocks: &[bool]| {
        (0..)
            .zip(blocks)
            .fold(0, |bits, (at, &eager)| bits | u32::from(eager) << at)
    };
    blocks.chunks(32).map(message).collect()
}

impl<S: CudaGradientSource> CudaBackend<S> {
    /// Arrays for a layout whose matrices are cut into these parts.
    pub(super) fn of(
        gpu: &Rc<Gpu>,
        gradient_source: impl FnOnce() -> Result<S, TrainError>,
        layout: &Layout,
        counts: &[i32],
        rule: Rule,
        parts: impl FnOnce(Muon) -> MuonBlocks,
    ) -> Result<Self, TrainError> {
        let weights = counts.len();
        let values: Vec<f32> = counts.iter().copied().map(weight_of).collect();
        let tiles = weights.div_ceil(BLOCK);
        let padded = tiles * BLOCK;
        let state = |number: usize| Array::zeros(gpu, if rule.state_arrays() >= number { padded } else { 0 });
        let words_max = CHANGES_MAX.min(padded * REPEATS_MAX as usize);
        Ok(Self {
            weights,
            tiles,
            own: OwnWeights::new(Array::padded(gpu, &values, padded)?, weights)?,
            shared: Array::padded(gpu, &values, padded)?,
            gradient: Array::zeros(gpu, padded)?,
            loss: Loss::Known(0.0),
            first: state(1)?,
            second: state(2)?,
            directions: match rule {
                Rule::Muon(muon) => Some(Directions::new(gpu, &parts(muon))?),
                _ => None,
            },
            eager: Array::padded(gpu, &eager_bits(layout), 0)?,
            counts: Array::zeros(gpu, tiles)?,
            groups: Array::zeros(gpu, tiles.div_ceil(abi::GROUP as usize))?,
            words: Array::zeros(gpu, words_max)?,
            squares: Array::zeros(gpu, SQUARE_PARTS)?,
            nothing: Array::zeros(gpu, 1)?,
            reports: Array::zeros(gpu, 2)?,
            steps: 0,
            inbox: RefCell::new(Inbox::new(gpu)?),
            told_report: Pinned::zeros(gpu, 1)?,
            told_words: Pinned::zeros(gpu, words_max)?,
            range: Range::Safe,
            bytes: 0,
            // Last: samples take a part of what is left.
            gradient_source: gradient_source()?,
            gpu: Rc::clone(gpu),
        })
    }

    /// Bytes that went over the bus, both ways.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes + size_of::<u32>() as u64 * self.inbox.borrow().sent
    }

    /// The report of the step that is under way, or of the next one, and the one after.
    fn report(&self) -> (DeviceAddress<Report>, DeviceAddress<Report>) {
        let at = |step: u64| self.reports.from((step % 2) as usize);
        (at(self.steps), at(self.steps + 1))
    }

    fn target(&self) -> Target {
        Target {
            shared: self.shared.at(),
            own: self.own.at(),
            report: self.report().0,
        }
    }

    /// Launches what others' changes that wait do to the weights.
    fn apply_waiting(&self) -> Result<(), GpuError> {
        // SAFETY: the target's arrays have all weights, and only what was checked waits.
        unsafe { self.inbox.borrow_mut().send(&self.gpu, self.target()) }
    }

    fn each_tile(&self) -> Grid {
        Grid::row(self.tiles, TILE_THREADS)
    }

    /// Launches what is known of a step before its update: its loss, and how its gradient is clipped.
    fn loss_and_clip(&self, clip: Option<f64>) -> Result<(), GpuError> {
        let kernels = &self.gpu.kernels;
        let parts = if clip.is_some() { SQUARE_PARTS } else { 0 };
        let squares = SumSquares {
            gradient: self.gradient.at(),
            fours: (self.tiles * TILE_THREADS) as u64,
            sums: self.squares.at(),
        };
        let (report, next) = self.report();
        // What the host knows it has looked at itself.
        let (losses, samples) = match self.loss {
            Loss::OnDevice(losses, samples) => (losses, samples),
            Loss::Known(_) => (self.nothing.at(), 1),
        };
        let loss = LossAndClip {
            losses,
            samples: samples as u32,
            sums: self.squares.at(),
            parts: parts as u32,
            norm_max: clip.unwrap_or(0.0),
            report,
            next,
            groups: self.groups.at(),
            group_count: self.groups.len() as u32,
        };
        // SAFETY: the gradient is in whole tiles, and there is a sum for each block; one block looks at the losses and sums
        // that there are.
        unsafe {
            self.gpu
                .launch(&kernels.sum_squares, Grid::row(parts, TILE_THREADS), squares)?;
            self.gpu.launch(&kernels.loss_and_clip, Grid::row(1, 256), loss)
        }
    }

    /// Launches the optimiser's pass; where there is a comparison it counts what is due.
    fn pass(&self, update: &Update, compare: abi::Compare) -> Result<(), GpuError> {
        let kernels = &self.gpu.kernels;
        let kernel = match update.formula {
            Formula::Sgd if update.orthogonal.is_some() => &kernels.update_along,
            Formula::Sgd => &kernels.update_sgd,
            Formula::Velocity => &kernels.update_velocity,
            Formula::Squares => &kernels.update_squares,
            Formula::Adam => &kernels.update_adam,
        };
        let arguments = kernels::Update {
            gradient: self.gradient.at(),
            own: self.own.at(),
            first: self.first.at(),
            second: self.second.at(),
            shared: self.shared.at(),
            eager: self.eager.at(),
            by: update.factors.into(),
            compare,
            report: self.report().0,
            counts: self.counts.at(),
            groups: self.groups.at(),
        };
        // SAFETY: all arrays that the rule has are in whole tiles, one for each block.
        unsafe { self.gpu.launch(kernel, self.each_tile(), arguments) }
    }

    /// Launches a count of what is due as the weights stand.
    fn count_due(&mut self, compare: abi::Compare) -> Result<(), GpuError> {
        self.groups.clear(&self.gpu)?;
        let arguments = CountDue {
            own: self.own.at(),
            velocity: self.first.at(),
            shared: self.shared.at(),
            compare,
            report: self.report().0,
            counts: self.counts.at(),
            groups: self.groups.at(),
        };
        // SAFETY: all arrays are in whole tiles, one for each block.
        unsafe {
            self.gpu
                .launch(&self.gpu.kernels.count_due, self.each_tile(), arguments)
        }
    }

    /// Lets what is due leave: its words in order, and the shared weights moved by them.
    fn emit(&self, compare: abi::Compare) -> Result<(), GpuError> {
        let arguments = Emit {
            own: self.own.at(),
            velocity: self.first.at(),
            shared: self.shared.at(),
            compare,
            tile_counts: self.counts.at(),
            groups: self.groups.at(),
            words_max: self.words.len() as u32,
            report: self.report().0,
            words: self.words.at(),
        };
        // SAFETY: all arrays are in whole tiles, with a count for each; words go where there is room for them.
        unsafe { self.gpu.launch(&self.gpu.kernels.emit, self.each_tile(), arguments) }
    }

    /// Waits for the step, takes its report and the words that leave, and judges it.
    fn finish(&mut self, words: &mut Vec<u32>) -> Result<Report, TrainError> {
        let arguments = TellHost {
            report: self.report().0,
            words: self.words.at(),
            to_report: self.told_report.at(),
            to_words: self.told_words.at(),
        };
        let grid = Grid::row(TELLING_BLOCKS, 256);
        // SAFETY: as many words as can leave have room on both sides, and the host looks when it has waited.
        unsafe { self.gpu.launch(&self.gpu.kernels.tell_host, grid, arguments)? };
        self.gpu.wait()?;
        self.inbox.get_mut().arrived();
        let report = self.told_report[0];
        if report.not_finite != 0 {
            return Err(TrainError::NotFinite);
        }
        if report.left_range != 0 {
            return Err(RangeError.into());
        }
        words.clear();
        words.extend_from_slice(&self.told_words[..report.words as usize]);
        self.bytes += (size_of::<Report>() + size_of_val(&words[..])) as u64;
        self.range = Range::of_weight(f32::from_bits(report.largest))?;
        Ok(report)
    }

    /// Launches what makes the gradient orthogonal, where the rule and this update do. Calibrating updates do not.
    fn direct(&self, orthogonal: Option<Orthogonal>) -> Result<(), GpuError> {
        let (Some(directions), Some(orthogonal)) = (&self.directions, orthogonal) else {
            return Ok(());
        };
        let state = State {
            gradient: self.gradient.at(),
            first: self.first.at(),
            second: self.second.at(),
            report: self.report().0,
        };
        // SAFETY: the arrays have all weights: the rule keeps both arrays of state.
        unsafe { directions.launch(&self.gpu, state, orthogonal) }
    }

    fn array(&self, array: backend::Array) -> &Array<f32> {
        match array {
            backend::Array::Own => self.own.now().array(),
            backend::Array::Shared => &self.shared,
            backend::Array::First => &self.first,
            backend::Array::Second => &self.second,
        }
    }
}

impl<S: CudaGradientSource> Backend for CudaBackend<S> {
    const WORKS_ALONE: bool = S::WORKS_ALONE;

    fn weights(&self) -> usize {
        self.weights
    }

    fn gradient(&mut self, samples: &[u32], key: u64) -> Result<(), TrainError> {
        self.apply_waiting()?;
        self.bytes += size_of_val(samples) as u64;
        let mut gradient = self.gradient.at();
        let loss = self
            .gradient_source
            .gradient(self.own.now(), samples, key, &mut gradient)?;
        self.loss = loss.into();
        match self.loss {
            Loss::Known(loss) if !loss.is_finite() => Err(TrainError::NotFinite),
            _ => Ok(()),
        }
    }

    fn update(&mut self, update: &Update, words: &mut Vec<u32>) -> Result<Updated, TrainError> {
        let since = Instant::now();
        self.apply_waiting()?;
        self.own.will_move(&self.gpu)?;
        self.loss_and_clip(update.clip)?;
        self.direct(update.orthogonal)?;
        let compare = update.compare.as_ref().map(abi::Compare::from);
        self.pass(update, compare.unwrap_or_default())?;
        if let Some(compare) = compare {
            self.emit(compare)?;
        }
        let finished = self.finish(words);
        self.steps += 1;
        self.gpu.worked(since.elapsed());
        let loss = match (finished?, self.loss) {
            (_, Loss::Known(loss)) => loss,
            (report, Loss::OnDevice(..)) => report.loss,
        };
        let launched = update.orthogonal.and(self.directions.as_ref());
        Ok(Updated {
            loss,
            range: self.range,
            directions: launched.map_or(Ok(Duration::ZERO), Directions::time)?,
            exchange: None,
        })
    }

    fn release(&mut self, compare: &Compare, words: &mut Vec<u32>) -> Result<Range, TrainError> {
        self.apply_waiting()?;
        let compare = compare.into();
        self.count_due(compare)?;
        self.emit(compare)?;
        self.finish(words)?;
        Ok(self.range)
    }

    /// Both copies come to the host for it.
    fn take(
        &mut self,
        window: std::ops::Range<usize>,
        ahead: f32,
        contribution: Contribution,
    ) -> Result<(Dense, Range), TrainError> {
        self.apply_waiting()?;
        // A model has many windows, so that none may cost a copy of all weights.
        let first = window.start;
        let mut own = self.own.now().array().read(&self.gpu, window.clone())?;
        let mut shared = self.shared.read(&self.gpu, window.clone())?;
        let (dense, range) = if contribution == Contribution::ALL {
            let velocities = if ahead == 0.0 { 0..0 } else { window };
            let velocity = self.first.read(&self.gpu, velocities)?;
            difference::take(Reached::new(&own, ahead, &velocity), &mut shared, first)?
        } else {
            let taken = difference::take_contribution(&mut own, &mut shared, first, contribution)?;
            self.own.will_move(&self.gpu)?.write_from(&self.gpu, first, &own)?;
            taken
        };
        self.shared.write_from(&self.gpu, first, &shared)?;
        self.range = range;
        Ok((dense, range))
    }

    /// The range is that of the last step: to know it now, everybody would have to wait for the device. A weight that
    /// leaves it fails the next step.
    fn apply(&mut self, words: &[u32], tau: Tau) -> Result<Range, TrainError> {
        self.own.will_move(&self.gpu)?;
        let target = self.target();
        // SAFETY: the words were checked: their indices are below the number of weights.
        unsafe {
            self.inbox
                .get_mut()
                .add_changes(&self.gpu, words, tau.value(), target)?;
        }
        Ok(self.range)
    }

    fn jump(&mut self, sums: &Sums) -> Result<Range, TrainError> {
        self.own.will_move(&self.gpu)?;
        let target = self.target();
        // SAFETY: the entries were checked: each index comes once, and is below the number of weights.
        unsafe { self.inbox.get_mut().add_steps(&self.gpu, sums.entries(), target)? };
        Ok(self.range)
    }

    fn digest(&self) -> Result<Option<Digest>, TrainError> {
        self.apply_waiting()?;
        let sums = Array::<u64>::zeros(&self.gpu, 2)?;
        let arguments = kernels::Digest {
            shared: self.shared.at(),
            weights: self.weights as u64,
            sums: sums.at(),
        };
        // SAFETY: it looks at so many weights.
        unsafe {
            self.gpu
                .launch(&self.gpu.kernels.digest, Grid::row(DIGEST_BLOCKS, 256), arguments)?;
        }
        let found = sums.read(&self.gpu, 0..2)?;
        Ok((found[1] == 0).then_some(Digest(found[0])))
    }

    fn residuals(&self, step: usize, ahead: f32) -> Result<Vec<f32>, TrainError> {
        self.apply_waiting()?;
        let count = self.weights.div_ceil(step);
        let sample = Array::zeros(&self.gpu, count)?;
        let arguments = SampleResidual {
            own: self.own.at(),
            velocity: self.first.at(),
            ahead,
            shared: self.shared.at(),
            step: step as u64,
            count: count as u32,
            sample: sample.at(),
        };
        // SAFETY: the last index is below the number of weights; without a velocity nobody is ahead.
        unsafe {
            self.gpu
                .launch(&self.gpu.kernels.sample_residual, Grid::each(count), arguments)?;
        }
        Ok(sample.read(&self.gpu, 0..count)?)
    }

    fn read(&self, array: backend::Array) -> Result<Cow<'_, [f32]>, TrainError> {
        self.apply_waiting()?;
        Ok(Cow::Owned(self.array(array).read(&self.gpu, 0..self.weights)?))
    }

    fn write(&mut self, array: backend::Array, values: Vec<f32>) -> Result<(), TrainError> {
        self.apply_waiting()?;
        let place = match array {
            backend::Array::Own => self.own.will_move(&self.gpu)?,
            backend::Array::Shared => &mut self.shared,
            backend::Array::First => &mut self.first,
            backend::Array::Second => &mut self.second,
        };
        Ok(place.write(&self.gpu, &values)?)
    }

    fn gpu_memory(&self) -> u64 {
        self.gpu.held.load(Ordering::Relaxed)
    }

    fn gpu_time(&mut self) -> Duration {
        self.gpu.take_busy()
    }
}

impl HoldsStage for CudaBackend<StageModel<CudaLayers>> {
    type Layers = CudaLayers;

    fn stage(&self) -> &StageModel<CudaLayers> {
        &self.gradient_source
    }

    fn stage_mut(&mut self) -> &mut StageModel<CudaLayers> {
        &mut self.gradient_source
    }

    fn advance(&mut self) -> Result<Advance, TrainError> {
        self.apply_waiting()?;
        let mut gradient = self.gradient.at();
        self.gradient_source.advance(StageArrays {
            own: self.own.now(),
            shared: &self.shared,
            gradient: &mut gradient,
        })
    }

    fn begin_evaluation(&mut self) -> Result<(), TrainError> {
        self.apply_waiting()?;
        self.gradient_source.begin_evaluation(&self.shared)
    }

    fn advance_evaluation(&mut self) -> Result<Advance, TrainError> {
        self.apply_waiting()?;
        self.gradient_source.advance_evaluation(&self.shared)
    }
}
