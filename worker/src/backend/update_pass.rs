//! The fused pass after a gradient: optimiser, residual, quantiser, in blocks that stay in the first-level cache.
//!
//! The update never exists as a whole: a block of it is computed, added to the residual and forgotten. So the pass
//! moves what a plain optimiser moves, with the residual in the weights' place.

use protocol::changes::CHANGES_MAX;
use protocol::clip::sum_of_squares;
use protocol::lattice::Tau;
use protocol::optimiser::{Rule, Scale};

use crate::ops::Threads;
use crate::parts::map_parts;
use crate::quantise::{NotFinite, quantise};

/// Weights per block: four arrays of it fit into a first-level cache of 32 KiB beside each other.
const BLOCK: usize = 1024;
/// With fewer weights than this per thread, sharing out the work costs more than it saves.
const WEIGHTS_PER_THREAD_MIN: usize = 1 << 16;
/// The sample from which a quantile of the residual is taken: enough for a density of a thousandth to be seen.
const QUANTILE_SAMPLE: usize = 1 << 17;

/// What a worker keeps beside the weights: the optimiser's state and the residual.
#[derive(Debug)]
pub(super) struct UpdateState {
    rule: Rule,
    first: Vec<f32>,
    second: Vec<f32>,
    residual: Vec<f32>,
    /// Weights per thread.
    part: usize,
    /// What each thread lets out, kept so that no step allocates.
    part_words: Vec<Vec<u32>>,
    words_max: usize,
}

impl UpdateState {
    pub(super) fn new(rule: Rule, weights: usize, threads: Threads) -> Self {
        let array = |wanted: bool| vec![0.0; if wanted { weights } else { 0 }];
        let part = weights.div_ceil(threads.0.max(1)).max(WEIGHTS_PER_THREAD_MIN);
        Self {
            rule,
            first: array(rule.state_arrays() > 0),
            second: array(rule.state_arrays() > 1),
            residual: array(true),
            part,
            part_words: vec![Vec::new(); weights.div_ceil(part)],
            words_max: CHANGES_MAX,
        }
    }

    /// Turns a gradient into changes. Without a τ everything stays in the residual.
    pub(super) fn emit(
        &mut self,
        gradient: &[f32],
        rule: Rule,
        scale: Scale,
        tau: Option<Tau>,
        words: &mut Vec<u32>,
    ) -> Result<(), NotFinite> {
        let budget = Budget {
            words_max: self.words_max,
            weights: gradient.len(),
        };
        let part_words = std::mem::take(&mut self.part_words);
        let results = self.over_parts(gradient, None, part_words, |part, residual, offset, mut words| {
            words.clear();
            let mut result = Ok(());
            for_each_block(rule, scale, part, residual, |update, residual, at| {
                let Some(tau) = tau else {
                    residual.iter_mut().zip(update).for_each(|(r, u)| *r += u);
                    return;
                };
                let words_max = budget.between(offset, offset + at + update.len());
                let done = quantise(update, residual, tau, offset + at, words_max, &mut words);
                result = result.and(done);
            });
            (words, result)
        });
        words.clear();
        let mut all = Ok(());
        for (part, result) in results {
            all = all.and(result);
            // Parts are in the order of their indices, so their words are too.
            words.extend_from_slice(&part);
            self.part_words.push(part);
        }
        all
    }

    /// Lets changes leave the residual as it stands, without a new update.
    pub(super) fn release(&mut self, tau: Tau, words: &mut Vec<u32>) -> Result<(), NotFinite> {
        const NOTHING: [f32; BLOCK] = [0.0; BLOCK];
        words.clear();
        let budget = Budget {
            words_max: self.words_max,
            weights: self.residual.len(),
        };
        for (block, residual) in self.residual.chunks_mut(BLOCK).enumerate() {
            let offset = block * BLOCK;
            let words_max = budget.between(0, offset + residual.len());
            quantise(&NOTHING[..residual.len()], residual, tau, offset, words_max, words)?;
        }
        Ok(())
    }

