//! Tests of results that must agree to the bit on all devices: changes that leave, applied changes, saved states.

use std::sync::Arc;

use protocol::job::optimiser::Rule;
use protocol::rng::CounterRng;
use protocol::weights::changes::change;
use protocol::weights::contribution::Contribution;
use protocol::weights::lattice::Tau;
use protocol::weights::sums::Sums;
use worker::trainer::{Numbers, StepControl, Trainer, TrainerState};

use super::{ALL_LAYERS, Device, MLP, assert_same_replica, control, minibatch, mnist, pair, pair_on, rules};

/// Returns a state with random residuals, some of which are many τ large and some exactly τ.
fn random_state(weights: usize, rule: Rule, tau: Tau, random: &mut CounterRng) -> TrainerState {
    let mut number = |scale: f32| (random.below(2_000_001) as f32 / 1e6 - 1.0) * scale;
    let residual = |at: usize, value: f32| match at % 97 {
        0 => tau.value() * 3.0,
        1 => -tau.value(),
        2 => value * 40.0,
        3 => 0.0,
        _ => value,
    };
    let mut arrays = vec![(0..weights).map(|at| residual(at, number(1.2 * tau.value()))).collect()];
    arrays.push(vec![0.0; weights]);
    for _ in 0..rule.state_arrays() {
        arrays.push((0..weights).map(|_| number(0.01).abs()).collect());
    }
    TrainerState {
        numbers: worker::trainer::Numbers {
            ahead: if rule.has_velocity() { 0.125 } else { 0.0 },
            turns: random.below(4),
        },
        arrays,
    }
}

pub(crate) fn given_equal_updates_the_same_changes_leave<D: Device>() {
    // Large enough for turns, with a last block that is not full.
    let model = "dense 151, relu, dense 10";
    for rule in rules() {
        let Some(mut pair) = pair::<D>(model, rule) else {
            return;
        };
        let mut random = CounterRng::new(7, 0);
        for round in 0..8 {
            let tau = Tau::from_steps(1 + random.below(5000) as u32).unwrap();
            let state = random_state(pair.layout.weights, rule, tau, &mut random);
            pair.cpu.restore(state.clone()).unwrap();
            pair.device.restore(state).unwrap();
            let (mut cpu, mut device) = (Vec::new(), Vec::new());
            if round % 2 == 0 {
                pair.cpu.release(tau, &mut cpu).unwrap();
                pair.device.release(tau, &mut device).unwrap();
            } else {
                // A rate of zero leaves the weights unchanged, however gradients round.
                let control = StepControl {
                    look_ahead: 0.0,
                    ..control(rule, 0.0, Some(tau))
                };
                pair.cpu.step(&minibatch(round), control, &mut cpu).unwrap();
                pair.device.step(&minibatch(round), control, &mut device).unwrap();
                if rule.has_velocity() {
                    // Weights that look ahead move all the same, by a velocity that contains the gradient.
                    continue;
                }
            }
            assert!(cpu.len() > 100);
            assert_eq!(cpu, device, "{rule:?}");
            assert_same_replica(&pair);
        }
    }
}

pub(crate) fn a_thousand_batches_of_others_give_the_same_replica<D: Device>() {
    let Some(mut pair) = pair::<D>("dense 151, relu, dense 10", Rule::Sgd) else {
        return;
    };
    let weights = pair.layout.weights as u64;
    let mut random = CounterRng::new(3, 0);
    for _ in 0..1000 {
        let tau = Tau::from_steps(1 + random.below(20_000) as u32).unwrap();
        let changes = changes(weights, 3000, &mut random);
        pair.cpu.apply(&changes, tau).unwrap();
        pair.device.apply(&changes, tau).unwrap();
    }
    assert_same_replica(&pair);
    let entries = (0..weights as u32)
        .step_by(3)
        .map(|index| (index, 5 - (index % 11) as i32));
    let sums = Sums::checked(entries.filter(|&(_, steps)| steps != 0).collect(), weights as usize).unwrap();
    pair.cpu.jump(&sums).unwrap();
    pair.device.jump(&sums).unwrap();
    assert_same_replica(&pair);
    // The own weights moved as well.
    assert!(pair.device.residual_norm().unwrap() < 1e-2);
}

