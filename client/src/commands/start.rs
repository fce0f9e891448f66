//! `tau start`: starts a run on a cluster, follows it and saves its model.

use std::path::Path;
use std::sync::Arc;

use protocol::ids::RunId;
use protocol::job::JobDraft;
use protocol::wire::control::{Reply, Request};

use super::access;
use crate::args::Start;
use crate::contact::{Answer, Contact, unexpected};
use crate::failure::Failure;
use crate::output::{self, Audience};
use crate::run::folder::run_named;
use crate::run::interrupt::{self, Leaving};
use crate::run::out_folder::OutFolder;
use crate::run::starting::{self, What};
use crate::run::{ending, follow};
use crate::runtime;
use crate::settings::job_file;
use crate::views::page;

pub(crate) fn run(arguments: Start) -> Result<(), Failure> {
    let what = match &arguments.resume {
        Some(folder) => What::Resume(resumed_run(folder)?, Box::new(changes(arguments.job)?)),
        None => What::Job(Box::new(job_file::read(arguments.job, arguments.file.as_deref())?)),
    };
    let out = OutFolder::check(&arguments.out)?;
    let audience = Audience::of(arguments.json);
    runtime::run_async(async {
        let contact = Arc::new(access::contact(&arguments.cluster).await?);
        let attached = if arguments.attach {
            Some(newest(&contact).await?)
        } else {
            contact.line().await?;
            None
        };
        // Before a node answers there is nothing to end in good order: a signal ends the program at once.
        interrupt::watch()?;
        let page = page::of_run(arguments.page.page.as_deref(), &contact, audience).await?;
        let leaves_behind = |run| {
            let (stopping, json) = (false, arguments.json);
            interrupt::leaves_behind(Leaving { run, stopping, json });
        };
        let run = if let Some(run) = attached {
            run
        } else {
            leaves_behind(None);
            starting::begin(&contact, what, arguments.allow_partial, audience).await?
        };
        leaves_behind(Some(run));
        if !arguments.attach && (arguments.json || arguments.detach) {
            let sentence = format!("run {run} has begun; its nodes will save the model");
            output::run_event("started", run, arguments.json, &sentence);
        }
        if arguments.detach {
            return Ok(());
        }
        let ended = follow::follow(&contact, run, &out, audience).await;
        if let Some(page) = &page {
            page.last_look(&ended).await;
        }
        let finished = match ended {
            Ok(finished) => finished,
            Err(failure) => return Err(resumable(failure, &contact, run).await),
        };
        let told = ending::report(&finished, arguments.json);
        page::report::keep(&finished);
        told
    })
}

/// Adds the advice to resume the run from a checkpoint to a failure if no node knows the run any more, because the
/// nodes were killed or restarted.
async fn resumable(failure: Failure, contact: &Contact, run: RunId) -> Failure {
    let answers = contact.ask_each(Request::Status).await;
    match failure {
        Failure::Failed(reason) if answers.iter().all(|answer| answer.status_of(run).is_none()) => {
            Failure::Failed(format!(
                "{reason}; if the nodes have written checkpoints, start them again with the same --dir, and \
                 continue from the furthest checkpoint with 'tau start --resume {run}'"
            ))
        }
        other => other,
    }
}

/// Returns the job settings to change in a resumed run. Fails if the flags set any that cannot be changed.
fn changes(job: JobDraft) -> Result<JobDraft, Failure> {
    let flags: Vec<String> = job
        .fixed_keys()
        .iter()
        .map(|key| format!("--{}", key.replace('_', "-")))
        .collect();
    if flags.is_empty() {
        return Ok(job);
    }
    Err(Failure::input(format!(
        "--resume continues the job of the checkpoint, in which {} cannot be changed: leave it out, or start a new \
         run from the saved model with --from",
        flags.join(", ")
    )))
}

/// Returns the run whose checkpoints a folder holds: nodes name the folder after the run. Links such as `latest` are
/// followed.
fn resumed_run(folder: &Path) -> Result<RunId, Failure> {
    let linked = || folder.canonicalize().ok().and_then(|folder| run_named(&folder));
    run_named(folder).or_else(linked).ok_or_else(|| {
        Failure::input(format!(
            "--resume {} does not name a run: give the run's id of sixteen hexadecimal digits, or the folder of \
             that name under a node's --dir",
            folder.display()
        ))
    })
}

/// Returns the cluster's current run, else its last one. All nodes are asked, because a restarted node knows no run.
async fn newest(contact: &Contact) -> Result<RunId, Failure> {
    let own = match contact.ask(Request::Status).await? {
        Reply::Status(Some(status)) if status.outcome.is_none() => return Ok(status.run),
        Reply::Status(status) => status.map(|status| status.run),
        other => return Err(unexpected(other)),
    };
    let answers = contact.ask_each(Request::Status).await;
    newest_of(own, &answers).ok_or_else(|| {
        let asked = answers.iter().map(|answer| match answer.reply {
            Ok(_) => answer.address.to_string(),
            Err(_) => format!("{} (no answer)", answer.address),
        });
        let asked = asked.collect::<Vec<_>>().join("; ");
        Failure::Failed(format!(
            "no node has had a run since the node was started (asked: {asked}): leave --attach out to start a run, \
             or give more nodes with --cluster"
        ))
    })
}

/// Chooses the run in progress that any node reports, else `own`, the last run of the node that was asked first, else
/// the last run of any node.
fn newest_of(own: Option<RunId>, answers: &[Answer]) -> Option<RunId> {
    let known = || answers.iter().filter_map(Answer::status);
    let under_way = known().find(|status| status.outcome.is_none());
    under_way
        .map(|status| status.run)
        .or(own)
        .or_else(|| known().next().map(|status| status.run))
}
