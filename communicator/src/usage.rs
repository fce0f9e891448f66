//! What a node takes of its machine: this process and its workers'.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use protocol::job::Job;
use protocol::model::Layout;
use thiserror::Error;

/// What a process takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Processor cores kept busy since the last reading, on average.
    pub cpu: f64,
    /// Memory in use.
    pub memory_bytes: u64,
}

/// Reads usage now and then. On systems without `/proc` everything reads as zero.
#[derive(Debug)]
pub struct UsageMeter {
    last: Instant,
    /// The processor time of each process at the last reading.
    last_cpu: HashMap<String, Duration>,
}

impl UsageMeter {
    /// Starts measuring.
    #[must_use]
    pub fn start(now: Instant) -> Self {
        let mut meter = Self {
            last: now,
            last_cpu: HashMap::new(),
        };
        meter.read(now, std::iter::empty());
        meter
    }

    /// The usage since the last reading, of this process and of these.
    pub fn read(&mut self, now: Instant, others: impl Iterator<Item = u32>) -> Usage {
        let elapsed = now.saturating_duration_since(self.last).as_secs_f64();
        self.last = now;
        let mut usage = Usage::default();
        let mut times = HashMap::new();
        for process in others.map(|pid| pid.to_string()).chain(["self".into()]) {
            let time = processor_time(&process).unwrap_or_default();
            // A process that is new here has not used its time since the last reading.
            let before = self.last_cpu.get(&process).copied().unwrap_or(time);
            usage.cpu += time.saturating_sub(before).as_secs_f64();
            usage.memory_bytes += resident_bytes(&process).unwrap_or_default();
            times.insert(process, time);
        }
        self.last_cpu = times;
        usage.cpu = if elapsed > 0.0 { usage.cpu / elapsed } else { 0.0 };
        usage
    }
}

/// User and system time of a process, from the kernel's accounting in hundredths of a second.
fn processor_time(process: &str) -> Option<Duration> {
    const TICK_MS: u64 = 10;
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name of the program stands in parentheses and may hold spaces; user and system time are 12th and 13th after it.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(Duration::from_millis((user + system) * TICK_MS))
}

fn resident_bytes(process: &str) -> Option<u64> {
    kilobytes(
        &std::fs::read_to_string(format!("/proc/{process}/status")).ok()?,
        "VmRSS:",
    )
}

/// The memory that this machine has; `None` where it does not tell.
#[must_use]
fn memory_total_bytes() -> Option<u64> {
    kilobytes(&std::fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")
}

/// How many files and sockets this process may have open at a time; `None` where the system does not tell.
#[must_use]
pub fn descriptors_max() -> Option<usize> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// A job is too large for this machine.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[error("the job needs about {needed:.1} GB of memory, but this machine has {there:.1} GB")]
pub struct TooLarge {
    needed: f64,
    there: f64,
}

/// Refuses a job that so many workers on this machine cannot hold, before the system's memory is gone.
pub fn check_memory(job: &Job, layout: &Layout, workers: usize) -> Result<(), TooLarge> {
    const GIGABYTE: f64 = 1e9;
    let each = layout.training_bytes(job.minibatch as usize, job.optimiser.rule.state_arrays());
    let needed = each.saturating_mul(workers as u64);
    match memory_total_bytes() {
        Some(there) if needed > there => Err(TooLarge {
            needed: needed as f64 / GIGABYTE,
            there: there as f64 / GIGABYTE,
        }),
        _ => Ok(()),
    }
}

/// The bytes that a line of such a file gives in kB.
fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes * 1024)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn memory_and_time_are_seen() {
        let start = Instant::now();
        let mut meter = UsageMeter::start(start);
        let block = std::hint::black_box(vec![1u8; 32 << 20]);
        let mut work = 0u64;
        while processor_time("self").unwrap() < meter.last_cpu["self"] + Duration::from_millis(50) {
            work = work.wrapping_mul(31).wrapping_add(1);
        }
        let usage = meter.read(Instant::now(), std::iter::empty());
        std::hint::black_box((work, block));
        assert!(usage.memory_bytes > 32 << 20);
        assert!(usage.cpu > 0.0);
        assert!(memory_total_bytes().unwrap() > usage.memory_bytes);
    }

    #[test]
    fn the_number_of_descriptors_is_told() {
        assert!(descriptors_max().unwrap() > 3);
    }
}
