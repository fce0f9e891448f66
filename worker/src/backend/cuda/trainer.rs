//! Training on a GPU: the order of things in a step, and what the host keeps of it.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use protocol::changes::CHANGES_MAX;
use protocol::digest::Digest;
use protocol::lattice::{Range, RangeError, Tau, weight_of};
use protocol::model::Layout;
use protocol::optimiser::{Rule, adam_corrections};
use protocol::rng::splitmix64;
use protocol::sums::Sums;

use super::abi::{self, Compare, Factors, Report};
use super::dataset::DeviceDataset;
use super::error::GpuError;
use super::gpu::{Gpu, Grid};
use super::kernels::{self, Apply, CountDue, Emit, LossAndClip, SampleResidual, Shift, SumSquares, Update};
use super::memory::{Array, At, Pinned, fetch, send};
use super::model::{CudaModel, Purpose};
use super::place::{Place, tensor_at};
use crate::backend::residual;
use crate::backend::turns::{BLOCK, Turns, eager_blocks, eager_tensors};
use crate::dataset::Dataset;
use crate::program::{ImageOrder, Program};
use crate::quantise::{REPEATS_MAX, repeats_max};
use crate::tape::Parameters;
use crate::thread_time::ThreadTimer;
use crate::trainer::{GpuUse, Numbers, StateError, StepControl, StepReport, TrainError, Trainer, TrainerState};

const TILE_THREADS: usize = abi::TILE_THREADS as usize;
const GROUP: usize = abi::GROUP as usize;
/// Blocks that add up squares.
const SQUARE_PARTS: usize = 1024;
/// How often the passes over the weights are timed; the fastest counts.
const CALIBRATIONS: usize = 5;
/// Blocks that compute a digest.
const DIGEST_BLOCKS: usize = 1024;
/// Words of others' batches that may be on their way to the device: what comes between two steps.
const INBOX: usize = 1 << 20;
/// Words that are fetched with the report before anybody knows how many there are.
const GUESS_MIN: usize = 1024;

/// Words of a report.
const REPORT_WORDS: usize = size_of::<Report>() / size_of::<u32>();

impl Report {
    fn of(words: &[u32]) -> Self {
        let [words, not_finite, largest, loss, clip, left_range] = words[..REPORT_WORDS].try_into().unwrap_or_default();
        Self {
            words,
            not_finite,
            largest,
            loss: f32::from_bits(loss),
            clip: f32::from_bits(clip),
            left_range,
        }
    }
}

impl Factors {
    /// What [`Rule::update`] uses, before the clip that only the device knows.
    fn new(rule: Rule, rate: f32, step: u64, ahead_before: f32, ahead_after: f32) -> Self {
        let none = Self {
            rate,
            ..Self::default()
        };
        let squares = |keep: f32, take: f32, epsilon: f32| Self {
            keep,
            take,
            epsilon,
            ..none
        };
        let velocity = |of_gradient: f32, of_velocity: f32, momentum: f32| Self {
            momentum,
            of_gradient,
            of_velocity: of_velocity + ahead_after,
            ahead_before,
            ..none
        };
        match rule {
            Rule::Sgd => none,
            Rule::Momentum { momentum } => velocity(0.0, rate, momentum),
            Rule::Nesterov { momentum } => velocity(rate, rate * momentum, momentum),
            Rule::AdaGrad { epsilon } => squares(1.0, 1.0, epsilon),
            Rule::RmsProp { decay, epsilon } => squares(decay, 1.0 - decay, epsilon),
            Rule::Adam { beta1, beta2, epsilon } => {
                let (rate, spread) = adam_corrections(rate, beta1, beta2, step);
                Self {
                    rate,
                    momentum: beta1,
                    keep: beta2,
                    epsilon,
                    spread,
                    ..none
                }
            }
        }
    }
}

impl Compare {
    fn new(tau: Tau, ahead: f32, turn: std::ops::Range<usize>) -> Self {
        Self {
            tau: tau.value(),
            ahead,
            repeats: repeats_max(tau),
            turn_from: (turn.start / BLOCK) as u32,
            turn_to: turn.end.div_ceil(BLOCK) as u32,
        }
    }
}

/// A step that was begun ahead: on which samples, when, and the time that launching it took.
struct Begun {
    samples: Vec<u32>,
    step: u64,
    since: Instant,
    time: Duration,
}

