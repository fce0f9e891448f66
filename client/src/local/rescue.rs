//! Saves the model or the checkpoints of a local run that could not be followed to its end, before its nodes are
//! stopped.

use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant, SystemTime};

use communicator::Timing;
use protocol::ids::RunId;
use protocol::wire::control::{Reply, Request, RunOrder};
use worker::model_file;

use super::scratch::{self, CREDENTIALS, Scratch};
use crate::contact::{Answer, Contact};
use crate::failure::Failure;
use crate::output::notice;
use crate::run::folder::run_named;
use crate::run::out_folder::OutFolder;
use crate::run::{fetch, follow};

/// Returns the time that nodes get to agree on the end of a run and save its model. `give_up_after` is the job's limit
/// in seconds for waiting for silent nodes.
fn end_limit(give_up_after: Option<f64>) -> Duration {
    let limit = Timing::DEFAULT.settle_limit();
    give_up_after.map_or(limit, |seconds| limit.max(Duration::from_secs_f64(seconds + 15.0)))
}

const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Saves the model or the checkpoints of a local run after a failure, and adds the outcome to the failure. The nodes
/// belong to this command alone, so any run that they report is this one.
pub(crate) async fn rescue(failure: Failure, contact: &Contact, scratch: &mut Scratch, out: &OutFolder) -> Failure {
    let reason = match failure {
        Failure::Failed(reason) => reason,
        // No run was started, or it has ended and been reported.
        other => return other,
    };
    match end(contact, out).await {
        Some(path) => Failure::Failed(format!(
            "{reason}; the run was ended early and its model is saved as {path}"
        )),
        None => match files(scratch, out, &reason) {
            Some(saved) => Failure::Failed(format!("{reason}; {saved}")),
            None => Failure::Failed(reason),
        },
    }
}

