//! Checks every operation's gradient against finite differences, on odd sizes with several samples and channels.
//!
//! The check runs in `f32`: the loss is a smooth random projection of the output, and a central difference with a step
//! that balances rounding against curvature must agree with the tape to about a hundredth.

mod blocks;

use dfdx::prelude::*;
use protocol::job::model::Activation;
use protocol::rng::CounterRng;

use super::layer::parts;
use super::{MeanLoss, OpError, Parameters, Pass, Rows, Statistics, from_rows, loss, values};
use crate::dataset::Answers;
use crate::machine::parallel::Threads;
use crate::model::network::Network;
use crate::model::program::{Conv, Dense, Dropout, Geometry, InputGradient, Op, Pool};
use crate::model::tape::{Failure, carry_out};
use crate::task::objective::{Distance, Objective};

type Tape = OwnedTape<f32, Cpu>;

/// Applies operations one after the other and records each on the tape.
fn apply<T: dfdx::prelude::Tape<f32, Cpu>>(
    ops: &[Op],
    pass: &Pass,
    x: Rows<T>,
    threads: usize,
) -> Result<Rows<T>, OpError> {
    let parts = parts(ops.to_vec(), Threads(threads), false);
    Network::new(parts, 0).apply(pass, x, &Failure::default())
}

fn random(seed: u64, len: usize) -> Vec<f32> {
    let stream = CounterRng::new(seed, 99);
    (0..len as u64)
        .map(|at| (stream.at(at) >> 40) as f32 / (1u64 << 23) as f32 - 1.0)
        .collect()
}

/// Reduces outputs to one number, of which the gradient check takes the derivatives: the sum of all outputs, each
/// multiplied by a fixed random number.
fn project(y: Rows<Tape>) -> Result<Tensor<(), f32, Cpu, Tape>, OpError> {
    let (rows, columns) = *y.shape();
    let weights = from_rows(&Cpu::default(), rows, columns, random(5, rows * columns))?;
    Ok((y * weights).sum())
}

fn pass(weights: &[f32]) -> Pass {
    Pass::new(
        Parameters::new(&Cpu::default(), weights.to_vec()).unwrap(),
        17,
        Statistics::Minibatch,
    )
}

/// Compares the tape's gradients of input and weights with finite differences of the same function.
fn check(
    inputs: (usize, usize),
    parameters: usize,
    checks_input: bool,
    op: impl Fn(&Pass, Rows<Tape>) -> Result<Tensor<(), f32, Cpu, Tape>, OpError>,
) {
    let device = Cpu::default();
    let x = random(1, inputs.0 * inputs.1);
    let w: Vec<f32> = random(2, parameters.max(1)).iter().map(|v| v * 0.5).collect();
    let loss_at = |x: &[f32], w: &[f32]| {
        let x = from_rows(&device, inputs.0, inputs.1, x.to_vec()).unwrap();
        let pass = pass(w);
        let lent = pass
            .parameters
            .lend_gradient(vec![f32::NAN; parameters.max(1)])
            .unwrap();
        f64::from(op(&pass, x.trace(lent)).unwrap()[[]])
    };
    let input = from_rows(&device, inputs.0, inputs.1, x.clone()).unwrap();
    let pass = pass(&w);
    // Operations overwrite their parts of the gradient: old contents of the memory must not matter.
    let lent = pass
        .parameters
        .lend_gradient(vec![f32::NAN; parameters.max(1)])
        .unwrap();
    let mut gradients = op(&pass, input.trace(lent)).unwrap().backward();
    if checks_input {
        let found = super::tensor::gradient_of(&mut gradients, &input).unwrap().clone();
        compare("input", &x, &found, |x| loss_at(x, &w));
    }
    if parameters > 0 {
        let found = pass.parameters.take_gradient(gradients).unwrap();
        compare("weight", &w, &found, |w| loss_at(&x, w));
    }
}

