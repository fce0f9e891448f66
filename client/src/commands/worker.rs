//! `tau worker`: a worker, attached to its node.

use ::worker::device::Device;
use ::worker::process::{self, Options};

use crate::args::Worker;
use crate::commands;
use crate::failure::Failure;
use crate::version::version;

pub(crate) fn run(arguments: &Worker) -> Result<(), Failure> {
    let options = Options {
        version: version(),
        device: Device::find(arguments.device, arguments.precision).map_err(Failure::bad)?,
        threads: commands::threads(arguments.threads, 1)?,
        data_root: arguments.data_root.clone(),
    };
    process::attach(&arguments.node, &options).map_err(Failure::work)
}
