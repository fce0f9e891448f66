//! What has to be said to people in between, wherever they look at the moment.

use std::io::Write as _;
use std::sync::{Mutex, PoisonError};

use super::{fitted, printable};

type Sink = Box<dyn Fn(&str) + Send>;

/// Who has the terminal, if somebody has.
static SINK: Mutex<Option<Sink>> = Mutex::new(None);

/// Says a sentence, without its control characters: on standard error, or through whoever draws there.
pub(crate) fn say(text: &str) {
    let text = &*printable::text(text);
    match &*SINK.lock().unwrap_or_else(PoisonError::into_inner) {
        Some(sink) => sink(text),
        // A reader that has gone away cannot be told.
        None => drop(writeln!(std::io::stderr(), "{}", fitted(text, &std::io::stderr()))),
    }
}

/// Sends what is said elsewhere, as long as this is kept.
pub(crate) struct Redirected(());

impl Redirected {
    pub(crate) fn to(sink: impl Fn(&str) + Send + 'static) -> Self {
        *SINK.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(sink));
        Self(())
    }
}

impl Drop for Redirected {
    fn drop(&mut self) {
        *SINK.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
