//! Standard output: what came out, as one JSON object per line or as text for people.

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

/// Whether a result could not be written, though somebody would read it.
static LOST: AtomicBool = AtomicBool::new(false);

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

/// Tells what has happened to a run: to scripts, or to people in a sentence.
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

/// Text for people with lines that fit the terminal behind a stream, if there is one.
pub(crate) fn fitted(text: &str, stream: &impl IsTerminal) -> String {
    match terminal::size() {
        Ok((columns, _)) if stream.is_terminal() => wrapped(text, columns.into()),
        _ => text.into(),
    }
}

/// Writes text for people, without its control characters, and returns whether it could be written. A reader that has gone
/// away is not an error.
pub(crate) fn text(text: &str) -> bool {
    plain(&printable::text(text))
}

/// Writes text for programs as it is, and returns whether it could be written.
pub(crate) fn plain(text: &str) -> bool {
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    drop(stdout);
    if let Err(error) = &written {
        lose(error);
    }
    written.is_ok()
}

/// Takes down that standard output took no more, and says so the first time. A run goes on all the same.
pub(crate) fn lose(error: &std::io::Error) {
    if error.kind() != ErrorKind::BrokenPipe && !LOST.swap(true, Ordering::Relaxed) {
        notice::say(&format!(
            "error: the result could not be written to standard output ({error}): make room, or send it elsewhere"
        ));
    }
}

/// Whether a result was lost, so that the command has failed.
pub(crate) fn is_lost() -> bool {
    LOST.load(Ordering::Relaxed)
}

/// Writes an object as a line, and returns whether it could be written. A reader that has gone away is not an error:
/// training goes on and saves its model.
pub(crate) fn line(object: &impl Serialize) -> bool {
    serde_json::to_string(object).is_ok_and(|json| plain(&(json + "\n")))
}
