//! Standard output of the client: results as one JSON object per line for scripts, or as text for people.

pub(crate) mod notice;
pub(crate) mod printable;
pub(crate) mod quality_metric;
pub(crate) mod quantity;
pub(crate) mod text_layout;

use std::io::{ErrorKind, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use protocol::ids::RunId;
use ratatui::crossterm::terminal;
use serde::Serialize;

use text_layout::wrapped;

/// True once a result could not be written to standard output, so that the command fails. A reader that has gone away
/// does not count.
static LOST: AtomicBool = AtomicBool::new(false);

/// Reader of the messages that are printed while a run goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Audience {
    /// Messages go to people, as sentences on standard error.
    People,
    /// Messages go to scripts, as JSON on standard output.
    Scripts,
    /// There is no reader: no messages are printed while the run goes on, because only its result counts.
    Nobody,
}

impl Audience {
    /// Returns the reader of messages: scripts if JSON output was requested, otherwise people.
    pub(crate) fn of(json: bool) -> Self {
        if json { Self::Scripts } else { Self::People }
    }
}

/// Reports an event of a run: as a line of JSON to scripts, or as a sentence to people.
pub(crate) fn run_event(event: &'static str, run: RunId, json: bool, sentence: &str) {
    #[derive(Serialize)]
    struct RunEvent {
        event: &'static str,
        run: String,
    }
    if json {
        let run = run.to_string();
        line(&RunEvent { event, run });
    } else {
        notice::say(sentence);
    }
}

/// Returns text for people, with lines wrapped to the width of the terminal if the stream is one.
pub(crate) fn fitted(text: &str, stream: &impl IsTerminal) -> String {
    match terminal::size() {
        Ok((columns, _)) if stream.is_terminal() => wrapped(text, columns.into()),
        _ => text.into(),
    }
}

/// Writes text for people to standard output, with control characters escaped, and returns true if it was written. A
/// failed write is reported once, unless the reader has gone away.
pub(crate) fn text(text: &str) -> bool {
    plain(&printable::text(text))
}

/// Writes text for programs to standard output unchanged, and returns true if it was written.
pub(crate) fn plain(text: &str) -> bool {
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    drop(stdout);
    if let Err(error) = &written {
        lose(error);
    }
    written.is_ok()
}

/// Records that a result could not be written to standard output, and tells the user the first time. The run goes on.
/// Does nothing if the reader has gone away, which is not an error.
pub(crate) fn lose(error: &std::io::Error) {
    if error.kind() != ErrorKind::BrokenPipe && !LOST.swap(true, Ordering::Relaxed) {
        notice::say(&format!(
            "error: the result could not be written to standard output ({error}): make room, or send it elsewhere"
        ));
    }
}

/// Returns true if a result could not be written, in which case the command has failed.
pub(crate) fn is_lost() -> bool {
    LOST.load(Ordering::Relaxed)
}

/// Writes an object as one line of JSON to standard output, and returns true if it was written. A reader that has gone
/// away is not an error: training goes on and saves its model.
pub(crate) fn line(object: &impl Serialize) -> bool {
    serde_json::to_string(object).is_ok_and(|json| plain(&(json + "\n")))
}
