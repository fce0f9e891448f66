//! The fused pass after a gradient: optimiser and quantiser, in blocks that stay in the first-level cache.
//!
//! A worker moves its own copy of the weights as a plain optimiser would. In every step a part of it is compared with
//! the shared weights, and what has moved away by τ leaves as changes. The parts take turns: a weight that waits for τ
//! for dozens of steps can wait for three more, comparing costs a quarter, and changes that stand closer together take
//! fewer bits. Only small tensors, biases and last layers, are compared in every step: each of their weights matters to
//! all that the model does, and moves often.

use std::ops::Range;
use std::time::Duration;

use multiversion::multiversion;
use protocol::changes::CHANGES_MAX;
use protocol::lattice::Tau;
use protocol::optimiser::Rule;

use super::residual;
use super::turns::{BLOCK, Turns, eager_blocks};
use crate::learning::optimiser::{self, Ahead, Scale};
use crate::ops::Threads;
use crate::parts::map_parts;
use crate::quantise::{ComeTo, NotFinite, quantise};
use crate::thread_time::ThreadTimer;
use crate::trainer::{Numbers, StateError, TrainerState};

/// With fewer weights than this per thread, sharing out the work costs more than it saves.
const WEIGHTS_PER_THREAD_MIN: usize = 1 << 16;
/// Rows of fewer blocks than this are not timed: a clock's own time would count.
const TIMED_BLOCKS_MIN: usize = 16;
/// Both copies of the weights: the worker's own, which gradients are computed at and which moves with every step, and
/// the shared one, which lies on the lattice and moves by changes alone. What they differ by is the residual.
pub(super) struct Copies<'a> {
    pub(super) own: &'a mut [f32],
    pub(super) shared: &'a [f32],
}

/// What a worker keeps beside the weights: the optimiser's state.
#[derive(Debug)]
pub(super) struct UpdateState {
    first: Vec<f32>,
    second: Vec<f32>,
    /// The multiple of the velocity that the own weights are ahead.
    ahead: f32,
    turns: Turns,
    /// The blocks that are compared whoever's turn it is.
    eager: Vec<bool>,
    /// Weights per thread.
    part: usize,
    /// What each thread lets out, kept so that no step allocates.
    part_words: Vec<Vec<u32>>,
    words_max: usize,
}

impl UpdateState {
    /// State for so many weights, of which those in some ranges are compared in every step.
    pub(super) fn new(rule: Rule, weights: usize, eager: impl Iterator<Item = Range<usize>>, threads: Threads) -> Self {
        let array = |wanted: bool| vec![0.0; if wanted { weights } else { 0 }];
        let part = weights.div_ceil(threads.0.max(1)).max(WEIGHTS_PER_THREAD_MIN);
        // Whole blocks, so that these are the same however many threads there are.
        let part = part.next_multiple_of(BLOCK);
        Self {
            first: array(rule.state_arrays() > 0),
            second: array(rule.state_arrays() > 1),
            ahead: 0.0,
            turns: Turns::new(weights),
            eager: eager_blocks(weights, eager),
            part,
            part_words: vec![Vec::new(); weights.div_ceil(part)],
            words_max: CHANGES_MAX,
        }
    }

