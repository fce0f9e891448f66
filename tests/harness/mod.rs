//! Test harness: runs the real binary in a folder of its own, and makes small datasets for it.

pub(crate) mod browser;
pub(crate) mod cluster;
#[cfg(target_os = "linux")]
pub(crate) mod liar;
#[cfg(target_os = "linux")]
pub(crate) mod memory;
pub(crate) mod netlab;
pub(crate) mod python;
pub(crate) mod terminal;
pub(crate) mod watching;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use cluster::Cluster;
use serde_json::Value;

/// Time limit of a command in a test. No command takes a fifth of it: the limit ends tests that would wait for ever.
pub(crate) const LIFETIME: Duration = Duration::from_mins(10);

/// A temporary folder in which the binary runs; removed on drop.
pub(crate) struct Tau {
    folder: tempfile::TempDir,
}

/// Exit code and output of a finished command.
pub(crate) struct Output {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Output {
    /// Asserts that the command succeeded, and returns its output.
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, 0, "{}", self.stderr);
        self
    }

    /// Asserts that standard error contains this text.
    #[track_caller]
    pub(crate) fn says(&self, piece: &str) {
        assert!(self.stderr.contains(piece), "{}", self.stderr);
    }

    /// Asserts that the command failed with this exit code, and that standard error contains this text.
    #[track_caller]
    pub(crate) fn fails(&self, code: i32, says: &str) {
        assert_eq!(self.code, code, "{}", self.stderr);
        self.says(says);
    }

    /// Returns the result of a run, which must have ended with equal replicas.
    #[track_caller]
    pub(crate) fn agreed(&self) -> Value {
        assert_eq!(self.code, 0, "{}\n{}", self.stdout, self.stderr);
        let last = self.last();
        assert_eq!(last["replicas_agree"], true, "{last}");
        last
    }

    /// Returns the result of a run, to whose end this many nodes must have taken part.
    #[track_caller]
    pub(crate) fn finished(&self, nodes: usize) -> Value {
        let last = self.agreed();
        assert_eq!(last["nodes"], nodes, "{last}");
        last
    }

    /// Returns the result of a run, to whose end this many nodes must have taken part, and which must have lost no
    /// node.
    #[track_caller]
    pub(crate) fn finished_by_all(&self, nodes: usize) -> Value {
        let last = self.finished(nodes);
        assert_eq!(last["missing"], Value::Array(Vec::new()), "{last}");
        last
    }

    /// Returns the result of a run, which must have trained exactly this many samples, not counting those that were
    /// trained twice.
    #[track_caller]
    pub(crate) fn trained(&self, samples: u64) -> Value {
        let last = self.agreed();
        let count = |key: &str| last[key].as_u64().unwrap();
        assert_eq!(count("samples") - count("repeated_samples"), samples, "{last}");
        last
    }

    /// Returns the lines of standard output as JSON.
    pub(crate) fn objects(&self) -> Vec<Value> {
        let lines = self.stdout.lines();
        lines.map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Returns the last line of standard output as JSON.
    pub(crate) fn last(&self) -> Value {
        let line = self
            .stdout
            .lines()
            .last()
            .unwrap_or_else(|| panic!("no output; errors: {}", self.stderr));
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }
}

/// A running command. It is killed on drop, so that a failing test leaves no process behind.
pub(crate) struct Running {
    child: Child,
    /// Lines of standard output, read by a thread as they come, because the command would block on a full pipe.
    lines: Receiver<String>,
    /// Lines of standard output that a test has read already.
    read: String,
    /// Standard error so far, read by a thread as it comes.
    stderr: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
    /// Dropping this sender ends the thread that enforces [`LIFETIME`].
    _lives: Sender<()>,
}

