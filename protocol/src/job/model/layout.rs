//! Shape inference, and where each layer's weights lie in the flat index space.

use std::ops::Range;

use thiserror::Error;

use super::{Layer, ModelSpec, Shape};
use crate::weights::changes::WEIGHTS_MAX;

/// What the numbers of a tensor are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A layer multiplies by it and sums up.
    Weight,
    /// A layer adds it.
    Bias,
    /// A layer multiplies each number by it, and sums up nothing.
    Gain,
    /// It is measured, not trained.
    Statistic,
}

/// A tensor: its place in a flat index space and its name in a model file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSlot {
    /// The key that `torch.nn.Sequential` has for it: `0.weight`.
    pub key: String,
    /// Its dimensions, outermost first.
    pub dims: Vec<usize>,
    /// What it is for.
    pub role: Role,
    /// The index of its first number.
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

    /// Its part of the flat index space.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.elements()
    }
}

/// A layer with its shapes and, where it has numbers of its own, their places.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacedLayer {
    /// What the layer does.
    pub layer: Layer,
    /// What the keys of its tensors begin with.
    pub path: String,
    /// One sample before it.
    pub input: Shape,
    /// One sample after it.
    pub output: Shape,
    /// The flat indices of its weights and of its biases, of which there may be none.
    pub parameters: Option<(Range<usize>, Range<usize>)>,
    /// Where its means and its variances lie among the statistics.
    pub statistics: Option<(Range<usize>, Range<usize>)>,
    /// The layers of a block, and those that what comes in goes through beside them.
    pub block: Option<PlacedBlock>,
}

impl PlacedLayer {
    /// How many weights and biases it has, those of a block's layers included.
    #[must_use]
    pub fn weights(&self) -> usize {
        let own = self.parameters.as_ref();
        let within = self.block.iter().flat_map(|block| block.body.iter().chain(&block.skip));
        own.map_or(0, |(weights, biases)| weights.len() + biases.len()) + within.map(Self::weights).sum::<usize>()
    }
}

/// The two ways through a block.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacedBlock {
    /// The layers that are written in it.
    pub body: Vec<PlacedLayer>,
    /// What gives the block's input the shape of its output, where they differ.
    pub skip: Vec<PlacedLayer>,
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
    /// What is measured for the model when it is trained, in an index space of its own, by key.
    pub statistics: Vec<TensorSlot>,
}

/// Why a model does not fit a dataset.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ModelError {
    /// A layer cannot take what comes to it.
    #[error("layer {number} ('{layer}') cannot take its input of shape {input}: {why}")]
    DoesNotFit {
        /// Its place in the list, from 0, as `torch.nn.Sequential` counts.
        number: String,
        /// Its text.
        layer: String,
        /// The shape that comes to it.
        input: Shape,
        /// What is wrong and what to do.
        why: String,
    },
    /// The last layer does not give one number per class.
    #[error(
        "the model's output has shape {found}, but the data has {classes} classes: end the model with 'dense \
         {classes}', or 'dense' alone"
    )]
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
        number: String,
        /// Its text.
        layer: String,
    },
    /// More weights than indices.
    #[error("the model has more than 2^31 weights: make the layers smaller")]
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
        return Err("the layer needs an image (channels x height x width)".into());
    };
    match (
        positions(height, kernel, stride, pad),
        positions(width, kernel, stride, pad),
    ) {
        (Some(rows), Some(columns)) => Ok((channels, rows, columns)),
        _ => Err(format!("the window of {kernel}x{kernel} is larger than the image")),
    }
}

fn image(channels: usize, height: usize, width: usize) -> Shape {
    Shape::Image {
        channels,
        height,
        width,
    }
}

/// The shape after a layer that is no block, and the dimensions of its weights where it has some.
fn infer(layer: &Layer, input: Shape, outputs: Option<usize>) -> Result<(Shape, Option<Vec<usize>>), String> {
    match *layer {
        Layer::Conv {
            out,
            kernel,
            stride,
            pad,
            bias: _,
        } => {
            let (channels, rows, columns) = window(input, kernel, stride, pad)?;
            Ok((image(out, rows, columns), Some(vec![out, channels, kernel, kernel])))
        }
        Layer::MaxPool(size) | Layer::AvgPool(size) => {
            let (channels, rows, columns) = window(input, size, size, 0)?;
            Ok((image(channels, rows, columns), None))
        }
        Layer::GlobalAvgPool => {
            let (channels, ..) = window(input, 1, 1, 0)?;
            Ok((image(channels, 1, 1), None))
        }
        Layer::Flatten => Ok((Shape::Flat(input.elements()), None)),
        // An image is taken as a vector.
        Layer::Dense(out) => {
            let out = out.or(outputs);
            let out = out
                .ok_or("only the last layer can take its number of outputs from the data: give this layer a number")?;
            Ok((Shape::Flat(out), Some(vec![out, input.elements()])))
        }
        Layer::BatchNorm => Ok((input, Some(vec![channels(input)]))),
        Layer::LayerNorm => Ok((input, Some(input.dims()))),
        Layer::GroupNorm(groups) => match channels(input) {
            channels if channels.is_multiple_of(groups) => Ok((input, Some(vec![channels]))),
            channels => Err(format!(
                "{channels} channels cannot be divided into {groups} groups of equal size"
            )),
        },
        Layer::Activation(_) | Layer::Dropout(_) | Layer::Residual(_) => Ok((input, None)),
    }
}

