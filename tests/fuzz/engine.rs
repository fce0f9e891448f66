//! Fuzzing engine: makes inputs for a target, checks each result, and prints how to repeat a failure.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use protocol::rng::CounterRng;

use crate::TARGETS;
use crate::memory::{Bound, peak_of};
use crate::mutate::{Form, mutated};

/// Remaining check of an accepted input: that its value encodes and decodes to an equal value.
pub(crate) type Check = Box<dyn FnOnce()>;

/// A fuzz target: one decoder with the form of its inputs and the bound on its memory.
pub(crate) struct Target {
    pub(crate) name: &'static str,
    pub(crate) form: Form,
    pub(crate) work: Work,
    pub(crate) bound: Bound,
    /// Decodes an input; `None` if the input is refused.
    pub(crate) decode: fn(&[u8]) -> Option<Check>,
}

/// Cost of one execution of a target, which decides the number of executions in a test.
#[derive(Clone, Copy)]
pub(crate) enum Work {
    /// An execution computes for some microseconds.
    Light,
    /// An execution writes and reads files.
    Files,
    /// An execution opens connections.
    Network,
}

impl Work {
    fn executions(self) -> u64 {
        match self {
            Self::Light => 10_000,
            Self::Files => 1_000,
            Self::Network => 100,
        }
    }
}

/// Settings of a fuzzing run, from environment variables.
struct Plan {
    first_seed: u64,
    /// Duration of a run by hand; `None` for a test with a fixed number of executions.
    time: Option<Duration>,
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} must be a number")))
}

impl Plan {
    fn read() -> Self {
        let time = number("TAU_FUZZ_SECONDS").map(Duration::from_secs);
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let first_seed = number("TAU_FUZZ_SEED").unwrap_or_else(|| match time {
            // Seeds of two runs by hand are far enough apart that the inputs differ.
            Some(_) => now().as_secs() << 32,
            None => 1,
        });
        Self { first_seed, time }
    }

    fn goes_on(&self, executed: u64, started: Instant, work: Work) -> bool {
        match self.time {
            Some(time) => started.elapsed() < time,
            None => executed < work.executions(),
        }
    }
}

fn folder(target: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/corpus")).join(target)
}

/// Returns the names and contents of a target's corpus, in the order of the names.
fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = folder(target);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut corpus: Vec<_> = entries
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            (name, std::fs::read(entry.path()).unwrap())
        })
        .collect();
    corpus.sort();
    corpus
}

/// Adds an entry to a target's corpus.
pub(crate) fn add_to_corpus(target: &str, name: &str, bytes: &[u8]) {
    std::fs::create_dir_all(folder(target)).unwrap();
    std::fs::write(folder(target).join(name), bytes).unwrap();
}

/// Checks that all entries of a target's corpus are valid, because mutations of invalid inputs would test little.
/// Entries whose names begin with `refused-` are exempt.
pub(crate) fn check_corpus(target: &Target) {
    let corpus = corpus(target.name);
    assert!(!corpus.is_empty(), "{} has no corpus", target.name);
    for (name, bytes) in corpus {
        let accepted = execute(target, &bytes).accepted;
        assert!(
            accepted || name.starts_with("refused-"),
            "{}/{name} is not valid (any more): make the corpus anew with TAU_FUZZ_CORPUS=write",
            target.name
        );
    }
}

struct Executed {
    accepted: bool,
    peak: usize,
}

fn execute(target: &Target, input: &[u8]) -> Executed {
    let (decoded, peak) = peak_of(|| (target.decode)(input));
    let allowed = target.bound.of(input.len());
    assert!(
        peak <= allowed,
        "{peak} bytes were allocated for {}, but {allowed} are allowed",
        input.len()
    );
    let accepted = decoded.is_some();
    if let Some(check) = decoded {
        check();
    }
    Executed { accepted, peak }
}

/// Fuzzes one target for the planned time or number of executions.
pub(crate) fn fuzz(name: &str) {
    let plan = Plan::read();
    let target = TARGETS.iter().find(|target| target.name == name).unwrap();
    let corpus: Vec<Vec<u8>> = corpus(name).into_iter().map(|(_, bytes)| bytes).collect();
    let started = Instant::now();
    let (mut executed, mut accepted, mut peak) = (0, 0, 0);
    while plan.goes_on(executed, started, target.work) {
        // Each execution has its own seed, so that a failing one can be repeated alone.
        let seed = plan.first_seed.wrapping_add(executed);
        let input = mutated(&corpus, target.form, &mut CounterRng::new(seed, 0));
        match catch_unwind(AssertUnwindSafe(|| execute(target, &input))) {
            Ok(found) => {
                accepted += u64::from(found.accepted);
                peak = peak.max(found.peak);
            }
            Err(panic) => {
                println!("replay: TAU_FUZZ_SEED={seed} cargo test -p tau --test fuzz {name} -- --exact");
                println!("input: {}", input.escape_ascii());
                resume_unwind(panic);
            }
        }
        executed += 1;
    }
    println!("{name}: {executed} executions, {accepted} accepted, {peak} bytes at most");
}
