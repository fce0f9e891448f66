//! Exports models in the ONNX format, for other programs. An exported model takes values as they are stored in the
//! data, replaces missing ones, scales all of them itself, and returns the probability of each class, or the predicted
//! numbers. Its metadata holds the names of classes and columns.
//!
//! The input is one tensor if all columns are numbers. Otherwise each column is an input of its own, named like the
//! column.

mod graph;
mod proto;

use std::f32::consts::SQRT_2;

use prost::Message;
use protocol::job::model::{Activation, Layer, PlacedLayer, Shape};
use thiserror::Error;

use crate::dataset::{Encoding, NumberTarget, Scaling, Target};
use crate::model_file::{Metadata, Model};
use graph::{Chain, Port, TABLES, number, numbers};
use proto::{ModelProto, OperatorSetIdProto, StringStringEntryProto};

/// Name of the input tensor of an exported model.
const INPUT: &str = "input";
/// Name of an exported model's output for classes; the next constant is that for numbers.
const PROBABILITIES: &str = "probabilities";
const NUMBERS: &str = "numbers";
/// Version of the ONNX format in exported models; the next two constants are the versions of its operators. They are
/// those of 2021, which current programs read.
const FORMAT: i64 = 8;
const OPERATORS: i64 = 15;
const TABLE_OPERATORS: i64 = 2;
/// Prefix of names inside of an ONNX graph whose inputs are named after columns, so that no column has the same name.
const INSIDE: &str = "tau/";
/// Largest size in bytes of a message in the ONNX format.
const BYTES_MAX: usize = i32::MAX as usize;

/// The model is too large for the ONNX format.
#[derive(Debug, Error)]
#[error(
    "the model's {weights} weights do not fit into an ONNX file, which holds at most 2 GB: use the model file \
     itself"
)]
pub struct TooLarge {
    weights: usize,
}

/// Returns the bytes of the model's ONNX file.
pub fn encode(model: &Model) -> Result<Vec<u8>, TooLarge> {
    let Model {
        metadata,
        layout,
        weights,
        ..
    } = model;
    let (mut chain, inputs) = inputs(metadata);
    match &metadata.scaling {
        Scaling::Unit => chain.with_number("Mul", "unit", Scaling::UNIT),
        Scaling::Standard { mean, deviation } => chain.standardise(mean, deviation),
    }
    for layer in &layout.layers {
        add(&mut chain, layer, model);
    }
    let output = answer(&mut chain, metadata, layout.outputs());
    let output = Port {
        name: output.to_owned(),
        dims: vec![metadata.target.outputs()],
        texts: false,
    };
    let is_by_column = takes_columns(metadata);
    let graph = chain.into_graph(&inputs, &output);
    let entry = |key: &str, value: String| StringStringEntryProto { key: key.into(), value };
    let names = |names: &[String]| serde_json::to_string(names).unwrap_or_default();
    let columns: Option<Vec<String>> = if is_by_column {
        Some(inputs.into_iter().map(|input| input.name).collect())
    } else {
        metadata.columns.as_ref().map(|columns| columns.features.clone())
    };
    let columns = columns.map(|columns| entry("columns", names(&columns)));
    let encodings = is_by_column.then(|| {
        entry(
            "encodings",
            serde_json::to_string(&metadata.encodings).unwrap_or_default(),
        )
    });
    let entries = [
        entry("classes", names(metadata.target.classes())),
        entry("digest", metadata.digest.clone()),
    ];
    let file = ModelProto {
        ir_version: FORMAT,
        producer_name: "tau".into(),
        graph: Some(graph),
        opset_import: [("", OPERATORS), (TABLES, TABLE_OPERATORS)]
            .into_iter()
            .take(if is_by_column { 2 } else { 1 })
            .map(|(domain, version)| OperatorSetIdProto {
                domain: domain.to_owned(),
                version,
            })
            .collect(),
        metadata_props: entries.into_iter().chain(columns).chain(encodings).collect(),
    };
    if file.encoded_len() > BYTES_MAX {
        return Err(TooLarge { weights: weights.len() });
    }
    Ok(file.encode_to_vec())
}

/// True if the exported model has one input per column, because some column does not hold plain numbers.
#[must_use]
pub fn takes_columns(metadata: &Metadata) -> bool {
    let is_number = |encoding: &Encoding| matches!(encoding, Encoding::Number { .. });
    !metadata.encodings.iter().all(is_number)
}

