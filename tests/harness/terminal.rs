//! A pseudo-terminal with a command in it, and an emulator of its screen.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use super::Tau;
use super::cluster::Cluster;

/// Columns and lines of a terminal.
pub(crate) type Size = (u16, u16);

/// Characters that only progress bars contain.
const OF_BARS: [char; 12] = ['█', '░', '⠋', '⠙', '⠹', '⠸', '⠼', '⠴', '⠦', '⠧', '⠇', '⠏'];

/// A terminal with a running command, which is killed on drop so that a failing test leaves no process behind.
pub(crate) struct Terminal {
    child: Child,
    master: File,
    emulator: Arc<Mutex<Emulator>>,
    reader: Option<JoinHandle<()>>,
}

/// Emulator of the screen, with observations of progress bars over time.
struct Emulator {
    parser: vt100::Parser,
    /// Screens on which a progress bar took more than one line.
    broken_bars: Vec<String>,
    /// The first progress bar with blocks that was seen.
    first_bar: Option<String>,
}

impl Emulator {
    fn take(&mut self, bytes: &[u8]) {
        // Checked after each line, because a program may draw many screens between two reads.
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
        // SAFETY: both descriptors and the size are local variables, and name and settings may be null.
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
        // SAFETY: both descriptors were just opened, and nothing else owns them.
        let (master, slave) = unsafe { (File::from_raw_fd(master), File::from_raw_fd(slave)) };
        let mut command = tau.command(arguments);
        let end = || Stdio::from(slave.try_clone().unwrap());
        command.stdin(end()).stdout(end()).stderr(end());
        command
            .env("TERM", "xterm-256color")
            .env_remove("COLUMNS")
            .env_remove("LINES");
        // SAFETY: the closure makes only system calls that are allowed between fork and exec.
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
            // An error means that all processes have closed the other end.
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

    /// Sends keys, given as the bytes that a terminal sends for them.
    pub(crate) fn press(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    /// Changes the size of the terminal.
    pub(crate) fn resize(&self, size: Size) {
        let window = window(size);
        self.emulator
            .lock()
            .unwrap()
            .parser
            .screen_mut()
            .set_size(size.1, size.0);
        // SAFETY: the descriptor is open, and TIOCSWINSZ reads a `winsize`.
        let resized = unsafe { libc::ioctl(self.master.as_raw_fd(), libc::TIOCSWINSZ, &raw const window) };
        assert_eq!(resized, 0);
    }

    /// Returns the lines on the screen.
    pub(crate) fn lines(&self) -> Vec<String> {
        lines(self.emulator.lock().unwrap().parser.screen())
    }

    pub(crate) fn text(&self) -> String {
        text(&self.emulator)
    }

    /// Waits until `is_shown` holds for the lines on the screen, and returns these.
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

    /// Waits until a text is on the screen.
    pub(crate) fn wait_for(&self, text: &str) -> Vec<String> {
        let what = format!("'{text}' is not shown");
        self.wait_until(&what, |lines| lines.iter().any(|line| line.contains(text)))
    }

    /// Returns the screens on which a progress bar took more than one line.
    pub(crate) fn broken_bars(&self) -> Vec<String> {
        self.emulator.lock().unwrap().broken_bars.clone()
    }

    /// Returns the first progress bar.
    pub(crate) fn first_bar(&self) -> Option<String> {
        self.emulator.lock().unwrap().first_bar.clone()
    }

    /// Returns true if the command uses the alternate screen or has hidden the cursor.
    pub(crate) fn is_taken(&self) -> bool {
        let emulator = self.emulator.lock().unwrap();
        let screen = emulator.parser.screen();
        screen.alternate_screen() || screen.hide_cursor()
    }

    /// Returns true if the terminal echoes keys and passes them on by lines, as shells expect.
    pub(crate) fn is_cooked(&self) -> bool {
        // SAFETY: all-zero bytes are a valid `termios`, which is overwritten.
        let mut settings: libc::termios = unsafe { std::mem::zeroed() };
        // SAFETY: the descriptor is open, and `settings` is a local variable.
        let read = unsafe { libc::tcgetattr(self.master.as_raw_fd(), &raw mut settings) };
        assert_eq!(read, 0);
        let wanted = libc::ECHO | libc::ICANON | libc::ISIG;
        settings.c_lflag & wanted == wanted
    }

    /// Waits until the command has ended and its output is on the screen, and returns its exit code.
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
