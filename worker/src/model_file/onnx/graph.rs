//! Builds ONNX graphs: a chain of operations, each applied to the output of the one before.

use super::proto::{
    AttributeProto, DimensionProto, GraphProto, NodeProto, Size, TensorProto, TensorShapeProto, TensorTypeProto,
    TypeProto, ValueInfoProto,
};

/// Code by which ONNX files name the element type of 32-bit floats; the next three constants are codes of other types.
const FLOAT: i32 = 1;
const DOUBLE: i32 = 11;
const INT64: i32 = 7;
const STRING: i32 = 8;
/// Code by which ONNX files name the type of an attribute that is one integer; the next constants are codes of other
/// attribute types.
const INT: i32 = 2;
const INTS: i32 = 7;
const STRINGS: i32 = 8;
/// Domain of ONNX's operators for tables.
pub(super) const TABLES: &str = "ai.onnx.ml";

/// A chain of ONNX operations under construction.
pub(super) struct Chain {
    nodes: Vec<NodeProto>,
    constants: Vec<TensorProto>,
    /// Name of the value to which the chain's next operation is applied.
    current: String,
    /// Prefix of all names in the ONNX graph except those of inputs.
    prefix: &'static str,
}

/// An input or output of an ONNX graph: its name, and its dimensions for each sample.
pub(super) struct Port {
    pub(super) name: String,
    pub(super) dims: Vec<usize>,
    /// True if the input or output holds texts instead of numbers.
    pub(super) texts: bool,
}

impl Chain {
    /// Starts a chain of operations at an input of the graph.
    pub(super) fn new(input: &str, prefix: &'static str) -> Self {
        Self {
            nodes: Vec::new(),
            constants: Vec::new(),
            current: input.to_owned(),
            prefix,
        }
    }

    /// Returns the name of the output of the chain's last operation.
    pub(super) fn current(&self) -> String {
        self.current.clone()
    }

    /// Continues the chain of operations from the output of an earlier one.
    pub(super) fn go_on_from(&mut self, earlier: &str) {
        earlier.clone_into(&mut self.current);
    }

    /// Applies an operation to the chain's last output, with `more` as further inputs.
    pub(super) fn apply(&mut self, operation: &str, more: &[String], attributes: Vec<AttributeProto>) {
        self.apply_of("", operation, more, attributes);
    }

    /// Applies an operation of another ONNX domain to the chain's last output.
    fn apply_of(&mut self, domain: &str, operation: &str, more: &[String], attributes: Vec<AttributeProto>) {
        let mut input = vec![self.current()];
        input.extend_from_slice(more);
        self.current = format!("{}{}_{}", self.prefix, operation.to_lowercase(), self.nodes.len());
        self.nodes.push(NodeProto {
            input,
            output: vec![self.current()],
            op_type: operation.to_owned(),
            attribute: attributes,
            domain: domain.to_owned(),
        });
    }

    /// Adds a constant tensor of floats to the graph; returns its full name.
    pub(super) fn floats(&mut self, name: &str, dims: &[usize], values: &[f32]) -> String {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.constant(name, dims, FLOAT, bytes)
    }

    /// Adds a constant vector of integers to the graph; returns its full name.
    pub(super) fn integers(&mut self, name: &str, values: &[i64]) -> String {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.constant(name, &[values.len()], INT64, bytes)
    }

    fn doubles(&mut self, name: &str, values: &[f32]) -> String {
        let wide = values.iter().map(|&value| f64::from(value));
        let bytes = wide.flat_map(f64::to_le_bytes).collect();
        self.constant(name, &[values.len()], DOUBLE, bytes)
    }

    fn constant(&mut self, name: &str, dims: &[usize], data_type: i32, raw_data: Vec<u8>) -> String {
        let name = format!("{}{name}", self.prefix);
        self.constants.push(TensorProto {
            dims: dims.iter().map(|&dim| dim as i64).collect(),
            data_type,
            name: name.clone(),
            raw_data,
        });
        name
    }

    /// Applies an operation to the chain's last output, with one constant number as the second input.
    pub(super) fn with_number(&mut self, operation: &str, name: &str, number: f32) {
        let number = self.floats(name, &[], &[number]);
        self.apply(operation, &[number], Vec::new());
    }

    /// Applies the replacement of missing values (NaN) by these numbers, one per column.
    pub(super) fn fill(&mut self, name: &str, numbers: &[f32]) {
        let given = self.current();
        self.apply("IsNaN", &[], Vec::new());
        let numbers = self.floats(name, &[numbers.len()], numbers);
        self.apply("Where", &[numbers, given], Vec::new());
    }

    /// Applies one-hot encoding to a column of texts, with one output per category.
    pub(super) fn one_hot(&mut self, categories: &[String]) {
        let texts = AttributeProto {
            name: "cats_strings".into(),
            strings: categories.iter().map(|text| text.clone().into_bytes()).collect(),
            r#type: STRINGS,
            ..AttributeProto::default()
        };
        // A text that is unknown from training leads to zeros, not to an error.
        self.apply_of(TABLES, "OneHotEncoder", &[], vec![texts, number("zeros", 1)]);
        self.apply("Flatten", &[], Vec::new());
    }

    /// Concatenates columns to one tensor.
    pub(super) fn join(&mut self, columns: &[String]) {
        let [first, others @ ..] = columns else { return };
        self.go_on_from(first);
        self.apply("Concat", others, vec![number("axis", 1)]);
    }

    /// Standardises columns as training did: in double precision, rounded once.
    pub(super) fn standardise(&mut self, mean: &[f32], deviation: &[f32]) {
        self.apply("Cast", &[], vec![number("to", i64::from(DOUBLE))]);
        let mean = self.doubles("mean", mean);
        self.apply("Sub", &[mean], Vec::new());
        let deviation = self.doubles("deviation", deviation);
        self.apply("Div", &[deviation], Vec::new());
        self.apply("Cast", &[], vec![number("to", i64::from(FLOAT))]);
    }

    /// Completes the ONNX graph with its inputs and its output, one row per sample.
    pub(super) fn into_graph(mut self, inputs: &[Port], output: &Port) -> GraphProto {
        if let Some(last) = self.nodes.last_mut() {
            last.output = vec![output.name.clone()];
        }
        GraphProto {
            node: self.nodes,
            name: "tau".into(),
            initializer: self.constants,
            input: inputs.iter().map(samples).collect(),
            output: vec![samples(output)],
        }
    }
}

/// Makes an attribute of an ONNX operation: one integer.
pub(super) fn number(name: &str, value: i64) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        i: value,
        r#type: INT,
        ..AttributeProto::default()
    }
}

/// Makes an attribute of an ONNX operation: several integers.
pub(super) fn numbers(name: &str, values: &[usize]) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        ints: values.iter().map(|&value| value as i64).collect(),
        r#type: INTS,
        ..AttributeProto::default()
    }
}

/// Describes an input or output of an ONNX graph: its first dimension is the number of samples, which may vary, and the
/// port's own dimensions follow.
fn samples(Port { name, dims, texts }: &Port) -> ValueInfoProto {
    let any = Size::Named("samples".into());
    let fixed = dims.iter().map(|&dim| Size::Fixed(dim as i64));
    let dim = [any].into_iter().chain(fixed);
    let dim = dim.map(|size| DimensionProto { value: Some(size) }).collect();
    ValueInfoProto {
        name: name.clone(),
        r#type: Some(TypeProto {
            tensor_type: Some(TensorTypeProto {
                elem_type: if *texts { STRING } else { FLOAT },
                shape: Some(TensorShapeProto { dim }),
            }),
        }),
    }
}
