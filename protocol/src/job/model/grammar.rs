//! The text of a model: `conv OUT KxK [stride S] [pad P], maxpool K, …`, with layers separated by commas and blocks in
//! brackets; or `py:FILE`, which names a file of Python code.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::activation::Activation;
use crate::text_options::serde_as_text;

/// Largest number in the text of a layer, such as a width; a larger one is taken for a typing error.
const SIZE_MAX: usize = 1 << 20;
/// Most residual blocks that may be nested in a model; deeper nesting is taken for a mistake.
const DEPTH_MAX: usize = 8;

/// One layer of a model, as the model's text describes it.
#[derive(Clone, Debug, PartialEq)]
pub enum Layer {
    /// Layer: a convolution with square kernels.
    Conv {
        /// Number of output channels of a convolution.
        out: usize,
        /// Number of rows, and of columns, of a convolution's kernel.
        kernel: usize,
        /// Distance in pixels between neighbouring positions of a convolution's kernel.
        stride: usize,
        /// Width in pixels of the border of zeros that a convolution puts around the image.
        pad: usize,
        /// True if a convolution adds a trained number (bias) to each output channel.
        bias: bool,
    },
    /// Layer: takes the largest value of each square of this number of rows and columns.
    MaxPool(usize),
    /// Layer: takes the mean of each square of this number of rows and columns.
    AvgPool(usize),
    /// Layer: takes the mean of each channel of an image.
    GlobalAvgPool,
    /// Layer: turns an image into a vector.
    Flatten,
    /// Fully connected layer with this number of outputs; `None` for the number that the data needs.
    Dense(Option<usize>),
    /// Layer: normalises each channel to mean 0 and variance 1 over the minibatch.
    BatchNorm,
    /// Layer: normalises each sample over all of its values.
    LayerNorm,
    /// Layer: normalises each sample's channels in this many groups.
    GroupNorm(usize),
    /// Residual block: adds the block's input to the output of these layers.
    Residual(Vec<Layer>),
    /// Layer: applies a function to each number by itself.
    Activation(Activation),
    /// Layer: sets each value to 0 with this probability and scales up the others, in training only.
    Dropout(f64),
}

/// Text before the path of a Python file that defines a model.
const PYTHON: &str = "py:";

/// Model that a job trains.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelSpec {
    /// Model that Tau computes itself: its layers, first to last.
    Layers(Vec<Layer>),
    /// Model that is code of the user's: the path of a Python file whose function `model` returns a
    /// `torch.nn.Module`.
    Module(PathBuf),
}

/// Returns true if the text of a model names a file of Python code.
pub(in crate::job) fn names_module(text: &str) -> bool {
    text.trim_start().starts_with(PYTHON)
}

impl ModelSpec {
    /// Returns the path of the Python file that defines the model; `None` for a model of layers.
    #[must_use]
    pub fn module(&self) -> Option<&PathBuf> {
        match self {
            Self::Layers(_) => None,
            Self::Module(file) => Some(file),
        }
    }

    /// Returns the path of the Python file that defines the model, so that the caller can change it.
    pub fn module_mut(&mut self) -> Option<&mut PathBuf> {
        match self {
            Self::Layers(_) => None,
            Self::Module(file) => Some(file),
        }
    }
}

/// Returns all activation functions as a model's text writes them, separated by commas, for help and error messages.
fn activations() -> String {
    let forms = Activation::ALL.map(|activation| match activation.slope() {
        Some(_) => format!("{} [SLOPE]", activation.name()),
        None => activation.name().to_owned(),
    });
    forms.join(", ")
}

/// Returns all layers as a model's text writes them, separated by commas, for help and error messages.
fn forms() -> String {
    format!(
        "conv OUT KxK [stride S] [pad P] [nobias], maxpool K, avgpool K, globalavgpool, flatten, dense [OUT], \
         batchnorm, layernorm, groupnorm G, {}, dropout P, residual [ LAYERS ]",
        activations()
    )
}

/// Returns the help text of the job key `model`.
#[cfg(feature = "clap")]
pub(in crate::job) fn help() -> String {
    format!(
        "Layers of the network, separated by commas: conv OUT KxK (stride S, pad P, nobias), dense OUT (the last one may leave \
         OUT to the data), batchnorm, layernorm, groupnorm G, {}, dropout P, maxpool K, avgpool K, globalavgpool, flatten, \
         and blocks: residual, with its layers in square brackets; or py:FILE, a Python file whose function model() \
         returns a torch.nn.Module [default: by the data: \"dense 100, relu, dense\" for tables, two or more \
         convolutions for images]",
        activations()
    )
}

fn size(word: Option<&str>, what: &str, layer: &str) -> Result<usize, String> {
    let word = word.ok_or_else(|| format!("layer '{layer}' lacks its {what}"))?;
    match word.parse() {
        Ok(value) if (1..=SIZE_MAX).contains(&value) => Ok(value),
        _ => Err(format!(
            "layer '{layer}': the {what} must be a whole number from 1 to {SIZE_MAX}, not '{word}'"
        )),
    }
}

