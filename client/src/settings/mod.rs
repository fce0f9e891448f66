//! The files and texts that users configure Tau with.

pub(crate) mod chosen;
pub(crate) mod config_file;
pub(crate) mod job_file;
pub(crate) mod token;
pub(crate) mod toml_error;