fn compare(what: &str, at: &[f32], found: &[f32], loss: impl Fn(&[f32]) -> f64) {
    const STEP: f32 = 4e-3;
    let largest = found.iter().fold(0.0f32, |a, b| a.max(b.abs()));
    assert!(largest > 0.0, "the gradient of every {what} is zero");
    for index in 0..at.len() {
        let moved = |step: f32| {
            let mut at = at.to_vec();
            at[index] += step;
            loss(&at)
        };
        let (before, here, after) = (moved(-STEP), moved(0.0), moved(STEP));
        let finite_differences = [here - before, after - here].map(|rise| rise / f64::from(STEP));
        // At the kink of a relu, or with equal maxima, the derivative may be anything between those of the two sides.
        let (low, high) = (
            finite_differences[0].min(finite_differences[1]),
            finite_differences[0].max(finite_differences[1]),
        );
        let tolerance = 0.01 * f64::from(largest) + 2e-3;
        let found = f64::from(found[index]);
        assert!(
            (low - tolerance..=high + tolerance).contains(&found),
            "{what} {index}: {found} by the tape, {low} to {high} by differences",
        );
    }
}

fn dense(relu: bool, input_gradient: InputGradient) -> Dense {
    Dense {
        inputs: 7,
        outputs: 5,
        weight: 5..40,
        bias: 0..5,
        relu,
        input_gradient,
    }
}

#[test]
fn dense_layers() {
    for relu in [false, true] {
        for (needed, checks_input) in [(InputGradient::Needed, true), (InputGradient::NotNeeded, false)] {
            for threads in [1, 3] {
                let ops = [Op::Dense(dense(relu, needed))];
                check((3, 7), 40, checks_input, |pass, x| {
                    project(apply(&ops, pass, x, threads)?)
                });
            }
        }
    }
}

#[test]
fn wide_dense_layers() {
    // Wide enough for the product to be computed transposed, with sizes that no block divides. Without relu, because 40
    // outputs would have kinks on both sides of every weight.
    let ops = [Op::Dense(Dense {
        inputs: 3,
        outputs: 37,
        weight: 37..148,
        bias: 0..37,
        relu: false,
        input_gradient: InputGradient::Needed,
    })];
    check((19, 3), 148, true, |pass, x| project(apply(&ops, pass, x, 1)?));
}

#[test]
fn a_wide_layer_learns_what_two_narrow_ones_do() {
    // Two halves of 20 outputs are computed row by row, 40 outputs at once transposed and on two threads.
    let (inputs, samples) = (6, 9);
    let device = Cpu::default();
    let weights: Vec<f32> = random(2, 40 * inputs + 40);
    let gradient = |first: usize, outputs: usize, threads: usize| {
        let layer = Dense {
            inputs,
            outputs,
            weight: 40 + first * inputs..40 + (first + outputs) * inputs,
            bias: first..first + outputs,
            relu: true,
            input_gradient: InputGradient::NotNeeded,
        };
        let pass = pass(&weights);
        let lent = pass.parameters.lend_gradient(vec![0.0; weights.len()]).unwrap();
        let x = from_rows(&device, samples, inputs, random(1, samples * inputs)).unwrap();
        let y = apply(&[Op::Dense(layer)], &pass, x.trace(lent), threads).unwrap();
        pass.parameters.take_gradient(y.square().sum().backward()).unwrap()
    };
    let halves = gradient(0, 20, 1)
        .into_iter()
        .zip(gradient(20, 20, 1))
        .map(|(a, b)| a + b);
    for (whole, halves) in gradient(0, 40, 2).into_iter().zip(halves) {
        assert!((whole - halves).abs() < 1e-4, "{whole} instead of {halves}");
    }
}

#[test]
fn convolutions() {
    let sizes = [
        (2, 5, 7, 3, 3, 1, 0),
        (3, 6, 5, 2, 3, 1, 1),
        (2, 7, 9, 3, 3, 2, 1),
        (1, 5, 5, 2, 1, 1, 0),
        (2, 6, 7, 2, 5, 3, 2),
        (2, 4, 4, 1, 4, 1, 0),
        (1, 3, 3, 2, 3, 1, 3),
        (2, 1, 1, 3, 5, 1, 2),
        (1, 5, 1, 2, 5, 1, 2),
    ];
    for (channels, height, width, outputs, kernel, stride, pad) in sizes {
        let geometry = Geometry {
            channels,
            height,
            width,
            outputs,
            kernel,
            stride,
            pad,
        };
        let weights = outputs * channels * kernel * kernel;
        for relu in [false, true] {
            for threads in [1, 2] {
                let ops = [Op::Conv(Conv {
                    geometry,
                    weight: outputs..outputs + weights,
                    bias: 0..outputs,
                    relu,
                    input_gradient: InputGradient::Needed,
                })];
                let inputs = channels * height * width;
                check((3, inputs), outputs + weights, true, |pass, x| {
                    project(apply(&ops, pass, x, threads)?)
                });
            }
        }
    }
}

