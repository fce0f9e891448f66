//! Gradient checks of normalising layers and of nested residual blocks.

use super::*;
use crate::model::program::{Norm, Program, Residual, Sets};
use protocol::job::model::{Layout, Shape};

fn norm(sets: Sets, channels: usize, plane: usize, relu: bool) -> Norm {
    let gains = match sets {
        Sets::Samples => channels * plane,
        _ => channels,
    };
    Norm {
        sets,
        channels,
        plane,
        flat: plane == 1,
        gain: 0..gains,
        bias: gains..2 * gains,
        statistics: None,
        relu,
    }
}

#[test]
fn normalising() {
    for (sets, channels, plane) in [
        (Sets::Channels, 3, 7),
        (Sets::Channels, 5, 1),
        (Sets::Channels, 2, 21),
        (Sets::Samples, 2, 5),
        (Sets::Samples, 9, 1),
        (Sets::Samples, 37, 1),
        (Sets::Groups(2), 4, 5),
        (Sets::Groups(3), 6, 1),
        (Sets::Groups(1), 3, 19),
        (Sets::Groups(2), 4, 1),
    ] {
        for relu in [false, true] {
            let norm = norm(sets, channels, plane, relu);
            let parameters = 2 * norm.gain.len();
            let ops = [Op::Norm(norm)];
            check((4, channels * plane), parameters, true, |pass, x| {
                project(apply(&ops, pass, x, 1)?)
            });
        }
    }
}

#[test]
fn a_set_of_equal_numbers_is_not_scaled_for_ever() {
    // With one sample of vectors, every set has a single number, whose variance is 0.
    for samples in [1, 2] {
        let norm = norm(Sets::Channels, 3, 1, false);
        let pass = pass(&[2.0, 3.0, 4.0, 0.5, 0.25, -1.0]);
        let x = from_rows(&Cpu::default(), samples, 3, vec![7.0; 3 * samples]).unwrap();
        let lent = pass.parameters.lend_gradient(vec![f32::NAN; 6]).unwrap();
        let y = apply(&[Op::Norm(norm)], &pass, x.clone().trace(lent), 1).unwrap();
        assert_eq!(values(&y)[..3], [0.5, 0.25, -1.0]);
        let mut gradients = y.sum().backward();
        let gradient = super::super::tensor::gradient_of(&mut gradients, &x).unwrap();
        assert!(gradient.iter().all(|number| *number == 0.0), "{gradient:?}");
    }
}

#[test]
fn statistics_are_noted_and_taken_where_nothing_is_trained() {
    use std::sync::{Arc, Mutex};
    let norm = Norm {
        statistics: Some((2..4, 0..2)),
        ..norm(Sets::Channels, 2, 3, false)
    };
    let ops = [Op::Norm(norm)];
    let x: Vec<f32> = random(3, 24).iter().map(|x| 5.0 * x + 2.0).collect();
    let rows = || from_rows(&Cpu::default(), 4, 6, x.clone()).unwrap();
    let noted = Arc::new(Mutex::new(vec![0.0; 4]));
    let mut pass = pass(&[1.0, 1.0, 0.0, 0.0]);
    pass.statistics = Statistics::Noted(Arc::clone(&noted));
    let measured = apply(&ops, &pass, rows(), 1).unwrap();
    let noted = noted.lock().unwrap().clone();
    for channel in 0..2 {
        let values: Vec<f64> = (0..4)
            .flat_map(|sample| &x[sample * 6 + channel * 3..][..3])
            .map(|&value| f64::from(value))
            .collect();
        let mean = values.iter().sum::<f64>() / 12.0;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / 11.0;
        assert!((f64::from(noted[2 + channel]) - mean).abs() < 1e-5);
        assert!((f64::from(noted[channel]) - variance).abs() < 1e-4);
    }
    pass.statistics = Statistics::Given(Arc::new(noted));
    // A single sample is normalised by the statistics of the whole minibatch, not by its own.
    let one = from_rows(&Cpu::default(), 1, 6, x[..6].to_vec()).unwrap();
    let given = apply(&ops, &pass, one, 1).unwrap();
    for (given, measured) in values(&given).iter().zip(values(&measured)) {
        assert!(
            (given * (12.0f32 / 11.0).sqrt() - measured).abs() < 1e-3,
            "{given} {measured}"
        );
    }
}

#[test]
fn blocks() {
    let image = Shape::Image {
        channels: 2,
        height: 6,
        width: 4,
    };
    for (text, shape) in [
        ("residual [ conv 2 3x3 pad 1, tanh ], dense 3", image),
        (
            "residual [ conv 3 3x3 stride 2 pad 1, batchnorm, gelu, conv 3 3x3 pad 1, batchnorm ], silu, dense 3",
            image,
        ),
        (
            "conv 3 1x1 nobias, groupnorm 3, residual [ residual [ conv 3 1x1 ], layernorm ], globalavgpool, dense 3",
            image,
        ),
        (
            "dense 5, residual [ dense 5, batchnorm, tanh ], residual [ leakyrelu 0.1, dense 4 ], layernorm, dense 3",
            Shape::Flat(7),
        ),
    ] {
        let layout = Layout::new(&text.parse().unwrap(), shape, 3).unwrap();
        let ops = Program::new(&layout, crate::model::program::ImageOrder::BySample).ops;
        // The first layer does not compute its input's gradient if it has weights itself.
        let checks_input = matches!(ops[0], Op::Residual(Residual { .. }));
        check((4, shape.elements()), layout.weights, checks_input, |pass, x| {
            cross_entropy(&[1, 0, 2, 1], pass, apply(&ops, pass, x, 1)?)
        });
    }
}
