use super::*;

const MNIST: Shape = Shape::Image {
    channels: 1,
    height: 28,
    width: 28,
};

fn layout(text: &str, input: Shape) -> Result<Layout, String> {
    Layout::new(&text.parse().unwrap(), input, 10).map_err(|error| error.to_string())
}

#[test]
fn a_side_beyond_counting_is_too_large() {
    let input = Shape::Image {
        channels: 1,
        height: 1,
        width: usize::MAX,
    };
    let error = layout("conv 2 1x1 pad 3, flatten, dense 10", input).unwrap_err();
    assert!(error.contains("2^28"), "{error}");
}

#[test]
fn the_downpour_net_has_pytorchs_shapes() {
    let text = "conv 32 3x3, relu, conv 64 3x3, relu, maxpool 2, dropout 0.25, flatten, dense 128, relu, dropout 0.25, dense 10";
    let layout = layout(text, MNIST).unwrap();
    assert_eq!(layout.weights, 320 + 18_496 + 1_179_776 + 1_290);
    let tensors: Vec<_> = layout
        .tensors
        .iter()
        .map(|t| (t.key.as_str(), t.dims.clone()))
        .collect();
    // Keys are sorted as texts: "10" comes before "2".
    assert_eq!(
        tensors,
        [
            ("0.bias", vec![32]),
            ("0.weight", vec![32, 1, 3, 3]),
            ("10.bias", vec![10]),
            ("10.weight", vec![10, 128]),
            ("2.bias", vec![64]),
            ("2.weight", vec![64, 32, 3, 3]),
            ("7.bias", vec![128]),
            ("7.weight", vec![128, 9216]),
        ]
    );
    for pair in layout.tensors.windows(2) {
        assert_eq!(pair[0].range().end, pair[1].offset);
    }
    let (weights, biases) = layout.layers[2].parameters.clone().unwrap();
    assert_eq!((weights.len(), biases.len()), (64 * 32 * 9, 64));
    assert_eq!(
        layout.layers[4].output,
        Shape::Image {
            channels: 64,
            height: 12,
            width: 12
        }
    );
}

#[test]
fn memory_is_what_the_arrays_take() {
    let layout = layout("dense 20, relu, dense 10", MNIST).unwrap();
    let weights = 784 * 20 + 20 + 200 + 10;
    assert_eq!(layout.training_bytes(64, 1), 4 * (5 * weights + 2 * 50 * 64));
}

#[test]
fn strides_and_pads() {
    let layout = layout("conv 4 5x5 stride 2 pad 2, avgpool 3, flatten, dense 10", MNIST).unwrap();
    assert_eq!(
        layout.layers[0].output,
        Shape::Image {
            channels: 4,
            height: 14,
            width: 14
        }
    );
    assert_eq!(
        layout.layers[1].output,
        Shape::Image {
            channels: 4,
            height: 4,
            width: 4
        }
    );
}

#[test]
fn blocks_have_the_keys_of_torchs_modules() {
    let text = "conv 4 3x3 pad 1 nobias, batchnorm, residual [ conv 8 3x3 stride 2 pad 1 nobias, batchnorm, relu, conv 8 3x3 pad 1 nobias, batchnorm ], relu, residual [ groupnorm 2 ], globalavgpool, layernorm, dense";
    let layout = layout(text, MNIST).unwrap();
    let keys: Vec<_> = layout
        .tensors
        .iter()
        .map(|t| (t.key.as_str(), t.dims.clone()))
        .collect();
    assert_eq!(
        keys,
        [
            ("0.weight", vec![4, 1, 3, 3]),
            ("1.bias", vec![4]),
            ("1.weight", vec![4]),
            ("2.body.0.weight", vec![8, 4, 3, 3]),
            ("2.body.1.bias", vec![8]),
            ("2.body.1.weight", vec![8]),
            ("2.body.3.weight", vec![8, 8, 3, 3]),
            ("2.body.4.bias", vec![8]),
            ("2.body.4.weight", vec![8]),
            ("2.skip.0.weight", vec![8, 4, 1, 1]),
            ("2.skip.1.bias", vec![8]),
            ("2.skip.1.weight", vec![8]),
            ("4.body.0.bias", vec![8]),
            ("4.body.0.weight", vec![8]),
            ("6.bias", vec![8, 1, 1]),
            ("6.weight", vec![8, 1, 1]),
            ("7.bias", vec![10]),
            ("7.weight", vec![10, 8]),
        ]
    );
    let measured: Vec<_> = layout.statistics.iter().map(|t| (t.key.as_str(), t.offset)).collect();
    assert_eq!(measured[..2], [("1.running_mean", 0), ("1.running_var", 4)]);
    assert_eq!(layout.measured(), 2 * (4 + 8 + 8 + 8));
    let block = layout.layers[2].block.as_ref().unwrap();
    assert_eq!(block.skip[0].output, block.body[4].output);
    assert_eq!(block.body[1].parameters.as_ref().unwrap().0, layout.tensors[5].range());
    assert_eq!(layout.layers[0].parameters.as_ref().unwrap().1, 0..0);
    assert!(layout.layers[4].block.as_ref().unwrap().skip.is_empty());
    let counts = crate::job::model::initial_counts(&layout, 1);
    assert!(
        counts[layout.tensors[2].range()]
            .iter()
            .all(|&count| count == crate::weights::lattice::STEPS_PER_UNIT)
    );
}

#[test]
fn a_dense_layer_takes_an_image_as_it_is() {
    assert_eq!(layout("maxpool 2, dense", MNIST).unwrap().weights, 1970);
    assert_eq!(layout("dense 10", MNIST).unwrap().weights, 7850);
}

#[test]
fn misfits_name_the_layer_and_the_shape() {
    let error = |text: &str| layout(text, MNIST).unwrap_err();
    assert_eq!(
        error("dense, relu, dense 10"),
        "layer 0 ('dense') cannot take its input of shape 1x28x28: only the last layer can take its number of outputs \
         from the data: give this layer a number"
    );
    assert!(error("conv 8 3x3, groupnorm 3, dense").contains("8 channels cannot be divided into 3 groups"));
    assert!(error("residual [ conv 8 3x3, conv 8 3x3 ], dense").starts_with(
        "layer 0 ('residual [ conv 8 3x3, conv 8 3x3 ]') cannot take its input of shape 1x28x28: the layers of the \
         block give shape 8x24x24"
    ));
    assert!(error("residual [ dense ], dense").starts_with("layer 0.body.0 ('dense') cannot take its input"));
    assert_eq!(
        error("maxpool 20, maxpool 2, flatten, dense 10"),
        "layer 1 ('maxpool 2') cannot take its input of shape 1x1x1: the window of 2x2 is larger than the image"
    );
    assert!(error("dense 5, conv 3 3x3").contains("input of shape 5: the layer needs an image"));
    assert_eq!(
        error("dense 9"),
        "the model's output has shape 9, but the data has 10 classes: end the model with 'dense 10', or 'dense' alone"
    );
    assert!(error("conv 10 28x28").contains("output has shape 10x1x1"));
    assert!(error("conv 8 3x3 pad 20000, maxpool 40000, flatten, dense 10").contains("2^28"));
    assert!(
        error(&format!(
            "{}flatten, dense 10",
            "conv 1024 1x1 pad 1048576, ".repeat(80)
        ))
        .contains("2^28")
    );
    assert!(error("relu").contains("no weights"));
    assert!(error("dense 1000000, dense 1000000, dense 10").contains("2^31"));
}
