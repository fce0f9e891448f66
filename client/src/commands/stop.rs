//! `tau stop`: ends a cluster's run early.

use std::time::{Duration, Instant};

use protocol::wire::control::{Reply, Request, RunOrder};

use super::access;
use crate::args::Ask;
use crate::contact::{Contact, unexpected};
use crate::failure::Failure;
use crate::output;
use crate::run::follow::{SUCCESSOR_LIMIT, awaits_successor};
use crate::runtime;

/// Pause between two requests to stop the run that repeats a diverged one, because that run may not have begun yet.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

pub(crate) fn run(arguments: &Ask) -> Result<(), Failure> {
    runtime::run_async(async {
        let contact = access::contact(&arguments.cluster).await?;
        let (event, run, means) = match stop(&contact).await? {
            Reply::Ordered(run) => {
                let means = "is stopping: its workers train no further, and its nodes settle and save the model";
                ("stopping", run, means)
            }
            Reply::CalledOff(run) => {
                let means = "was called off before training began; there is no model to save";
                ("called_off", run, means)
            }
            other => return Err(unexpected(other)),
        };
        output::run_event(event, run, arguments.json, &format!("run {run} {means}"));
        Ok(())
    })
}

/// Asks the cluster to end its run. If the run has diverged, waits for its successor, which trains the job again, to
/// stop that one.
async fn stop(contact: &Contact) -> Result<Reply, Failure> {
    let since = Instant::now();
    loop {
        let reply = contact.ask(Request::Order(RunOrder::Stop)).await?;
        let is_over = || since.elapsed() > SUCCESSOR_LIMIT;
        if !matches!(reply, Reply::Refused(_))
            || is_over()
            || !awaits_successor(&contact.ask_each(Request::Status).await)
        {
            return Ok(reply);
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}
