//! `tau export`: a saved model in another format.

use std::io::Write;

use worker::{model_file, onnx};

use crate::args::Export;
use crate::failure::Failure;
use crate::output;

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
        "{}: takes samples of {} as they are in the data, gives the probabilities of {}\n",
        path.display(),
        model.metadata.input,
        model.metadata.target.info()
    ));
    Ok(())
}
