//! The terminal while the view has it.

use std::io::{self, BufWriter, Stderr, Write};
use std::panic;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};

use super::StatsView;

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
    pub(crate) fn show(&mut self, view: &StatsView) -> io::Result<()> {
        self.terminal.draw(|frame| view.draw(frame))?;
        Ok(())
    }

    /// Waits for a key that ends the view: q, Esc or Ctrl-C, which raises no signal here. False when the time is over,
    /// or earlier when the terminal has another size and wants to be drawn again.
    #[expect(
        clippy::unused_self,
        reason = "keys come one by one only while the terminal is taken"
    )]
    pub(crate) fn wants_to_leave(&mut self, timeout: Duration) -> io::Result<bool> {
        let start = Instant::now();
        loop {
            let left = timeout.saturating_sub(start.elapsed());
            if !event::poll(left)? {
                return Ok(false);
            }
            match event::read()? {
                Event::Resize(..) => return Ok(false),
                event if asks_to_leave(&event) => return Ok(true),
                _ => {}
            }
        }
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

fn asks_to_leave(event: &Event) -> bool {
    let Event::Key(key) = event else { return false };
    // Some terminals tell of keys that are let go.
    key.kind == KeyEventKind::Press
        && match key.code {
            KeyCode::Char('q' | 'Q') | KeyCode::Esc => true,
            KeyCode::Char('c') => key.modifiers.contains(KeyModifiers::CONTROL),
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use ratatui::crossterm::event::KeyEvent;

    use super::*;

    #[test]
    fn q_and_escape_and_control_c_leave() {
        let key = |code, modifiers| asks_to_leave(&Event::Key(KeyEvent::new(code, modifiers)));
        assert!(key(KeyCode::Char('q'), KeyModifiers::NONE));
        assert!(key(KeyCode::Char('Q'), KeyModifiers::SHIFT));
        assert!(key(KeyCode::Esc, KeyModifiers::NONE));
        assert!(key(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(!key(KeyCode::Char('c'), KeyModifiers::NONE));
        assert!(!key(KeyCode::Enter, KeyModifiers::NONE));
        assert!(!asks_to_leave(&Event::Resize(80, 24)));
        let released = KeyEvent::new_with_kind(KeyCode::Char('q'), KeyModifiers::NONE, KeyEventKind::Release);
        assert!(!asks_to_leave(&Event::Key(released)));
    }
}