pub(crate) fn a_state_goes_on_to_the_bit<D: Device>() {
    for rule in rules() {
        let (Some(mut one), Some(mut other)) = (pair::<D>(MLP, rule), pair::<D>(MLP, rule)) else {
            return;
        };
        let tau = Tau::nearest(0.001);
        let step = |trainer: &mut D::Trainer, step: u32| {
            let mut changes = Vec::new();
            let control = StepControl {
                step: u64::from(step),
                look_ahead: 2.0,
                ..control(rule, 0.01, Some(tau))
            };
            trainer.step(&minibatch(step), control, &mut changes).unwrap();
            changes
        };
        for at in 1..5 {
            let changes = step(&mut one.device, at);
            other.device.apply(&changes, tau).unwrap();
        }
        other.device.restore(one.device.state().unwrap()).unwrap();
        for at in 5..9 {
            let changes = step(&mut one.device, at);
            assert!(!changes.is_empty());
            assert_eq!(changes, step(&mut other.device, at), "{rule:?}");
        }
        assert_eq!(one.device.digest().unwrap(), other.device.digest().unwrap());
    }
}

/// Tests that work which a device has begun early, or has recorded, is the work of a trainer that does neither: one that
/// was made for this step.
pub(crate) fn steps_that_are_announced_are_those_of_a_new_trainer<D: Device>() {
    let dataset = mnist();
    let on_all_layers = |rule| pair_on::<D>(Arc::clone(&dataset), ALL_LAYERS, rule);
    for rule in rules() {
        let Some(mut pair) = on_all_layers(rule) else {
            return;
        };
        let tau = Tau::nearest(0.001);
        // A smaller minibatch comes between two that are recorded.
        let samples = |step: u32| minibatch(step).split_off(if step == 4 { 5 } else { 0 });
        let mut left: Vec<Vec<u32>> = Vec::new();
        for step in 1..7 {
            let mut new = on_all_layers(rule).unwrap().device;
            for changes in &left {
                new.apply(changes, tau).unwrap();
            }
            new.restore(pair.device.state().unwrap()).unwrap();
            let control = StepControl {
                step: u64::from(step),
                look_ahead: 2.0,
                ..control(rule, 0.01, Some(tau))
            };
            let (mut changes, mut expected) = (Vec::new(), Vec::new());
            pair.device.announce(&samples(step + 1), u64::from(step) + 1);
            let report = pair.device.step(&samples(step), control, &mut changes).unwrap();
            let wanted = new.step(&samples(step), control, &mut expected).unwrap();
            assert!(changes == expected && !changes.is_empty(), "{rule:?}, step {step}");
            assert_eq!(report.loss.to_bits(), wanted.loss.to_bits(), "{rule:?}, step {step}");
            assert_eq!(
                pair.device.state().unwrap(),
                new.state().unwrap(),
                "{rule:?}, step {step}"
            );
            left.push(changes);
        }
    }
}

pub(crate) fn what_is_no_number_and_what_leaves_the_range_is_reported<D: Device>() {
    let Some(mut pair) = pair::<D>(MLP, Rule::Sgd) else {
        return;
    };
    let before = pair.device.digest().unwrap();
    let wild = control(Rule::Sgd, f64::from(f32::MAX), Some(Tau::ONE_STEP));
    let mut changes = Vec::new();
    pair.device
        .step(&minibatch(1), StepControl { compare: None, ..wild }, &mut changes)
        .unwrap();
    let error = pair.device.step(&minibatch(2), wild, &mut changes).unwrap_err();
    assert!(error.to_string().contains("no longer a number"), "{error}");
    assert_eq!(pair.device.digest().unwrap(), before, "the shared weights have moved");

    let Some(mut pair) = self::pair::<D>(MLP, Rule::Sgd) else {
        return;
    };
    let tau = Tau::from_steps((1 << 24) - 1).unwrap();
    pair.device.apply(&[change(5, true)], tau).unwrap();
    // The CPU reports it at once, a GPU perhaps at its next step.
    let second = pair.device.apply(&[change(5, true)], tau);
    let step = |_| {
        pair.device
            .step(&minibatch(1), control(Rule::Sgd, 0.1, None), &mut changes)
    };
    let error = second.and_then(step).unwrap_err();
    assert!(error.to_string().contains("±16"), "{error}");
}

/// Returns the changes of another worker's batch.
fn changes(weights: u64, most: u64, random: &mut CounterRng) -> Vec<u32> {
    let mut changes: Vec<u32> = (0..random.below(most))
        .map(|_| change(random.below(weights) as u32, true))
        .collect();
    changes.sort_unstable();
    // All changes of a weight have one sign.
    for change in &mut changes {
        *change ^= (*change >> 1) % 2;
    }
    changes
}

