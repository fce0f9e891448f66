//! Progress display of a command: one line on standard error with a bar and the most important numbers, drawn over and
//! over.
//!
//! The cursor stays behind the line, with room for the two `^C` that the terminal echoes for two Ctrl-C: in a full line
//! they would cause a line break, and half of the line would stay on the screen.

pub(crate) mod bar;
pub(crate) mod reading;
pub(crate) mod waiting;

use protocol::reasons::waiting::WaitingFor;
use std::io::{IsTerminal, Write};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use ratatui::crossterm::terminal;

use crate::output::notice::{self, Redirected};
use crate::output::{Audience, fitted, printable};
use crate::sync::lock;
use crate::timeline::Summary;
use bar::{Bar, TICK};

/// Interval between progress lines where no progress bar can be drawn, as in a log file.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// Columns that are left free behind the progress bar, for the terminal's echo of Ctrl-C.
const ECHO_WIDTH: u16 = 5;
/// Assumed number of columns of a terminal that does not tell its width.
const USUAL_WIDTH: u16 = 80;
/// Control sequence that moves the cursor to the first column and erases the line.
const ERASE: &str = "\r\x1b[K";

/// The progress bar that is on the screen, to be erased if the program ends at once.
static SHOWN: Mutex<Option<Arc<SharedBar>>> = Mutex::new(None);

/// Progress display: a bar on standard error, a line every ten seconds where that is no terminal, and nothing for
/// scripts.
pub(crate) struct View {
    shown: Arc<SharedBar>,
    means: Means,
    /// Sender whose drop ends the thread that draws the progress bar.
    _ticking: Option<Sender<()>>,
    /// Guard that redirects messages to people, so that they are printed above the progress bar.
    _redirected: Option<Redirected>,
}

/// Form of the progress display: a bar on a terminal, lines elsewhere, nothing for scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Means {
    Bar,
    Lines,
    Nothing,
}

/// Progress bar that the command, the drawing thread and the signal handler share.
struct SharedBar(Mutex<State>);

struct State {
    bar: Bar,
    /// Start of the task whose progress is shown now.
    since: Instant,
    /// Time of the last progress line on an output that is no terminal.
    told: Instant,
    /// True once the progress bar is erased; nothing is drawn after that.
    over: bool,
}

impl SharedBar {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }

    /// Draws the progress bar, unless it is erased already.
    fn draw(&self) {
        let state = self.lock();
        if !state.over {
            let width = terminal::size().map_or(USUAL_WIDTH, |(columns, _)| columns);
            let width = usize::from(width.saturating_sub(ECHO_WIDTH));
            let line = state.bar.line(state.since.elapsed(), width);
            write(&format!("\r{}\x1b[K", printable::line(&line)));
        }
    }

    /// Prints a message in place of the progress bar and draws the bar again below.
    fn say(&self, text: &str) {
        {
            let _state = self.lock();
            write(&format!("{ERASE}{}\n", fitted(text, &std::io::stderr())));
        }
        self.draw();
    }

    fn erase(&self) {
        let mut state = self.lock();
        if !std::mem::replace(&mut state.over, true) {
            write(ERASE);
        }
    }
}

/// Writes text to standard error with a single lock, so that no other output comes in between. Errors are ignored: the
/// terminal may be gone.
fn write(text: &str) {
    let mut out = std::io::stderr().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Erases the progress bar, if one is shown, because the program ends at once.
pub(crate) fn erase() {
    if let Some(shown) = lock(&SHOWN).take() {
        shown.erase();
    }
}

impl Means {
    fn of(audience: Audience) -> Self {
        let is_drawn_on =
            || std::io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        match audience {
            Audience::People if is_drawn_on() => Self::Bar,
            Audience::People => Self::Lines,
            Audience::Scripts | Audience::Nobody => Self::Nothing,
        }
    }
}

impl View {
    /// Starts a progress display for a task of this many samples; 0 if the amount of work is not known.
    pub(crate) fn new(samples: u64, audience: Audience) -> Self {
        let means = Means::of(audience);
        let shown = Arc::new(SharedBar(Mutex::new(State {
            bar: Bar {
                total: samples,
                ..Bar::default()
            },
            since: Instant::now(),
            told: Instant::now(),
            over: means != Means::Bar,
        })));
        let drawn = means == Means::Bar;
        if drawn {
            *lock(&SHOWN) = Some(Arc::clone(&shown));
        }
        Self {
            _ticking: drawn.then(|| keep_drawing(Arc::clone(&shown))),
            _redirected: drawn.then(|| {
                let shown = Arc::clone(&shown);
                Redirected::to(move |text| shown.say(text))
            }),
            shown,
            means,
        }
    }

    /// Returns true if progress is shown as a bar.
    pub(crate) fn is_shown(&self) -> bool {
        self.means == Means::Bar
    }

    /// Shows the reasons why the run waits in the progress display.
    pub(crate) fn waits(&self, reasons: &[WaitingFor]) {
        self.change(|state| state.bar.waiting = reasons.to_vec());
    }

    /// Shows a task of unknown length, with a spinner in place of the progress bar.
    pub(crate) fn busy(&self, what: &'static str) {
        self.change(|state| {
            state.bar.busy = Some(what);
            state.since = Instant::now();
        });
    }

    pub(crate) fn show(&self, run: &Summary) {
        self.change(|state| {
            state.bar.done = run.samples;
            state.bar.run = Some(run.clone());
        });
    }

    pub(crate) fn position(&self, samples: u64) {
        self.change(|state| state.bar.done = samples);
    }

    pub(crate) fn clear(&self) {
        self.shown.erase();
    }

    /// Changes the state of the progress bar. The drawing thread shows the change within a tick; without a terminal a
    /// line is printed if the last one is ten seconds old.
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.shown.lock();
        change(&mut state);
        if self.means == Means::Lines && state.told.elapsed() >= LINE_EVERY {
            state.told = Instant::now();
            notice::say(state.bar.sentence(state.since.elapsed()).trim_start());
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.clear();
        let mut shown = lock(&SHOWN);
        if shown.as_ref().is_some_and(|shown| Arc::ptr_eq(shown, &self.shown)) {
            *shown = None;
        }
    }
}

/// Starts a thread that draws the progress bar until the returned sender is dropped.
fn keep_drawing(shown: Arc<SharedBar>) -> Sender<()> {
    let (sender, dropped) = mpsc::channel();
    // Without the thread there is no bar; the run goes on.
    let _ = std::thread::Builder::new().name("bar".into()).spawn(move || {
        loop {
            shown.draw();
            if dropped.recv_timeout(TICK) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    });
    sender
}
