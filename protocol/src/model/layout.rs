//! Shape inference, and where each layer's weights lie in the flat index space.

use std::ops::Range;

use thiserror::Error;

use super::{Layer, ModelSpec, Shape};
use crate::changes::WEIGHTS_MAX;

/// A tensor of weights: its place in the flat index space and its name in a model file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSlot {
    /// The key that `torch.nn.Sequential` has for it: `0.weight`.
    pub key: String,
    /// Its dimensions, outermost first.
    pub dims: Vec<usize>,
    /// The index of its first weight.
    pub offset: usize,
    /// How many inputs one output of its layer sums up: what initial weights are scaled by.
    pub fan_in: usize,
}

impl TensorSlot {
    /// How many weights it has.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// Whether it holds what a layer adds, not what it multiplies by.
    #[must_use]
    pub fn is_bias(&self) -> bool {
        self.dims.len() == 1
    }

    /// Its part of the flat index space.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.elements()
    }
}

/// A layer with its shapes and, where it has weights, their places.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacedLayer {
    /// What the layer does.
    pub layer: Layer,
    /// One sample before it.
    pub input: Shape,
    /// One sample after it.
    pub output: Shape,
    /// The flat indices of its weights and of its biases.
    pub parameters: Option<(Range<usize>, Range<usize>)>,
}

/// A model fitted to a dataset.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    /// The layers, first to last.
    pub layers: Vec<PlacedLayer>,
    /// The tensors in the order of the flat index space, which is the order of a model file: by key.
    pub tensors: Vec<TensorSlot>,
    /// The number of weights.
    pub weights: usize,
}

/// Why a model does not fit a dataset.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ModelError {
    /// A layer cannot take what comes to it.
    #[error("layer {number} ('{layer}') gets {input} and cannot take it: {why}")]
    DoesNotFit {
        /// Its place in the list, from 0, as `torch.nn.Sequential` counts.
        number: usize,
        /// Its text.
        layer: String,
        /// The shape that comes to it.
        input: Shape,
        /// What is wrong and what to do.
        why: String,
    },
    /// The last layer does not give one number per class.
    #[error("the model ends in {found}, but the data has {classes} classes: end it with 'dense {classes}'")]
    WrongClassCount {
        /// The model's output.
        found: Shape,
        /// The number of classes.
        classes: usize,
    },
    /// One sample takes more room than is sensible.
    #[error("layer {number} ('{layer}') works on more than 2^28 numbers per sample: make the layers smaller")]
    TooLarge {
        /// Its place in the list, from 0.
        number: usize,
        /// Its text.
        layer: String,
    },
    /// More weights than indices.
    #[error("the model has more than 2^31 weights")]
    TooManyWeights,
    /// Nothing to train.
    #[error("the model has no weights: add a 'dense' or a 'conv' layer")]
    NoWeights,
}

/// The most numbers that a layer may work on for one sample.
const SAMPLE_ELEMENTS_MAX: usize = 1 << 28;

/// How many positions a window of `kernel` takes on a padded side. A side is what a stranger's file may say: more than
/// can be counted count as the most that can, and are too large for what follows.
fn positions(side: usize, kernel: usize, stride: usize, pad: usize) -> Option<usize> {
    Some(side.saturating_add(2 * pad).checked_sub(kernel)? / stride + 1)
}

fn window(input: Shape, kernel: usize, stride: usize, pad: usize) -> Result<(usize, usize, usize), String> {
    let Shape::Image {
        channels,
        height,
        width,
    } = input
    else {
        return Err("it needs an image, channels x height x width".into());
    };
    match (
        positions(height, kernel, stride, pad),
        positions(width, kernel, stride, pad),
    ) {
        (Some(rows), Some(columns)) => Ok((channels, rows, columns)),
        _ => Err(format!("its window of {kernel}x{kernel} is larger than the image")),
    }
}

/// The shape after a layer, and the dimensions of its weight tensor where it has one.
fn infer(layer: Layer, input: Shape, is_first: bool) -> Result<(Shape, Option<Vec<usize>>), String> {
    match layer {
        Layer::Conv {
            out,
            kernel,
            stride,
            pad,
        } => {
            let (channels, height, width) = window(input, kernel, stride, pad)?;
            let output = Shape::Image {
                channels: out,
                height,
                width,
            };
            Ok((output, Some(vec![out, channels, kernel, kernel])))
        }
        Layer::MaxPool(size) | Layer::AvgPool(size) => {
            let (channels, height, width) = window(input, size, size, 0)?;
            Ok((
                Shape::Image {
                    channels,
                    height,
                    width,
                },
                None,
            ))
        }
        Layer::Flatten => Ok((Shape::Flat(input.elements()), None)),
        Layer::Dense(out) => match input {
            Shape::Image { .. } if !is_first => Err("it needs a vector; put 'flatten' before it".into()),
            // At the very front an image is taken as a vector, so that a plain perceptron needs no 'flatten'.
            _ => Ok((Shape::Flat(out), Some(vec![out, input.elements()]))),
        },
        Layer::Relu | Layer::Tanh | Layer::Sigmoid | Layer::Gelu | Layer::Dropout(_) => Ok((input, None)),
    }
}

