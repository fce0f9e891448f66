//! A worker's arrays on a GPU, and the order in which kernels process them.

use std::borrow::Cow;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cudarc::driver::CudaEvent;
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
use crate::backend::{self, Announced, Backend, Compare, Orthogonal, Update, Updated};
use crate::learning::muon::MuonBlocks;
use crate::learning::optimiser::Formula;
use crate::stage::{Advance, HoldsStage, StageArrays, StageModel};
use crate::trainer::quantise::{REPEATS_MAX, Reached};
use crate::trainer::{TrainError, difference};

const TILE_THREADS: usize = abi::TILE_THREADS as usize;
/// Number of GPU thread blocks that add up squares of the gradient, for its norm.
const SQUARE_PARTS: usize = 1024;
/// Number of GPU thread blocks that compute the digest of the weights.
const DIGEST_BLOCKS: usize = 1024;
/// Number of GPU thread blocks that copy a step's results to the host: as many as keep the bus busy.
const TELLING_BLOCKS: usize = 32;

/// Training backend for GPUs: a worker's weights, gradient and optimiser state, with the source of its gradients.
pub struct CudaBackend<S> {
    gradient_source: S,
    weights: usize,
    /// Number of blocks of weights; the last one is padded with zeros, which stay zero.
    tiles: usize,
    own: OwnWeights,
    shared: Array<f32>,
    gradient: Array<f32>,
    /// Loss of the minibatch that `gradient` was computed on.
    loss: Loss,
    /// The optimiser's first state array, and `second` is its second one; each is empty if the rule does not keep it.
    first: Array<f32>,
    second: Array<f32>,
    /// Makes gradients orthogonal if the optimiser needs that (Muon); else `None`.
    directions: Option<Directions>,
    /// One bit per block of weights: set if every step compares the block with the shared copy.
    eager: Array<u32>,
    /// Number of changes to emit from each block of weights; `groups` has the sums over groups of blocks.
    counts: Array<u32>,
    groups: Array<u32>,
    words: Array<u32>,
    squares: Array<f64>,
    /// A zero on the device that kernels read in place of the samples' losses if the host has computed the loss.
    nothing: Array<f32>,
    /// Results of two successive steps, used in turn: other workers' batches that are applied between two steps count
    /// towards the results of the next step.
    reports: Array<Report>,
    steps: u64,
    /// Other workers' changes that are not applied yet; they are applied before anything reads the weights.
    inbox: RefCell<Inbox>,
    told_report: Pinned<Report>,
    told_words: Pinned<u32>,
    /// Event behind the last kernel that wrote results to host memory.
    told: CudaEvent,
    /// Tells if the shared weights were within the safe range after the last step.
    range: Range,
    /// Bytes copied between host and device, without other workers' changes (the inbox).
    bytes: u64,
    gpu: Rc<Gpu>,
}