/// The channels of a sample: each number of a vector is one.
fn channels(shape: Shape) -> usize {
    match shape {
        Shape::Image { channels, .. } => channels,
        Shape::Flat(features) => features,
    }
}

/// What gives a block's input the shape of its output: a convolution of single pixels, or a dense layer. Where the block ends
/// in a batchnorm, so does this, or the two would not weigh the same.
fn projection(body: &[Layer], from: Shape, to: Shape) -> Result<Vec<Layer>, String> {
    if from == to {
        return Ok(Vec::new());
    }
    let misfit = || {
        format!(
            "the layers of the block give shape {to}, which cannot be added to the input: let the layers keep \
             height and width, or halve both"
        )
    };
    let normalised = matches!(body.last(), Some(Layer::BatchNorm));
    let first = match (from, to) {
        (_, Shape::Flat(features)) => Layer::Dense(Some(features)),
        (
            Shape::Image { height, .. },
            Shape::Image {
                channels: out,
                height: rows,
                ..
            },
        ) => Layer::Conv {
            out,
            kernel: 1,
            stride: height.div_ceil(rows.max(1)),
            pad: 0,
            bias: !normalised,
        },
        (Shape::Flat(_), Shape::Image { .. }) => return Err(misfit()),
    };
    if infer(&first, from, None)?.0 != to {
        return Err(misfit());
    }
    Ok(std::iter::once(first)
        .chain(normalised.then_some(Layer::BatchNorm))
        .collect())
}

/// Layers and tensors as they are found, before tensors have their places.
#[derive(Default)]
struct LayoutTensors {
    tensors: Vec<TensorSlot>,
    statistics: Vec<TensorSlot>,
}

impl LayoutTensors {
    /// Fits layers to what comes to them. The last one may take its outputs from the data, where that is allowed here.
    fn chain(
        &mut self,
        layers: &[Layer],
        path: &str,
        input: Shape,
        outputs: Option<usize>,
    ) -> Result<(Vec<PlacedLayer>, Shape), ModelError> {
        let mut shape = input;
        let mut placed = Vec::with_capacity(layers.len());
        for (number, layer) in layers.iter().enumerate() {
            let path = if path.is_empty() {
                number.to_string()
            } else {
                format!("{path}.{number}")
            };
            let outputs = outputs.filter(|_| number + 1 == layers.len());
            let found = self.layer(layer, path, shape, outputs)?;
            shape = found.output;
            placed.push(found);
        }
        Ok((placed, shape))
    }

    fn layer(
        &mut self,
        layer: &Layer,
        path: String,
        input: Shape,
        outputs: Option<usize>,
    ) -> Result<PlacedLayer, ModelError> {
        let misfit = |why| ModelError::DoesNotFit {
            number: path.clone(),
            layer: layer.to_string(),
            input,
            why,
        };
        let (mut output, dims) = infer(layer, input, outputs).map_err(misfit)?;
        let mut block = None;
        if let Layer::Residual(body) = layer {
            let skip_path = format!("{path}.skip");
            let (placed, shape) = self.chain(body, &format!("{path}.body"), input, None)?;
            let skip = projection(body, input, shape).map_err(misfit)?;
            let (skip, _) = self.chain(&skip, &skip_path, input, None)?;
            block = Some(PlacedBlock { body: placed, skip });
            output = shape;
        }
        // A convolution unfolds its input: that is the most that any layer holds of one sample.
        let unfolded = match (layer, &dims) {
            (Layer::Conv { out, .. }, Some(dims)) => (output.elements() / out).saturating_mul(product(&dims[1..])),
            _ => 0,
        };
        if output.elements().max(unfolded).max(input.elements()) > SAMPLE_ELEMENTS_MAX {
            let layer = layer.to_string();
            return Err(ModelError::TooLarge { number: path, layer });
        }
        if let Some(dims) = dims {
            self.tensors_of(layer, &path, &dims);
        }
        Ok(PlacedLayer {
            layer: layer.clone(),
            path,
            input,
            output,
            // They are known when all tensors are.
            parameters: None,
            statistics: None,
            block,
        })
    }