#[test]
fn a_convolution_is_what_its_definition_says() {
    let geometry = Geometry {
        channels: 2,
        height: 5,
        width: 6,
        outputs: 3,
        kernel: 3,
        stride: 2,
        pad: 1,
    };
    let (x, w) = (random(1, 2 * 60), random(2, 3 + 54));
    let device = Cpu::default();
    let layer = Conv {
        geometry,
        weight: 3..57,
        bias: 0..3,
        relu: false,
        input_gradient: InputGradient::NotNeeded,
    };
    let images = from_rows(&device, 2, 60, x.clone()).unwrap();
    let y = apply(&[Op::Conv(layer)], &pass(&w), images, 1).unwrap();
    assert_eq!(*y.shape(), (2, 3 * 3 * 3));
    let pixel = |sample: usize, channel: usize, row: isize, column: isize| {
        let inside = (0..5).contains(&row) && (0..6).contains(&column);
        if inside {
            x[sample * 60 + channel * 30 + row as usize * 6 + column as usize]
        } else {
            0.0
        }
    };
    for sample in 0..2 {
        for out in 0..3 {
            for row in 0..3 {
                for column in 0..3 {
                    let mut expected = w[out];
                    for channel in 0..2 {
                        for down in 0..3 {
                            for right in 0..3 {
                                expected += w[3 + ((out * 2 + channel) * 3 + down) * 3 + right]
                                    * pixel(
                                        sample,
                                        channel,
                                        (row * 2 + down) as isize - 1,
                                        (column * 2 + right) as isize - 1,
                                    );
                            }
                        }
                    }
                    let found = values(&y)[sample * 27 + out * 9 + row * 3 + column];
                    assert!((found - expected).abs() < 1e-5, "{found} instead of {expected}");
                }
            }
        }
    }
}

#[test]
fn pooling() {
    for (channels, height, width, window) in [
        (2, 4, 6, (2, 2)),
        (3, 5, 7, (2, 2)),
        (2, 7, 5, (3, 3)),
        (1, 3, 3, (1, 1)),
        (2, 5, 3, (5, 3)),
    ] {
        let pool = Pool {
            channels,
            height,
            width,
            window,
        };
        let inputs = channels * height * width;
        for op in [Op::MaxPool(pool), Op::MeanPool(pool)] {
            check((3, inputs), 0, true, |pass, x| {
                project(apply(std::slice::from_ref(&op), pass, x, 1)?)
            });
        }
    }
}

fn drop(probability: f64) -> Op {
    Op::Dropout(Dropout {
        probability,
        place: 0,
        slice: 0,
    })
}

fn mean_loss(
    objective: Objective,
    answers: Answers,
    pass: &Pass,
    x: Rows<Tape>,
) -> Result<Tensor<(), f32, Cpu, Tape>, OpError> {
    carry_out(&MeanLoss { objective, answers }, pass, x, &Failure::default())
}

fn plain_classes() -> Objective {
    Objective::Classes {
        smoothing: 0.0,
        weights: None,
    }
}

fn cross_entropy(labels: &[u32], pass: &Pass, x: Rows<Tape>) -> Result<Tensor<(), f32, Cpu, Tape>, OpError> {
    mean_loss(plain_classes(), Answers::Labels(labels.to_vec()), pass, x)
}

#[test]
fn dropping_out() {
    check((3, 11), 0, true, |pass, x| project(apply(&[drop(0.4)], pass, x, 1)?));
}