    /// Moves the own weights by a gradient and replaces the contents of `words` by the changes that leave; none do
    /// without a τ. The own weights end `look_ahead` updates of the present velocity ahead.
    ///
    /// Returns what the pass would have taken without comparing anything, where some of it did not: that much of it is
    /// what a plain optimiser does.
    pub(super) fn step(
        &mut self,
        gradient: &[f32],
        (rule, mut scale): (Rule, Scale),
        look_ahead: f32,
        Copies { own, shared }: Copies<'_>,
        tau: Option<Tau>,
        words: &mut Vec<u32>,
    ) -> Result<Option<Duration>, NotFinite> {
        scale.ahead = Ahead {
            before: self.ahead,
            after: if rule.has_velocity() {
                look_ahead * scale.learning_rate
            } else {
                0.0
            },
        };
        self.ahead = scale.ahead.after;
        let turn = tau.map(|_| self.turns.next());
        let compare = tau.zip(turn).map(|(tau, turn)| Compare {
            tau,
            turn,
            eager: &self.eager,
            words_max: self.words_max,
            weights: gradient.len(),
        });

        let part = self.part;
        let mut first = self.first.chunks_mut(part);
        let mut second = self.second.chunks_mut(part);
        let parts = gradient
            .chunks(part)
            .zip(own.chunks_mut(part).zip(shared.chunks(part)))
            .zip(std::mem::take(&mut self.part_words))
            .enumerate()
            .map(|(at, ((gradient, (own, shared)), words))| Part {
                offset: at * part,
                gradient,
                first: first.next().unwrap_or_default(),
                second: second.next().unwrap_or_default(),
                copies: Copies { own, shared },
                words,
            })
            .collect();
        let results = map_parts(parts, |part: Part<'_>| part.step(rule, scale, compare.as_ref()));
        words.clear();
        let mut all = Ok(());
        let mut plain = Plain::default();
        for done in results {
            all = all.and(done.result);
            plain.time += done.plain.time;
            plain.weights += done.plain.weights;
            // Parts are in the order of their indices, so their words are too.
            words.extend_from_slice(&done.words);
            self.part_words.push(done.words);
        }
        all.map(|()| plain.scaled_to(own.len()))
    }

    /// Replaces the contents of `words` by what leaves as the weights stand, without a step and whoever's turn it is.
    pub(super) fn release(&self, own: &[f32], shared: &[f32], tau: Tau, words: &mut Vec<u32>) -> Result<(), NotFinite> {
        words.clear();
        let compare = Compare {
            tau,
            turn: 0..own.len(),
            eager: &[],
            words_max: self.words_max,
            weights: own.len(),
        };
        let mut velocity = self.first.chunks(BLOCK);
        for (block, (own, shared)) in own.chunks(BLOCK).zip(shared.chunks(BLOCK)).enumerate() {
            let velocity = velocity.next().unwrap_or_default();
            compare.block((own, shared), velocity, self.ahead, (0, block * BLOCK), words)?;
        }
        Ok(())
    }

    /// What a window of the own weights has come to.
    pub(super) fn come_to<'a>(&'a self, own: &'a [f32], window: Range<usize>) -> ComeTo<'a> {
        match self.ahead {
            0.0 => ComeTo::the(&own[window]),
            ahead => ComeTo::behind(&own[window.clone()], ahead, &self.first[window]),
        }
    }

    /// What this worker alone has: the residual, what rounding took from it, and the optimiser's arrays.
    pub(super) fn save(&self, own: &[f32], shared: &[f32]) -> TrainerState {
        let (residual, rest) = residual::taken_apart(own, shared);
        let kept = [&self.first, &self.second]
            .into_iter()
            .filter(|array| !array.is_empty());
        TrainerState {
            numbers: Numbers {
                ahead: self.ahead,
                turns: self.turns.done as u64,
            },
            arrays: [residual, rest].into_iter().chain(kept.cloned()).collect(),
        }
    }

    /// Goes on from what [`UpdateState::save`] gave, at whatever shared weights.
    pub(super) fn restore(
        &mut self,
        state: TrainerState,
        Copies { own, shared }: Copies<'_>,
    ) -> Result<(), StateError> {
        let kept = [&self.first, &self.second]
            .iter()
            .filter(|array| !array.is_empty())
            .count();
        state.check(2 + kept, own.len())?;
        let TrainerState { numbers, arrays } = state;
        let mut arrays = arrays.into_iter();
        let mut next = || arrays.next().unwrap_or_default();
        let (residual, rest) = (next(), next());
        residual::put_together(&residual, &rest, shared, own);
        self.first = next();
        self.second = next();
        self.ahead = numbers.ahead;
        self.turns.done = numbers.turns as usize;
        Ok(())
    }

    /// What has not been emitted, of every so many-th weight.
    fn residuals<'a>(&'a self, own: &'a [f32], shared: &'a [f32], step: usize) -> impl Iterator<Item = f32> + 'a {
        (0..own.len()).step_by(step).map(|i| {
            let velocity = self.first.get(i).copied().unwrap_or_default();
            own[i] + self.ahead * velocity - shared[i]
        })
    }

    /// An even sample of the residual.
    fn residual_sample(&self, own: &[f32], shared: &[f32]) -> Vec<f32> {
        self.residuals(own, shared, residual::sample_step(own.len())).collect()
    }

    /// The norm of the residual, estimated from a sample.
    pub(super) fn residual_norm(&self, own: &[f32], shared: &[f32]) -> f64 {
        residual::norm(&self.residual_sample(own, shared), own.len())
    }

    /// The magnitude that a fraction of the residual reaches, estimated from a sample.
    pub(super) fn residual_quantile(&self, own: &[f32], shared: &[f32], fraction: f64) -> f64 {
        residual::quantile(self.residual_sample(own, shared), fraction)
    }
}

