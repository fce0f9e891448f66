//! Ownership of the terminal while the live view is drawn.

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

/// True while the terminal is in raw mode with the alternate screen, and must be restored.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// The terminal in raw mode with the alternate screen, on standard error. Its former state is restored when this is
/// dropped, and before the message of a panic.
pub(crate) struct Screen {
    terminal: Terminal<CrosstermBackend<BufWriter<Stderr>>>,
}

impl Screen {
    /// Puts the terminal into raw mode with the alternate screen, for the live view. Fails if there is no terminal.
    pub(crate) fn enter() -> io::Result<Self> {
        give_back_on_panic();
        TAKEN.store(true, Ordering::SeqCst);
        take().inspect_err(|_| give_back())
    }

    /// Draws one frame of the live view.
    pub(crate) fn show(&mut self, timeline: &Timeline, controls: &mut Controls, said: Option<&str>) -> io::Result<()> {
        self.terminal
            .draw(|frame| super::draw(timeline, controls, said, frame))?;
        Ok(())
    }

    /// Returns the keys that were pressed since the last call.
    #[expect(
        clippy::unused_self,
        reason = "keys arrive one by one only while the terminal is in raw mode, which `self` stands for"
    )]
    pub(crate) fn keys(&mut self) -> io::Result<Vec<KeyEvent>> {
        let mut keys = Vec::new();
        while event::poll(Duration::ZERO)? {
            // Other events, such as a new size of the terminal, need nothing: every frame is drawn in the present size.
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

/// Takes the terminal out of raw mode and the alternate screen, even if it was only half-way there. Does nothing the
/// second time, such as in a drop after a panic.
fn give_back() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        // Errors are ignored: the terminal may be gone.
        let _ = disable_raw_mode();
        let mut out = io::stderr();
        let _ = execute!(out, LeaveAlternateScreen, Show);
        let _ = out.flush();
    }
}

/// Restores the terminal before the message of a panic, which would be lost with the alternate screen.
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
