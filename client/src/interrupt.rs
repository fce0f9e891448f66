//! Ctrl-C: the first asks for an orderly end, the second ends at once.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::failure::Failure;

static ASKED: AtomicBool = AtomicBool::new(false);
/// What a shell reports for a program that Ctrl-C ended.
const INTERRUPTED: i32 = 130;

/// Takes Ctrl-C and termination signals over.
pub(crate) fn watch() -> Result<(), Failure> {
    ctrlc::set_handler(|| {
        if ASKED.swap(true, Ordering::SeqCst) {
            std::process::exit(INTERRUPTED);
        }
    })
    .map_err(|error| Failure::failed(format!("Ctrl-C cannot be watched for: {error}")))
}

/// Whether the user wants the work to end.
pub(crate) fn asked() -> bool {
    ASKED.load(Ordering::SeqCst)
}