impl Tau {
    pub(crate) fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tau"));
        command
            .args(arguments)
            .current_dir(self.folder.path())
            // The tests must not depend on the configuration of the user who runs them.
            .env("XDG_CONFIG_HOME", self.folder.path())
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.run_with(&[], arguments)
    }

    /// Runs a command of the binary that must succeed.
    #[track_caller]
    pub(crate) fn must(&self, arguments: &[&str]) -> Output {
        self.run(arguments).ok()
    }

    pub(crate) fn run_with(&self, environment: &[(&str, &str)], arguments: &[&str]) -> Output {
        self.start_with(environment, arguments).finish()
    }

    /// Runs a command whose output has no reader, and returns its exit code.
    pub(crate) fn run_unread(&self, arguments: &[&str]) -> i32 {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = self.command(arguments);
        let child = command.stdout(writer.try_clone().unwrap()).stderr(writer).spawn();
        let mut child = child.unwrap();
        let _lives = end_in_time(child.id());
        child.wait().unwrap().code().unwrap_or(-1)
    }

    /// Runs a command whose standard output is a full device, and returns its exit code and standard error.
    pub(crate) fn run_full(&self, arguments: &[&str]) -> (i32, String) {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let child = self.command(arguments).stdout(full).stderr(Stdio::piped()).spawn();
        let child = child.unwrap();
        let _lives = end_in_time(child.id());
        let output = child.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code().unwrap_or(-1), errors)
    }

    /// Runs a command, and returns its standard output as bytes.
    pub(crate) fn run_bytes(&self, arguments: &[&str]) -> Vec<u8> {
        let mut command = self.command(arguments);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let _lives = end_in_time(child.id());
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    /// Runs a command on one core of this machine.
    #[cfg(target_os = "linux")]
    pub(crate) fn run_on_one_core(&self, arguments: &[&str]) -> Output {
        use std::os::unix::process::CommandExt;

        let mut command = self.command(arguments);
        // SAFETY: the closure makes only system calls that are allowed between fork and exec.
        unsafe { command.pre_exec(keep_to_one_core) };
        Self::spawn(&mut command).finish()
    }

    pub(crate) fn start(&self, arguments: &[&str]) -> Running {
        self.start_with(&[], arguments)
    }

    pub(crate) fn start_with(&self, environment: &[(&str, &str)], arguments: &[&str]) -> Running {
        Self::spawn(self.command(arguments).envs(environment.iter().copied()))
    }

    /// Starts a command under a limit of the shell's `ulimit`, such as `-n 64`, which also applies to its child
    /// processes.
    pub(crate) fn start_limited(&self, limit: &str, environment: &[(&str, &str)], arguments: &[&str]) -> Running {
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("ulimit {limit} && exec \"$0\" \"$@\"")])
            .arg(env!("CARGO_BIN_EXE_tau"))
            .args(arguments)
            .envs(environment.iter().copied())
            .current_dir(self.folder.path());
        Self::spawn(&mut command)
    }

    /// Starts a command whose output and log are captured.
    pub(crate) fn spawn(command: &mut Command) -> Running {
        Self::spawn_with(command, Stdio::piped())
    }

    /// Starts a command whose standard error goes to `stderr`.
    pub(crate) fn spawn_with(command: &mut Command, stderr: impl Into<Stdio>) -> Running {
        let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
        let mut child = piped.spawn().unwrap();
        let lines = lines_of(child.stdout.take().unwrap());
        let log = Arc::new(Mutex::new(Vec::new()));
        let reader = child.stderr.take().map(|mut stderr| {
            let log = Arc::clone(&log);
            std::thread::spawn(move || {
                let mut piece = [0; 4096];
                while let Ok(length @ 1..) = stderr.read(&mut piece) {
                    log.lock().unwrap().extend_from_slice(&piece[..length]);
                }
            })
        });
        Running {
            _lives: end_in_time(child.id()),
            child,
            lines,
            read: String::new(),
            stderr: log,
            reader,
        }
    }

    /// Returns every file below the folder, sorted, with `RUN` in place of the names of runs.
    pub(crate) fn files_by_kind(&self) -> Vec<String> {
        let is_run = |name: &str| name.len() == 16 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
        let general = |file: &String| {
            let names = file.split('/');
            let names = names.map(|name| if is_run(name) { "RUN" } else { name });
            names.collect::<Vec<_>>().join("/")
        };
        self.files().iter().map(general).collect()
    }

    /// Returns every file below the folder, sorted, without symbolic links.
    pub(crate) fn files(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut folders = vec![self.folder.path().to_path_buf()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_symlink() {
                    continue;
                }
                if path.is_dir() {
                    folders.push(path);
                } else {
                    found.push(path.strip_prefix(self.folder.path()).unwrap().display().to_string());
                }
            }
        }
        found.sort();
        found
    }
}

