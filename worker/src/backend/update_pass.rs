//! The fused pass after a gradient: optimiser, residual, quantiser, in blocks that stay in the first-level cache.
//!
//! The update never exists as a whole: a block of it is computed, added to the residual and forgotten. So the pass
//! moves what a plain optimiser moves, with the residual in the weights' place.

use protocol::clip::sum_of_squares;
use protocol::optimiser::{Rule, Scale};
use rayon::prelude::*;

use crate::ops::Threads;
use crate::quantise::quantise;

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
    threads: Threads,
}

impl UpdateState {
    pub(super) fn new(rule: Rule, weights: usize, threads: Threads) -> Self {
        let array = |wanted: bool| vec![0.0; if wanted { weights } else { 0 }];
        Self {
            rule,
            first: array(rule.state_arrays() > 0),
            second: array(rule.state_arrays() > 1),
            residual: array(true),
            threads,
        }
    }

    /// Weights per thread.
    fn part(&self, weights: usize) -> usize {
        weights
            .div_ceil(self.threads.0.max(1))
            .max(WEIGHTS_PER_THREAD_MIN)
            .max(1)
    }

    /// Turns a gradient into changes. Without a τ everything stays in the residual.
    pub(super) fn emit(
        &mut self,
        gradient: &[f32],
        scale: Scale,
        tau: Option<f32>,
        words: &mut Vec<u32>,
    ) {
        words.clear();
        let rule = self.rule;
        let part = self.part(gradient.len());
        if part >= gradient.len() {
            let whole = (gradient, &mut self.first[..], &mut self.second[..]);
            emit_part(rule, scale, tau, 0, whole, &mut self.residual, words);
            return;
        }
        let mut first = self.first.chunks_mut(part);
        let mut second = self.second.chunks_mut(part);
        let parts: Vec<_> = gradient
            .chunks(part)
            .zip(self.residual.chunks_mut(part))
            .map(|(gradient, residual)| {
                let state = (
                    first.next().unwrap_or_default(),
                    second.next().unwrap_or_default(),
                );
                (gradient, state, residual)
            })
            .collect();
        let emitted: Vec<Vec<u32>> = parts
            .into_par_iter()
            .enumerate()
            .map(|(at, (gradient, (first, second), residual))| {
                let mut words = Vec::new();
                emit_part(
                    rule,
                    scale,
                    tau,
                    at * part,
                    (gradient, first, second),
                    residual,
                    &mut words,
                );
                words
            })
            .collect();
        // Parts are in the order of their indices, so their words are too.
        for part in &emitted {
            words.extend_from_slice(part);
        }
    }

    /// What a worker without exchange would do instead: the optimiser's update, straight into the weights.
    pub(super) fn plain_pass(&mut self, gradient: &[f32], scale: Scale, weights: &mut [f32]) {
        let whole = (gradient, &mut self.first[..], &mut self.second[..]);
        for_each_block(self.rule, scale, whole, weights, |update, weights, _| {
            weights
                .iter_mut()
                .zip(update)
                .for_each(|(weight, update)| *weight += update);
        });
    }

    pub(super) fn residual_norm(&self) -> f64 {
        sum_of_squares(&self.residual).sqrt()
    }

    /// The magnitude that a fraction of the residual reaches, from an even sample of it.
    pub(super) fn residual_quantile(&self, fraction: f64) -> f64 {
        let step = self.residual.len().div_ceil(QUANTILE_SAMPLE).max(1);
        let mut sample: Vec<f32> = self
            .residual
            .iter()
            .step_by(step)
            .map(|r| r.abs())
            .collect();
        if sample.is_empty() {
            return 0.0;
        }
        let above = ((fraction * sample.len() as f64).ceil() as usize).clamp(1, sample.len());
        let at = sample.len() - above;
        f64::from(*sample.select_nth_unstable_by(at, f32::total_cmp).1)
    }
}

/// Gradient and optimiser state of the same weights; state that the rule does not keep is empty.
type Inputs<'a> = (&'a [f32], &'a mut [f32], &'a mut [f32]);

fn emit_part(
    rule: Rule,
    scale: Scale,
    tau: Option<f32>,
    offset: usize,
    inputs: Inputs<'_>,
    residual: &mut [f32],
    words: &mut Vec<u32>,
) {
    for_each_block(
        rule,
        scale,
        inputs,
        residual,
        |update, residual, at| match tau {
            Some(tau) => quantise(update, residual, tau, offset + at, words),
            None => residual.iter_mut().zip(update).for_each(|(r, u)| *r += u),
        },
    );
}

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
    for (block, (gradient, target)) in gradient
        .chunks(BLOCK)
        .zip(target.chunks_mut(BLOCK))
        .enumerate()
    {
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

    fn gradient(len: usize) -> Vec<f32> {
        (0..len)
            .map(|i| ((i * 7919) % 2001) as f32 / 1000.0 - 1.0)
            .collect()
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
                    state.emit(&gradient, Scale { step, ..SCALE }, Some(0.4), &mut words);
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
        state.emit(&gradient, SCALE, None, &mut words);
        assert!(words.is_empty());
        assert!(
            state
                .residual
                .iter()
                .zip(&gradient)
                .all(|(r, g)| *r == -0.5 * g)
        );
        let tau = state.residual_quantile(0.01);
        let reached = state
            .residual
            .iter()
            .filter(|r| f64::from(r.abs()) >= tau)
            .count();
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
        assert!(
            weights
                .iter()
                .zip(&gradient)
                .all(|(w, g)| *w == 1.0 - 0.5 * g)
        );
    }
}