/// Trains on a GPU.
pub struct CudaTrainer {
    weights: usize,
    /// Blocks of weights; the last one is filled up with zeros, which stay.
    tiles: usize,
    model: CudaModel,
    /// The own weights, as dfdx sees them.
    parameters: Parameters<Place>,
    dataset: DeviceDataset,
    rule: Rule,
    own: Array<f32>,
    shared: Array<f32>,
    gradient: Array<f32>,
    /// The optimiser's state; empty where the rule keeps none.
    first: Array<f32>,
    second: Array<f32>,
    /// A bit for each block that is compared in every step.
    eager: Array<u32>,
    turns: Turns,
    ahead: f32,
    /// What is due in each block, and in each group of blocks.
    counts: Array<u32>,
    groups: Array<u32>,
    words: Array<u32>,
    squares: Array<f64>,
    /// Two reports: what others' batches do between two steps belongs to the next one.
    reports: Array<Report>,
    steps: u64,
    inbox: Array<u32>,
    /// Others' words on their way, and how much of it is taken.
    sent: Pinned,
    sent_len: usize,
    fetched: Pinned,
    guess: usize,
    range: Range,
    dropout_seed: u64,
    /// A step whose gradient the device is already at.
    begun: Option<Begun>,
    /// The shortest step so far.
    shortest: Duration,
    /// What letting changes leave adds to a step.
    exchange: Duration,
    /// Bytes that went over the bus, both ways.
    pub bytes: u64,
    /// Last, so that everything on the device is freed before it.
    gpu: Rc<Gpu>,
}

impl CudaTrainer {
    /// A trainer whose copies both are the given weights.
    pub fn new(
        gpu: Gpu,
        dataset: Arc<Dataset>,
        layout: &Layout,
        counts: &[i32],
        rule: Rule,
        minibatch: usize,
        dropout_seed: u64,
    ) -> Result<Self, TrainError> {
        let gpu = Rc::new(gpu);
        let weights = counts.len();
        let tiles = weights.div_ceil(BLOCK);
        let padded = tiles * BLOCK;
        let values: Vec<f32> = counts.iter().copied().map(weight_of).collect();
        let state = |wanted: bool| Array::zeros(&gpu, if wanted { padded } else { 0 });
        let program = Program::new(layout, ImageOrder::ByChannel);
        let words_max = CHANGES_MAX.min(padded * REPEATS_MAX as usize);
        let mut eager = vec![0u32; tiles.div_ceil(32)];
        let blocks = eager_blocks(weights, eager_tensors(layout));
        for (block, _) in blocks.iter().enumerate().filter(|&(_, &eager)| eager) {
            eager[block / 32] |= 1 << (block % 32);
        }
        let own = Array::padded(&gpu, &values, padded)?;
        let stored = tensor_at(own.at(), (weights,)).map_err(GpuError::from)?;
        let mut trainer = Self {
            weights,
            tiles,
            rule,
            parameters: Parameters::stored(stored).map_err(GpuError::from)?,
            own,
            shared: Array::padded(&gpu, &values, padded)?,
            gradient: Array::zeros(&gpu, padded)?,
            first: state(rule.state_arrays() > 0)?,
            second: state(rule.state_arrays() > 1)?,
            eager: Array::padded(&gpu, &eager, 0)?,
            turns: Turns::new(weights),
            ahead: 0.0,
            counts: Array::zeros(&gpu, tiles)?,
            groups: Array::zeros(&gpu, tiles.div_ceil(GROUP))?,
            words: Array::zeros(&gpu, words_max)?,
            squares: Array::zeros(&gpu, SQUARE_PARTS)?,
            reports: Array::zeros(&gpu, 2)?,
            steps: 0,
            inbox: Array::zeros(&gpu, INBOX)?,
            sent: Pinned::new(&gpu, INBOX)?,
            sent_len: 0,
            fetched: Pinned::new(&gpu, REPORT_WORDS + words_max)?,
            guess: GUESS_MIN.min(words_max),
            range: Range::Safe,
            dropout_seed,
            model: CudaModel::new(&gpu, &program, minibatch, Purpose::Training)?,
            // Last: it takes a part of what is left.
            dataset: DeviceDataset::new(&gpu, dataset, minibatch)?,
            begun: None,
            shortest: Duration::MAX / 2,
            exchange: Duration::ZERO,
            bytes: 0,
            gpu,
        };
        trainer.calibrate()?;
        Ok(trainer)
    }

