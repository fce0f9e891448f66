//! `tau checkpoint`: let every node write a checkpoint of the run.

use protocol::control::{Reply, Request};
use serde::Serialize;

use crate::args::Ask;
use crate::failure::Failure;
use crate::{commands, output};

#[derive(Serialize)]
struct Checkpointing {
    event: &'static str,
    run: String,
}

pub(crate) fn run(arguments: &Ask) -> Result<(), Failure> {
    commands::run_async(async {
        let connection = commands::connect(&arguments.cluster).await?;
        match commands::ask(&connection, Request::Checkpoint).await? {
            Reply::Checkpointing(run) => {
                if arguments.json {
                    output::line(&Checkpointing {
                        event: "checkpointing",
                        run: run.to_string(),
                    });
                } else {
                    eprintln!("every node writes a checkpoint of run {run} under its --dir");
                }
                Ok(())
            }
            other => Err(commands::unexpected(other)),
        }
    })
}