/// Returns one bit per block of weights: set if every step compares the block with the shared copy.
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
    /// Makes a backend whose own and shared weights both begin as `counts`: the initial weights as multiples of the
    /// step between two neighbouring values. `parts` cuts the model's matrices into blocks for Muon.
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
            told: gpu.stream.context().new_event(None).map_err(GpuError::from)?,
            range: Range::Safe,
            bytes: 0,
            // Made last, because the samples take a fixed fraction of the memory that is still free.
            gradient_source: gradient_source()?,
            gpu: Rc::clone(gpu),
        })
    }

    /// Bytes copied between host and device so far, in both directions.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes + size_of::<u32>() as u64 * self.inbox.borrow().sent
    }

    /// Returns the device addresses of the results of the present (or, between steps, next) step and of the step after
    /// it.
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

    /// Launches the kernel that applies all waiting changes of other workers to the weights.
    fn apply_waiting(&self) -> Result<(), GpuError> {
        // SAFETY: the target's arrays have all weights, and only checked changes wait.
        unsafe { self.inbox.borrow_mut().send(&self.gpu, self.target()) }
    }

    fn each_tile(&self) -> Grid {
        Grid::row(self.tiles, TILE_THREADS)
    }

    /// Launches the kernels that compute the mean loss and the factor for clipping the gradient.
    fn loss_and_clip(&self, clip: Option<f64>) -> Result<(), GpuError> {
        let kernels = &self.gpu.kernels;
        let parts = if clip.is_some() { SQUARE_PARTS } else { 0 };
        let squares = SumSquares {
            gradient: self.gradient.at(),
            fours: (self.tiles * TILE_THREADS) as u64,
            sums: self.squares.at(),
        };
        let (report, next) = self.report();
        // A loss that the host knows was already checked by the host.
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
        // SAFETY: the gradient consists of whole tiles, and each thread block has a sum; one block reads all losses and
        // sums.
        unsafe {
            self.gpu
                .launch(&kernels.sum_squares, Grid::row(parts, TILE_THREADS), squares)?;
            self.gpu.launch(&kernels.loss_and_clip, Grid::row(1, 256), loss)
        }
    }

    /// Launches the optimiser's pass over all weights; with a comparison the pass also counts the changes to emit.
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
        // SAFETY: all arrays of the rule consist of whole tiles, one per thread block.
        unsafe { self.gpu.launch(kernel, self.each_tile(), arguments) }
    }

    /// Launches a kernel that compares own and shared weights and counts the changes to emit.
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
        // SAFETY: all arrays consist of whole tiles, one per thread block.
        unsafe {
            self.gpu
                .launch(&self.gpu.kernels.count_due, self.each_tile(), arguments)
        }
    }

    /// Launches the kernel that emits all counted changes: it writes them in order and moves the shared weights by
    /// them.
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
        // SAFETY: all arrays consist of whole tiles with a count each; the kernel writes at most `words_max` words.
        unsafe { self.gpu.launch(&self.gpu.kernels.emit, self.each_tile(), arguments) }
    }

    /// Launches the kernel that writes the step's results and the emitted changes to host memory.
    fn tell_host(&self) -> Result<(), GpuError> {
        let arguments = TellHost {
            report: self.report().0,
            words: self.words.at(),
            to_report: self.told_report.at(),
            to_words: self.told_words.at(),
        };
        let grid = Grid::row(TELLING_BLOCKS, 256);
        // SAFETY: both buffers have room for the largest number of changes, and the host reads only after the wait.
        unsafe { self.gpu.launch(&self.gpu.kernels.tell_host, grid, arguments) }
    }

    /// Waits for the step's results, copies them and the emitted changes, and fails if a number was not finite or out
    /// of range.
    fn finish(&mut self, words: &mut Vec<u32>) -> Result<Report, TrainError> {
        self.told.synchronize().map_err(GpuError::from)?;
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

    /// Launches Muon's orthogonalisation of the gradient, if both the rule and this update use it. Calibration updates
    /// do not.
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
        // SAFETY: the arrays have all weights, because Muon keeps both state arrays.
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

    fn update(
        &mut self,
        update: &Update,
        next: Option<Announced<'_>>,
        words: &mut Vec<u32>,
    ) -> Result<Updated, TrainError> {
        let since = Instant::now();
        self.apply_waiting()?;
        self.own.will_move(&self.gpu)?;
        self.loss_and_clip(update.clip)?;
        self.direct(update.orthogonal)?;
        let compare = update.compare.as_ref().map(abi::Compare::from);
        self.pass(update, compare.unwrap_or_default())?;
        // The changes leave beside the next gradient, which reads nothing that they write.
        self.gpu.beside(|| {
            compare.map_or(Ok(()), |compare| self.emit(compare))?;
            self.tell_host()
        })?;
        self.told.record(&self.gpu.side).map_err(GpuError::from)?;
        let loss = self.loss;
        self.steps += 1;
        // The device goes on with the next gradient while the host waits for this step's changes and sends them.
        let begun = next.map_or(Ok(()), |next| self.gradient(next.samples, next.key));
        let finished = self.finish(words);
        self.gpu.worked(since.elapsed());
        let loss = match (finished?, loss) {
            (_, Loss::Known(loss)) => loss,
            (report, Loss::OnDevice(..)) => report.loss,
        };
        begun?;
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
        self.tell_host()?;
        self.told.record(&self.gpu.stream).map_err(GpuError::from)?;
        self.finish(words)?;
        Ok(self.range)
    }

    /// Moves a window of the shared weights towards the own ones, on the host, and returns the movements to emit.
    fn take(
        &mut self,
        window: std::ops::Range<usize>,
        ahead: f32,
        contribution: Contribution,
    ) -> Result<(Dense, Range), TrainError> {
        self.apply_waiting()?;
        // A model has many windows, so each call copies only its own.
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

    /// Queues other workers' changes for the device. The returned range is that of the last step, because the present
    /// one is unknown until the device is waited for. A weight that leaves the range makes the next step fail.
    fn apply(&mut self, words: &[u32], tau: Tau) -> Result<Range, TrainError> {
        self.own.will_move(&self.gpu)?;
        let target = self.target();
        // SAFETY: the changes were checked: their indices are below the number of weights.
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
        // SAFETY: the entries were checked: each index occurs once and is below the number of weights.
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
        // SAFETY: the kernel reads `weights` shared weights.
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
        // SAFETY: the last index is below the number of weights; without velocities `ahead` is 0.
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