/// Starts an ONNX graph: returns its inputs, and a chain of operations that converts them to the model's unscaled
/// inputs.
fn inputs(metadata: &Metadata) -> (Chain, Vec<Port>) {
    if takes_columns(metadata) {
        return columns(metadata);
    }
    let mut chain = Chain::new(INPUT, "");
    let fills = metadata.encodings.iter().map(|encoding| match encoding {
        Encoding::Number { fill } => *fill,
        _ => None,
    });
    // Columns without a replacement keep missing values as NaN.
    let fills: Vec<f32> = fills.map(|fill| fill.unwrap_or(f32::NAN)).collect();
    if fills.iter().any(|fill| !fill.is_nan()) {
        chain.fill("missing", &fills);
    }
    let input = Port {
        name: INPUT.to_owned(),
        dims: metadata.input.dims(),
        texts: false,
    };
    (chain, vec![input])
}

/// Starts an ONNX graph in which each column is an input. A column of categories takes its texts; any other takes all
/// inputs that Tau makes of the column, because ONNX has no operators that hash texts or read dates.
fn columns(metadata: &Metadata) -> (Chain, Vec<Port>) {
    let mut chain = Chain::new("", INSIDE);
    let (mut ports, mut made) = (Vec::new(), Vec::new());
    for (at, encoding) in metadata.encodings.iter().enumerate() {
        let named = metadata.columns.as_ref().and_then(|columns| columns.features.get(at));
        let mut name = named.cloned().unwrap_or_else(|| at.to_string());
        while [PROBABILITIES, NUMBERS, ""].contains(&name.as_str()) {
            name.push('_');
        }
        chain.go_on_from(&name);
        let is_category = matches!(encoding, Encoding::OneHot { .. });
        match encoding {
            Encoding::OneHot { categories } if categories.is_empty() => continue,
            Encoding::OneHot { categories } => chain.one_hot(categories),
            Encoding::Number { fill: Some(fill) } => chain.fill(&format!("missing_{at}"), &[*fill]),
            Encoding::Number { fill: None }
            | Encoding::Hash { .. }
            | Encoding::Words { .. }
            | Encoding::Date { .. } => {}
        }
        made.push(chain.current());
        ports.push(Port {
            name,
            dims: vec![if is_category { 1 } else { encoding.width() }],
            texts: is_category,
        });
    }
    chain.join(&made);
    (chain, ports)
}

/// Adds the conversion of a model's outputs to probabilities or numbers, and returns the name of the graph's output.
fn answer(chain: &mut Chain, metadata: &Metadata, outputs: usize) -> &'static str {
    match &metadata.target {
        Target::Classes(_) if outputs == 1 => {
            // The single output is the logit of the second class.
            chain.apply("Sigmoid", &[], Vec::new());
            let second = chain.current();
            chain.with_number("Sub", "sure", 1.0);
            chain.apply("Neg", &[], Vec::new());
            chain.apply("Concat", &[second], vec![number("axis", 1)]);
            PROBABILITIES
        }
        Target::Classes(_) => {
            chain.apply("Softmax", &[], vec![number("axis", 1)]);
            PROBABILITIES
        }
        Target::Numbers(numbers) => {
            let of = |part: fn(&NumberTarget) -> f32| numbers.iter().map(part).collect::<Vec<_>>();
            let units = chain.floats("unit_of_numbers", &[numbers.len()], &of(|number| number.deviation));
            chain.apply("Mul", &[units], Vec::new());
            let means = chain.floats("mean_of_numbers", &[numbers.len()], &of(|number| number.mean));
            chain.apply("Add", &[means], Vec::new());
            NUMBERS
        }
        // Nothing is known of such outputs.
        Target::Module => NUMBERS,
    }
}

