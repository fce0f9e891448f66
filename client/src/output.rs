//! Standard output: what came out, as one JSON object per line or as text for people.

use std::io::Write;

use serde::Serialize;

/// Who is told what happens in a run, while it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Audience {
    /// People, on standard error.
    People,
    /// Scripts, on standard output.
    Scripts,
    /// Nobody: what comes out is all that counts.
    Nobody,
}

impl Audience {
    /// Scripts if JSON was asked for.
    pub(crate) fn of(json: bool) -> Self {
        if json { Self::Scripts } else { Self::People }
    }
}

/// Something that happened to a run.
#[derive(Serialize)]
pub(crate) struct RunEvent {
    pub(crate) event: &'static str,
    pub(crate) run: String,
}

/// Writes text for people. A reader that has gone away is not an error.
pub(crate) fn text(text: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}

/// Writes an object as a line. A reader that has gone away is not an error: training goes on and saves its model.
pub(crate) fn line(object: &impl Serialize) {
    if let Ok(text) = serde_json::to_string(object) {
        let mut stdout = std::io::stdout().lock();
        let _ = writeln!(stdout, "{text}").and_then(|()| stdout.flush());
    }
}