    /// Times what letting changes leave adds to an optimiser's pass. With a gradient of zeros nothing moves.
    fn calibrate(&mut self) -> Result<(), GpuError> {
        let factors = Factors::new(self.rule, 1.0, 1, 0.0, 0.0);
        let compare = Compare::new(Tau::ONE_STEP, 0.0, self.turns.clone().next());
        let (mut plain, mut full) = (Duration::MAX, Duration::MAX);
        for _ in 0..CALIBRATIONS {
            let timer = ThreadTimer::start();
            self.update(factors, Compare::default())?;
            self.finish(false, &mut Vec::new())?;
            plain = plain.min(timer.elapsed());
            let timer = ThreadTimer::start();
            self.update(factors, compare)?;
            self.emit(compare)?;
            self.finish(true, &mut Vec::new())?;
            full = full.min(timer.elapsed());
        }
        self.exchange = full.saturating_sub(plain);
        self.bytes = 0;
        Ok(())
    }

    /// The report of the step that is under way, or of the next one, and the one after.
    fn report(&self) -> (At<Report>, At<Report>) {
        let at = |step: u64| self.reports.from((step % 2) as usize);
        (at(self.steps), at(self.steps + 1))
    }

    /// Launches forward, loss and backward.
    fn compute(&mut self, samples: &[u32], step: u64) -> Result<(), GpuError> {
        let (x, labels) = (self.model.x(), self.model.labels());
        let images = self.model.images(samples.len());
        // SAFETY: the model has room for the largest minibatch.
        unsafe { self.dataset.gather(&self.gpu, samples, images, x, labels)? };
        self.bytes += 4 * samples.len() as u64;
        let key = splitmix64(self.dropout_seed ^ step);
        self.model
            .descend(&self.parameters, self.gradient.at(), samples.len(), key)
    }

    /// Launches what is known of a step before its update: its loss, and how its gradient is clipped.
    fn weigh(&self, samples: usize, control: &StepControl) -> Result<(), GpuError> {
        let kernels = &self.gpu.kernels;
        let parts = if control.clip.is_some() { SQUARE_PARTS } else { 0 };
        let squares = SumSquares {
            gradient: self.gradient.at(),
            fours: (self.tiles * TILE_THREADS) as u64,
            sums: self.squares.at(),
        };
        let (report, next) = self.report();
        let judge = LossAndClip {
            losses: self.model.losses(),
            samples: samples as u32,
            sums: self.squares.at(),
            parts: parts as u32,
            norm_max: control.clip.unwrap_or(0.0),
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
            self.gpu.launch(&kernels.loss_and_clip, Grid::row(1, 256), judge)
        }
    }

    /// The optimiser's pass; where there is a comparison it counts what is due.
    fn update(&self, factors: Factors, compare: Compare) -> Result<(), GpuError> {
        let kernels = &self.gpu.kernels;
        let kernel = match self.rule {
            Rule::Sgd => &kernels.update_sgd,
            Rule::Momentum { .. } | Rule::Nesterov { .. } => &kernels.update_velocity,
            Rule::AdaGrad { .. } | Rule::RmsProp { .. } => &kernels.update_squares,
            Rule::Adam { .. } => &kernels.update_adam,
        };
        let arguments = Update {
            gradient: self.gradient.at(),
            own: self.own.at(),
            first: self.first.at(),
            second: self.second.at(),
            shared: self.shared.at(),
            eager: self.eager.at(),
            by: factors,
            compare,
            report: self.report().0,
            counts: self.counts.at(),
            groups: self.groups.at(),
        };
        // SAFETY: all arrays that the rule has are in whole tiles, one for each block.
        unsafe { self.gpu.launch(kernel, self.each_tile(), arguments) }
    }

    fn each_tile(&self) -> Grid {
        Grid::row(self.tiles, TILE_THREADS)
    }

