//! Runs the real binary in a folder of its own, and makes small datasets for it.

pub(crate) mod browser;
pub(crate) mod cluster;
#[cfg(target_os = "linux")]
pub(crate) mod liar;
#[cfg(target_os = "linux")]
pub(crate) mod memory;
pub(crate) mod netlab;
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

/// How long a command of a test may take. None takes a fifth of it: this one waits for what never comes.
pub(crate) const LIFETIME: Duration = Duration::from_mins(10);

/// A folder to run the binary in; removed in the end.
pub(crate) struct Tau {
    folder: tempfile::TempDir,
}

/// What a finished command left.
pub(crate) struct Output {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Output {
    /// The output of a command that must have succeeded.
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, 0, "{}", self.stderr);
        self
    }

    /// Asserts that something was said on standard error.
    #[track_caller]
    pub(crate) fn says(&self, piece: &str) {
        assert!(self.stderr.contains(piece), "{}", self.stderr);
    }

    /// Asserts that the command failed with this code, and said why.
    #[track_caller]
    pub(crate) fn fails(&self, code: i32, says: &str) {
        assert_eq!(self.code, code, "{}", self.stderr);
        self.says(says);
    }

    /// The result of a run that must have ended with equal replicas.
    #[track_caller]
    pub(crate) fn agreed(&self) -> Value {
        assert_eq!(self.code, 0, "{}\n{}", self.stdout, self.stderr);
        let last = self.last();
        assert_eq!(last["replicas_agree"], true, "{last}");
        last
    }

    /// The result of a run to whose end so many nodes must have taken part.
    #[track_caller]
    pub(crate) fn finished(&self, nodes: usize) -> Value {
        let last = self.agreed();
        assert_eq!(last["nodes"], nodes, "{last}");
        last
    }

    /// The same of a run that must have lost no node.
    #[track_caller]
    pub(crate) fn finished_by_all(&self, nodes: usize) -> Value {
        let last = self.finished(nodes);
        assert_eq!(last["missing"], Value::Array(Vec::new()), "{last}");
        last
    }

    /// The result of a run that must have trained exactly so many samples, but for those that two workers had claimed.
    #[track_caller]
    pub(crate) fn trained(&self, samples: u64) -> Value {
        let last = self.agreed();
        let count = |key: &str| last[key].as_u64().unwrap();
        assert_eq!(count("samples") - count("repeated_samples"), samples, "{last}");
        last
    }

    /// The lines of standard output, as JSON.
    pub(crate) fn objects(&self) -> Vec<Value> {
        let lines = self.stdout.lines();
        lines.map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The last line of standard output, as JSON.
    pub(crate) fn last(&self) -> Value {
        let line = self
            .stdout
            .lines()
            .last()
            .unwrap_or_else(|| panic!("no output; errors: {}", self.stderr));
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }
}

