//! Shape inference, and the place of each layer's weights in the model's flat index space.

use std::ops::Range;

use thiserror::Error;

use super::{Layer, ModelSpec, Shape};
use crate::weights::changes::WEIGHTS_MAX;

/// Role of a tensor in its layer: the use that the layer makes of the tensor's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Role of a tensor: weights, by which the layer multiplies its inputs to add the products up.
    Weight,
    /// Role of a tensor: biases, which the layer adds to its outputs.
    Bias,
    /// Role of a tensor: a matrix that Adam moves where other matrices get orthogonal updates (`muon`), such as an
    /// embedding or the model's head.
    AdamMatrix,
    /// Role of a tensor: scale factors, by each of which the layer multiplies a value without adding anything up.
    Gain,
    /// Role of a tensor: statistics that are measured and not trained, the running means and variances of a batchnorm.
    Statistic,
}

/// Tensor of a model: its place among all of the model's weights, and its name in a model file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSlot {
    /// Key of the tensor in a model file, as `torch.nn.Sequential` names it: `0.weight`.
    pub key: String,
    /// Dimensions of the tensor, outermost first.
    pub dims: Vec<usize>,
    pub role: Role,
    /// Index of the tensor's first number among all of the model's weights.
    pub offset: usize,
    /// Number of inputs that one output of the layer adds up. Initial weights are scaled by it.
    pub fan_in: usize,
}

impl TensorSlot {
    /// Returns the number of weights in the tensor.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// Returns the tensor's dimensions as people write them: `128x784`.
    #[must_use]
    pub fn size(&self) -> String {
        let sides: Vec<String> = self.dims.iter().map(ToString::to_string).collect();
        sides.join("x")
    }

    /// Returns the tensor's index range among all of the model's weights.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.elements()
    }
}

/// Layer of a model with its input and output shapes and the place of its weights.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacedLayer {
    /// Kind of the layer with its settings.
    pub layer: Layer,
    /// Prefix of the keys of the layer's tensors, such as `3.body.0`.
    pub path: String,
    /// Shape of one sample that goes into the layer.
    pub input: Shape,
    /// Shape of one sample that comes out of the layer.
    pub output: Shape,
    /// Indices of the layer's weights and of its biases (an empty range without biases) among all of the model's
    /// weights; `None` for a layer without weights.
    pub parameters: Option<(Range<usize>, Range<usize>)>,
    /// Indices of a batchnorm's means and variances among the model's statistics.
    pub statistics: Option<(Range<usize>, Range<usize>)>,
    /// Inner layers, if the layer is a residual block.
    pub block: Option<PlacedBlock>,
}

impl PlacedLayer {
    /// Returns the number of weights and biases of the layer, including those of the layers inside a residual block.
    #[must_use]
    pub fn weights(&self) -> usize {
        let own = self.parameters.as_ref();
        let within = self.block.iter().flat_map(|block| block.body.iter().chain(&block.skip));
        own.map_or(0, |(weights, biases)| weights.len() + biases.len()) + within.map(Self::weights).sum::<usize>()
    }
}

/// Residual block: two paths from its input, whose outputs are added.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacedBlock {
    /// Layers that the model's text writes inside the residual block.
    pub body: Vec<PlacedLayer>,
    /// Layers of the residual block's other path, which give its input the shape of its output; empty if both have the
    /// same shape.
    pub skip: Vec<PlacedLayer>,
}

/// Layout of a model for samples of a given shape: the shapes of all layers and the places of all weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    /// Layers of the model, first to last.
    pub layers: Vec<PlacedLayer>,
    /// Trained tensors of a model in the order of its weights, which is that of a model file: sorted by key.
    pub tensors: Vec<TensorSlot>,
    pub weights: usize,
    /// Tensors of a model that are measured and not trained (batchnorm statistics), sorted by key. Their offsets count
    /// these statistics only, from 0, and not the weights.
    pub statistics: Vec<TensorSlot>,
    /// True if weight decay applies to matrices only (tensors of two or more dimensions), as is usual for modules.
    pub decays_matrices_only: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ModelError {
    /// Reason why a model does not fit a dataset: a layer cannot take input of the shape that reaches it.
    #[error("layer {number} ('{layer}') cannot take its input of shape {input}: {why}")]
    DoesNotFit {
        /// Place of the layer in the model's list of layers, from 0, as `torch.nn.Sequential` counts.
        number: String,
        /// Text of the layer in the model's description.
        layer: String,
        input: Shape,
        /// Description of the misfit between layer and input, and of the remedy, for people.
        why: String,
    },
    /// Reason why a model does not fit a dataset: the last layer does not give one number per class.
    #[error(
        "the model's output has shape {found}, but the data has {classes} classes: end the model with 'dense \
         {classes}', or 'dense' alone"
    )]
    WrongClassCount {
        /// Shape of the model's output, as the error message shows it.
        found: Shape,
        classes: usize,
    },
    /// Reason why a model is refused: a layer works on more than 2^28 numbers for one sample.
    #[error("layer {number} ('{layer}') works on more than 2^28 numbers per sample: make the layers smaller")]
    TooLarge {
        /// Place of the layer in the model's list of layers, from 0.
        number: String,
        /// Text of the layer in the model's description.
        layer: String,
    },
    /// Reason why a model is refused: it has more weights than a batch can index.
    #[error("the model has more than 2^31 weights: make the layers smaller")]
    TooManyWeights,
    /// Reason why a model is refused: it has no weights to train.
    #[error("the model has no weights: add a 'dense' or a 'conv' layer")]
    NoWeights,
    /// Reason why nothing can be said about a model: its layers are code, which only a worker with an interpreter runs.
    #[error("the layers of {0} are Python code: they cannot be cut, exported or listed")]
    Foreign(String),
}

