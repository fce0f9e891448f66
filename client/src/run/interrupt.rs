//! Signals: the first one asks for an orderly end. A later Ctrl-C ends at once, but leaves nothing behind and says what becomes
//! of the run. So does any signal once the result is told. After SIGTERM or SIGHUP the program ends within ten seconds
//! whatever it waits for, be it a node, a disk or the reader of its output: whoever sent the signal would kill the program next.

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

/// A run that is ended at once has failed, unless its result is told.
const FAILED: i32 = 1;
/// The exit code of the run's result, once that is told.
static RESULT: Mutex<Option<i32>> = Mutex::new(None);
static ASKED: AtomicBool = AtomicBool::new(false);
static TERMINATED: AtomicBool = AtomicBool::new(false);
static FIRST: Mutex<Option<Instant>> = Mutex::new(None);
static LEAVING: Mutex<Option<Leaving>> = Mutex::new(None);
static CLEAN_UP: Mutex<Option<CleanUp>> = Mutex::new(None);
static UNFINISHED: Mutex<Option<PathBuf>> = Mutex::new(None);
/// How often a program that waits for nothing else looks.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// A signal this soon after the first one is of the same key press: keys bounce, and wrappers forward what the terminal
/// has sent to both.
const BOUNCE: Duration = Duration::from_millis(500);
/// The time for an orderly end after SIGTERM. Supervisors that are in a hurry kill after ten seconds.
const TERMINATION_LIMIT: Duration = Duration::from_secs(8);
/// The time for cleaning up after that: a full or slow disk must not keep the program.
const CLEAN_UP_LIMIT: Duration = Duration::from_secs(1);
/// The time for last words after that: neither must a terminal that Ctrl-S has stopped, or a reader that stands still.
const LAST_WORDS_LIMIT: Duration = Duration::from_millis(750);

/// Cleans up before the program ends at once. Of the sentences that it sends the last one is said to people, also where the
/// time is over before it returns.
type CleanUp = Box<dyn FnOnce(&mpsc::Sender<String>) + Send>;

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
    let thread = thread::Builder::new().name("signals".into());
    thread
        .spawn(move || match runtime.block_on(hearing) {})
        .map_err(failure)?;
    Ok(())
}

/// Ends the program, and leaves nothing behind that can be removed by this time.
fn leave_at_once(cleaned_by: Instant) -> ! {
    // Held to the end: whoever else would remove what is cleaned up waits for that.
    let mut clean_up = lock(&CLEAN_UP);
    let said = clean(whole_clean_up(clean_up.take()), cleaned_by);
    say_last_words(said);
    exit()
}

/// A clean-up that also removes the file that is being written.
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

/// Cleans up by this time, and returns what is to be said of it.
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

/// Ends the process and all its threads, without the work that the system's libraries do at an exit: that waits for threads
/// that may stand still, and what was written is flushed already.
fn exit() -> ! {
    let code = lock(&RESULT).unwrap_or(FAILED);
    // SAFETY: it may be called at any time, and does not return.
    unsafe { libc::_exit(code) }
}

/// Whether a signal at this time ends the program at once, given the time of the first one.
fn leaves(first: &mut Option<Instant>, now: Instant) -> bool {
    now.duration_since(*first.get_or_insert(now)) >= BOUNCE
}

/// Says what was cleaned up, and what becomes of the run, where the progress bar was.
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

/// Keeps what is to be said of a run should the program end at once.
pub(crate) fn leaves_behind(leaving: Leaving) {
    *lock(&LEAVING) = Some(leaving);
}

/// Takes down that the result was told. What is done after that is worth no waiting: a signal ends the program at once, with
/// the exit code of the result.
pub(crate) fn result_told(well: bool) {
    *lock(&LEAVING) = None;
    *lock(&RESULT) = Some(if well { 0 } else { FAILED });
}

/// Takes down that a node has taken the request to stop.
pub(crate) fn stop_sent() {
    if let Some(leaving) = &mut *lock(&LEAVING) {
        leaving.stopping = true;
    }
}

/// Sets the clean-up that precedes an end at once. It sends sentences on what becomes of the run's files, of which the last
/// one is said, and is abandoned where it takes too long.
pub(crate) fn at_exit(clean_up: impl FnOnce(&mpsc::Sender<String>) + Send + 'static) {
    *lock(&CLEAN_UP) = Some(Box::new(clean_up));
}

/// A file that is being written: it goes if the program ends at once before this is dropped.
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

/// Drops the clean-up, before there is nothing left for it. Does not return if the program is ending at once.
pub(crate) fn forget_at_exit() {
    *lock(&CLEAN_UP) = None;
}

/// Whether the user wants the work to end.
pub(crate) fn asked() -> bool {
    ASKED.load(Ordering::SeqCst)
}

/// Whether the program was told to end by SIGTERM or SIGHUP, so that little time is left.
pub(crate) fn is_terminated() -> bool {
    TERMINATED.load(Ordering::SeqCst)
}

/// Waits until the program is told to end by SIGTERM or SIGHUP.
pub(crate) async fn termination() {
    while !is_terminated() {
        tokio::time::sleep(LOOK_AGAIN).await;
    }
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
        // It would take a day if the limit were waited for.
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