fn conv<'a>(words: &mut impl Iterator<Item = &'a str>, text: &str) -> Result<Layer, String> {
    let out = size(words.next(), "number of output channels", text)?;
    let kernel_text = words.next().unwrap_or_default();
    let kernel = match kernel_text.split_once('x') {
        Some((rows, columns)) if rows == columns => size(Some(rows), "kernel size", text)?,
        _ => {
            return Err(format!(
                "layer '{text}': the kernel must be square and written as 3x3, not '{kernel_text}'"
            ));
        }
    };
    let (mut stride, mut pad, mut bias) = (1, 0, true);
    while let Some(option) = words.next() {
        match option {
            "stride" => stride = size(words.next(), "stride", text)?,
            "pad" => {
                let word = words.next();
                pad = if word == Some("0") { 0 } else { size(word, "pad", text)? };
            }
            "nobias" => bias = false,
            unknown => {
                return Err(format!(
                    "layer '{text}': conv has no option '{unknown}'; it takes stride, pad and nobias"
                ));
            }
        }
    }
    Ok(Layer::Conv {
        out,
        kernel,
        stride,
        pad,
        bias,
    })
}

/// Reads a number of a layer that must lie in a range; `what` names the number in the error.
fn share(word: &str, text: &str, what: &str, range: std::ops::Range<f64>) -> Result<f64, String> {
    match word.parse() {
        Ok(value) if range.contains(&value) => Ok(value),
        _ => Err(format!(
            "layer '{text}': the {what} must be at least {} and below {}, not '{word}'",
            range.start, range.end
        )),
    }
}

/// Splits the text of a model at the commas outside of brackets.
fn split(text: &str) -> Result<Vec<&str>, String> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0usize, 0);
    for (at, letter) in text.char_indices() {
        match letter {
            '[' => depth += 1,
            ']' => depth = depth.checked_sub(1).ok_or("a ']' has no matching '[': remove it")?,
            ',' if depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    if depth > 0 {
        return Err("a '[' is not closed: end the layers of the block with ']'".into());
    }
    parts.push(text[start..].trim());
    Ok(parts)
}

/// Reads the text of layers that lie within `depth` nested residual blocks.
fn layers(text: &str, depth: usize) -> Result<Vec<Layer>, String> {
    let parts = split(text)?;
    parts.into_iter().map(|part| layer(part, depth)).collect()
}

/// Reads the text of a residual block with its layers in brackets.
fn residual(text: &str, depth: usize) -> Result<Layer, String> {
    let within = text
        .strip_prefix("residual")
        .and_then(|rest| rest.trim_start().strip_prefix('['))
        .and_then(|rest| rest.strip_suffix(']'))
        .ok_or_else(|| format!("'{text}' has no layers: write residual [ LAYERS ]"))?;
    if depth == DEPTH_MAX {
        return Err(format!(
            "more than {DEPTH_MAX} blocks are nested: nest fewer residual blocks"
        ));
    }
    Ok(Layer::Residual(layers(within, depth + 1)?))
}

impl FromStr for Layer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        layer(text, 0)
    }
}

fn layer(text: &str, depth: usize) -> Result<Layer, String> {
    if text.starts_with("residual[") {
        return residual(text, depth);
    }
    let mut words = text.split_whitespace();
    let layer = match words.next().unwrap_or_default() {
        "conv" => conv(&mut words, text)?,
        "maxpool" => Layer::MaxPool(size(words.next(), "size", text)?),
        "avgpool" => Layer::AvgPool(size(words.next(), "size", text)?),
        "globalavgpool" => Layer::GlobalAvgPool,
        "flatten" => Layer::Flatten,
        "dense" => Layer::Dense(match words.next() {
            None => None,
            word => Some(size(word, "number of outputs", text)?),
        }),
        "batchnorm" => Layer::BatchNorm,
        "layernorm" => Layer::LayerNorm,
        "groupnorm" => Layer::GroupNorm(size(words.next(), "number of groups", text)?),
        "residual" => return residual(text, depth),
        "dropout" => Layer::Dropout(share(words.next().unwrap_or_default(), text, "probability", 0.0..1.0)?),
        "" => {
            return Err(format!(
                "a layer is empty: separate layers by single commas; there are: {}",
                forms()
            ));
        }
        name => {
            let activation =
                Activation::named(name).ok_or_else(|| format!("there is no layer '{name}'; there are: {}", forms()))?;
            Layer::Activation(match activation.slope().and_then(|_| words.next()) {
                None => activation,
                Some(word) => activation.with_slope(share(word, text, "slope", 0.0..1.0)?),
            })
        }
    };
    match words.next() {
        None => Ok(layer),
        Some(extra) => Err(format!("layer '{text}': '{extra}' is one word too many")),
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Conv {
                out,
                kernel,
                stride,
                pad,
                bias,
            } => {
                write!(f, "conv {out} {kernel}x{kernel}")?;
                if *stride != 1 {
                    write!(f, " stride {stride}")?;
                }
                if *pad != 0 {
                    write!(f, " pad {pad}")?;
                }
                f.write_str(if *bias { "" } else { " nobias" })
            }
            Self::MaxPool(size) => write!(f, "maxpool {size}"),
            Self::AvgPool(size) => write!(f, "avgpool {size}"),
            Self::Flatten => f.write_str("flatten"),
            Self::GlobalAvgPool => f.write_str("globalavgpool"),
            Self::Dense(Some(out)) => write!(f, "dense {out}"),
            Self::Dense(None) => f.write_str("dense"),
            Self::BatchNorm => f.write_str("batchnorm"),
            Self::LayerNorm => f.write_str("layernorm"),
            Self::GroupNorm(groups) => write!(f, "groupnorm {groups}"),
            Self::Residual(layers) => write!(f, "residual [ {} ]", listed(layers)),
            Self::Activation(activation) => activation.fmt(f),
            Self::Dropout(probability) => write!(f, "dropout {probability}"),
        }
    }
}