impl Running {
    /// Returns the id of the command's process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the next line of standard output.
    pub(crate) fn read_line(&mut self) -> String {
        let line = self.lines.recv().expect("the command ended without a line");
        self.read.push_str(&line);
        line
    }

    /// Waits for the next line of standard output, and parses it as JSON.
    pub(crate) fn read_object(&mut self) -> Value {
        serde_json::from_str(&self.read_line()).unwrap()
    }

    /// Waits until the client prints a record of a training node. Causes of waiting may be printed before.
    pub(crate) fn wait_until_trains(&mut self) {
        while !self.read_line().contains("\"state\":\"training\"") {}
    }

    /// Sends SIGINT, as Ctrl-C in a terminal does. A system call is used because starting `kill` takes long on a busy
    /// machine.
    pub(crate) fn interrupt(&self) {
        // SAFETY: `kill` touches no memory of this process, and the child's id is still its own because it was not
        // waited for.
        let sent = unsafe { libc::kill(self.child.id() as i32, libc::SIGINT) };
        assert_eq!(sent, 0);
    }

    /// Returns true if the command has ended.
    pub(crate) fn is_over(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Returns standard error so far. The last character may be incomplete.
    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&self.stderr.lock().unwrap()).into_owned()
    }

    /// Waits up to a minute for the end of the command, and returns its output.
    pub(crate) fn end(&mut self) -> Output {
        Cluster::wait_until("the command does not end", || self.is_over());
        self.output()
    }

    pub(crate) fn finish(mut self) -> Output {
        self.output()
    }

    fn output(&mut self) -> Output {
        self.read.extend(self.lines.iter());
        let code = self.child.wait().unwrap().code().unwrap_or(-1);
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        Output {
            code,
            stdout: std::mem::take(&mut self.read),
            stderr: self.log(),
        }
    }
}

/// Returns the lines of a command's standard output, which a thread reads until its end.
fn lines_of(stdout: ChildStdout) -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        let mut stdout = BufReader::new(stdout);
        let mut line = String::new();
        while stdout.read_line(&mut line).unwrap() > 0 {
            // The receiver may be dropped already; the output is read nevertheless, so that the command does not block.
            let _ = sender.send(std::mem::take(&mut line));
        }
    });
    lines
}

