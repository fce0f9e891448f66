//! Ctrl-C: the first asks for an orderly end, the second ends at once, but leaves nothing behind.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::failure::Failure;
use crate::view;

static ASKED: AtomicBool = AtomicBool::new(false);
static AT_EXIT: Mutex<Option<Box<dyn FnOnce() + Send>>> = Mutex::new(None);
/// A run that was ended at once has failed.
const FAILED: i32 = 1;
/// How often a program that waits for nothing else looks.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Takes Ctrl-C and termination signals over.
pub(crate) fn watch() -> Result<(), Failure> {
    ctrlc::set_handler(|| {
        if ASKED.swap(true, Ordering::SeqCst) {
            let clean_up = AT_EXIT.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(clean_up) = clean_up {
                clean_up();
            }
            view::erase();
            std::process::exit(FAILED);
        }
    })
    .map_err(|error| Failure::Failed(format!("Ctrl-C cannot be watched for: {error}")))
}

/// What is to be done before the program ends at once.
pub(crate) fn at_exit(clean_up: impl FnOnce() + Send + 'static) {
    *AT_EXIT.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(clean_up));
}

/// Whether the user wants the work to end.
pub(crate) fn asked() -> bool {
    ASKED.load(Ordering::SeqCst)
}

/// Waits until the user wants the work to end.
pub(crate) async fn wait() {
    while !asked() {
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}
