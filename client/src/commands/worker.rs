//! `tau worker`: a worker, attached to its node.

use ::worker::process::{self, Options};

use crate::args::Worker;
use crate::commands;
use crate::failure::Failure;
use crate::version::version;

pub(crate) fn run(arguments: &Worker) -> Result<(), Failure> {
    let options = Options {
        version: version(),
        device: commands::device(&arguments.device, arguments.precision.as_deref())?,
        threads: commands::threads(arguments.threads, 1)?,
        data_root: commands::data_root(arguments.data_root.as_deref())?,
    };
    process::attach(&arguments.node, &options).map_err(Failure::work)
}
