//! Signals: the first one asks for an orderly end. A later Ctrl-C ends at once, but leaves nothing behind and says what becomes
//! of the run. After SIGTERM or SIGHUP the program ends within some seconds whatever it waits for: whoever sent it would
//! kill the program next.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use protocol::ids::RunId;
use tokio::signal::unix::{self, SignalKind};

use crate::failure::Failure;
use crate::view;

static ASKED: AtomicBool = AtomicBool::new(false);
static TERMINATED: AtomicBool = AtomicBool::new(false);
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
/// The time for an orderly end after SIGTERM. Supervisors that are in a hurry kill after ten seconds.
const TERMINATION_LIMIT: Duration = Duration::from_secs(8);
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
                "the nodes may still start the requested run: 'tau start --attach' follows the run, 'tau stop' ends \
                 it"
                .into()
            }
            (Some(run), false) => {
                format!(
                    "run {run} continues on its nodes: 'tau start --attach' follows the run again, 'tau stop' ends it"
                )
            }
            (Some(run), true) => {
                format!("the nodes of run {run} end the run and save its model: 'tau start --attach' fetches it")
            }
        })
    }
}

/// Takes Ctrl-C and termination signals over, for a program that ends within [`TERMINATION_LIMIT`] of the latter.
pub(crate) fn watch() -> Result<(), Failure> {
    watch_within(TERMINATION_LIMIT)
}

/// The same for a program that takes this long at most.
pub(crate) fn watch_within(limit: Duration) -> Result<(), Failure> {
    listen(move |mut signals| async move {
        let mut deadline = None;
        loop {
            let signal = match deadline {
                None => signals.next().await,
                Some(deadline) => match tokio::time::timeout_at(deadline, signals.next()).await {
                    Ok(signal) => signal,
                    Err(_) => leave_at_once(),
                },
            };
            if signal == Signal::Termination {
                TERMINATED.store(true, Ordering::SeqCst);
                deadline.get_or_insert(tokio::time::Instant::now() + limit);
            }
            ASKED.store(true, Ordering::SeqCst);
            let mut first = FIRST.lock().unwrap_or_else(PoisonError::into_inner);
            if leaves(&mut first, Instant::now()) {
                leave_at_once();
            }
        }
    })
}

/// Takes no notice of signals: whoever has started this process ends it.
pub(crate) fn ignore() -> Result<(), Failure> {
    listen(|mut signals| async move {
        loop {
            signals.next().await;
        }
    })
}

/// A kind of signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Signal {
    /// Ctrl-C.
    Interrupt,
    /// SIGTERM or SIGHUP.
    Termination,
}

/// All signals that ask a program to end.
struct Signals {
    interrupt: unix::Signal,
    terminate: unix::Signal,
    hang_up: unix::Signal,
}

impl Signals {
    fn taken() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: unix::signal(SignalKind::interrupt())?,
            terminate: unix::signal(SignalKind::terminate())?,
            hang_up: unix::signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::Interrupt,
            _ = self.terminate.recv() => Signal::Termination,
            _ = self.hang_up.recv() => Signal::Termination,
        }
    }
}

/// Takes signals over, and hears them in a thread of its own: the program's other threads may wait for something.
fn listen<F>(hear: impl FnOnce(Signals) -> F) -> Result<(), Failure>
where
    F: Future<Output = Infallible> + Send + 'static,
{
    let failure = |error: std::io::Error| Failure::Failed(format!("cannot install signal handlers: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(failure)?;
    let signals = {
        let _context = runtime.enter();
        Signals::taken().map_err(failure)?
    };
    let hearing = hear(signals);
    let thread = std::thread::Builder::new().name("signals".into());
    thread
        .spawn(move || match runtime.block_on(hearing) {})
        .map_err(failure)?;
    Ok(())
}

/// Ends the program, and leaves nothing behind.
fn leave_at_once() -> ! {
    let clean_up = AT_EXIT.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(clean_up) = clean_up {
        clean_up();
    }
    view::erase();
    say_last_words();
    std::process::exit(FAILED);
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

/// Whether the program was told to end by SIGTERM or SIGHUP, so that little time is left.
pub(crate) fn is_terminated() -> bool {
    TERMINATED.load(Ordering::SeqCst)
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
        assert!(leaving(None, false).contains("may still start"));
        assert!(leaving(Some(RunId(7)), false).contains("continues on its nodes"));
        assert!(leaving(Some(RunId(7)), true).contains("'tau start --attach' fetches it"));
    }
}
