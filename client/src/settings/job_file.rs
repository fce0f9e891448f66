//! Reads jobs as users write them: flags override a job file, which overrides defaults.

use std::collections::BTreeMap;
use std::path::Path;

use protocol::job::{Job, JobDraft, JobError, JobErrors};
use toml::{Table, Value};

use super::toml_error;
use crate::failure::Failure;

/// Longest text of a job in bytes. Every node sends it to every other node many times.
const TEXT_MAX: usize = 64 << 10;

/// Builds a job from flags, a job file and defaults. Flags override the file, which overrides the defaults.
pub(crate) fn read(flags: JobDraft, file: Option<&Path>) -> Result<Job, Failure> {
    let from_file = match file {
        None => JobDraft::default(),
        Some(path) => {
            let name = path.display();
            let text = std::fs::read_to_string(path).map_err(|error| {
                Failure::input(format!(
                    "{name} could not be read: {error}; give the path of a TOML file"
                ))
            })?;
            JobDraft::from_toml(&text).map_err(|error| {
                let why = toml_error::sentence(&text, &error);
                Failure::input(format!("{name} is not a valid job: {why}"))
            })?
        }
    };
    let job = flags.or(from_file).resolve().map_err(|JobErrors(errors)| {
        // A flag has the name of its key, with dashes.
        let sentence = |error: &JobError| format!("--{}: {}", error.key.replace('_', "-"), error.message);
        Failure::BadInput(errors.iter().map(sentence).collect())
    })?;
    let length = JobDraft::from(&job).to_toml().map_err(Failure::bad)?.len();
    if length > TEXT_MAX {
        return Err(Failure::input(format!(
            "the job text has {length} bytes, but nodes accept at most {TEXT_MAX}: shorten the model description"
        )));
    }
    Ok(job)
}

/// Returns the keys of a job with their values as text.
pub(crate) fn keys_of(job: &Job) -> BTreeMap<String, String> {
    let table = Table::try_from(JobDraft::from(job)).unwrap_or_default();
    let text = |value: Value| match value {
        Value::String(text) => text,
        other => other.to_string(),
    };
    table.into_iter().map(|(key, value)| (key, text(value))).collect()
}
