//! `tau start`: send `StartTraining` to a cluster, follow the run and save its model.

use std::sync::Arc;
use std::time::Duration;

use communicator::control::Connection;
use protocol::control::{Reply, Request};
use protocol::ids::RunId;
use protocol::job::Job;
use serde::Serialize;

use crate::args::Start;
use crate::failure::Failure;
use crate::out_folder::OutFolder;
use crate::view::View;
use crate::{commands, follow, interrupt, job_file, output};

/// How long a cluster may take to get ready: large files are read and hashed.
const PREPARE_LIMIT: Duration = Duration::from_mins(11);

#[derive(Serialize)]
struct Started {
    event: &'static str,
    run: String,
}

pub(crate) fn run(arguments: Start) -> Result<(), Failure> {
    if arguments.resume.is_some() {
        return Err(Failure::input(
            "--resume is not possible yet: this release makes no checkpoints",
        ));
    }
    let job = job_file::read(arguments.job, arguments.file.as_deref())?;
    let out = OutFolder::check(&arguments.out)?;
    interrupt::watch()?;
    commands::run_async(async {
        let connection = Arc::new(commands::connect(&arguments.cluster).await?);
        let run = if arguments.attach {
            newest(&connection).await?
        } else {
            begin(&connection, job, arguments.allow_partial, arguments.json).await?
        };
        if arguments.json && !arguments.attach {
            let run = run.to_string();
            output::line(&Started { event: "started", run });
        } else if arguments.detach {
            eprintln!("run {run} has begun; its nodes will save the model");
        }
        if arguments.detach {
            return Ok(());
        }
        let finished = follow::follow(connection, run, &out, arguments.json).await?;
        follow::report(&finished, arguments.json)
    })
}

/// Starts a run; returns when its nodes have begun.
pub(crate) async fn begin(
    connection: &Connection,
    job: Job,
    allow_partial: bool,
    json: bool,
) -> Result<RunId, Failure> {
    let view = View::new(0, json);
    view.busy("preparing: nodes open the data");
    let job = Box::new(job);
    let reply = connection
        .ask(Request::Start { job, allow_partial }, PREPARE_LIMIT)
        .await;
    view.clear();
    match reply.map_err(Failure::work)? {
        Reply::Started(run) => Ok(run),
        other => Err(commands::unexpected(other)),
    }
}

/// The run that the cluster is at, or was at last.
async fn newest(connection: &Connection) -> Result<RunId, Failure> {
    match commands::ask(connection, Request::Status).await? {
        Reply::Status(Some(status)) => Ok(status.run),
        Reply::Status(None) => Err(Failure::Failed(
            "there was no run since the node started: leave --attach out to start one".into(),
        )),
        other => Err(commands::unexpected(other)),
    }
}
