//! `tau checkpoint`: makes every node of a cluster write a checkpoint of the run.

use protocol::wire::control::{Reply, Request, RunOrder};

use super::access;
use crate::args::Ask;
use crate::contact::unexpected;
use crate::failure::Failure;
use crate::output;
use crate::runtime;

pub(crate) fn run(arguments: &Ask) -> Result<(), Failure> {
    runtime::run_async(async {
        let contact = access::contact(&arguments.cluster).await?;
        match contact.ask(Request::Order(RunOrder::Checkpoint)).await? {
            Reply::Ordered(run) => {
                let sentence = format!("every node writes a checkpoint of run {run} under its --dir");
                output::run_event("checkpointing", run, arguments.json, &sentence);
                Ok(())
            }
            other => Err(unexpected(other)),
        }
    })
}