    /// Lets what is due leave: its words in order, and the shared weights moved by them.
    fn emit(&self, compare: Compare) -> Result<(), GpuError> {
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

    /// Waits for the step, and takes its report and the words that leave.
    fn finish(&mut self, emitted: bool, words: &mut Vec<u32>) -> Result<Report, GpuError> {
        let guess = if emitted { self.guess } else { 0 };
        let report = At::new(self.report().0.address());
        fetch(&self.gpu, report, &mut self.fetched[..REPORT_WORDS])?;
        fetch(&self.gpu, self.words.at(), &mut self.fetched[REPORT_WORDS..][..guess])?;
        self.gpu.wait()?;
        self.sent_len = 0;
        let report = Report::of(&self.fetched);
        let count = report.words as usize;
        let rest = guess..count.max(guess);
        if !rest.is_empty() {
            let from = self.words.from(rest.start);
            fetch(&self.gpu, from, &mut self.fetched[REPORT_WORDS..][rest])?;
            self.gpu.wait()?;
        }
        self.bytes += 4 * (REPORT_WORDS + guess.max(count)) as u64;
        words.clear();
        words.extend_from_slice(&self.fetched[REPORT_WORDS..][..count]);
        if emitted {
            // A little more than the last time, and no more than an eighth too many.
            self.guess = (count + count / 8).max(GUESS_MIN).min(self.words.len());
        }
        Ok(report)
    }

    /// What of the time since a step was begun the device was at work: a pause in between is none, and shows as a step
    /// that took much longer than others do.
    fn at_work(&mut self, time: Duration) -> Duration {
        self.shortest = self.shortest.min(time);
        time.min(2 * self.shortest)
    }

    /// Judges what a report says of the step.
    fn judge(&mut self, report: &Report) -> Result<(), TrainError> {
        if report.not_finite != 0 {
            return Err(TrainError::NotFinite);
        }
        if report.left_range != 0 {
            return Err(RangeError.into());
        }
        self.range = Range::of_weight(f32::from_bits(report.largest))?;
        Ok(())
    }

    /// Puts words in the device's inbox, which what was launched before may still read.
    fn post(&mut self, words: &[u32]) -> Result<(), GpuError> {
        if self.sent_len + words.len() > self.sent.len() {
            self.gpu.wait()?;
            self.sent_len = 0;
        }
        let place = &mut self.sent[self.sent_len..][..words.len()];
        place.copy_from_slice(words);
        send(&self.gpu, place, self.inbox.at())?;
        self.sent_len += words.len();
        self.bytes += 4 * words.len() as u64;
        Ok(())
    }

    fn residual_sample(&self) -> Result<Vec<f32>, GpuError> {
        let step = residual::sample_step(self.weights);
        let count = self.weights.div_ceil(step);
        let sample = Array::zeros(&self.gpu, count)?;
        let arguments = SampleResidual {
            own: self.own.at(),
            velocity: self.first.at(),
            ahead: self.ahead,
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
        sample.read(&self.gpu, count)
    }
}

impl Trainer for CudaTrainer {
    fn weights(&self) -> usize {
        self.weights
    }

    fn step(&mut self, samples: &[u32], control: StepControl, words: &mut Vec<u32>) -> Result<StepReport, TrainError> {
        let timer = ThreadTimer::start();
        let (before, since) = match self.begun.take() {
            Some(begun) if begun.samples == samples && begun.step == control.step => (begun.time, begun.since),
            _ => {
                let since = Instant::now();
                self.compute(samples, control.step)?;
                (Duration::ZERO, since)
            }
        };
        self.weigh(samples.len(), &control)?;
        let rate = control.learning_rate as f32;
        let after = if control.rule.has_velocity() {
            control.look_ahead as f32 * rate
        } else {
            0.0
        };
        let factors = Factors::new(control.rule, rate, control.step, self.ahead, after);
        self.ahead = after;
        let compare = match control.tau {
            Some(tau) => Compare::new(tau, after, self.turns.next()),
            None => Compare::default(),
        };
        self.update(factors, compare)?;
        if control.tau.is_some() {
            self.emit(compare)?;
        }
        let report = self.finish(control.tau.is_some(), words)?;
        self.steps += 1;
        self.judge(&report)?;
        Ok(StepReport {
            loss: report.loss,
            range: self.range,
            training_time: before
                + timer
                    .elapsed()
                    .saturating_sub(control.tau.map_or(Duration::ZERO, |_| self.exchange)),
            gpu: GpuUse {
                time: self.at_work(since.elapsed()),
                memory: self.gpu.held.load(Ordering::Relaxed),
            },
        })
    }

    const BEGINS: bool = true;

    fn begin(&mut self, samples: &[u32], step: u64) -> Result<(), TrainError> {
        let (timer, since) = (ThreadTimer::start(), Instant::now());
        self.compute(samples, step)?;
        self.begun = Some(Begun {
            samples: samples.to_vec(),
            step,
            since,
            time: timer.elapsed(),
        });
        Ok(())
    }

    fn release(&mut self, tau: Tau, words: &mut Vec<u32>) -> Result<Range, TrainError> {
        let compare = Compare::new(tau, self.ahead, 0..self.weights);
        self.groups.clear(&self.gpu)?;
        let count = CountDue {
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
                .launch(&self.gpu.kernels.count_due, self.each_tile(), count)
                .map_err(TrainError::from)?;
        }
        self.emit(compare)?;
        let report = self.finish(true, words)?;
        self.judge(&report)?;
        Ok(self.range)
    }

    /// The range is that of the last step: to know it now, everybody would have to wait for the device. A weight that
    /// leaves it fails the next step.
    fn apply(&mut self, words: &[u32], tau: Tau) -> Result<Range, TrainError> {
        let mut rest = words;
        while !rest.is_empty() {
            // A weight's words stay together.
            let mut len = rest.len().min(INBOX);
            while 0 < len && len < rest.len() && rest[len] >> 1 == rest[len - 1] >> 1 {
                len -= 1;
            }
            // One that fills the inbox alone is moved in several goes, one after the other.
            let len = if len == 0 { INBOX } else { len };
            let (now, later) = rest.split_at(len);
            self.post(now)?;
            let apply = Apply {
                words: self.inbox.at(),
                count: now.len() as u32,
                tau: tau.value(),
                shared: self.shared.at(),
                own: self.own.at(),
                report: self.report().0,
            };
            // SAFETY: the words were checked: their indices are below the number of weights.
            unsafe { self.gpu.launch(&self.gpu.kernels.apply, Grid::each(now.len()), apply)? };
            rest = later;
        }
        Ok(self.range)
    }

    fn shift(&mut self, sums: &Sums) -> Result<Range, TrainError> {
        for entries in sums.entries().chunks(INBOX / 2) {
            let words: Vec<u32> = entries
                .iter()
                .flat_map(|&(index, steps)| [index, steps as u32])
                .collect();
            self.post(&words)?;
            let shift = Shift {
                entries: self.inbox.at(),
                count: entries.len() as u32,
                shared: self.shared.at(),
                own: self.own.at(),
                report: self.report().0,
            };
            // SAFETY: the entries were checked: each index comes once, and is below the number of weights.
            unsafe {
                self.gpu
                    .launch(&self.gpu.kernels.shift, Grid::each(entries.len()), shift)?;
            }
        }
        Ok(self.range)
    }

    fn copy_weights(&self) -> Result<Vec<f32>, TrainError> {
        Ok(self.shared.read(&self.gpu, self.weights)?)
    }

    fn digest(&self) -> Result<Option<Digest>, TrainError> {
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
        let found = sums.read(&self.gpu, 2)?;
        Ok((found[1] == 0).then_some(Digest(found[0])))
    }

    fn residual_quantile(&self, fraction: f64) -> Result<f64, TrainError> {
        Ok(residual::quantile(self.residual_sample()?, fraction))
    }

    fn residual_norm(&self) -> Result<f64, TrainError> {
        Ok(residual::norm(&self.residual_sample()?, self.weights))
    }

    fn state(&self) -> Result<TrainerState, TrainError> {
        let read = |array: &Array<f32>| array.read(&self.gpu, self.weights);
        let (residual, rest) = residual::taken_apart(&read(&self.own)?, &read(&self.shared)?);
        let mut arrays = vec![residual, rest];
        for array in [&self.first, &self.second].into_iter().take(self.rule.state_arrays()) {
            arrays.push(read(array)?);
        }
        Ok(TrainerState {
            numbers: Numbers {
                ahead: self.ahead,
                turns: self.turns.done as u64,
            },
            arrays,
        })
    }

    fn restore(&mut self, state: TrainerState) -> Result<(), StateError> {
        state.check(2 + self.rule.state_arrays(), self.weights)?;
        self.begun = None;
        let TrainerState { numbers, arrays } = state;
        let device = |error: GpuError| StateError::Device(error.to_string());
        let shared = self.shared.read(&self.gpu, self.weights).map_err(device)?;
        let mut own = vec![0.0; self.weights];
        residual::put_together(&arrays[0], &arrays[1], &shared, &mut own);
        self.own.write(&self.gpu, &own).map_err(device)?;
        for (kept, array) in arrays[2..].iter().zip([&mut self.first, &mut self.second]) {
            array.write(&self.gpu, kept).map_err(device)?;
        }
        self.ahead = numbers.ahead;
        self.turns.done = numbers.turns as usize;
        Ok(())
    }
}
