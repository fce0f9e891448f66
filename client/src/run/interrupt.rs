//! Signal handling: the first signal asks for an orderly end. A later Ctrl-C, or any signal once the result is printed,
//! ends the program at once, but removes unfinished files and tells what becomes of the run. After SIGTERM or SIGHUP
//! the program ends within ten seconds, even if it waits for a node, a disk or the reader of its output: the sender of
//! the signal would kill it next.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use protocol::ids::RunId;
use tokio::signal::unix::{self, SignalKind};

use crate::failure::Failure;
use crate::output::notice;
use crate::progress;
use crate::sync::lock;

/// Exit code of a program that a signal ends at once, unless its result is printed already.
const FAILED: i32 = 1;
/// Exit code that belongs to the run's result, once that is printed: if a signal then ends the program at once, it
/// exits with this code.
static RESULT: Mutex<Option<i32>> = Mutex::new(None);
static ASKED: AtomicBool = AtomicBool::new(false);
static TERMINATED: AtomicBool = AtomicBool::new(false);
static FIRST: Mutex<Option<Instant>> = Mutex::new(None);
static LEAVING: Mutex<Option<Leaving>> = Mutex::new(None);
static CLEAN_UP: Mutex<Option<CleanUp>> = Mutex::new(None);
static UNFINISHED: Mutex<Option<PathBuf>> = Mutex::new(None);
/// Interval at which waiting code checks for signals.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Time after the first signal in which further signals count as the same key press: keys bounce, and wrappers forward
/// signals that the terminal has sent to both processes.
const BOUNCE: Duration = Duration::from_millis(500);
/// Time for an orderly end after SIGTERM. Supervisors in a hurry kill after ten seconds.
const TERMINATION_LIMIT: Duration = Duration::from_secs(8);
/// Time for the clean-up after [`TERMINATION_LIMIT`]: a full or slow disk must not keep the program alive.
const CLEAN_UP_LIMIT: Duration = Duration::from_secs(1);
/// Time for the last messages after the clean-up: a terminal that Ctrl-S has stopped, or a reader that stands still,
/// must not keep the program alive.
const LAST_WORDS_LIMIT: Duration = Duration::from_millis(750);

/// Clean-up that runs before the program ends at once. Of the sentences that it sends, the last one is printed, even if
/// the time is over before the clean-up returns.
type CleanUp = Box<dyn FnOnce(&mpsc::Sender<String>) + Send>;

/// State of a run whose nodes outlive this program, for the message that the program prints if it ends at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaving {
    /// Run that goes on after this program has ended, or `None` while the nodes still prepare it.
    pub(crate) run: Option<RunId>,
    /// True if a node has accepted the request to stop the run.
    pub(crate) stopping: bool,
    /// True if the program's last message goes to scripts, as JSON on standard output.
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

/// Installs handlers for Ctrl-C and termination signals. After a termination signal the program has the time
/// [`TERMINATION_LIMIT`] to end by itself before it is ended at once.
pub(crate) fn watch() -> Result<(), Failure> {
    watch_within(TERMINATION_LIMIT)
}

/// Installs handlers for Ctrl-C and termination signals. After a termination signal the program has the time `limit` to
/// end by itself before it is ended at once.
pub(crate) fn watch_within(limit: Duration) -> Result<(), Failure> {
    listen(move |mut signals| async move {
        let mut deadline = None;
        loop {
            let signal = match deadline {
                None => signals.next().await,
                Some(deadline) => match tokio::time::timeout_at(deadline, signals.next()).await {
                    Ok(signal) => signal,
                    Err(_) => leave_at_once(deadline.into_std() + CLEAN_UP_LIMIT),
                },
            };
            if signal == Signal::Termination {
                TERMINATED.store(true, Ordering::SeqCst);
                deadline.get_or_insert(tokio::time::Instant::now() + limit);
            }
            ASKED.store(true, Ordering::SeqCst);
            let mut first = lock(&FIRST);
            let now = Instant::now();
            if leaves(&mut first, now) || lock(&RESULT).is_some() {
                let orderly = deadline.map_or(now + limit, tokio::time::Instant::into_std);
                leave_at_once(orderly + CLEAN_UP_LIMIT);
            }
        }
    })
}

/// Ignores Ctrl-C and termination signals, for a process that is ended by its parent process instead.
pub(crate) fn ignore() -> Result<(), Failure> {
    listen(|mut signals| async move {
        loop {
            signals.next().await;
        }
    })
}

/// Signal that asks the program to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Signal {
    /// Signal that Ctrl-C sends: SIGINT.
    Interrupt,
    /// Signal that a supervisor or a closed terminal sends: SIGTERM or SIGHUP.
    Termination,
}

/// Receivers of the signals that ask a program to end.
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

/// Installs signal handlers and runs them in a thread of their own, because the program's other threads may be blocked.
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
    let thread = thread::Builder::new().name("signals".into());
    thread
        .spawn(move || match runtime.block_on(hearing) {})
        .map_err(failure)?;
    Ok(())
}

/// Ends the program at once, after a clean-up that is abandoned at the time `cleaned_by`.
fn leave_at_once(cleaned_by: Instant) -> ! {
    // The lock is held to the end: other threads that would remove the same files block on it.
    let mut clean_up = lock(&CLEAN_UP);
    let said = clean(whole_clean_up(clean_up.take()), cleaned_by);
    say_last_words(said);
    exit()
}

/// Returns a clean-up that first removes the file that is being written, as registered by `Unfinished`, and then runs
/// the given clean-up.
fn whole_clean_up(clean_up: Option<CleanUp>) -> CleanUp {
    Box::new(move |said| {
        if let Some(file) = lock(&UNFINISHED).take() {
            let _ = std::fs::remove_file(file);
        }
        if let Some(clean_up) = clean_up {
            clean_up(said);
        }
    })
}

