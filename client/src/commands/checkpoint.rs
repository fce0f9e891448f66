//! `tau checkpoint`: let every node write a checkpoint of the run.

use protocol::wire::control::{Reply, Request, RunOrder};

use super::access;
use crate::args::Ask;
use crate::contact::unexpected;
use crate::failure::Failure;
use crate::output::{self, RunEvent, notice};
use crate::runtime;

pub(crate) fn run(arguments: &Ask) -> Result<(), Failure> {
    runtime::run_async(async {
        let contact = access::contact(&arguments.cluster).await?;
        match contact.ask(Request::Order(RunOrder::Checkpoint)).await? {
            Reply::Ordered(run) => {
                if arguments.json {
                    output::line(&RunEvent {
                        event: "checkpointing",
                        run: run.to_string(),
                    });
                } else {
                    notice::say(&format!("every node writes a checkpoint of run {run} under its --dir"));
                }
                Ok(())
            }
            other => Err(unexpected(other)),
        }
    })
}