    /// What a worker without exchange would do instead: the optimiser's update, straight into the weights.
    pub(super) fn plain_pass(&mut self, gradient: &[f32], scale: Scale, weights: &mut [f32]) {
        let rule = self.rule;
        let nothing = vec![(); self.part_words.len()];
        self.over_parts(gradient, Some(weights), nothing, |part, weights, _, ()| {
            for_each_block(rule, scale, part, weights, |update, weights, _| {
                weights
                    .iter_mut()
                    .zip(update)
                    .for_each(|(weight, update)| *weight += update);
            });
        });
    }

    /// Calls `work` for every thread's part of the gradient, the state and the target, which is the residual unless
    /// another is given, with the index of its first weight and one of `extras`. The results are in order.
    fn over_parts<E: Send, R: Send>(
        &mut self,
        gradient: &[f32],
        target: Option<&mut [f32]>,
        extras: Vec<E>,
        work: impl Fn(Inputs<'_>, &mut [f32], usize, E) -> R + Send + Sync,
    ) -> Vec<R> {
        let part = self.part;
        let mut first = self.first.chunks_mut(part);
        let mut second = self.second.chunks_mut(part);
        let target = target.unwrap_or(&mut self.residual);
        let parts: Vec<_> = gradient
            .chunks(part)
            .zip(target.chunks_mut(part))
            .zip(extras)
            .enumerate()
            .map(|(at, ((gradient, target), extra))| {
                let state = (first.next().unwrap_or_default(), second.next().unwrap_or_default());
                ((gradient, state.0, state.1), target, at * part, extra)
            })
            .collect();
        map_parts(parts, |(inputs, target, offset, extra)| {
            work(inputs, target, offset, extra)
        })
    }

    pub(super) fn residual_norm(&self) -> f64 {
        sum_of_squares(&self.residual).sqrt()
    }

    /// The magnitude that a fraction of the residual reaches, from an even sample of it.
    pub(super) fn residual_quantile(&self, fraction: f64) -> f64 {
        let step = self.residual.len().div_ceil(QUANTILE_SAMPLE).max(1);
        let mut sample: Vec<f32> = self.residual.iter().step_by(step).map(|r| r.abs()).collect();
        if sample.is_empty() {
            return 0.0;
        }
        let above = ((fraction * sample.len() as f64).ceil() as usize).clamp(1, sample.len());
        let at = sample.len() - above;
        f64::from(*sample.select_nth_unstable_by(at, f32::total_cmp).1)
    }
}

/// Shares out what a batch can hold evenly over the weights: no part of a model waits for ever behind another.
#[derive(Clone, Copy)]
struct Budget {
    words_max: usize,
    weights: usize,
}

impl Budget {
    /// How many changes may have left between two indices.
    fn between(self, start: usize, end: usize) -> usize {
        let up_to = |index: usize| (self.words_max as u64 * index as u64 / self.weights.max(1) as u64) as usize;
        up_to(end) - up_to(start)
    }
}

/// Gradient and optimiser state of the same weights; state that the rule does not keep is empty.
type Inputs<'a> = (&'a [f32], &'a mut [f32], &'a mut [f32]);

