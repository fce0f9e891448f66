//! Tests of a replica on the CPU with constant gradients.

use super::*;
use crate::backend::cpu::CpuBackend;
use crate::backend::cpu::given::Given;
use crate::backend::turns::{BLOCK, WEIGHTS_PER_TURN_MIN};
use crate::learning::multi_worker::TURNS_MAX;

const TAU: Tau = Tau::from_steps(400_000).unwrap();
/// Fewest weights that the optimiser pass gives to a thread.
const WEIGHTS_PER_THREAD: usize = 1 << 16;
/// Indices of a small tensor that spans a block boundary; every step compares it.
const EAGER: std::ops::Range<usize> = 2000..2100;

const RULES: [Rule; 3] = [
    Rule::Sgd,
    Rule::Momentum { momentum: 0.5 },
    Rule::Adam {
        beta1: 0.9,
        beta2: 0.99,
        epsilon: 1e-8,
    },
];

fn gradient(len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7919) % 2001) as f32 / 1000.0 - 1.0).collect()
}

/// A worker that makes a few steps.
struct Worker {
    replica: Replica<CpuBackend<Given>>,
    changes: Vec<u32>,
}

impl Worker {
    fn new(rule: Rule, gradient: &[f32], threads: usize) -> Self {
        Self::with_changes_max(rule, gradient, threads, protocol::weights::changes::CHANGES_MAX)
    }

    fn with_changes_max(rule: Rule, gradient: &[f32], threads: usize, changes_max: usize) -> Self {
        let eager = Some(EAGER).filter(|it| it.end <= gradient.len());
        let backend = CpuBackend::given(gradient.to_vec(), rule, eager, threads).with_changes_max(changes_max);
        Self {
            replica: Replica::on(backend, rule, 1).unwrap(),
            changes: Vec::new(),
        }
    }

    fn step(&mut self, look_ahead: f64, tau: Option<Tau>) -> Result<(), TrainError> {
        let control = StepControl {
            rule: self.replica.rule,
            learning_rate: 0.5,
            weight_decay: 0.0,
            clip: None,
            look_ahead,
            turns: TURNS_MAX,
            step: 1,
            compare: tau,
        };
        self.replica.step(&[], control, &mut self.changes).map(drop)
    }

    fn own(&self) -> Vec<f32> {
        self.replica.backend.read(Array::Own).unwrap().into_owned()
    }

    fn residuals(&self) -> Vec<f32> {
        self.replica.backend.residuals(1, self.replica.ahead).unwrap()
    }
}

#[test]
fn threads_and_blocks_change_nothing() {
    let gradient = gradient(2 * WEIGHTS_PER_THREAD + 777);
    for rule in RULES {
        let run = |threads| {
            let mut worker = Worker::new(rule, &gradient, threads);
            let mut all = Vec::new();
            for _ in 0..6 {
                worker.step(2.0, Some(TAU)).unwrap();
                all.extend_from_slice(&worker.changes);
            }
            (all, worker.own())
        };
        let one = run(1);
        assert!(!one.0.is_empty());
        assert_eq!(one, run(3), "{rule:?}");
    }
}

#[test]
fn without_tau_everything_stays() {
    let gradient = gradient(5000);
    let mut worker = Worker::new(Rule::Sgd, &gradient, 1);
    worker.changes.push(1);
    worker.step(2.0, None).unwrap();
    assert!(worker.changes.is_empty());
    let own = worker.own();
    assert!(own.iter().zip(&gradient).all(|(own, g)| *own == -0.5 * g));
    let tau = worker.replica.residual_quantile(0.01).unwrap();
    let reached = own.iter().filter(|own| f64::from(own.abs()) >= tau).count();
    assert!(
        (40..=60).contains(&reached),
        "{reached} of 5000 residuals reach the quantile of 0.01"
    );
}

#[test]
fn looking_ahead_changes_where_gradients_are_taken_and_not_what_leaves() {
    // Where the gradient does not depend on the weights, training with and without look-ahead is the same.
    let len = 4 * WEIGHTS_PER_TURN_MIN;
    let gradient: Vec<f32> = gradient(len).iter().map(|g| g / 10.0).collect();
    let tau = Some(Tau::from_steps(40_000).unwrap());
    for rule in [Rule::Momentum { momentum: 0.5 }, Rule::Nesterov { momentum: 0.75 }] {
        let mut plain = Worker::new(rule, &gradient, 1);
        let mut ahead = Worker::new(rule, &gradient, 1);
        for step in 0..12 {
            plain.step(0.0, tau).unwrap();
            ahead.step(2.0, tau).unwrap();
            let far = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(far(&plain.own(), &ahead.own()) > 0.05, "step {step}");
            // Because of rounding, a change may leave one turn earlier or later.
            let differ = ahead
                .residuals()
                .iter()
                .zip(&plain.residuals())
                .filter(|(a, b)| (*a - *b).abs() > 1e-4)
                .count();
            assert!(differ < len / 200, "{differ} residuals differ after step {step}");
        }
    }
}

