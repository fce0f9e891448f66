//! `tau stop`: end a cluster's run early.

use protocol::control::{Reply, Request};
use serde::Serialize;

use crate::args::Ask;
use crate::failure::Failure;
use crate::{commands, output};

#[derive(Serialize)]
struct Stopping {
    event: &'static str,
    run: String,
}

pub(crate) fn run(arguments: &Ask) -> Result<(), Failure> {
    commands::run_async(async {
        let connection = commands::connect(&arguments.cluster).await?;
        match commands::ask(&connection, Request::Stop).await? {
            Reply::Stopping(run) => {
                if arguments.json {
                    output::line(&Stopping {
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