/// Ends the run through any node that answers, and fetches its model. Returns the model's path.
async fn end(contact: &Contact, out: &OutFolder) -> Option<String> {
    let since = Instant::now();
    let mut asked = false;
    loop {
        let answers = contact.ask_each(Request::Status).await;
        let run = answers.iter().find_map(Answer::status)?.run;
        let (answer, status) = follow::best(run, &answers)?;
        if let Some(outcome) = &status.outcome {
            let result = outcome.as_ref().ok()?;
            contact.prefer(answer.address);
            let status = status.clone();
            let folder = out.of_run(run).ok()?;
            let saved = fetch::save(contact, run, &status, result, &folder).await;
            return saved.ok().map(|finished| finished.model);
        }
        if !asked {
            notice::say("ending the run to save its model");
            asked = stop(contact).await;
        }
        if since.elapsed() > end_limit(status.job.give_up_after) {
            return None;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Asks every node to stop the run. Returns true if any node accepted.
async fn stop(contact: &Contact) -> bool {
    let heard = contact.ask_each(Request::Order(RunOrder::Stop)).await;
    heard
        .iter()
        .any(|answer| matches!(answer.reply, Ok(Reply::Ordered(_) | Reply::CalledOff(_))))
}

/// Leaves a scratch folder to the user, so that no later run removes it, until [`salvage`] has copied its files: the
/// program may end before that. Sends a sentence that says where the files are.
pub(crate) fn keep_until_salvaged(folder: &Path, said: &Sender<String>) {
    remove_secrets(folder);
    if scratch::leave_to_user(folder).is_ok() {
        let _ = said.send(stays_in(folder, Some("there was no time left")));
    }
}

/// Copies the files that nodes saved in a scratch folder to the user's folder, then removes the scratch folder unless
/// copying failed. Sends a sentence that says where the files are.
pub(crate) fn salvage(folder: &Path, out: &OutFolder, said: &Sender<String>) {
    let sentence = match bring(folder, out) {
        Some(Ok(saved)) => saved,
        Some(Err(failure)) => {
            let _ = said.send(stays_in(folder, Some(&failure.reasons().join("; "))));
            return;
        }
        None => "interrupted before the nodes saved a model or a checkpoint".into(),
    };
    let _ = said.send(sentence);
    scratch::remove(folder);
}

/// Removes the credentials from a cluster's temporary folder that stays for the user.
fn remove_secrets(folder: &Path) {
    let _ = std::fs::remove_file(folder.join(CREDENTIALS));
}

/// Returns the sentence that says where the nodes' files are and, if `why` is given, why they are not in the user's
/// folder.
fn stays_in(folder: &Path, why: Option<&str>) -> String {
    let why = why.map_or_else(String::new, |why| format!(": {why}"));
    format!(
        "the files that the nodes saved stay in {}, because they could not be copied to --out{why}",
        folder.display()
    )
}

/// Copies the newest model that can be read, else the checkpoints, from the folder in which nodes left them to the
/// user's folder. Returns one sentence, or none if there was nothing to copy.
fn bring(folder: &Path, out: &OutFolder) -> Option<Result<String, Failure>> {
    let found = left_by_nodes(folder);
    let model = found.models.iter().find(|path| model_file::load(path).is_ok());
    match model {
        Some(model) => {
            let copied = copy_model(model, out);
            Some(copied.map(|path| format!("a node had saved the model; its copy is {}", path.display())))
        }
        None if found.checkpoints.is_empty() => None,
        None => Some(copy_checkpoints(&found.checkpoints, out).map(|path| {
            let path = path.display();
            format!(
                "the nodes' checkpoints were copied to {path}: start nodes with that folder under their --dir, \
                 and continue the run with 'tau start --resume'"
            )
        })),
    }
}

/// Saves the files that nodes left to the user's folder, after a run failed for `reason`. Returns one sentence that
/// says where the files are, or none if there was nothing to save.
fn files(scratch: &mut Scratch, out: &OutFolder, reason: &str) -> Option<String> {
    match bring(scratch.path(), out)? {
        Ok(saved) => Some(saved),
        Err(failure) => {
            remove_secrets(scratch.path());
            scratch.keep().ok()?;
            let why = failure.reasons().join("; ");
            Some(stays_in(scratch.path(), (why != reason).then_some(&why)))
        }
    }
}

/// Models and checkpoints that the nodes of a failed run left in their folders, newest first.
#[derive(Debug, Default)]
struct Left {
    models: Vec<PathBuf>,
    checkpoints: Vec<PathBuf>,
}

/// Finds the models and checkpoints in a scratch folder, which has a folder for each node with a folder for each run.
fn left_by_nodes(folder: &Path) -> Left {
    let mut left = Left::default();
    for node in entries(folder) {
        for run in entries(&node) {
            for file in entries(&run) {
                match file.extension().and_then(|ending| ending.to_str()) {
                    Some("safetensors") => left.models.push(file),
                    Some("checkpoint") => left.checkpoints.push(file),
                    _ => {}
                }
            }
        }
    }
    for files in [&mut left.models, &mut left.checkpoints] {
        files.sort_by_key(|file| std::cmp::Reverse(written(file)));
    }
    left
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let found = std::fs::read_dir(folder).into_iter().flatten().flatten();
    found.map(|entry| entry.path()).collect()
}

fn written(file: &Path) -> SystemTime {
    let found = std::fs::metadata(file).and_then(|found| found.modified());
    found.unwrap_or(SystemTime::UNIX_EPOCH)
}

fn copy_model(model: &Path, out: &OutFolder) -> Result<PathBuf, Failure> {
    let folder = out.of_run(run_of(model))?;
    let path = folder.model();
    copy(model, &path).map_err(|error| folder.model_not_written(&error))?;
    Ok(path)
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    let mut from = std::fs::File::open(from)?;
    whole_file::write(to, |file| std::io::copy(&mut from, file).map(drop))
}

/// Copies the checkpoints of the newest run to the user's folder, into a folder named after the run: nodes look for a
/// run's checkpoints in a folder of that name. Returns that folder.
fn copy_checkpoints(checkpoints: &[PathBuf], out: &OutFolder) -> Result<PathBuf, Failure> {
    let newest = checkpoints.first().map_or(RunId(0), |file| run_of(file));
    let folder = out.of_run(newest)?;
    for file in checkpoints.iter().filter(|file| run_of(file) == newest) {
        let name = file.file_name().unwrap_or_default();
        let copied = copy(file, &folder.path().join(name));
        copied.map_err(|error| folder.not_written(&name.to_string_lossy(), &error))?;
    }
    Ok(folder.path().to_owned())
}

/// Returns the run to which a model or checkpoint left by a node belongs: the file's folder is named after the run.
fn run_of(file: &Path) -> RunId {
    file.parent().and_then(run_named).unwrap_or(RunId(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_are_brought_to_the_users_folder() {
        let among = tempfile::tempdir().unwrap();
        let node = among.path().join("0/00000000000000aa");
        std::fs::create_dir_all(&node).unwrap();
        std::fs::write(node.join("vm-1.checkpoint"), "what it had").unwrap();
        std::fs::write(node.join("vm-1.state"), "of a worker").unwrap();
        std::fs::write(among.path().join("cluster.pem"), "secret").unwrap();
        let left = left_by_nodes(among.path());
        assert!(left.models.is_empty());
        let out = OutFolder::check(&among.path().join("out")).unwrap();
        let folder = copy_checkpoints(&left.checkpoints, &out).unwrap();
        assert_eq!(folder, among.path().join("out/00000000000000aa"));
        assert_eq!(
            std::fs::read_to_string(folder.join("vm-1.checkpoint")).unwrap(),
            "what it had"
        );
    }

    #[test]
    fn nothing_is_said_of_nothing() {
        let mut scratch = Scratch::new().unwrap();
        std::fs::create_dir_all(scratch.path().join("0/00000000000000aa")).unwrap();
        let place = tempfile::tempdir().unwrap();
        let out = OutFolder::check(&place.path().join("out")).unwrap();
        assert_eq!(files(&mut scratch, &out, "it broke"), None);
        assert!(!place.path().join("out").exists());
    }

    /// Salvages the files in a scratch folder, and returns the last sentence that is sent to the user about them.
    fn salvaged(folder: &Path, out: &OutFolder) -> String {
        let (sender, said) = std::sync::mpsc::channel();
        keep_until_salvaged(folder, &sender);
        salvage(folder, out, &sender);
        said.try_iter().last().unwrap()
    }

    #[test]
    fn what_cannot_be_copied_stays_and_is_named_with_the_reason() {
        let among = tempfile::tempdir().unwrap();
        let (folder, out) = (among.path().join("nodes"), among.path().join("out"));
        let saved = folder.join("0/00000000000000aa/vm-1.checkpoint");
        std::fs::create_dir_all(saved.parent().unwrap()).unwrap();
        for file in [&saved, &folder.join("cluster.pem"), &folder.join("owner")] {
            std::fs::write(file, "what it had").unwrap();
        }
        let checked = OutFolder::check(&out).unwrap();
        // The folder was fine when the run began.
        std::fs::write(&out, "in the way").unwrap();
        let said = salvaged(&folder, &checked);
        assert!(said.contains(&format!("stay in {}", folder.display())), "{said}");
        assert!(said.contains("cannot create the folder"), "{said}");
        assert!(saved.exists());
        assert!(!folder.join("cluster.pem").exists(), "what is private goes");
        assert!(!folder.join("owner").exists(), "no later run may remove it");

        std::fs::remove_file(&out).unwrap();
        let said = salvaged(&folder, &checked);
        assert!(said.contains("were copied to"), "{said}");
        assert!(out.join("00000000000000aa/vm-1.checkpoint").exists() && !folder.exists());
    }

    #[test]
    fn damaged_models_are_not_rescued() {
        let mut scratch = Scratch::new().unwrap();
        let node = scratch.path().join("0/00000000000000aa");
        std::fs::create_dir_all(&node).unwrap();
        std::fs::write(node.join("vm-1.safetensors"), "half of it").unwrap();
        let place = tempfile::tempdir().unwrap();
        let out = OutFolder::check(&place.path().join("out")).unwrap();
        assert_eq!(files(&mut scratch, &out, "it broke"), None);
    }
}
