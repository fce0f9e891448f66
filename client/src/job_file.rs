//! Jobs as users write them: flags over a file over the defaults.

use std::path::Path;

use protocol::job::{Job, JobDraft, JobError, JobErrors};

use crate::failure::Failure;

/// Flags over file over defaults.
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
                let before = error.span().map_or("", |span| &text[..span.start]);
                let line = before.matches('\n').count() + 1;
                let message = error.message().trim().replace('\n', "; ");
                Failure::input(format!("{name} is not a valid job: line {line}: {message}"))
            })?
        }
    };
    flags.or(from_file).resolve().map_err(|JobErrors(errors)| {
        // A flag has the key's name with dashes.
        let sentence = |error: &JobError| format!("--{}: {}", error.key.replace('_', "-"), error.message);
        Failure::BadInput(errors.iter().map(sentence).collect())
    })
}