/// One thread's part of everything. State that the rule does not keep is empty.
struct Part<'a> {
    /// The index of its first weight.
    offset: usize,
    gradient: &'a [f32],
    first: &'a mut [f32],
    second: &'a mut [f32],
    copies: Copies<'a>,
    words: Vec<u32>,
}

impl Part<'_> {
    fn step(mut self, rule: Rule, scale: Scale, compare: Option<&Compare<'_>>) -> Done {
        self.words.clear();
        let mut result = Ok(());
        let mut plain = Plain::default();
        let mut update = [0.0; BLOCK];
        let mut first = self.first.chunks_mut(BLOCK);
        let mut second = self.second.chunks_mut(BLOCK);
        let copies = self.copies.own.chunks_mut(BLOCK).zip(self.copies.shared.chunks(BLOCK));
        let mut blocks = self.gradient.chunks(BLOCK).zip(copies).enumerate().peekable();
        // Row by row of blocks that are alike, compared or not.
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
                optimiser::update(rule, scale, gradient, first, second, update);
                add(update, own);
                weights += own.len();
                if let Some(compare) = compare {
                    let place = (self.offset, self.offset + block * BLOCK);
                    let done = compare.block((own, shared), first, scale.ahead.after, place, &mut self.words);
                    result = result.and(done);
                }
            }
            if compare.is_none() && weights >= TIMED_BLOCKS_MIN * BLOCK {
                plain.time += timer.elapsed();
                plain.weights += weights;
            }
        }
        Done {
            words: self.words,
            result,
            plain,
        }
    }
}

/// What a part's step did.
struct Done {
    words: Vec<u32>,
    result: Result<(), NotFinite>,
    plain: Plain,
}

/// How long the blocks took that were not compared.
#[derive(Default)]
struct Plain {
    time: Duration,
    weights: usize,
}

impl Plain {
    /// What all weights would have taken.
    fn scaled_to(&self, weights: usize) -> Option<Duration> {
        (self.weights > 0).then(|| self.time.mul_f64(weights as f64 / self.weights as f64))
    }
}

/// A comparison of both copies: at which τ, and of which weights.
struct Compare<'a> {
    tau: Tau,
    turn: Range<usize>,
    eager: &'a [bool],
    words_max: usize,
    weights: usize,
}