/// Restricts this process and its child processes to one core.
#[cfg(target_os = "linux")]
fn keep_to_one_core() -> std::io::Result<()> {
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: all-zero bytes are a valid `cpu_set_t`, the empty set.
    let mut all: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    let mut one = all;
    // SAFETY: `all` is a local variable of `size` bytes.
    if unsafe { libc::sched_getaffinity(0, size, &raw mut all) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: every tested core is below the number of bits in the set.
    let first = (0..8 * size).find(|&core| unsafe { libc::CPU_ISSET(core, &all) });
    // SAFETY: the core is below the number of bits in the set, and `one` is a local variable.
    unsafe { libc::CPU_SET(first.unwrap_or(0), &mut one) };
    // SAFETY: the set is only read, and has `size` bytes.
    if unsafe { libc::sched_setaffinity(0, size, &raw const one) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(())
}

/// Kills a process after [`LIFETIME`], so that its reader fails with a message, unless the returned sender is dropped
/// before.
fn end_in_time(pid: u32) -> Sender<()> {
    let (lives, ends) = channel();
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    std::thread::spawn(move || {
        if ends.recv_timeout(LIFETIME) == Err(RecvTimeoutError::Timeout) {
            let _ = writeln!(
                std::io::stderr(),
                "{test}: a command takes over {LIFETIME:?}, and is killed"
            );
            let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
        }
    });
    lives
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Splits a command line into words. Single quotes keep words together.
pub(crate) fn words(line: &str) -> Vec<&str> {
    let pieces = line.split('\'').enumerate();
    let words = pieces.flat_map(|(at, piece)| match at % 2 {
        0 => piece.split_whitespace().collect(),
        _ => vec![piece],
    });
    words.collect()
}

/// Returns a number from an environment variable, or the default.
pub(crate) fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

/// Returns the lines of a log with this event; docs/log-events.md lists all events.
pub(crate) fn event_lines<'a>(log: &'a str, event: &str) -> Vec<&'a str> {
    let field = format!("event=\"{event}\"");
    log.lines().filter(|line| line.contains(&field)).collect()
}

/// Returns true if a log has a line with this event.
pub(crate) fn tells(log: &str, event: &str) -> bool {
    !event_lines(log, event).is_empty()
}

/// Exit code of scripts on a machine that lacks something that they need.
pub(crate) const CANNOT: i32 = 77;

/// Reports that a test is skipped on this machine, in a line that stays visible when the test passes.
pub(crate) fn skip(why: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    // The test framework captures the output of the print macros.
    let _ = writeln!(std::io::stderr(), "skipped: {test} ({why})");
}

/// Returns the files that a client keeps of a run in this folder, sorted.
pub(crate) fn kept_in(out: &str) -> Vec<String> {
    let names = [
        "events.jsonl",
        "job.toml",
        "metrics.jsonl",
        "model.safetensors",
        "report.html",
        "result.json",
    ];
    names.map(|name| format!("{out}/RUN/{name}")).to_vec()
}

/// Arguments that train a small model on the table of [`points_csv`] with one node.
pub(crate) const TRAIN_POINTS: [&str; 9] = [
    "train",
    "--nodes",
    "1",
    "--data",
    "csv:points.csv",
    "--model",
    "dense",
    "--epochs",
    "1",
];

/// Writes a CSV file with a header and two clouds of points that a line separates.
pub(crate) fn points_csv(tau: &Tau, name: &str, rows: usize) -> String {
    let point = |row: usize| {
        let side = row % 2;
        let spread = |factor: usize| (row * factor % 101) as f64 / 50.0 - 1.0;
        let (x, y) = (spread(37) + 3.0 * side as f64, spread(53) - 2.0 * side as f64);
        format!("{x},{y},side{side}")
    };
    let lines: Vec<String> = std::iter::once("x,y,side".into()).chain((0..rows).map(point)).collect();
    let text = lines.join("\n");
    std::fs::write(tau.path(name), text).unwrap();
    name.into()
}

/// Writes an IDX dataset of small images in two classes, bright on the left or on the right.
pub(crate) fn idx_folder(tau: &Tau, name: &str, side: usize, zipped: bool) -> String {
    let folder = tau.path(name);
    std::fs::create_dir(&folder).unwrap();
    for (part, count) in [("train", 200usize), ("t10k", 40)] {
        let header = |kind: u8, dims: &[usize]| {
            let mut bytes = vec![0, 0, 8, kind];
            bytes.extend(dims.iter().flat_map(|&dim| (dim as u32).to_be_bytes()));
            bytes
        };
        let mut images = header(3, &[count, side, side]);
        let mut labels = header(1, &[count]);
        for image in 0..count {
            let class = image % 2;
            labels.push(class as u8);
            images.extend((0..side * side).map(|at| {
                let bright = (at % side < side / 2) == (class == 0);
                (if bright { 180 } else { 20 }) + ((image * 31 + at * 17) % 60) as u8
            }));
        }
        for (kind, bytes) in [("images-idx3-ubyte", images), ("labels-idx1-ubyte", labels)] {
            let path = folder.join(format!("{part}-{kind}"));
            if zipped {
                let file = std::fs::File::create(folder.join(format!("{part}-{kind}.gz"))).unwrap();
                let mut encoder = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
                encoder.write_all(&bytes).unwrap();
                encoder.finish().unwrap();
            } else {
                std::fs::write(path, bytes).unwrap();
            }
        }
    }
    name.into()
}
