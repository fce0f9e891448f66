//! `tau export`: a saved model in another format.

use std::io::Write;

use worker::dataset::Target;
use worker::model_file::{self, Metadata};
use worker::onnx;

use crate::args::Export;
use crate::failure::Failure;
use crate::output;
use crate::quantity;

pub(crate) fn run(arguments: &Export) -> Result<(), Failure> {
    let model = model_file::load(&arguments.model).map_err(Failure::bad)?;
    let bytes = onnx::encode(&model).map_err(Failure::bad)?;
    let path = &arguments.onnx;
    let written =
        whole_file::make_folder_of(path).and_then(|()| whole_file::write(path, |file| file.write_all(&bytes)));
    written.map_err(|error| {
        Failure::Failed(format!(
            "{} could not be written: make room for it, or give another file ({error})",
            path.display()
        ))
    })?;
    output::text(&format!(
        "{}: takes {} as in the data, gives {}\n",
        path.display(),
        takes(&model.metadata),
        gives(&model.metadata.target)
    ));
    Ok(())
}

/// What goes in.
fn takes(metadata: &Metadata) -> String {
    if onnx::takes_columns(metadata) {
        let columns = quantity::of(metadata.encodings.len(), "column");
        format!("{columns}, each as an input of its name,")
    } else {
        format!("samples of {}", metadata.input)
    }
}

/// What comes out.
fn gives(target: &Target) -> String {
    match target {
        Target::Classes(classes) => format!("the probabilities of {} classes", classes.len()),
        Target::Numbers(numbers) => {
            let names: Vec<&str> = numbers.iter().map(|number| number.name.as_str()).collect();
            format!("{} in the unit of the data", names.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use worker::dataset::NumberTarget;

    use super::*;

    #[test]
    fn numbers_are_given_by_their_names() {
        let price = NumberTarget {
            name: "price".into(),
            mean: 1.0,
            deviation: 2.0,
        };
        assert_eq!(gives(&Target::Numbers(vec![price])), "price in the unit of the data");
        let classes = Target::Classes(vec!["a".into(), "b".into()]);
        assert_eq!(gives(&classes), "the probabilities of 2 classes");
    }
}