impl Compare<'_> {
    /// Whether the block that begins at an index is compared.
    fn includes(&self, index: usize) -> bool {
        self.turn.contains(&index) || self.eager.get(index / BLOCK).is_some_and(|&eager| eager)
    }

    /// Compares a block. `start` is the index where `words` began to be filled, `index` that of the
    /// block's first weight.
    fn block(
        &self,
        (own, shared): (&[f32], &[f32]),
        velocity: &[f32],
        ahead: f32,
        (start, index): (usize, usize),
        words: &mut Vec<u32>,
    ) -> Result<(), NotFinite> {
        let words_max = self.allowance(index + own.len()) - self.allowance(start);
        let come_to = match ahead {
            0.0 => ComeTo::the(own),
            _ => ComeTo::behind(own, ahead, velocity),
        };
        quantise(come_to, shared, self.tau, index, words_max, words)
    }

    /// Shares out what a batch can hold evenly over the weights, so that no part of a model waits for ever behind
    /// another: how many changes the weights below an index may have.
    fn allowance(&self, index: usize) -> usize {
        (self.words_max as u64 * index as u64 / self.weights.max(1) as u64) as usize
    }
}

/// `target += values`
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn add(values: &[f32], target: &mut [f32]) {
    for (target, value) in target.iter_mut().zip(values) {
        *target += value;
    }
}

#[cfg(test)]
mod tests {
    use protocol::changes::apply_to_weights;

    use super::*;
    use crate::backend::turns::{TURNS, WEIGHTS_PER_TURN_MIN};

    const SCALE: Scale = Scale::new(0.5, 1.0, 1);
    const TAU: Tau = Tau::from_steps(400_000).unwrap();

    /// A small tensor, about which a block begins and ends.
    const EAGER: Range<usize> = 2000..2100;

    fn gradient(len: usize) -> Vec<f32> {
        (0..len).map(|i| ((i * 7919) % 2001) as f32 / 1000.0 - 1.0).collect()
    }

    /// A worker's arrays, for a few steps.
    struct Worker {
        state: UpdateState,
        own: Vec<f32>,
        shared: Vec<f32>,
        words: Vec<u32>,
    }

    impl Worker {
        fn new(rule: Rule, len: usize, threads: usize) -> Self {
            Self {
                state: UpdateState::new(
                    rule,
                    len,
                    Some(EAGER).filter(|it| it.end <= len).into_iter(),
                    Threads(threads),
                ),
                own: vec![0.0; len],
                shared: vec![0.0; len],
                words: Vec::new(),
            }
        }

        fn step(&mut self, gradient: &[f32], rule: Rule, look_ahead: f32, tau: Option<Tau>) -> Result<(), NotFinite> {
            let copies = Copies {
                own: &mut self.own,
                shared: &self.shared,
            };
            self.state
                .step(gradient, (rule, SCALE), look_ahead, copies, tau, &mut self.words)?;
            if let Some(tau) = tau {
                apply_to_weights(&self.words, tau, &mut self.shared).unwrap();
            }
            Ok(())
        }
    }

    const RULES: [Rule; 3] = [
        Rule::Sgd,
        Rule::Momentum { momentum: 0.5 },
        Rule::Adam {
            beta1: 0.9,
            beta2: 0.99,
            epsilon: 1e-8,
        },
    ];

    #[test]
    fn threads_and_blocks_change_nothing() {
        let len = 2 * WEIGHTS_PER_THREAD_MIN + 777;
        let gradient = gradient(len);
        for rule in RULES {
            let run = |threads| {
                let mut worker = Worker::new(rule, len, threads);
                let mut all = Vec::new();
                for _ in 0..6 {
                    worker.step(&gradient, rule, 2.0, Some(TAU)).unwrap();
                    all.extend_from_slice(&worker.words);
                }
                (all, worker.own)
            };
            let one = run(1);
            assert!(!one.0.is_empty());
            assert_eq!(one, run(3), "{rule:?}");
        }
    }

