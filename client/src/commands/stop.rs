//! `tau stop`: end a cluster's run early.

use protocol::ids::RunId;
use protocol::wire::control::{Reply, Request};

use crate::args::Ask;
use crate::commands;
use crate::failure::Failure;
use crate::notice;
use crate::output::{self, RunEvent};

pub(crate) fn run(arguments: &Ask) -> Result<(), Failure> {
    commands::run_async(async {
        let contact = commands::contact(&arguments.cluster).await?;
        match contact.ask(Request::Stop).await? {
            Reply::Stopping(run) => {
                let means = "takes no further step; its nodes settle and save the model";
                say("stopping", run, means, arguments.json);
                Ok(())
            }
            Reply::CalledOff(run) => {
                let means = "had not begun and is called off; there is nothing to save";
                say("called_off", run, means, arguments.json);
                Ok(())
            }
            other => Err(commands::unexpected(other)),
        }
    })
}

fn say(event: &'static str, run: RunId, means: &str, json: bool) {
    if json {
        let run = run.to_string();
        output::line(&RunEvent { event, run });
    } else {
        notice::say(&format!("run {run} {means}"));
    }
}
