//! Building a graph: operations one after the other, each on what the last one gave.

use super::proto::{
    AttributeProto, DimensionProto, GraphProto, NodeProto, Size, TensorProto, TensorShapeProto, TensorTypeProto,
    TypeProto, ValueInfoProto,
};

/// Types of numbers, as the format counts them.
const FLOAT: i32 = 1;
const DOUBLE: i32 = 11;
const INT64: i32 = 7;
const STRING: i32 = 8;
/// Types of settings.
const INT: i32 = 2;
const INTS: i32 = 7;
const STRINGS: i32 = 8;
/// The domain of the operators for tables.
pub(super) const TABLES: &str = "ai.onnx.ml";

/// A chain of operations under construction.
pub(super) struct Chain {
    nodes: Vec<NodeProto>,
    constants: Vec<TensorProto>,
    /// What the next operation works on.
    current: String,
    /// Begins all names that are not those of inputs.
    prefix: &'static str,
}

/// What goes into a graph, or comes out: its name, and its dimensions for each sample.
pub(super) struct Port {
    pub(super) name: String,
    pub(super) dims: Vec<usize>,
    /// Whether it holds texts instead of numbers.
    pub(super) texts: bool,
}

impl Chain {
    /// A chain that begins with what goes in.
    pub(super) fn new(input: &str, prefix: &'static str) -> Self {
        Self {
            nodes: Vec::new(),
            constants: Vec::new(),
            current: input.to_owned(),
            prefix,
        }
    }

    /// What the last operation gave.
    pub(super) fn current(&self) -> String {
        self.current.clone()
    }

    /// Goes back to what an earlier operation gave.
    pub(super) fn go_on_from(&mut self, earlier: &str) {
        earlier.clone_into(&mut self.current);
    }

    /// An operation on what the last one gave, and on more.
    pub(super) fn apply(&mut self, operation: &str, more: &[String], attributes: Vec<AttributeProto>) {
        self.apply_of("", operation, more, attributes);
    }

    /// The same for an operation of another domain.
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

    /// Fixed numbers under a name.
    pub(super) fn floats(&mut self, name: &str, dims: &[usize], values: &[f32]) -> String {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.constant(name, dims, FLOAT, bytes)
    }

    /// Fixed whole numbers under a name.
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

    /// An operation with one number.
    pub(super) fn with_number(&mut self, operation: &str, name: &str, number: f32) {
        let number = self.floats(name, &[], &[number]);
        self.apply(operation, &[number], Vec::new());
    }

    /// Puts numbers in the place of those that are missing.
    pub(super) fn fill(&mut self, name: &str, numbers: &[f32]) {
        let given = self.current();
        self.apply("IsNaN", &[], Vec::new());
        let numbers = self.floats(name, &[numbers.len()], numbers);
        self.apply("Where", &[numbers, given], Vec::new());
    }

    /// Makes an input of each category of a column of texts: 1 for a sample's own, 0 for others.
    pub(super) fn one_hot(&mut self, categories: &[String]) {
        let texts = AttributeProto {
            name: "cats_strings".into(),
            strings: categories.iter().map(|text| text.clone().into_bytes()).collect(),
            r#type: STRINGS,
            ..AttributeProto::default()
        };
        // A text that training has not met is none of them, and no error.
        self.apply_of(TABLES, "OneHotEncoder", &[], vec![texts, number("zeros", 1)]);
        self.apply("Flatten", &[], Vec::new());
    }

    /// Puts columns side by side.
    pub(super) fn join(&mut self, columns: &[String]) {
        let [first, others @ ..] = columns else { return };
        self.go_on_from(first);
        self.apply("Concat", others, vec![number("axis", 1)]);
    }

    /// Shifts and scales columns as training did: in wide numbers, rounded once.
    pub(super) fn standardise(&mut self, mean: &[f32], deviation: &[f32]) {
        self.apply("Cast", &[], vec![number("to", i64::from(DOUBLE))]);
        let mean = self.doubles("mean", mean);
        self.apply("Sub", &[mean], Vec::new());
        let deviation = self.doubles("deviation", deviation);
        self.apply("Div", &[deviation], Vec::new());
        self.apply("Cast", &[], vec![number("to", i64::from(FLOAT))]);
    }

    /// The graph, with what goes in and what comes out, one row for each sample.
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

/// A setting that is one number.
pub(super) fn number(name: &str, value: i64) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        i: value,
        r#type: INT,
        ..AttributeProto::default()
    }
}

/// A setting that is several numbers.
pub(super) fn numbers(name: &str, values: &[usize]) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        ints: values.iter().map(|&value| value as i64).collect(),
        r#type: INTS,
        ..AttributeProto::default()
    }
}

/// Any number of samples, each of these dimensions.
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
