//! Which node this process is, and which run it is in: for every line of the log.

use std::sync::{Mutex, OnceLock, PoisonError};

use protocol::ids::RunId;

/// The target of what a node says without being asked: that it joined, that a run begins, how it ended.
pub const NEWS: &str = "news";

static NODE: OnceLock<String> = OnceLock::new();
static RUN: Mutex<Option<RunId>> = Mutex::new(None);

/// This process is a node of this name. It is said once.
pub(crate) fn set_node(name: &str) {
    let _ = NODE.set(name.into());
}

/// The node is in this run, or in none.
pub(crate) fn set_run(run: Option<RunId>) {
    *RUN.lock().unwrap_or_else(PoisonError::into_inner) = run;
}

/// The node that this process is, if it is one.
pub fn node() -> Option<&'static str> {
    NODE.get().map(String::as_str)
}

/// The run that it is in, if it is in one.
pub fn run() -> Option<RunId> {
    *RUN.lock().unwrap_or_else(PoisonError::into_inner)
}