/// A command under way. Killed when it is dropped, so that a failing test leaves nothing behind.
pub(crate) struct Running {
    child: Child,
    /// The lines of its standard output, read as they come: a pipe that nobody reads would hold it up one day.
    lines: Receiver<String>,
    /// The lines that a test has taken.
    read: String,
    /// Its errors and log, read as they come.
    stderr: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
    /// Dropped when nobody has to look after it any more.
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
            // What whoever runs the tests has configured is no part of them.
            .env("XDG_CONFIG_HOME", self.folder.path())
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.run_with(&[], arguments)
    }

    /// Runs a command that must succeed.
    #[track_caller]
    pub(crate) fn must(&self, arguments: &[&str]) -> Output {
        self.run(arguments).ok()
    }

    pub(crate) fn run_with(&self, environment: &[(&str, &str)], arguments: &[&str]) -> Output {
        self.start_with(environment, arguments).finish()
    }

    /// Runs a command whose readers have gone away before it writes anything, and returns its exit code.
    pub(crate) fn run_unread(&self, arguments: &[&str]) -> i32 {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = self.command(arguments);
        let child = command.stdout(writer.try_clone().unwrap()).stderr(writer).spawn();
        let mut child = child.unwrap();
        let _lives = end_in_time(child.id());
        child.wait().unwrap().code().unwrap_or(-1)
    }

    /// Runs a command whose output goes to a device that is full, and returns its exit code and its errors.
    pub(crate) fn run_full(&self, arguments: &[&str]) -> (i32, String) {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let child = self.command(arguments).stdout(full).stderr(Stdio::piped()).spawn();
        let child = child.unwrap();
        let _lives = end_in_time(child.id());
        let output = child.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code().unwrap_or(-1), errors)
    }

    /// Runs a command, and returns its standard output, which need not be text.
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
        // SAFETY: only system calls that may be made between fork and exec.
        unsafe { command.pre_exec(keep_to_one_core) };
        Self::spawn(&mut command).finish()
    }

    pub(crate) fn start(&self, arguments: &[&str]) -> Running {
        self.start_with(&[], arguments)
    }

    pub(crate) fn start_with(&self, environment: &[(&str, &str)], arguments: &[&str]) -> Running {
        Self::spawn(self.command(arguments).envs(environment.iter().copied()))
    }

    /// Starts a command under a limit of the shell's `ulimit`, such as `-n 64`. What it starts in turn is under it, too.
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

    /// Starts a command whose output can be read.
    pub(crate) fn spawn(command: &mut Command) -> Running {
        Self::spawn_with(command, Stdio::piped())
    }

    /// Starts a command whose errors and log go elsewhere.
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

    /// Every file below the folder, sorted, with RUN for the name of a run.
    pub(crate) fn files_by_kind(&self) -> Vec<String> {
        let is_run = |name: &str| name.len() == 16 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
        let general = |file: &String| {
            let names = file.split('/');
            let names = names.map(|name| if is_run(name) { "RUN" } else { name });
            names.collect::<Vec<_>>().join("/")
        };
        self.files().iter().map(general).collect()
    }

    /// Every file below the folder, sorted. Links are left out.
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
    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the next line of standard output.
    pub(crate) fn read_line(&mut self) -> String {
        let line = self.lines.recv().expect("the command ended without a line");
        self.read.push_str(&line);
        line
    }

    /// Waits for the next line of standard output, which is an object.
    pub(crate) fn read_object(&mut self) -> Value {
        serde_json::from_str(&self.read_line()).unwrap()
    }

    /// Waits until the client says that training is under way; what it waits for before that may be said first.
    pub(crate) fn wait_until_trains(&mut self) {
        while !self.read_line().contains("\"state\":\"training\"") {}
    }

    /// What Ctrl-C in a terminal does. At once: starting a program that sends the signal takes its time on a busy machine.
    pub(crate) fn interrupt(&self) {
        // SAFETY: it changes nothing in this process, and the child is not waited for yet.
        let sent = unsafe { libc::kill(self.child.id() as i32, libc::SIGINT) };
        assert_eq!(sent, 0);
    }

    /// Whether it has ended.
    pub(crate) fn is_over(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Its errors and log so far. The last letter may not be whole.
    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&self.stderr.lock().unwrap()).into_owned()
    }

    /// Waits for its end, which must come soon.
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

/// The lines of a command's output. A thread reads them until the output ends.
fn lines_of(stdout: ChildStdout) -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        let mut stdout = BufReader::new(stdout);
        let mut line = String::new();
        while stdout.read_line(&mut line).unwrap() > 0 {
            // Lines that no test waits for any more are read all the same.
            let _ = sender.send(std::mem::take(&mut line));
        }
    });
    lines
}

/// Keeps this process, and those that it starts, to one of its cores.
#[cfg(target_os = "linux")]
fn keep_to_one_core() -> std::io::Result<()> {
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: zeros are a set, of no core.
    let mut all: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    let mut one = all;
    // SAFETY: the set is this function's own, and of this size.
    if unsafe { libc::sched_getaffinity(0, size, &raw mut all) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: no core beyond the set's size is asked for.
    let first = (0..8 * size).find(|&core| unsafe { libc::CPU_ISSET(core, &all) });
    // SAFETY: the core is within the set, which is this function's own.
    unsafe { libc::CPU_SET(first.unwrap_or(0), &mut one) };
    // SAFETY: the set is only read, and of this size.
    if unsafe { libc::sched_setaffinity(0, size, &raw const one) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(())
}

/// Ends a process that takes too long, so that whoever reads from it fails and says so. Not if what this returns is dropped.
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

/// The words of a command line. Single quotes keep words together.
pub(crate) fn words(line: &str) -> Vec<&str> {
    let pieces = line.split('\'').enumerate();
    let words = pieces.flat_map(|(at, piece)| match at % 2 {
        0 => piece.split_whitespace().collect(),
        _ => vec![piece],
    });
    words.collect()
}

/// A number from the environment.
pub(crate) fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

/// Lines of a log with this event; docs/log-events.md lists all events.
pub(crate) fn event_lines<'a>(log: &'a str, event: &str) -> Vec<&'a str> {
    let field = format!("event=\"{event}\"");
    log.lines().filter(|line| line.contains(&field)).collect()
}

/// Whether a log has a line with this event.
pub(crate) fn tells(log: &str, event: &str) -> bool {
    !event_lines(log, event).is_empty()
}

/// What scripts exit with where this machine lacks something that they need.
pub(crate) const CANNOT: i32 = 77;

/// Says that a test cannot be carried out here, in a line that stays visible when it passes.
pub(crate) fn skip(why: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    // The test framework swallows what the print macros write.
    let _ = writeln!(std::io::stderr(), "skipped: {test} ({why})");
}

/// What a client keeps of a run in this folder, sorted.
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

/// Trains a small model on the table of [`points_csv`], on a node of its own.
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

/// Two clouds of points that a line tells apart, as a CSV file with a header.
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

/// Small images of two classes, bright on the left or on the right, in the four usual files.
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
