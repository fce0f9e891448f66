//! Context of every line in the log: the node that this process is, and the run that it is in.

use std::sync::{Mutex, OnceLock, PoisonError};

use protocol::ids::RunId;

/// Log target of the news that a node tells without being asked: that it joined, that a run begins, how the run ended.
pub const NEWS: &str = "news";

static NODE: OnceLock<String> = OnceLock::new();
static RUN: Mutex<Option<RunId>> = Mutex::new(None);

/// Sets the name that log lines give for the node of this process. Only the first call counts.
pub(crate) fn set_node(name: &str) {
    let _ = NODE.set(name.into());
}

/// Sets the run that is given in the log lines of this process; `None` between runs.
pub(crate) fn set_run(run: Option<RunId>) {
    *RUN.lock().unwrap_or_else(PoisonError::into_inner) = run;
}

/// Returns the name of this process's node, for log lines; `None` in a process that is no node.
pub fn node() -> Option<&'static str> {
    NODE.get().map(String::as_str)
}

/// Returns the run that this process's node is in, for log lines.
pub fn run() -> Option<RunId> {
    *RUN.lock().unwrap_or_else(PoisonError::into_inner)
}
