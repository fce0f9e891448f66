//! Standard output: one JSON object per line.

use std::io::Write;

use serde::Serialize;

/// Something that happened to a run.
#[derive(Serialize)]
pub(crate) struct RunEvent {
    pub(crate) event: &'static str,
    pub(crate) run: String,
}

/// Writes an object as a line. A reader that has gone away is not an error: training goes on and saves its model.
pub(crate) fn line(object: &impl Serialize) {
    if let Ok(text) = serde_json::to_string(object) {
        let mut stdout = std::io::stdout().lock();
        let _ = writeln!(stdout, "{text}").and_then(|()| stdout.flush());
    }
}
