//! `tau worker`: a worker, attached to its node.

use ::worker::process::{self, AttachError, Options};

use crate::args::Worker;
use crate::failure::Failure;
use crate::local::compute;
use crate::run::interrupt;
use crate::version::version;

pub(crate) fn run(arguments: &Worker) -> Result<(), Failure> {
    let options = Options {
        version: version(),
        device: compute::device(&arguments.device, arguments.precision.as_deref())?,
        threads: compute::threads(arguments.threads, 1)?,
        data_root: compute::data_root(arguments.data_root.as_deref())?,
    };
    if arguments.tied {
        // A signal to all processes of a service is for the node, which ends its workers when they have sent what they learned.
        interrupt::ignore()?;
    }
    match process::attach(&arguments.node, &options) {
        // The node that started this worker has ended since, and has said why.
        Err(AttachError::NoNode { .. }) if arguments.tied => Ok(()),
        attached => attached.map_err(Failure::work),
    }
}