/// Adds a layer or a residual block to the ONNX graph.
fn add(chain: &mut Chain, placed: &PlacedLayer, model: &Model) {
    let place = &placed.path;
    let tensor = |chain: &mut Chain, name: &str| {
        let key = format!("{place}.{name}");
        let (layout, kept) = (&model.layout, [&model.weights, &model.statistics]);
        let slots = [&layout.tensors, &layout.statistics].into_iter().zip(kept);
        let mut found = slots.filter_map(|(slots, numbers)| {
            let slot = slots.iter().find(|slot| slot.key == key)?;
            Some((&slot.dims, &numbers[slot.range()]))
        });
        // The layout places all tensors that a layer needs.
        found.next().map(|(dims, numbers)| chain.floats(&key, dims, numbers))
    };
    let tensors = |chain: &mut Chain, names: &[&str]| -> Vec<String> {
        names.iter().filter_map(|name| tensor(chain, name)).collect()
    };
    let pool = |chain: &mut Chain, operation: &str, side: usize| {
        let window = [side, side];
        let settings = vec![numbers("kernel_shape", &window), numbers("strides", &window)];
        chain.apply(operation, &[], settings);
    };
    match placed.layer {
        Layer::Conv {
            kernel, stride, pad, ..
        } => {
            let parameters = tensors(chain, &["weight", "bias"]);
            let settings = vec![
                numbers("kernel_shape", &[kernel; 2]),
                numbers("strides", &[stride; 2]),
                numbers("pads", &[pad; 4]),
            ];
            chain.apply("Conv", &parameters, settings);
        }
        Layer::MaxPool(side) => pool(chain, "MaxPool", side),
        Layer::AvgPool(side) => pool(chain, "AveragePool", side),
        Layer::GlobalAvgPool => plain(chain, "GlobalAveragePool"),
        Layer::Flatten => plain(chain, "Flatten"),
        Layer::Dense(_) => {
            if matches!(placed.input, Shape::Image { .. }) {
                plain(chain, "Flatten");
            }
            let parameters = tensors(chain, &["weight", "bias"]);
            chain.apply("Gemm", &parameters, vec![number("transB", 1)]);
        }
        Layer::BatchNorm => {
            let parameters = tensors(chain, &["weight", "bias", "running_mean", "running_var"]);
            chain.apply("BatchNormalization", &parameters, Vec::new());
        }
        Layer::LayerNorm => normalise(chain, placed, 1),
        Layer::GroupNorm(groups) => normalise(chain, placed, groups),
        Layer::Residual(_) => {
            let (x, block) = (chain.current(), placed.block.iter());
            for block in block {
                block.body.iter().for_each(|layer| add(chain, layer, model));
                let one = chain.current();
                chain.go_on_from(&x);
                block.skip.iter().for_each(|layer| add(chain, layer, model));
                chain.apply("Add", &[one], Vec::new());
            }
        }
        Layer::Activation(activation) => activate(chain, activation, place),
        // Dropout only acts in training.
        Layer::Dropout(_) => {}
    }
    if matches!(placed.layer, Layer::LayerNorm | Layer::GroupNorm(_)) {
        for (operation, name) in [("Mul", "weight"), ("Add", "bias")] {
            let key = format!("{place}.{name}");
            let slot = model.layout.tensors.iter().find(|slot| slot.key == key);
            // One number per channel, or per number of a sample.
            let channels = slot.map_or(0, |slot| slot.dims[0]);
            let dims: Vec<usize> = match (&placed.layer, placed.input) {
                (Layer::GroupNorm(_), Shape::Image { .. }) => vec![channels, 1, 1],
                _ => slot.map_or_else(Vec::new, |slot| slot.dims.clone()),
            };
            if let Some(slot) = slot {
                let constant = chain.floats(&key, &dims, &model.weights[slot.range()]);
                chain.apply(operation, &[constant], Vec::new());
            }
        }
    }
}

/// Adds an ONNX operation without parameters or attributes.
fn plain(chain: &mut Chain, operation: &str) {
    chain.apply(operation, &[], Vec::new());
}

/// Adds an activation. `place`, the path of the layer, prefixes the names of its constants.
fn activate(chain: &mut Chain, activation: Activation, place: &str) {
    match activation {
        Activation::Relu => plain(chain, "Relu"),
        Activation::LeakyRelu(slope) => chain.with_number("PRelu", &format!("{place}.slope"), slope as f32),
        Activation::Silu => {
            let x = chain.current();
            plain(chain, "Sigmoid");
            chain.apply("Mul", &[x], Vec::new());
        }
        Activation::Tanh => plain(chain, "Tanh"),
        Activation::Sigmoid => plain(chain, "Sigmoid"),
        Activation::Gelu => {
            // x Φ(x) = x · (1 + erf(x / √2)) / 2; ONNX got an operator for it in a later version.
            let x = chain.current();
            chain.with_number("Div", &format!("{place}.root"), SQRT_2);
            plain(chain, "Erf");
            chain.with_number("Add", &format!("{place}.one"), 1.0);
            chain.apply("Mul", &[x], Vec::new());
            chain.with_number("Mul", &format!("{place}.half"), 0.5);
        }
    }
}

