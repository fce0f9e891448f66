//! What a person sees while a run goes on: a bar with the numbers that matter.
//!
//! It is one line that is drawn over and over. The cursor stays behind it, with room for what a terminal echoes of Ctrl-C,
//! twice: a line that is full would be broken by that, and half of it would stay.

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

/// How often people are told how far a run is where a bar cannot be drawn, as in a log.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// What is left free behind the bar.
const ECHO_WIDTH: u16 = 5;
/// Where a terminal does not tell its width.
const USUAL_WIDTH: u16 = 80;
/// To the first column, and everything from there on away.
const ERASE: &str = "\r\x1b[K";

/// The bar that is on the screen, for whoever ends the program at once.
static SHOWN: Mutex<Option<Arc<SharedBar>>> = Mutex::new(None);

/// A progress bar on standard error; a line now and then where that is no terminal; nothing where no people are told.
pub(crate) struct View {
    shown: Arc<SharedBar>,
    means: Means,
    /// Dropped with the view, which ends the drawing.
    _ticking: Option<Sender<()>>,
    /// What is said meanwhile goes above the bar.
    _redirected: Option<Redirected>,
}

/// How people are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Means {
    Bar,
    Lines,
    Nothing,
}

/// What is shown.
struct SharedBar(Mutex<State>);

struct State {
    bar: Bar,
    /// When what is shown now began.
    since: Instant,
    /// When people without a terminal were told last.
    told: Instant,
    /// Nothing is drawn any more.
    over: bool,
}

impl SharedBar {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }

    /// Draws the bar, if there is one any more.
    fn draw(&self) {
        let state = self.lock();
        if !state.over {
            let width = terminal::size().map_or(USUAL_WIDTH, |(columns, _)| columns);
            let width = usize::from(width.saturating_sub(ECHO_WIDTH));
            let line = state.bar.line(state.since.elapsed(), width);
            write(&format!("\r{}\x1b[K", printable::line(&line)));
        }
    }

    /// Says something where the bar is, and draws it again below.
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

/// In one piece, so that nothing comes in between. A terminal that is gone cannot be helped.
fn write(text: &str) {
    let mut out = std::io::stderr().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Takes the bar away, if one is shown, because the program ends at once.
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
    /// Of so many samples; with none it is not known how much there is to do.
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

    /// Whether anybody sees it.
    pub(crate) fn is_shown(&self) -> bool {
        self.means == Means::Bar
    }

    /// Shows what is waited for, behind all else.
    pub(crate) fn waits(&self, reasons: &[WaitingFor]) {
        self.change(|state| state.bar.waiting = reasons.to_vec());
    }

    /// Shows that work of unknown length goes on.
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

    /// Changes what is shown. Whoever draws it sees it soon; who cannot be shown it is told now and then.
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

/// Draws until its sender is dropped.
fn keep_drawing(shown: Arc<SharedBar>) -> Sender<()> {
    let (sender, dropped) = mpsc::channel();
    // Without a thread there is no bar; the run goes on all the same.
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