#[test]
fn the_loss() {
    check((4, 5), 0, true, |pass, x| cross_entropy(&[0, 4, 2, 2], pass, x));
    let weights = Some(vec![0.5, 2.0, 1.5, 0.1, 3.0].into());
    let smooth = Objective::Classes {
        smoothing: 0.2,
        weights,
    };
    check((4, 5), 0, true, |pass, x| {
        mean_loss(smooth.clone(), Answers::Labels(vec![0, 4, 2, 2]), pass, x)
    });
    // One output for two classes.
    let smooth = Objective::Classes {
        smoothing: 0.1,
        weights: Some(vec![0.5, 2.0].into()),
    };
    check((4, 1), 0, true, |pass, x| {
        mean_loss(smooth.clone(), Answers::Labels(vec![0, 1, 1, 0]), pass, x)
    });
    for distance in [Distance::Squared, Distance::Absolute, Distance::Huber] {
        let objective = Objective::Numbers {
            distance,
            units: vec![1.0; 3].into(),
        };
        let values: Vec<f32> = random(9, 12).iter().map(|value| 3.0 * value).collect();
        check((4, 3), 0, true, |pass, x| {
            let values = values.clone();
            mean_loss(objective.clone(), Answers::Numbers { width: 3, values }, pass, x)
        });
    }
}

#[test]
fn activations() {
    for activation in Activation::ALL.into_iter().chain([Activation::LeakyRelu(0.2)]) {
        check((3, 5), 0, true, |pass, x| {
            project(apply(&[Op::Activation(activation)], pass, x, 1)?)
        });
    }
}

#[test]
fn activations_are_dfdxs() {
    let x = from_rows(&Cpu::default(), 3, 50, random(1, 150).iter().map(|x| x * 4.0).collect()).unwrap();
    let of_dfdx = [
        (Activation::Relu, x.clone().try_relu()),
        (Activation::Tanh, x.clone().try_tanh()),
        (Activation::Sigmoid, x.clone().try_sigmoid()),
    ];
    for (activation, expected) in of_dfdx {
        let found = apply(&[Op::Activation(activation)], &pass(&[0.0]), x.clone(), 1).unwrap();
        assert_eq!(values(&found), values(&expected.unwrap()), "{activation:?}");
    }
}

#[test]
fn a_chain_of_everything() {
    let conv = Conv {
        geometry: Geometry {
            channels: 2,
            height: 7,
            width: 7,
            outputs: 3,
            kernel: 3,
            stride: 1,
            pad: 0,
        },
        weight: 3..57,
        bias: 0..3,
        relu: true,
        input_gradient: InputGradient::Needed,
    };
    let dense = Dense {
        inputs: 12,
        outputs: 4,
        weight: 61..109,
        bias: 57..61,
        relu: false,
        input_gradient: InputGradient::Needed,
    };
    let pool = Pool {
        channels: 3,
        height: 5,
        width: 5,
        window: (2, 2),
    };
    let ops = [
        Op::Conv(conv),
        Op::MeanPool(pool),
        drop(0.2),
        Op::Dense(dense),
        Op::Activation(Activation::Tanh),
    ];
    check((3, 98), 109, true, |pass, x| {
        cross_entropy(&[1, 0, 3], pass, apply(&ops, pass, x, 1)?)
    });
}

#[test]
fn losses_do_not_overflow() {
    let logits = [1000.0, -1000.0, 0.0];
    let sums = loss::eval_sums(&plain_classes(), &logits, &Answers::Labels(vec![0]));
    assert_eq!((sums.loss, sums.correct), (0.0, 1));
    let sums = loss::eval_sums(&plain_classes(), &logits, &Answers::Labels(vec![1]));
    assert_eq!((sums.loss, sums.correct), (2000.0, 0));
}

#[test]
fn r2_is_the_explained_variance() {
    let objective = Objective::Numbers {
        distance: Distance::Squared,
        units: vec![10.0, 2.0].into(),
    };
    let values = vec![1.0, 0.0, 3.0, 4.0, 5.0, 8.0];
    let judge = |found: &[f32]| {
        let answers = Answers::Numbers {
            width: 2,
            values: values.clone(),
        };
        loss::eval_sums(&objective, found, &answers)
    };
    assert_eq!(judge(&values).r2(3), 1.0);
    // The mean of the target numbers explains none of their variance.
    assert!(judge(&[3.0, 4.0, 3.0, 4.0, 3.0, 4.0]).r2(3).abs() < 1e-9);
    assert_eq!(judge(&[f32::NAN; 6]).r2(3), -1e9);
    let off = judge(&[2.0, 0.0, 3.0, 4.0, 5.0, 9.0]);
    assert!((off.r2(3) - (1.0 - f64::midpoint(1.0 / 8.0, 1.0 / 32.0))).abs() < 1e-9);
    assert_eq!(off.errors[0].absolute, 1.0);
    assert!((off.loss - 1.0).abs() < 1e-6);
}