/// Adds a normalisation of each sample's numbers in `groups` groups. ONNX got operators for it in later versions, so
/// each group is treated as one channel of an image.
fn normalise(chain: &mut Chain, placed: &PlacedLayer, groups: usize) {
    let place = &placed.path;
    let whole = |dims: &[usize]| dims.iter().map(|&dim| dim as i64).collect::<Vec<_>>();
    let apart = chain.integers(&format!("{place}.apart"), &[0, groups as i64, -1]);
    chain.apply("Reshape", &[apart], Vec::new());
    let ones = chain.floats(&format!("{place}.ones"), &[groups], &vec![1.0; groups]);
    let zeros = chain.floats(&format!("{place}.zeros"), &[groups], &vec![0.0; groups]);
    chain.apply("InstanceNormalization", &[ones, zeros], Vec::new());
    let dims = [vec![0], whole(&placed.input.dims())].concat();
    let together = chain.integers(&format!("{place}.together"), &dims);
    chain.apply("Reshape", &[together], Vec::new());
}

#[cfg(test)]
mod tests {
    use protocol::job::JobDraft;
    use protocol::job::model::Layout;

    use super::*;
    use crate::dataset::{ColumnNames, Known};
    use protocol::log::frontier::Frontier;
    use protocol::weights::digest::Digest;

    /// Returns the file of a model with one layer and these columns.
    fn file(columns: &[&str], encodings: &[Encoding]) -> ModelProto {
        let draft = JobDraft {
            model: Some("dense 2".into()),
            ..JobDraft::default()
        };
        let job = draft.resolve().unwrap();
        let width = encodings.iter().map(Encoding::width).sum();
        let input = Shape::Flat(width);
        let layout = Layout::new(&job.model, input, 2).unwrap();
        let names = ColumnNames {
            features: columns.iter().map(|&name| name.to_owned()).collect(),
            labels: vec!["kind".into()],
        };
        let known = Known {
            input,
            target: &Target::Classes(vec!["a".into(), "b".into()]),
            columns: Some(&names),
            encodings,
            scaling: &Scaling::Standard {
                mean: vec![0.0; width],
                deviation: vec![1.0; width],
            },
        };
        let model = Model {
            metadata: Metadata::new(&job, known, &Frontier::default(), Digest::of_counts(&[])),
            weights: vec![0.0; layout.weights],
            statistics: Vec::new(),
            untrained: Vec::new(),
            layout,
            job,
        };
        ModelProto::decode(encode(&model).unwrap().as_slice()).unwrap()
    }

    fn inputs_of(file: &ModelProto) -> Vec<(String, i32)> {
        let inputs = file.graph.as_ref().unwrap().input.iter();
        let of = |input: &proto::ValueInfoProto| {
            input
                .r#type
                .as_ref()?
                .tensor_type
                .as_ref()
                .map(|tensor| tensor.elem_type)
        };
        inputs.map(|input| (input.name.clone(), of(input).unwrap())).collect()
    }

    fn operations(file: &ModelProto) -> Vec<&str> {
        let nodes = file.graph.as_ref().unwrap().node.iter();
        nodes.map(|node| node.op_type.as_str()).collect()
    }

    #[test]
    fn numbers_go_in_together_and_columns_with_texts_one_by_one() {
        let (float, string) = (1, 8);
        let number = |fill| Encoding::Number { fill };
        let plain = file(&["x", "y"], &[number(None), number(None)]);
        assert_eq!(inputs_of(&plain), [("input".to_owned(), float)]);
        assert!(!operations(&plain).contains(&"IsNaN") && plain.opset_import.len() == 1);
        let filled = file(&["x", "y"], &[number(Some(2.0)), number(None)]);
        assert_eq!(inputs_of(&filled), [("input".to_owned(), float)]);
        assert_eq!(operations(&filled)[..2], ["IsNaN", "Where"]);

        let colours = Encoding::OneHot {
            categories: vec!["blue".into(), "red".into()],
        };
        // A column may have the same name as the output.
        let table = file(
            &["colour", "probabilities", "shop"],
            &[colours, number(Some(1.0)), Encoding::Hash { inputs: 4 }],
        );
        let expected = [("colour", string), ("probabilities_", float), ("shop", float)];
        assert_eq!(inputs_of(&table), expected.map(|(name, kind)| (name.to_owned(), kind)));
        assert_eq!(
            operations(&table)[..5],
            ["OneHotEncoder", "Flatten", "IsNaN", "Where", "Concat"]
        );
        assert_eq!(table.opset_import[1].domain, "ai.onnx.ml");
    }
}