    /// Notes the tensors of a layer with weights of these dimensions.
    fn tensors_of(&mut self, layer: &Layer, path: &str, dims: &[usize]) {
        let slot = |name: &str, dims: &[usize], role, fan_in| TensorSlot {
            key: format!("{path}.{name}"),
            dims: dims.to_vec(),
            role,
            offset: 0,
            fan_in,
        };
        match layer {
            Layer::BatchNorm | Layer::LayerNorm | Layer::GroupNorm(_) => {
                self.tensors.push(slot("weight", dims, Role::Gain, 1));
                self.tensors.push(slot("bias", dims, Role::Bias, 1));
            }
            _ => {
                let fan_in = product(&dims[1..]);
                if !matches!(layer, Layer::Conv { bias: false, .. }) {
                    self.tensors.push(slot("bias", &dims[..1], Role::Bias, fan_in));
                }
                self.tensors.push(slot("weight", dims, Role::Weight, fan_in));
            }
        }
        if matches!(layer, Layer::BatchNorm) {
            for name in ["running_mean", "running_var"] {
                self.statistics.push(slot(name, dims, Role::Statistic, 1));
            }
        }
    }
}

/// The product of dimensions. What a stranger's file says may be more than can be counted.
fn product(dims: &[usize]) -> usize {
    dims.iter().fold(1, |product: usize, &dim| product.saturating_mul(dim))
}

/// Gives tensors their places: the safetensors format stores tensors of one type by key, and so does a flat index space.
fn place(tensors: &mut [TensorSlot]) -> Option<usize> {
    tensors.sort_by(|a, b| a.key.cmp(&b.key));
    let mut total = 0usize;
    for tensor in tensors {
        tensor.offset = total;
        let elements = tensor
            .dims
            .iter()
            .try_fold(1usize, |product, &dim| product.checked_mul(dim));
        total = total.checked_add(elements?).filter(|&total| total <= WEIGHTS_MAX)?;
    }
    Some(total)
}

/// Tells layers, and those within them, where their numbers lie.
fn tell(layers: &mut [PlacedLayer], found: &LayoutTensors) {
    let range = |tensors: &[TensorSlot], path: &str, name: &str| {
        let key = format!("{path}.{name}");
        let at = tensors.binary_search_by(|tensor| tensor.key.as_str().cmp(&key));
        at.ok().map(|at| tensors[at].range())
    };
    for layer in layers {
        let weights = |name: &str| range(&found.tensors, &layer.path, name);
        layer.parameters = weights("weight").map(|weight| (weight, weights("bias").unwrap_or(0..0)));
        let measured = |name: &str| range(&found.statistics, &layer.path, name);
        layer.statistics = measured("running_mean").zip(measured("running_var"));
        if let Some(block) = &mut layer.block {
            tell(&mut block.body, found);
            tell(&mut block.skip, found);
        }
    }
}

/// A layout of some layers and their tensors, in an index space of their own. They are some of a whole model's, so that
/// there are not too many.
pub(super) fn placed(mut layers: Vec<PlacedLayer>, tensors: Vec<TensorSlot>) -> Layout {
    let mut found = LayoutTensors {
        tensors,
        statistics: Vec::new(),
    };
    let weights = place(&mut found.tensors).unwrap_or(WEIGHTS_MAX);
    tell(&mut layers, &found);
    Layout {
        layers,
        tensors: found.tensors,
        weights,
        statistics: found.statistics,
    }
}

impl Layout {
    /// Fits a model to samples of a shape and a number of classes.
    pub fn new(model: &ModelSpec, input: Shape, classes: usize) -> Result<Self, ModelError> {
        let mut found = LayoutTensors::default();
        let (mut layers, shape) = found.chain(&model.layers, "", input, Some(classes))?;
        if found.tensors.is_empty() {
            return Err(ModelError::NoWeights);
        }
        // Of two classes, one number says which.
        if shape != Shape::Flat(classes) && (shape, classes) != (Shape::Flat(1), 2) {
            return Err(ModelError::WrongClassCount { found: shape, classes });
        }
        let weights = place(&mut found.tensors).ok_or(ModelError::TooManyWeights)?;
        place(&mut found.statistics).ok_or(ModelError::TooManyWeights)?;
        tell(&mut layers, &found);
        Ok(Self {
            layers,
            tensors: found.tensors,
            weights,
            statistics: found.statistics,
        })
    }

    /// How many outputs it has.
    #[must_use]
    pub fn outputs(&self) -> usize {
        self.layers.last().map_or(0, |layer| layer.output.elements())
    }

    /// How many numbers are measured for it.
    #[must_use]
    pub fn measured(&self) -> usize {
        self.statistics.iter().map(TensorSlot::elements).sum()
    }
}

#[cfg(test)]
mod tests;
