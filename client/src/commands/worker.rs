//! `tau worker`: runs a worker that attaches to a node on this machine.

use ::worker::process::{self, AttachError, CODE_LIMIT, Options};

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
        code_limit: CODE_LIMIT,
        own_folder: None,
        modules: None,
        runtime: String::new(),
    };
    if arguments.tied {
        // A signal to all processes of a service is for the node, which ends its workers once they have sent their
        // residuals.
        interrupt::ignore()?;
    }
    match process::attach(&arguments.node, &options) {
        // The node that started this worker has ended since, and has reported the reason.
        Err(AttachError::NoNode { .. }) if arguments.tied => Ok(()),
        attached => attached.map_err(Failure::work),
    }
}
