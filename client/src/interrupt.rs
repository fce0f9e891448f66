//! Ctrl-C: the first asks for an orderly end, a later one ends at once, but leaves nothing behind and says what becomes
//! of the run.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use protocol::ids::RunId;

use crate::failure::Failure;
use crate::view;

static ASKED: AtomicBool = AtomicBool::new(false);
static FIRST: Mutex<Option<Instant>> = Mutex::new(None);
static LEAVING: Mutex<Option<Leaving>> = Mutex::new(None);
static AT_EXIT: Mutex<Option<Box<dyn FnOnce() + Send>>> = Mutex::new(None);
/// A run that was ended at once has failed.
const FAILED: i32 = 1;
/// How often a program that waits for nothing else looks.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// A signal this soon after the first one is of the same key press: keys bounce, and wrappers forward what the terminal
/// has sent to both.
const BOUNCE: Duration = Duration::from_millis(500);
/// The time for last words: a reader of standard output that stands still must not keep the program.
const LAST_WORDS_LIMIT: Duration = Duration::from_secs(1);

/// A run on nodes that outlive this program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaving {
    /// The run; none while the nodes prepare it.
    pub(crate) run: Option<RunId>,
    /// Whether a node has taken the request to stop.
    pub(crate) stopping: bool,
    /// Whether scripts read standard output.
    pub(crate) json: bool,
}

impl Leaving {
    fn failure(self) -> Failure {
        Failure::Failed(match (self.run, self.stopping) {
            (None, _) => {
                "the nodes were asked for a run that may yet begin: 'tau start --attach' follows it, 'tau stop' \
                          ends it"
                    .into()
            }
            (Some(run), false) => {
                format!("run {run} goes on at its nodes: 'tau start --attach' follows it again, 'tau stop' ends it")
            }
            (Some(run), true) => {
                format!("run {run} ends at its nodes, which save the model: 'tau start --attach' fetches it")
            }
        })
    }
}

/// Takes Ctrl-C and termination signals over.
pub(crate) fn watch() -> Result<(), Failure> {
    ctrlc::set_handler(|| {
        ASKED.store(true, Ordering::SeqCst);
        if leaves(
            &mut FIRST.lock().unwrap_or_else(PoisonError::into_inner),
            Instant::now(),
        ) {
            let clean_up = AT_EXIT.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(clean_up) = clean_up {
                clean_up();
            }
            view::erase();
            say_last_words();
            std::process::exit(FAILED);
        }
    })
    .map_err(|error| Failure::Failed(format!("Ctrl-C cannot be watched for: {error}")))
}

/// Whether a signal at this time ends the program at once, given the time of the first one.
fn leaves(first: &mut Option<Instant>, now: Instant) -> bool {
    now.duration_since(*first.get_or_insert(now)) >= BOUNCE
}

/// Says what becomes of the run.
fn say_last_words() {
    let Some(leaving) = *LEAVING.lock().unwrap_or_else(PoisonError::into_inner) else {
        return;
    };
    let (said, wait) = mpsc::channel();
    std::thread::spawn(move || {
        leaving.failure().report(leaving.json);
        let _ = said.send(());
    });
    let _ = wait.recv_timeout(LAST_WORDS_LIMIT);
}

/// Keeps what is to be said of a run should the program end at once.
pub(crate) fn leaves_behind(leaving: Leaving) {
    *LEAVING.lock().unwrap_or_else(PoisonError::into_inner) = Some(leaving);
}

/// Takes down that a node has taken the request to stop.
pub(crate) fn stop_sent() {
    if let Some(leaving) = &mut *LEAVING.lock().unwrap_or_else(PoisonError::into_inner) {
        leaving.stopping = true;
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_follows_at_once_is_of_the_same_key_press() {
        let (mut first, began) = (None, Instant::now());
        let mut at = |milliseconds| leaves(&mut first, began + Duration::from_millis(milliseconds));
        assert!(!at(0) && !at(0) && !at(30) && !at(499));
        assert!(at(500) && at(501));
    }

    #[test]
    fn whoever_leaves_is_told_what_becomes_of_the_run() {
        let leaving = |run, stopping| {
            let json = false;
            Leaving { run, stopping, json }.failure().reasons().concat()
        };
        assert!(leaving(None, false).contains("may yet begin"));
        assert!(leaving(Some(RunId(7)), false).contains("goes on at its nodes"));
        assert!(leaving(Some(RunId(7)), true).contains("'tau start --attach' fetches it"));
    }
}