#[test]
fn everyone_has_a_turn() {
    let len = 4 * WEIGHTS_PER_TURN_MIN + 5;
    let mut worker = Worker::new(Rule::Sgd, &vec![1.0; len], 1);
    let mut seen = Vec::new();
    for turn in 0..TURNS_MAX {
        worker.step(0.0, Some(TAU)).unwrap();
        let mut indices: Vec<usize> = worker.changes.iter().map(|change| (change >> 1) as usize).collect();
        indices.dedup();
        assert!(
            indices.len() < len / 3,
            "turn {turn} emits changes of {} weights",
            indices.len()
        );
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
    // Small models are compared as a whole in every step.
    let mut worker = Worker::new(Rule::Sgd, &[1.0; 100], 1);
    worker.step(0.0, Some(TAU)).unwrap();
    assert_eq!(worker.changes.len(), 100);
}

#[test]
fn a_full_batch_is_shared_out_evenly() {
    let len = 2 * WEIGHTS_PER_THREAD;
    for threads in [1, 2] {
        let mut worker = Worker::with_changes_max(Rule::Sgd, &vec![1.0; len], threads, 1000);
        worker.step(0.0, None).unwrap();
        worker.replica.release(TAU, &mut worker.changes).unwrap();
        assert_eq!(worker.changes.len(), 1000);
        let early = worker
            .changes
            .iter()
            .filter(|&&change| ((change >> 1) as usize) < len / 2)
            .count();
        assert_eq!(early, 500, "{threads} threads");
        for _ in 0..TURNS_MAX {
            worker.step(0.0, Some(TAU)).unwrap();
            assert!((1..=1000).contains(&worker.changes.len()));
        }
    }
}

#[test]
fn a_saved_state_goes_on_to_the_bit() {
    // Four turns and look-ahead: the test fails if either is not restored.
    let len = 4 * WEIGHTS_PER_TURN_MIN + 5;
    let gradient: Vec<f32> = gradient(len).iter().map(|g| g / 7.0).collect();
    for rule in RULES {
        let mut worker = Worker::new(rule, &gradient, 1);
        for _ in 0..6 {
            worker.step(2.0, Some(TAU)).unwrap();
        }
        let state = worker.replica.state().unwrap();
        let mut other = Worker::new(rule, &gradient, 1);
        let shared = worker.replica.copy_weights().unwrap();
        other.replica.backend.write(Array::Shared, shared).unwrap();
        let mut short = state.clone();
        short.arrays[1].pop();
        let error = StateError::Weights {
            found: len - 1,
            needed: len,
        };
        assert_eq!(other.replica.restore(short), Err(error));
        let mut fewer = state.clone();
        fewer.arrays.pop();
        assert!(matches!(other.replica.restore(fewer), Err(StateError::Arrays { .. })));
        let mut spoilt = state.clone();
        spoilt.arrays[0][7] = f32::NAN;
        assert_eq!(other.replica.restore(spoilt), Err(StateError::NotFinite));
        assert!(
            other.own().iter().all(|own| *own == 0.0),
            "a refused state changed the weights"
        );
        other.replica.restore(state).unwrap();
        for _ in 0..6 {
            assert_eq!(other.own(), worker.own(), "{rule:?}");
            worker.step(2.0, Some(TAU)).unwrap();
            other.step(2.0, Some(TAU)).unwrap();
            assert!(!worker.changes.is_empty());
            assert_eq!(other.changes, worker.changes, "{rule:?}");
        }
    }
}

#[test]
fn what_is_no_number_is_reported() {
    let mut gradient = vec![0.0; 5000];
    gradient[4321] = f32::NAN;
    let mut worker = Worker::new(Rule::Sgd, &gradient, 1);
    let found = worker.step(0.0, Some(TAU));
    assert!(matches!(found, Err(TrainError::NotFinite)), "{found:?}");
}