impl Layout {
    /// Fits a model to samples of a shape and a number of classes.
    pub fn new(model: &ModelSpec, input: Shape, classes: usize) -> Result<Self, ModelError> {
        let mut shape = input;
        let mut inferred = Vec::new();
        let mut tensors = Vec::new();
        for (number, &layer) in model.layers.iter().enumerate() {
            let (output, dims) = infer(layer, shape, number == 0).map_err(|why| ModelError::DoesNotFit {
                number,
                layer: layer.to_string(),
                input: shape,
                why,
            })?;
            // A convolution unfolds its input: that is the most that any layer holds of one sample.
            let unfolded = match (layer, &dims) {
                (Layer::Conv { out, .. }, Some(dims)) => (output.elements() / out).saturating_mul(
                    dims[1..]
                        .iter()
                        .fold(1, |product: usize, &dim| product.saturating_mul(dim)),
                ),
                _ => 0,
            };
            if output.elements().max(unfolded).max(shape.elements()) > SAMPLE_ELEMENTS_MAX {
                let layer = layer.to_string();
                return Err(ModelError::TooLarge { number, layer });
            }
            if let Some(dims) = dims {
                let fan_in = dims[1..].iter().product();
                tensors.push(TensorSlot {
                    key: format!("{number}.bias"),
                    dims: vec![dims[0]],
                    offset: 0,
                    fan_in,
                });
                tensors.push(TensorSlot {
                    key: format!("{number}.weight"),
                    dims,
                    offset: 0,
                    fan_in,
                });
            }
            inferred.push((layer, shape, output));
            shape = output;
        }
        if tensors.is_empty() {
            return Err(ModelError::NoWeights);
        }
        if shape != Shape::Flat(classes) {
            return Err(ModelError::WrongClassCount { found: shape, classes });
        }
        // The safetensors format stores tensors of one type by key; so does the flat index space.
        tensors.sort_by(|a, b| a.key.cmp(&b.key));
        let mut weights = 0usize;
        for tensor in &mut tensors {
            tensor.offset = weights;
            weights = tensor
                .dims
                .iter()
                .try_fold(1usize, |product, &dim| product.checked_mul(dim))
                .and_then(|elements| weights.checked_add(elements))
                .filter(|&total| total <= WEIGHTS_MAX)
                .ok_or(ModelError::TooManyWeights)?;
        }
        let place = |key: String| tensors.iter().find(|tensor| tensor.key == key).map(TensorSlot::range);
        let layers = inferred
            .into_iter()
            .enumerate()
            .map(|(number, (layer, input, output))| PlacedLayer {
                layer,
                input,
                output,
                parameters: place(format!("{number}.weight")).zip(place(format!("{number}.bias"))),
            });
        Ok(Self {
            layers: layers.collect(),
            tensors,
            weights,
        })
    }

    /// About how much memory training takes, the dataset aside: weights, gradient, residual, optimiser state and
    /// ledger, and what a minibatch leaves in every layer on its way there and back.
    #[must_use]
    pub fn training_bytes(&self, minibatch: usize, state_arrays: usize) -> u64 {
        const NUMBER: u64 = size_of::<f32>() as u64;
        let arrays = 4 + state_arrays as u64;
        let per_sample = self
            .layers
            .iter()
            .map(|layer| layer.output.elements() as u64)
            .sum::<u64>();
        NUMBER * (arrays * self.weights as u64 + 2 * per_sample * minibatch as u64)
    }
}

#[cfg(test)]
mod tests {
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
        // By key, as text: "10" comes before "2".
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
    fn a_leading_dense_takes_an_image_as_it_is() {
        assert_eq!(layout("dense 10", MNIST).unwrap().weights, 7850);
    }

    #[test]
    fn misfits_name_the_layer_and_the_shape() {
        let error = |text: &str| layout(text, MNIST).unwrap_err();
        assert_eq!(
            error("conv 8 3x3, dense 10"),
            "layer 1 ('dense 10') gets 8x26x26 and cannot take it: it needs a vector; put 'flatten' before it"
        );
        assert_eq!(
            error("maxpool 20, maxpool 2, flatten, dense 10"),
            "layer 1 ('maxpool 2') gets 1x1x1 and cannot take it: its window of 2x2 is larger than the image"
        );
        assert!(error("dense 5, conv 3 3x3").contains("gets 5 and cannot take it: it needs an image"));
        assert_eq!(
            error("dense 9"),
            "the model ends in 9, but the data has 10 classes: end it with 'dense 10'"
        );
        assert!(error("conv 10 28x28").contains("ends in 10x1x1"));
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
}