    #[test]
    fn without_tau_everything_stays() {
        let gradient = gradient(5000);
        let mut worker = Worker::new(Rule::Sgd, 5000, 1);
        worker.words.push(1);
        worker.step(&gradient, Rule::Sgd, 2.0, None).unwrap();
        assert!(worker.words.is_empty());
        assert!(worker.own.iter().zip(&gradient).all(|(own, g)| *own == -0.5 * g));
        let tau = worker.state.residual_quantile(&worker.own, &worker.shared, 0.01);
        let reached = worker.own.iter().filter(|own| f64::from(own.abs()) >= tau).count();
        assert!(
            (40..=60).contains(&reached),
            "{reached} of 5000 reach the quantile of a hundredth"
        );
    }

    #[test]
    fn looking_ahead_changes_where_gradients_are_taken_and_not_what_leaves() {
        // With gradients that do not depend on the point, both ways of training are the same.
        let len = 4 * WEIGHTS_PER_TURN_MIN;
        let gradient: Vec<f32> = gradient(len).iter().map(|g| g / 10.0).collect();
        let tau = Some(Tau::from_steps(40_000).unwrap());
        for rule in [Rule::Momentum { momentum: 0.5 }, Rule::Nesterov { momentum: 0.75 }] {
            let mut plain = Worker::new(rule, len, 1);
            let mut ahead = Worker::new(rule, len, 1);
            for step in 0..12 {
                plain.step(&gradient, rule, 0.0, tau).unwrap();
                ahead.step(&gradient, rule, 2.0, tau).unwrap();
                let far = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(far(&plain.own, &ahead.own) > 0.05, "step {step}");
                let undone: Vec<f32> = ahead.state.residuals(&ahead.own, &ahead.shared, 1).collect();
                let residual: Vec<f32> = plain.state.residuals(&plain.own, &plain.shared, 1).collect();
                // Rounding may let a change leave one turn earlier or later.
                let differ = undone
                    .iter()
                    .zip(&residual)
                    .filter(|(a, b)| (*a - *b).abs() > 1e-4)
                    .count();
                assert!(differ < len / 200, "{differ} differ after step {step}");
            }
        }
    }

