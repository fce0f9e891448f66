//! What has to be said to people in between, wherever they look at the moment.

use std::io::Write as _;
use std::sync::Mutex;

use super::{fitted, printable};
use crate::sync::lock;

type Sink = Box<dyn Fn(&str) + Send>;

/// Who has the terminal, if somebody has.
static SINK: Mutex<Option<Sink>> = Mutex::new(None);

/// Says a sentence, without its control characters: on standard error, or through whoever draws there.
pub(crate) fn say(text: &str) {
    let text = &*printable::text(text);
    match &*lock(&SINK) {
        Some(sink) => sink(text),
        // A reader that has gone away cannot be told.
        None => drop(writeln!(std::io::stderr(), "{}", fitted(text, &std::io::stderr()))),
    }
}

/// Sends what is said elsewhere, as long as this is kept.
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