/// Writes layers as the text of a model has them.
fn listed(layers: &[Layer]) -> String {
    let layers: Vec<String> = layers.iter().map(Layer::to_string).collect();
    layers.join(", ")
}

impl FromStr for ModelSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim().strip_prefix(PYTHON) {
            Some(file) if Path::new(file).extension() != Some("py".as_ref()) => Err(format!(
                "'{file}' is not a Python file: write {PYTHON}FILE with a file that ends in .py"
            )),
            Some(file) => Ok(Self::Module(file.into())),
            None => Ok(Self::Layers(layers(text, 0)?)),
        }
    }
}

impl fmt::Display for ModelSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Layers(layers) => f.write_str(&listed(layers)),
            Self::Module(file) => write!(f, "{PYTHON}{}", file.display()),
        }
    }
}

serde_as_text!(ModelSpec);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_round_trip() {
        let text = "conv 32 3x3, relu, conv 64 5x5 stride 2 pad 1, tanh, maxpool 2, avgpool 3, dropout 0.25, flatten, dense 128, sigmoid, gelu, dense 10";
        assert_eq!(text.parse::<ModelSpec>().unwrap().to_string(), text);
        assert_eq!(
            "dense 5 , relu".parse::<ModelSpec>().unwrap().to_string(),
            "dense 5, relu"
        );
        assert_eq!(
            "conv 1 3x3 stride 1 pad 0".parse::<Layer>().unwrap().to_string(),
            "conv 1 3x3"
        );
    }

    #[test]
    fn blocks_hold_layers_and_blocks() {
        let text = "conv 16 3x3 pad 1 nobias, batchnorm, silu, residual [ conv 8 1x1, groupnorm 4, residual [ leakyrelu ], leakyrelu 0.2 ], globalavgpool, layernorm, dense";
        let model: ModelSpec = text.parse().unwrap();
        assert_eq!(model.to_string(), text);
        let ModelSpec::Layers(layers) = model else {
            panic!("the text has no py:");
        };
        assert!(matches!(&layers[3], Layer::Residual(within) if within.len() == 4));
        assert_eq!(
            "residual[relu]".parse::<Layer>().unwrap().to_string(),
            "residual [ relu ]"
        );
        let error = |text: &str| text.parse::<ModelSpec>().unwrap_err();
        assert!(error("residual").contains("residual [ LAYERS ]"));
        assert!(error("residual [ relu").contains("not closed"));
        assert!(error("relu ]").contains("has no matching '['"));
        assert!(error("residual [ relu ] dense 5").contains("residual [ LAYERS ]"));
        assert!(error("residual [ ]").contains("empty"));
        assert!(error("leakyrelu 2").contains("slope"));
        assert!(error("groupnorm").contains("number of groups"));
        let deep = format!("{}relu{}", "residual [ ".repeat(9), " ]".repeat(9));
        assert!(error(&deep).contains("more than 8 blocks"));
    }

    #[test]
    fn a_python_file_is_a_model() {
        let model: ModelSpec = " py:nets/gpt.py".parse().unwrap();
        assert_eq!(model.module(), Some(&PathBuf::from("nets/gpt.py")));
        assert_eq!(model.to_string(), "py:nets/gpt.py");
        for wrong in ["py:", "py:gpt.txt", "py:gpt"] {
            let error = wrong.parse::<ModelSpec>().unwrap_err();
            assert!(error.contains("ends in .py"), "{error}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        let error = |text: &str| text.parse::<ModelSpec>().unwrap_err();
        assert!(error("dense 5, rellu").contains("no layer 'rellu'"));
        assert!(error("dense x").contains("not 'x'"));
        assert!(error("dense 0").contains("not '0'"));
        assert!(error("dense 99999999999").contains("whole number"));
        assert!(error("dense 5 6").contains("'6' is one word too many"));
        assert!(error("conv 5 3").contains("written as 3x3, not '3'"));
        assert!(error("conv 5 3x4").contains("square"));
        assert!(error("conv 5 3x3 dilate 2").contains("no option 'dilate'"));
        assert!(error("dropout 1").contains("below 1"));
        assert!(error("dense 5,, relu").contains("empty"));
        assert!(error("").contains("empty"));
    }
}
