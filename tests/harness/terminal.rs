//! A pseudo-terminal with a command in it, and its screen as a person sees it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use super::Tau;
use super::cluster::Cluster;

/// Width and height.
pub(crate) type Size = (u16, u16);

/// What progress bars are made of.
const OF_BARS: [char; 12] = ['█', '░', '⠋', '⠙', '⠹', '⠸', '⠼', '⠴', '⠦', '⠧', '⠇', '⠏'];

/// A terminal. The command is killed when it is dropped, so that a failing test leaves nothing behind.
pub(crate) struct Terminal {
    child: Child,
    master: File,
    emulator: Arc<Mutex<Emulator>>,
    reader: Option<JoinHandle<()>>,
}

/// The screen, and what was seen on it at any time.
struct Emulator {
    parser: vt100::Parser,
    /// Screens on which a progress bar took more than a line.
    broken_bars: Vec<String>,
    /// The first bar of blocks.
    first_bar: Option<String>,
}

impl Emulator {
    fn take(&mut self, bytes: &[u8]) {
        // Line by line, because a program may draw many screens before it is looked at.
        for piece in bytes.split_inclusive(|&byte| byte == b'\r') {
            self.look();
            self.parser.process(piece);
        }
        self.look();
    }

    fn look(&mut self) {
        let screen = self.parser.screen();
        if screen.alternate_screen() {
            return;
        }
        let rows = lines(screen);
        let bars: Vec<usize> = (0..rows.len()).filter(|&row| rows[row].contains(OF_BARS)).collect();
        let wraps = |row: &usize| u16::try_from(*row).is_ok_and(|row| screen.row_wrapped(row));
        if bars.len() > 1 || bars.iter().any(wraps) {
            self.broken_bars.push(rows.join("\n"));
        }
        let blocks = rows
            .into_iter()
            .find(|row| row.contains(['█', '░']) && row.contains('%'));
        self.first_bar = self.first_bar.take().or(blocks);
    }
}

fn text(emulator: &Mutex<Emulator>) -> String {
    lines(emulator.lock().unwrap().parser.screen()).join("\n")
}

fn lines(screen: &vt100::Screen) -> Vec<String> {
    let (_, columns) = screen.size();
    screen.rows(0, columns).map(|row| row.trim_end().to_owned()).collect()
}

impl Terminal {
    /// Starts a command of the binary in a terminal of this size.
    pub(crate) fn start(tau: &Tau, size: Size, arguments: &[&str]) -> Self {
        let (mut master, mut slave) = (-1, -1);
        let mut window = window(size);
        let none = std::ptr::null_mut();
        // SAFETY: both places are this function's own, and name and settings may be left out.
        let opened = unsafe {
            libc::openpty(
                &raw mut master,
                &raw mut slave,
                none,
                std::ptr::null_mut(),
                &raw mut window,
            )
        };
        assert_eq!(opened, 0, "there is no pseudo-terminal");
        // SAFETY: both were opened just now, and nobody else has them.
        let (master, slave) = unsafe { (File::from_raw_fd(master), File::from_raw_fd(slave)) };
        let mut command = tau.command(arguments);
        let end = || Stdio::from(slave.try_clone().unwrap());
        command.stdin(end()).stdout(end()).stderr(end());
        command
            .env("TERM", "xterm-256color")
            .env_remove("COLUMNS")
            .env_remove("LINES");
        // SAFETY: only system calls that may be made between fork and exec.
        unsafe {
            command.pre_exec(|| {
                if libc::setsid() < 0 || libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let child = command.spawn().unwrap();
        let emulator = Arc::new(Mutex::new(Emulator {
            parser: vt100::Parser::new(size.1, size.0, 0),
            broken_bars: Vec::new(),
            first_bar: None,
        }));
        let (screen, mut output) = (Arc::clone(&emulator), master.try_clone().unwrap());
        let reader = std::thread::spawn(move || {
            let mut piece = [0; 4096];
            // An error tells that nobody has the other end any more.
            while let Ok(length @ 1..) = output.read(&mut piece) {
                screen.lock().unwrap().take(&piece[..length]);
            }
        });
        Self {
            child,
            master,
            emulator,
            reader: Some(reader),
        }
    }

    /// Presses keys, given as what a terminal sends for them.
    pub(crate) fn press(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    /// Gives the terminal another size.
    pub(crate) fn resize(&self, size: Size) {
        let window = window(size);
        self.emulator
            .lock()
            .unwrap()
            .parser
            .screen_mut()
            .set_size(size.1, size.0);
        // SAFETY: the descriptor is open, and the structure is what this request takes.
        let resized = unsafe { libc::ioctl(self.master.as_raw_fd(), libc::TIOCSWINSZ, &raw const window) };
        assert_eq!(resized, 0);
    }

    /// The lines on the screen.
    pub(crate) fn lines(&self) -> Vec<String> {
        lines(self.emulator.lock().unwrap().parser.screen())
    }

    pub(crate) fn text(&self) -> String {
        text(&self.emulator)
    }

    /// Waits until the screen shows what is wanted. Returns it.
    pub(crate) fn wait_until(&self, what: &str, is_shown: impl Fn(&[String]) -> bool) -> Vec<String> {
        let mut shown = Vec::new();
        Cluster::wait_until_or(
            || {
                shown = self.lines();
                is_shown(&shown)
            },
            || format!("{what}:\n{}", self.text()),
        );
        shown
    }

    /// Waits until a text is somewhere on the screen.
    pub(crate) fn wait_for(&self, text: &str) -> Vec<String> {
        let what = format!("'{text}' is not shown");
        self.wait_until(&what, |lines| lines.iter().any(|line| line.contains(text)))
    }

    /// Screens on which a progress bar took more than a line.
    pub(crate) fn broken_bars(&self) -> Vec<String> {
        self.emulator.lock().unwrap().broken_bars.clone()
    }

    /// The first progress bar.
    pub(crate) fn first_bar(&self) -> Option<String> {
        self.emulator.lock().unwrap().first_bar.clone()
    }

    /// Whether a command draws on a screen of its own, or has hidden the cursor.
    pub(crate) fn is_taken(&self) -> bool {
        let emulator = self.emulator.lock().unwrap();
        let screen = emulator.parser.screen();
        screen.alternate_screen() || screen.hide_cursor()
    }

    /// Whether keys are shown and come line by line, as shells leave it.
    pub(crate) fn is_cooked(&self) -> bool {
        // SAFETY: zeros are settings, and they are overwritten.
        let mut settings: libc::termios = unsafe { std::mem::zeroed() };
        // SAFETY: the descriptor is open, and the place is this function's own.
        let read = unsafe { libc::tcgetattr(self.master.as_raw_fd(), &raw mut settings) };
        assert_eq!(read, 0);
        let wanted = libc::ECHO | libc::ICANON | libc::ISIG;
        settings.c_lflag & wanted == wanted
    }

    /// Waits until the command has ended, and its last words are on the screen. Its exit code.
    pub(crate) fn finish(&mut self) -> i32 {
        let (mut status, emulator) = (None, Arc::clone(&self.emulator));
        Cluster::wait_until_or(
            || {
                status = self.child.try_wait().unwrap();
                status.is_some()
            },
            || format!("the command does not end:\n{}", text(&emulator)),
        );
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        status.and_then(|status| status.code()).unwrap_or(-1)
    }
}

fn window((columns, lines): Size) -> libc::winsize {
    libc::winsize {
        ws_row: lines,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