/// Most numbers that a layer may work on for one sample.
const SAMPLE_ELEMENTS_MAX: usize = 1 << 28;

/// Returns the number of positions that a window of `kernel` pixels takes along a padded side. The size of the side may
/// come from a hostile file: the sum saturates, and later checks refuse the result.
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

/// Returns the output shape of a layer that is not a residual block, and the dimensions of its weights if it has any.
/// An error says why the layer cannot take the input.
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
        // Dense layers take an image as a vector.
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

/// Returns the number of channels of a sample; each number of a vector is one channel.
fn channels(shape: Shape) -> usize {
    match shape {
        Shape::Image { channels, .. } => channels,
        Shape::Flat(features) => features,
    }
}

/// Returns the layers that give a residual block's input the shape of its output: a convolution with kernels of one
/// pixel, or a dense layer. If the block ends in a batchnorm, these layers do, too, so that both summands have a
/// similar weight.
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

/// Tensors found while a model's layers are placed, before the tensors have their offsets.
#[derive(Default)]
struct LayoutTensors {
    tensors: Vec<TensorSlot>,
    statistics: Vec<TensorSlot>,
}

impl LayoutTensors {
    /// Infers the shapes of consecutive layers and records their tensors. If `outputs` is given, the last layer may
    /// take its number of outputs from there.
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
        // A convolution unfolds its input, which is the most that any layer holds of one sample.
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
            // Filled in by `tell` when all tensors are known.
            parameters: None,
            statistics: None,
            block,
        })
    }

    /// Records the tensors of a layer whose weights have these dimensions.
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

/// Returns the product of dimensions. The dimensions may come from a hostile file, so the product saturates.
fn product(dims: &[usize]) -> usize {
    dims.iter().fold(1, |product: usize, &dim| product.saturating_mul(dim))
}

/// Gives each tensor its offset among all weights, in the order of the keys, which is also the order of tensors of one
/// type in the safetensors format. Returns the total number of weights, or `None` if there are too many.
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

/// Fills in the index ranges of each layer's weights and statistics, including those of layers inside residual blocks.
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

/// Returns the layout of a pipeline stage, which has some layers of a whole model and their tensors. Indices count the
/// stage's own weights only, from 0. The whole model has been checked, so the number of weights is within its limit.
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
        decays_matrices_only: false,
    }
}

impl Layout {
    /// Infers the layout of a model for samples of this shape and this number of classes.
    pub fn new(model: &ModelSpec, input: Shape, classes: usize) -> Result<Self, ModelError> {
        let ModelSpec::Layers(layers) = model else {
            return Err(ModelError::Foreign(model.to_string()));
        };
        let mut found = LayoutTensors::default();
        let (mut layers, shape) = found.chain(layers, "", input, Some(classes))?;
        if found.tensors.is_empty() {
            return Err(ModelError::NoWeights);
        }
        // One number is enough to tell two classes apart.
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
            decays_matrices_only: false,
        })
    }

    /// Returns the layout of a model whose layers are unknown, from its tensors: (key, dimensions, role) in any order.
    pub fn of_tensors(tensors: impl IntoIterator<Item = (String, Vec<usize>, Role)>) -> Result<Self, ModelError> {
        let slot = |(key, dims, role): (String, Vec<usize>, Role)| TensorSlot {
            fan_in: product(dims.get(1..).unwrap_or_default()),
            key,
            dims,
            role,
            offset: 0,
        };
        let mut tensors: Vec<TensorSlot> = tensors.into_iter().map(slot).collect();
        match place(&mut tensors) {
            Some(0) => Err(ModelError::NoWeights),
            None => Err(ModelError::TooManyWeights),
            Some(weights) => Ok(Self {
                layers: Vec::new(),
                tensors,
                weights,
                statistics: Vec::new(),
                decays_matrices_only: true,
            }),
        }
    }

    /// Returns the index ranges of the weights that weight decay leaves alone, in order.
    pub fn undecayed(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let vectors = self
            .tensors
            .iter()
            .filter(|tensor| self.decays_matrices_only && tensor.dims.len() < 2);
        vectors.map(TensorSlot::range)
    }

    /// Returns the number of outputs of the model for one sample; 0 if its layers are unknown.
    #[must_use]
    pub fn outputs(&self) -> usize {
        self.layers.last().map_or(0, |layer| layer.output.elements())
    }

    /// Returns the number of statistics of the model that are measured and not trained (batchnorm means and variances).
    #[must_use]
    pub fn measured(&self) -> usize {
        self.statistics.iter().map(TensorSlot::elements).sum()
    }
}

#[cfg(test)]
mod tests;