    #[test]
    fn everyone_has_a_turn() {
        let len = 4 * WEIGHTS_PER_TURN_MIN + 5;
        let mut worker = Worker::new(Rule::Sgd, len, 1);
        let mut seen = Vec::new();
        for turn in 0..TURNS {
            worker.step(&vec![1.0; len], Rule::Sgd, 0.0, Some(TAU)).unwrap();
            let mut indices: Vec<usize> = worker.words.iter().map(|word| (word >> 1) as usize).collect();
            indices.dedup();
            assert!(indices.len() < len / 3, "turn {turn} has {}", indices.len());
            let eager = |index: &usize| (BLOCK..3 * BLOCK).contains(index);
            assert_eq!(
                indices.iter().filter(|index| eager(index)).count(),
                2 * BLOCK,
                "turn {turn}"
            );
            seen.extend(indices);
        }
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, (0..len).collect::<Vec<_>>());
        // Small models are compared as a whole.
        let mut worker = Worker::new(Rule::Sgd, 100, 1);
        worker.step(&[1.0; 100], Rule::Sgd, 0.0, Some(TAU)).unwrap();
        assert_eq!(worker.words.len(), 100);
    }

    #[test]
    fn a_full_batch_is_shared_out_evenly() {
        let len = 2 * WEIGHTS_PER_THREAD_MIN;
        let gradient = vec![1.0; len];
        for threads in [1, 2] {
            let mut worker = Worker::new(Rule::Sgd, len, threads);
            worker.state.words_max = 1000;
            worker.step(&gradient, Rule::Sgd, 0.0, None).unwrap();
            worker
                .state
                .release(&worker.own, &worker.shared, TAU, &mut worker.words)
                .unwrap();
            assert_eq!(worker.words.len(), 1000);
            let early = worker
                .words
                .iter()
                .filter(|&&word| ((word >> 1) as usize) < len / 2)
                .count();
            assert_eq!(early, 500, "{threads} threads");
            for _ in 0..TURNS {
                worker.step(&gradient, Rule::Sgd, 0.0, Some(TAU)).unwrap();
                assert!((1..=1000).contains(&worker.words.len()));
            }
        }
    }

    #[test]
    fn a_saved_state_goes_on_to_the_bit() {
        // Four turns, and look-ahead: what else has to come back shows.
        let len = 4 * WEIGHTS_PER_TURN_MIN + 5;
        let gradient: Vec<f32> = gradient(len).iter().map(|g| g / 7.0).collect();
        for rule in RULES {
            let mut worker = Worker::new(rule, len, 1);
            for _ in 0..6 {
                worker.step(&gradient, rule, 2.0, Some(TAU)).unwrap();
            }
            let state = worker.state.save(&worker.own, &worker.shared);
            let mut other = Worker::new(rule, len, 1);
            other.shared.clone_from(&worker.shared);
            let mut restore = |state: TrainerState| {
                let copies = Copies {
                    own: &mut other.own,
                    shared: &other.shared,
                };
                other.state.restore(state, copies)
            };
            let mut short = state.clone();
            short.arrays[1].pop();
            let error = StateError::Weights {
                found: len - 1,
                needed: len,
            };
            assert_eq!(restore(short), Err(error));
            let mut fewer = state.clone();
            fewer.arrays.pop();
            assert!(matches!(restore(fewer), Err(StateError::Arrays { .. })));
            let mut spoilt = state.clone();
            spoilt.arrays[0][7] = f32::NAN;
            assert_eq!(restore(spoilt), Err(StateError::NotFinite));
            assert!(
                other.own.iter().all(|own| *own == 0.0),
                "what was refused had an effect"
            );
            let copies = Copies {
                own: &mut other.own,
                shared: &other.shared,
            };
            other.state.restore(state, copies).unwrap();
            for _ in 0..6 {
                assert_eq!(other.own, worker.own, "{rule:?}");
                worker.step(&gradient, rule, 2.0, Some(TAU)).unwrap();
                other.step(&gradient, rule, 2.0, Some(TAU)).unwrap();
                assert!(!worker.words.is_empty());
                assert_eq!(other.words, worker.words, "{rule:?}");
            }
        }
    }

    #[test]
    fn a_residual_comes_back_to_the_bit_and_moves_with_the_shared_weights() {
        let step = Tau::ONE_STEP.value();
        let shared = [0.0, 1.0, 1.0, -15.999, step, -3.0 * step, 0.5, 7.25];
        let own = [1e-30, 1e-9, -0.333, 0.1, 0.7 * step, 1e-12, 0.500_001, 7.25];
        let shared = shared.map(|weight| (weight / step).round() * step);
        let state = UpdateState::new(Rule::Sgd, own.len(), std::iter::empty(), Threads(1));
        let saved = state.save(&own, &shared);
        let restored = |shared: &[f32]| {
            let mut own = vec![9.0; own.len()];
            let mut state = UpdateState::new(Rule::Sgd, own.len(), std::iter::empty(), Threads(1));
            let copies = Copies { own: &mut own, shared };
            state.restore(saved.clone(), copies).unwrap();
            own
        };
        assert_eq!(restored(&shared), own);
        assert_ne!(saved.arrays[1], [0.0; 8], "no difference was too long for one float");
        let moved = restored(&shared.map(|weight| weight + 100.0 * step));
        for (moved, own) in moved.iter().zip(own) {
            assert!((moved - own - 100.0 * step).abs() < step / 8.0, "{own} became {moved}");
        }
    }

    #[test]
    fn what_is_no_number_is_reported() {
        let mut gradient = vec![0.0; 5000];
        gradient[4321] = f32::NAN;
        let mut worker = Worker::new(Rule::Sgd, 5000, 1);
        assert_eq!(worker.step(&gradient, Rule::Sgd, 0.0, Some(TAU)), Err(NotFinite));
    }
}