/// Computes updates block by block and hands each to `take` with the same block of `target` and its position.
fn for_each_block(
    rule: Rule,
    scale: Scale,
    (gradient, first, second): Inputs<'_>,
    target: &mut [f32],
    mut take: impl FnMut(&[f32], &mut [f32], usize),
) {
    let mut update = [0.0; BLOCK];
    let mut first = first.chunks_mut(BLOCK);
    let mut second = second.chunks_mut(BLOCK);
    for (block, (gradient, target)) in gradient.chunks(BLOCK).zip(target.chunks_mut(BLOCK)).enumerate() {
        let update = &mut update[..gradient.len()];
        let first = first.next().unwrap_or_default();
        let second = second.next().unwrap_or_default();
        rule.update(scale, gradient, first, second, update);
        take(update, target, block * BLOCK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCALE: Scale = Scale {
        learning_rate: 0.5,
        clip: 1.0,
        step: 1,
    };

    const TAU: Tau = Tau::from_steps(400_000).unwrap();

    fn gradient(len: usize) -> Vec<f32> {
        (0..len).map(|i| ((i * 7919) % 2001) as f32 / 1000.0 - 1.0).collect()
    }

    #[test]
    fn threads_and_blocks_change_nothing() {
        let len = 2 * WEIGHTS_PER_THREAD_MIN + 777;
        let gradient = gradient(len);
        for rule in [
            Rule::Sgd,
            Rule::Momentum { momentum: 0.5 },
            Rule::Adam {
                beta1: 0.9,
                beta2: 0.99,
                epsilon: 1e-8,
            },
        ] {
            let run = |threads| {
                let mut state = UpdateState::new(rule, len, Threads(threads));
                let mut words = Vec::new();
                let mut all = Vec::new();
                for step in 1..4 {
                    state
                        .emit(&gradient, rule, Scale { step, ..SCALE }, Some(TAU), &mut words)
                        .unwrap();
                    all.extend_from_slice(&words);
                }
                (all, state.residual)
            };
            let one = run(1);
            assert!(!one.0.is_empty());
            assert_eq!(one, run(3), "{rule:?}");
        }
    }

    #[test]
    fn without_tau_everything_stays() {
        let gradient = gradient(5000);
        let mut state = UpdateState::new(Rule::Sgd, 5000, Threads(1));
        let mut words = vec![1];
        state.emit(&gradient, Rule::Sgd, SCALE, None, &mut words).unwrap();
        assert!(words.is_empty());
        assert!(state.residual.iter().zip(&gradient).all(|(r, g)| *r == -0.5 * g));
        let tau = state.residual_quantile(0.01);
        let reached = state.residual.iter().filter(|r| f64::from(r.abs()) >= tau).count();
        assert!(
            (40..=60).contains(&reached),
            "{reached} of 5000 reach the quantile of a hundredth"
        );
    }

    #[test]
    fn a_plain_pass_is_plain_descent() {
        let gradient = gradient(3000);
        let mut state = UpdateState::new(Rule::Sgd, 3000, Threads(1));
        let mut weights = vec![1.0; 3000];
        state.plain_pass(&gradient, SCALE, &mut weights);
        assert!(weights.iter().zip(&gradient).all(|(w, g)| *w == 1.0 - 0.5 * g));
    }

    #[test]
    fn a_full_batch_is_shared_out_evenly() {
        let len = 2 * WEIGHTS_PER_THREAD_MIN;
        let gradient = vec![1.0; len];
        for threads in [1, 2] {
            let mut state = UpdateState::new(Rule::Sgd, len, Threads(threads));
            state.words_max = 1000;
            let mut words = Vec::new();
            state.emit(&gradient, Rule::Sgd, SCALE, Some(TAU), &mut words).unwrap();
            assert_eq!(words.len(), 1000);
            let early = words.iter().filter(|&&word| ((word >> 1) as usize) < len / 2).count();
            assert_eq!(early, 500, "{threads} threads");
            state.release(TAU, &mut words).unwrap();
            assert_eq!(words.len(), 1000);
        }
    }

    #[test]
    fn what_is_no_number_is_reported() {
        let mut gradient = vec![0.0; 5000];
        gradient[4321] = f32::NAN;
        let mut state = UpdateState::new(Rule::Sgd, 5000, Threads(1));
        assert_eq!(
            state.emit(&gradient, Rule::Sgd, SCALE, Some(TAU), &mut Vec::new()),
            Err(NotFinite)
        );
    }
}
