//! Ctrl-C: the first asks for an orderly end, the second ends at once.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::failure::Failure;

static ASKED: AtomicBool = AtomicBool::new(false);
/// A run that was ended at once has failed.
const FAILED: i32 = 1;

/// Takes Ctrl-C and termination signals over.
pub(crate) fn watch() -> Result<(), Failure> {
    ctrlc::set_handler(|| {
        if ASKED.swap(true, Ordering::SeqCst) {
            std::process::exit(FAILED);
        }
    })
    .map_err(|error| Failure::Failed(format!("Ctrl-C cannot be watched for: {error}")))
}

/// Whether the user wants the work to end.
pub(crate) fn asked() -> bool {
    ASKED.load(Ordering::SeqCst)
}
