//! Nodes that a command starts on this machine for one run, and the run on them.

pub(crate) mod cluster;
pub(crate) mod compute;
pub(crate) mod interpreter;
pub(crate) mod rescue;
pub(crate) mod run;
pub(crate) mod saved_model;
pub(crate) mod scratch;
