//! Files and texts with which users configure Tau.

pub(crate) mod chosen;
pub(crate) mod config_file;
pub(crate) mod job_file;
pub(crate) mod token;
pub(crate) mod toml_error;
