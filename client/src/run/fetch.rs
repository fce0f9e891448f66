//! Fetches the model of a finished run from any node that has it.

use std::io::{Seek, Write};
use std::time::{Duration, Instant};

use communicator::control::ConnectionError;
use protocol::ids::RunId;
use protocol::sentence::sentence;
use protocol::stats::Finished;
use protocol::weights::digest::Digest;
use protocol::wire::control::{RunResult, RunStatus};
use whole_file::PartialFile;
use worker::model_file;
use worker::model_file::assembly::{AssemblyError, assemble};

use super::ending;
use super::folder::RunFolder;
use super::interrupt::Unfinished;
use crate::contact::Contact;
use crate::failure::Failure;

/// Time for which nodes are asked for a run's model while at least one has not said that it lacks the model.
const LIMIT: Duration = Duration::from_mins(1);
/// Time for which nodes are asked for a run's model after all have said that they lack it: one may be about to write
/// it.
const NONE_LIMIT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(500);

/// Fetches a run's model from the nodes, checks its digest, and then moves the whole file to its final path.
pub(crate) async fn save(
    contact: &Contact,
    run: RunId,
    status: &RunStatus,
    result: &RunResult,
    folder: &RunFolder,
) -> Result<Finished, Failure> {
    let path = folder.model();
    let io = |error: std::io::Error| folder.model_not_written(&error);
    let mut file = PartialFile::beside(&path).map_err(io)?;
    let _unfinished = Unfinished::new(file.path());
    let fetched = if status.job.exchange.saves_stages() {
        fetch_stages(contact, run, result.digest, &mut file).await
    } else {
        fetch(contact, run, result.digest, &mut file).await
    };
    fetched.map_err(|error| match error {
        FetchError::Write(error) => io(error),
        FetchError::Nobody(reason) => Failure::Failed(reason),
    })?;
    file.keep().map_err(io)?;
    let finished = ending::finished(status, result, path.display().to_string());
    folder.keep_job(&status.job)?;
    folder.keep_result(&finished)?;
    Ok(finished)
}

enum FetchError {
    /// A run's model could not be fetched, because its file cannot be written on this machine.
    Write(std::io::Error),
    /// A run's model could not be fetched, because no node delivers it; the text has each node's reason.
    Nobody(String),
}

/// Fetches a run's model from the node that is followed or, if that node lacks it or the transfer breaks off, from any
/// other.
async fn fetch(contact: &Contact, run: RunId, digest: Digest, file: &mut PartialFile) -> Result<(), FetchError> {
    let since = Instant::now();
    loop {
        let mut reasons = Vec::new();
        let mut all_lack_it = true;
        for address in contact.addresses() {
            emptied(file)?;
            match contact.fetch_model(address, run, file.file()).await {
                Ok(()) => match check(file, digest) {
                    Ok(()) => return Ok(()),
                    Err(why) => reasons.push(format!("node {address} sent a file that is not the run's model: {why}")),
                },
                Err(ConnectionError::Write(error)) => return Err(FetchError::Write(error)),
                Err(error) => {
                    all_lack_it &= error.nobody_there() || matches!(error, ConnectionError::NoModel(..));
                    reasons.push(sentence(&error));
                }
            }
        }
        let limit = if all_lack_it { NONE_LIMIT } else { LIMIT };
        if since.elapsed() >= limit {
            return Err(FetchError::Nobody(format!(
                "cannot fetch the model of run {run}, which has ended, from any node: {}",
                reasons.join("; ")
            )));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Fetches the stages of a model that is spread over nodes until they can be put together into the whole model.
async fn fetch_stages(contact: &Contact, run: RunId, digest: Digest, file: &mut PartialFile) -> Result<(), FetchError> {
    let since = Instant::now();
    loop {
        let mut stages = Vec::new();
        let mut reasons = Vec::new();
        for address in contact.addresses() {
            emptied(file)?;
            match contact.fetch_model(address, run, file.file()).await {
                Ok(()) => stages.push(std::fs::read(file.path()).map_err(FetchError::Write)?),
                Err(ConnectionError::Write(error)) => return Err(FetchError::Write(error)),
                Err(error) => reasons.push(sentence(&error)),
            }
            match assemble(&stages) {
                Ok(whole) => {
                    emptied(file)?;
                    file.file().write_all(&whole).map_err(FetchError::Write)?;
                    match check(file, digest) {
                        Ok(()) => return Ok(()),
                        Err(why) => reasons.push(format!(
                            "the model assembled from the nodes' files is not the run's model: {why}"
                        )),
                    }
                }
                Err(AssemblyError::Missing(_)) => {}
                Err(error) => reasons.push(error.to_string()),
            }
        }
        if since.elapsed() >= LIMIT {
            let missing = assemble(&stages).err();
            reasons.extend(missing.map(|error| error.to_string()));
            return Err(FetchError::Nobody(format!(
                "cannot assemble the model of run {run}, which has ended, from the nodes' files: {}",
                reasons.join("; ")
            )));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Empties the model's file before the next attempt to fetch it: an earlier attempt may have broken off half-way.
fn emptied(file: &mut PartialFile) -> Result<(), FetchError> {
    let emptied = file.file().set_len(0).and_then(|()| file.file().rewind());
    emptied.map_err(FetchError::Write)
}

/// Checks that a file holds the weights that the run ended with.
fn check(file: &PartialFile, digest: Digest) -> Result<(), String> {
    let model = model_file::load(file.path()).map_err(|error| sentence(&error))?;
    if model.metadata.digest == digest.to_string() {
        Ok(())
    } else {
        Err(format!("the file's digest is {}, not {digest}", model.metadata.digest))
    }
}
