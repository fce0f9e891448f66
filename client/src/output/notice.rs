//! Notices to people that are printed while a command works, above the progress bar or screen if one is drawn.

use std::io::Write as _;
use std::sync::Mutex;

use super::{fitted, printable};
use crate::sync::lock;

type Sink = Box<dyn Fn(&str) + Send>;

/// Receiver of messages to people while a progress bar or a screen owns the terminal; standard error if `None`.
static SINK: Mutex<Option<Sink>> = Mutex::new(None);

/// Prints a sentence to people with control characters escaped: through the bar or screen that owns the terminal,
/// otherwise on standard error.
pub(crate) fn say(text: &str) {
    let text = &*printable::text(text);
    match &*lock(&SINK) {
        Some(sink) => sink(text),
        // A failed write is ignored: the reader has gone away.
        None => drop(writeln!(std::io::stderr(), "{}", fitted(text, &std::io::stderr()))),
    }
}

/// Guard that redirects messages to people to another receiver until the guard is dropped.
pub(crate) struct Redirected(());

impl Redirected {
    pub(crate) fn to(sink: impl Fn(&str) + Send + 'static) -> Self {
        *lock(&SINK) = Some(Box::new(sink));
        Self(())
    }
}

impl Drop for Redirected {
    fn drop(&mut self) {
        *lock(&SINK) = None;
    }
}
