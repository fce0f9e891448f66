//! `tau stop`: end a cluster's run early.

use protocol::control::{Reply, Request};

use crate::args::Ask;
use crate::commands;
use crate::failure::Failure;
use crate::output::{self, RunEvent};

pub(crate) fn run(arguments: &Ask) -> Result<(), Failure> {
    commands::run_async(async {
        let connection = commands::connect(&arguments.cluster).await?;
        match commands::ask(&connection, Request::Stop).await? {
            Reply::Stopping(run) => {
                if arguments.json {
                    output::line(&RunEvent {
                        event: "stopping",
                        run: run.to_string(),
                    });
                } else {
                    eprintln!("run {run} takes no further step; its nodes settle and save the model");
                }
                Ok(())
            }
            other => Err(commands::unexpected(other)),
        }
    })
}
