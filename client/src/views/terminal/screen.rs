//! The terminal while the view has it.

use std::io::{self, BufWriter, Stderr, Write};
use std::panic;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyEvent};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};

use super::controls::Controls;
use crate::timeline::Timeline;

/// Whether the terminal has to be given back.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// The terminal, on standard error like all that is for people. It is given back as it was when this is dropped, and
/// before the message when something panics.
pub(crate) struct Screen {
    terminal: Terminal<CrosstermBackend<BufWriter<Stderr>>>,
}

impl Screen {
    /// Takes the terminal. Fails if there is none.
    pub(crate) fn enter() -> io::Result<Self> {
        give_back_on_panic();
        TAKEN.store(true, Ordering::SeqCst);
        take().inspect_err(|_| give_back())
    }

    /// Draws the view.
    pub(crate) fn show(&mut self, timeline: &Timeline, controls: &mut Controls, said: Option<&str>) -> io::Result<()> {
        self.terminal
            .draw(|frame| super::draw(timeline, controls, said, frame))?;
        Ok(())
    }

    /// The keys that were pressed since it was asked last.
    #[expect(
        clippy::unused_self,
        reason = "keys arrive one by one only while the terminal is in raw mode, which `self` stands for"
    )]
    pub(crate) fn keys(&mut self) -> io::Result<Vec<KeyEvent>> {
        let mut keys = Vec::new();
        while event::poll(Duration::ZERO)? {
            // A terminal of another size is drawn anew in any case.
            if let Event::Key(key) = event::read()? {
                keys.push(key);
            }
        }
        Ok(keys)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

fn take() -> io::Result<Screen> {
    enable_raw_mode()?;
    let mut out = BufWriter::new(io::stderr());
    execute!(out, EnterAlternateScreen)?;
    let terminal = Terminal::new(CrosstermBackend::new(out))?;
    Ok(Screen { terminal })
}

/// Undoes what [`take`] did, or the part of it that was done. Once: a drop after a panic has nothing left to do.
fn give_back() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        // A terminal that is gone cannot be helped.
        let _ = disable_raw_mode();
        let mut out = io::stderr();
        let _ = execute!(out, LeaveAlternateScreen, Show);
        let _ = out.flush();
    }
}

/// A message on the alternate screen would be gone with it.
fn give_back_on_panic() {
    static HOOKED: Once = Once::new();
    HOOKED.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            give_back();
            before(info);
        }));
    });
}