/// Runs a clean-up in a thread, and waits for it until `by` at the latest. Returns the last sentence for the user that
/// the clean-up has sent.
fn clean(clean_up: CleanUp, by: Instant) -> Option<String> {
    let (sender, said) = mpsc::channel();
    let _ = thread::Builder::new()
        .name("clean-up".into())
        .spawn(move || clean_up(&sender));
    let mut newest = None;
    // The channel closes when the thread ends.
    while let Ok(sentence) = said.recv_timeout(by.saturating_duration_since(Instant::now())) {
        newest = Some(sentence);
    }
    newest
}

/// Ends the process and all its threads without exit handlers: these could wait for blocked threads, and all output is
/// flushed already.
fn exit() -> ! {
    let code = lock(&RESULT).unwrap_or(FAILED);
    // SAFETY: `_exit` has no preconditions, may be called from any thread at any time, and does not return.
    unsafe { libc::_exit(code) }
}

/// Returns true if a signal at time `now` ends the program at once, because it comes too long after the first signal to
/// be the same key press. The first call sets `first` to the time of the first signal.
fn leaves(first: &mut Option<Instant>, now: Instant) -> bool {
    now.duration_since(*first.get_or_insert(now)) >= BOUNCE
}

/// Erases the progress bar, and prints the result of the clean-up and what becomes of the run, because the program ends
/// at once.
fn say_last_words(cleaned: Option<String>) {
    let leaving = *lock(&LEAVING);
    let (said, wait) = mpsc::channel::<()>();
    let _ = thread::Builder::new().name("last-words".into()).spawn(move || {
        progress::erase();
        if let Some(cleaned) = cleaned {
            notice::say(&cleaned);
        }
        if let Some(leaving) = leaving {
            leaving.failure().report(leaving.json);
        }
        drop(said);
    });
    let _ = wait.recv_timeout(LAST_WORDS_LIMIT);
}

/// Sets the run whose fate is printed if the program ends at once.
pub(crate) fn leaves_behind(leaving: Leaving) {
    *lock(&LEAVING) = Some(leaving);
}

/// Records that the result is printed; `well` is true if it is a success. From then on a signal ends the program at
/// once, with the exit code of the result: the remaining work is not worth waiting for.
pub(crate) fn result_told(well: bool) {
    *lock(&LEAVING) = None;
    *lock(&RESULT) = Some(if well { 0 } else { FAILED });
}

/// Records that a node has accepted the request to stop the run, for the message of a program that ends at once.
pub(crate) fn stop_sent() {
    if let Some(leaving) = &mut *lock(&LEAVING) {
        leaving.stopping = true;
    }
}

/// Sets the clean-up that runs before the program ends at once. Of the sentences that it sends, the last one is
/// printed; the clean-up is abandoned if it takes too long.
pub(crate) fn at_exit(clean_up: impl FnOnce(&mpsc::Sender<String>) + Send + 'static) {
    *lock(&CLEAN_UP) = Some(Box::new(clean_up));
}

/// Guard for a file that is being written: the file is removed if the program ends at once before the guard is dropped.
pub(crate) struct Unfinished(());

impl Unfinished {
    pub(crate) fn new(file: &Path) -> Self {
        *lock(&UNFINISHED) = Some(file.into());
        Self(())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        *lock(&UNFINISHED) = None;
    }
}

/// Removes the registered clean-up, once there is nothing left to clean up. Blocks for ever if the program is ending at
/// once.
pub(crate) fn forget_at_exit() {
    *lock(&CLEAN_UP) = None;
}

/// Returns true if the user has asked for the work to end.
pub(crate) fn asked() -> bool {
    ASKED.load(Ordering::SeqCst)
}

/// Returns true if the program has received SIGTERM or SIGHUP, so that little time is left.
pub(crate) fn is_terminated() -> bool {
    TERMINATED.load(Ordering::SeqCst)
}

/// Waits until the program receives SIGTERM or SIGHUP.
pub(crate) async fn termination() {
    while !is_terminated() {
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Waits until the user asks for the work to end.
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
    fn a_clean_up_that_takes_too_long_is_abandoned_with_its_newest_sentence() {
        let cleaned = |stays: bool, limit: u64| {
            let clean_up: CleanUp = Box::new(move |said| {
                said.send("to be copied".into()).unwrap();
                said.send("copied".into()).unwrap();
                if stays {
                    thread::sleep(Duration::MAX);
                }
            });
            clean(clean_up, Instant::now() + Duration::from_secs(limit)).unwrap()
        };
        assert_eq!(cleaned(true, 2), "copied");
        // The test would take a day if the limit were waited for.
        assert_eq!(cleaned(false, 86_400), "copied");
    }

    #[test]
    fn a_file_that_is_being_written_goes() {
        let folder = tempfile::tempdir().unwrap();
        let [whole, half] = ["whole", "half"].map(|name| folder.path().join(name));
        for file in [&whole, &half] {
            std::fs::write(file, "").unwrap();
            let unfinished = Unfinished::new(file);
            if *file == whole {
                drop(unfinished);
            }
            clean(whole_clean_up(None), Instant::now() + Duration::from_mins(1));
        }
        assert!(whole.exists() && !half.exists());
    }

    #[test]
    fn the_user_who_leaves_is_told_what_becomes_of_the_run() {
        let leaving = |run, stopping| {
            let json = false;
            Leaving { run, stopping, json }.failure().reasons().concat()
        };
        assert!(leaving(None, false).contains("may still start"));
        assert!(leaving(Some(RunId(7)), false).contains("continues on its nodes"));
        assert!(leaving(Some(RunId(7)), true).contains("'tau start --attach' fetches it"));
    }
}
