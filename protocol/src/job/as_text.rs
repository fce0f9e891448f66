//! Serde functions for a job inside a message: a job travels as the TOML text that people write. Binary formats do not
//! describe their values, so they cannot tell a number from a text where a job key takes either.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _, ser::Error as _};

use super::{Job, JobDraft};

/// Writes a job as its TOML text.
pub fn serialize<S: Serializer>(job: &Job, serializer: S) -> Result<S::Ok, S::Error> {
    JobDraft::from(job)
        .to_toml()
        .map_err(S::Error::custom)?
        .serialize(serializer)
}

/// Reads a job from its TOML text, of at most [`Job::TEXT_BYTES_MAX`] bytes, and checks it.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Box<Job>, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.len() > Job::TEXT_BYTES_MAX {
        return Err(D::Error::custom("the text of a job exceeds the size limit"));
    }
    let draft = JobDraft::from_toml(&text).map_err(D::Error::custom)?;
    draft.resolve().map(Box::new).map_err(D::Error::custom)
}
