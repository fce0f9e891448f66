//! The layer grammar: `conv OUT KxK [stride S] [pad P], maxpool K, …`, separated by commas.

use std::fmt;
use std::str::FromStr;

use crate::text_options::serde_as_text;

/// Sizes above this are taken for a slip of the hand.
const SIZE_MAX: usize = 1 << 20;

/// One layer of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Layer {
    /// A convolution with square kernels.
    Conv {
        /// Output channels.
        out: usize,
        /// Rows and columns of a kernel.
        kernel: usize,
        /// Distance between two applications of a kernel.
        stride: usize,
        /// Zeros around the image.
        pad: usize,
    },
    /// The largest value of every square of so many rows and columns.
    MaxPool(usize),
    /// The mean of every square of so many rows and columns.
    AvgPool(usize),
    /// An image as a vector.
    Flatten,
    /// A fully connected layer with so many outputs.
    Dense(usize),
    /// max(x, 0)
    Relu,
    /// tanh x
    Tanh,
    /// 1 / (1 + e^-x)
    Sigmoid,
    /// x Φ(x), exactly, as PyTorch's default has it.
    Gelu,
    /// In training, each value is dropped with this probability and the rest scaled up.
    Dropout(f64),
}

/// A model as its list of layers.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// The layers, first to last.
    pub layers: Vec<Layer>,
}

const FORMS: &str =
    "conv OUT KxK [stride S] [pad P], maxpool K, avgpool K, flatten, dense OUT, relu, tanh, sigmoid, gelu, dropout P";

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
    let (mut stride, mut pad) = (1, 0);
    while let Some(option) = words.next() {
        match option {
            "stride" => stride = size(words.next(), "stride", text)?,
            "pad" => {
                let word = words.next();
                pad = if word == Some("0") { 0 } else { size(word, "pad", text)? };
            }
            unknown => {
                return Err(format!(
                    "layer '{text}': conv has no option '{unknown}'; it takes stride and pad"
                ));
            }
        }
    }
    Ok(Layer::Conv {
        out,
        kernel,
        stride,
        pad,
    })
}

impl FromStr for Layer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split_whitespace();
        let layer = match words.next().unwrap_or_default() {
            "conv" => conv(&mut words, text)?,
            "maxpool" => Self::MaxPool(size(words.next(), "size", text)?),
            "avgpool" => Self::AvgPool(size(words.next(), "size", text)?),
            "flatten" => Self::Flatten,
            "dense" => Self::Dense(size(words.next(), "number of outputs", text)?),
            "relu" => Self::Relu,
            "tanh" => Self::Tanh,
            "sigmoid" => Self::Sigmoid,
            "gelu" => Self::Gelu,
            "dropout" => {
                let word = words.next().unwrap_or_default();
                match word.parse::<f64>() {
                    Ok(probability) if (0.0..1.0).contains(&probability) => Self::Dropout(probability),
                    _ => {
                        return Err(format!(
                            "layer '{text}': the probability must be at least 0 and below 1, not '{word}'"
                        ));
                    }
                }
            }
            "" => {
                return Err(format!(
                    "a layer is empty; layers are separated by single commas: {FORMS}"
                ));
            }
            unknown => return Err(format!("there is no layer '{unknown}'; there are: {FORMS}")),
        };
        match words.next() {
            None => Ok(layer),
            Some(extra) => Err(format!("layer '{text}': '{extra}' is one word too many")),
        }
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Conv {
                out,
                kernel,
                stride,
                pad,
            } => {
                write!(f, "conv {out} {kernel}x{kernel}")?;
                if stride != 1 {
                    write!(f, " stride {stride}")?;
                }
                if pad != 0 {
                    write!(f, " pad {pad}")?;
                }
                Ok(())
            }
            Self::MaxPool(size) => write!(f, "maxpool {size}"),
            Self::AvgPool(size) => write!(f, "avgpool {size}"),
            Self::Flatten => f.write_str("flatten"),
            Self::Dense(out) => write!(f, "dense {out}"),
            Self::Relu => f.write_str("relu"),
            Self::Tanh => f.write_str("tanh"),
            Self::Sigmoid => f.write_str("sigmoid"),
            Self::Gelu => f.write_str("gelu"),
            Self::Dropout(probability) => write!(f, "dropout {probability}"),
        }
    }
}

impl FromStr for ModelSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let layers = text
            .split(',')
            .map(str::trim)
            .map(Layer::from_str)
            .collect::<Result<_, _>>()?;
        Ok(Self { layers })
    }
}

impl fmt::Display for ModelSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layers: Vec<String> = self.layers.iter().map(Layer::to_string).collect();
        f.write_str(&layers.join(", "))
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
    fn mistakes_are_named() {
        let error = |text: &str| text.parse::<ModelSpec>().unwrap_err();
        assert!(error("dense 5, rellu").contains("no layer 'rellu'"));
        assert!(error("dense").contains("'dense' lacks its number of outputs"));
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
