//! A model in the ONNX format, for programs that know nothing of Tau. It takes values as they are stored in the data, scales
//! them itself, and gives the probability of each class. The classes' names, and the columns', are in its metadata.

mod graph;
mod proto;

use std::f32::consts::SQRT_2;

use prost::Message;
use protocol::model::{Layer, Layout, PlacedLayer, Shape};
use thiserror::Error;

use crate::dataset::Scaling;
use crate::model_file::Model;
use graph::{Chain, number, numbers};
use proto::{ModelProto, OperatorSetIdProto, StringStringEntryProto};

/// What goes in.
const INPUT: &str = "input";
/// What comes out.
const OUTPUT: &str = "probabilities";
/// The version of the format, and of its operators: of 2021, which every program of today reads.
const FORMAT: i64 = 8;
const OPERATORS: i64 = 15;
/// The format's messages end here.
const BYTES_MAX: usize = i32::MAX as usize;

/// The model does not fit into the format.
#[derive(Debug, Error)]
#[error("the model's {weights} weights do not fit into an ONNX file, which holds 2 GB: use the model file itself")]
pub struct TooLarge {
    weights: usize,
}

/// The bytes of a file.
pub fn encode(model: &Model) -> Result<Vec<u8>, TooLarge> {
    let Model {
        metadata,
        layout,
        weights,
        ..
    } = model;
    let mut chain = Chain::new(INPUT);
    match &metadata.scaling {
        Scaling::Unit => chain.with_number("Mul", "unit", Scaling::UNIT),
        Scaling::Standard { mean, deviation } => chain.standardise(mean, deviation),
    }
    for (place, layer) in layout.layers.iter().enumerate() {
        add(&mut chain, place, layer, layout, weights);
    }
    chain.apply("Softmax", &[], vec![number("axis", 1)]);
    let classes = [metadata.classes.len()];
    let graph = chain.into_graph((INPUT, &dims(metadata.input)), (OUTPUT, &classes));
    let entry = |key: &str, value: String| StringStringEntryProto { key: key.into(), value };
    let names = |names: &[String]| serde_json::to_string(names).unwrap_or_default();
    let columns = metadata
        .columns
        .as_ref()
        .map(|columns| entry("columns", names(&columns.features)));
    let entries = [
        entry("classes", names(&metadata.classes)),
        entry("digest", metadata.digest.clone()),
    ];
    let file = ModelProto {
        ir_version: FORMAT,
        producer_name: "tau".into(),
        graph: Some(graph),
        opset_import: vec![OperatorSetIdProto {
            domain: String::new(),
            version: OPERATORS,
        }],
        metadata_props: entries.into_iter().chain(columns).collect(),
    };
    if file.encoded_len() > BYTES_MAX {
        return Err(TooLarge { weights: weights.len() });
    }
    Ok(file.encode_to_vec())
}

/// The dimensions of one sample.
fn dims(shape: Shape) -> Vec<usize> {
    match shape {
        Shape::Flat(features) => vec![features],
        Shape::Image {
            channels,
            height,
            width,
        } => vec![channels, height, width],
    }
}

/// Adds a layer; `place` is where it stands among the layers, as the tensors' names have it.
fn add(chain: &mut Chain, place: usize, placed: &PlacedLayer, layout: &Layout, weights: &[f32]) {
    let tensor = |chain: &mut Chain, name: &str| {
        let key = format!("{place}.{name}");
        let slot = layout.tensors.iter().find(|slot| slot.key == key);
        // A layer with weights has both tensors: the layout places them together.
        slot.map(|slot| chain.floats(&key, &slot.dims, &weights[slot.range()]))
            .unwrap_or(key)
    };
    let plain = |chain: &mut Chain, operation: &str| chain.apply(operation, &[], Vec::new());
    let pool = |chain: &mut Chain, operation: &str, side: usize| {
        let window = [side, side];
        let settings = vec![numbers("kernel_shape", &window), numbers("strides", &window)];
        chain.apply(operation, &[], settings);
    };
    match placed.layer {
        Layer::Conv {
            kernel, stride, pad, ..
        } => {
            let parameters = ["weight", "bias"].map(|name| tensor(chain, name));
            let settings = vec![
                numbers("kernel_shape", &[kernel; 2]),
                numbers("strides", &[stride; 2]),
                numbers("pads", &[pad; 4]),
            ];
            chain.apply("Conv", &parameters, settings);
        }
        Layer::MaxPool(side) => pool(chain, "MaxPool", side),
        Layer::AvgPool(side) => pool(chain, "AveragePool", side),
        Layer::Flatten => plain(chain, "Flatten"),
        Layer::Dense(_) => {
            if matches!(placed.input, Shape::Image { .. }) {
                plain(chain, "Flatten");
            }
            let parameters = ["weight", "bias"].map(|name| tensor(chain, name));
            chain.apply("Gemm", &parameters, vec![number("transB", 1)]);
        }
        Layer::Relu => plain(chain, "Relu"),
        Layer::Tanh => plain(chain, "Tanh"),
        Layer::Sigmoid => plain(chain, "Sigmoid"),
        Layer::Gelu => {
            // x Φ(x) = x · (1 + erf(x / √2)) / 2; an operator of its own came later.
            let x = chain.current();
            chain.with_number("Div", &format!("{place}.root"), SQRT_2);
            plain(chain, "Erf");
            chain.with_number("Add", &format!("{place}.one"), 1.0);
            chain.apply("Mul", &[x], Vec::new());
            chain.with_number("Mul", &format!("{place}.half"), 0.5);
        }
        // It does something in training only.
        Layer::Dropout(_) => {}
    }
}
