//! A job within a message: as the TOML text that people write. Other formats of ours cannot read what may be a number
//! or a text.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _, ser::Error as _};

use super::{Job, JobDraft};

/// Writes a job as text.
pub fn serialize<S: Serializer>(job: &Job, serializer: S) -> Result<S::Ok, S::Error> {
    JobDraft::from(job)
        .to_toml()
        .map_err(S::Error::custom)?
        .serialize(serializer)
}

/// Reads a job and checks it.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Box<Job>, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.len() > Job::TEXT_BYTES_MAX {
        return Err(D::Error::custom("the text of a job exceeds the size limit"));
    }
    let draft = JobDraft::from_toml(&text).map_err(D::Error::custom)?;
    draft.resolve().map(Box::new).map_err(D::Error::custom)
}