pub(crate) fn what_waits_is_applied_before_anyone_looks_and_in_order<D: Device>() {
    let Some(mut pair) = pair::<D>("dense 151, relu, dense 10", Rule::Sgd) else {
        return;
    };
    let weights = pair.layout.weights as u64;
    let mut random = CounterRng::new(11, 0);
    // A residual at every weight: its rounding shows the order of additions.
    let state = random_state(weights as usize, Rule::Sgd, Tau::nearest(0.003), &mut random);
    pair.cpu.restore(state.clone()).unwrap();
    pair.device.restore(state).unwrap();
    for round in 0..12 {
        // None, a few, and more than are applied in one go; now and then more changes than fit at once.
        for _ in 0..random.below(70) {
            if random.below(5) == 0 {
                let step = 1 + random.below(40) as usize;
                let entries = (0..weights as u32)
                    .step_by(step)
                    .map(|index| (index, 1 - (index as i32 & 2)));
                let sums = Sums::checked(entries.collect(), weights as usize).unwrap();
                pair.cpu.jump(&sums).unwrap();
                pair.device.jump(&sums).unwrap();
            } else {
                let tau = Tau::from_steps(1 + random.below(3000) as u32).unwrap();
                let changes = changes(weights, if round == 7 { 60_000 } else { 500 }, &mut random);
                pair.cpu.apply(&changes, tau).unwrap();
                pair.device.apply(&changes, tau).unwrap();
            }
        }
        match round % 4 {
            // A rate of zero leaves the weights unchanged, however gradients round.
            0 => {
                let control = control(Rule::Sgd, 0.0, None);
                // The gradient of four rounds later is computed now, and what is applied until then moves its weights.
                pair.device.announce(&minibatch(round + 4), 1);
                pair.cpu.step(&minibatch(round), control, &mut Vec::new()).unwrap();
                pair.device.step(&minibatch(round), control, &mut Vec::new()).unwrap();
            }
            1 => {
                let (mut cpu, mut device) = (Vec::new(), Vec::new());
                let tau = Tau::nearest(0.003);
                pair.cpu.release(tau, &mut cpu).unwrap();
                pair.device.release(tau, &mut device).unwrap();
                assert_eq!(cpu, device);
            }
            2 => assert_same_replica(&pair),
            _ => {
                let (cpu, device) = (pair.cpu.residual_norm().unwrap(), pair.device.residual_norm().unwrap());
                assert_eq!(cpu.to_bits(), device.to_bits());
            }
        }
        assert_eq!(pair.cpu.state().unwrap().arrays, pair.device.state().unwrap().arrays);
    }
    assert_same_replica(&pair);
}

pub(crate) fn what_is_taken_is_the_cpus<D: Device>() {
    for rule in rules() {
        let Some(mut pair) = pair::<D>("dense 151, relu, dense 10", rule) else {
            return;
        };
        let weights = pair.layout.weights;
        let mut random = CounterRng::new(13, 0);
        let state = random_state(weights, rule, Tau::nearest(0.003), &mut random);
        pair.cpu.restore(state.clone()).unwrap();
        pair.device.restore(state).unwrap();
        for window in [0..1000, 1000..weights, 0..weights] {
            // Pending changes are applied before anything is taken.
            let changes = changes(weights as u64, 500, &mut random);
            pair.cpu.apply(&changes, Tau::nearest(0.01)).unwrap();
            pair.device.apply(&changes, Tau::nearest(0.01)).unwrap();
            let taken = pair.cpu.take(window.clone(), Contribution::ALL).unwrap();
            assert_eq!(
                taken,
                pair.device.take(window.clone(), Contribution::ALL).unwrap(),
                "{rule:?}"
            );
            assert_same_replica(&pair);
        }
        // A contribution moves the own weights, too; a worker that emits contributions does not look ahead.
        let state = TrainerState {
            numbers: Numbers::default(),
            ..random_state(weights, rule, Tau::nearest(0.003), &mut random)
        };
        pair.cpu.restore(state.clone()).unwrap();
        pair.device.restore(state).unwrap();
        for window in [0..1000, 0..weights] {
            let share = Contribution::of_one_in(3);
            let taken = pair.cpu.take(window.clone(), share).unwrap();
            assert_eq!(taken, pair.device.take(window, share).unwrap(), "{rule:?}");
            assert_same_replica(&pair);
        }
    }
}
