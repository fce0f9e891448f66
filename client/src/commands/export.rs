//! `tau export`: writes a saved model in another format.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::Path;

use worker::dataset::Target;
use worker::model_file::onnx;
use worker::model_file::{self, Metadata};

use crate::args::Export;
use crate::failure::Failure;
use crate::output::{self, notice, printable, quantity};

pub(crate) fn run(arguments: &Export) -> Result<(), Failure> {
    let model = model_file::load_to_compute(&arguments.model).map_err(Failure::bad)?;
    let bytes = onnx::encode(&model).map_err(Failure::bad)?;
    let path = &arguments.onnx;
    let is_stream = whole_file::is_stream(path);
    write(path, is_stream, &bytes)?;
    let told = format!(
        "{}: the model takes {} with values as in the data, and returns {}",
        path.display(),
        takes(&model.metadata),
        gives(&model.metadata.target)
    );
    if is_stream {
        // The stream may be standard output itself, so this message goes to standard error.
        notice::say(&told);
    } else {
        output::text(&format!("{told}\n"));
    }
    Ok(())
}

/// Writes the bytes to a stream, or to a file that appears whole or not at all.
fn write(path: &Path, is_stream: bool, bytes: &[u8]) -> Result<(), Failure> {
    let written = if is_stream {
        let stream = File::options().write(true).open(path);
        stream.and_then(|mut stream| stream.write_all(bytes))
    } else {
        whole_file::make_folder_of(path)
            .and_then(|()| whole_file::target_of(path))
            .and_then(|path| whole_file::write(&path, |file| file.write_all(bytes)))
    };
    written.map_err(|error| {
        let path = path.display();
        match error.kind() {
            ErrorKind::InvalidInput => Failure::input(format!("{path} cannot be replaced: {error}; give another file")),
            _ => Failure::Failed(format!(
                "{path} could not be written: free disk space, or give another file ({error})"
            )),
        }
    })
}

/// Describes the inputs of the exported model for people.
fn takes(metadata: &Metadata) -> String {
    if onnx::takes_columns(metadata) {
        let columns = quantity::of(metadata.encodings.len(), "column");
        format!("{columns}, each as an input named after it,")
    } else {
        format!("samples of shape {}", metadata.input)
    }
}

/// Describes the outputs of the exported model for people.
fn gives(target: &Target) -> String {
    match target {
        Target::Classes(classes) => format!("the probabilities of {} classes", classes.len()),
        Target::Module => "the outputs of a module".into(),
        Target::Numbers(numbers) => {
            let names: Vec<&str> = numbers.iter().map(|number| number.name.as_str()).collect();
            format!("{} in the unit of the data", printable::line(&names.join(", ")))
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
