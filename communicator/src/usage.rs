//! Resources that a node takes of its machine, in this process and its workers' processes.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::{Duration, Instant};

use protocol::job::Job;
use protocol::job::model::Layout;
use protocol::stats::measured::{NodeUsage, ProcessUsage};
use protocol::wire::bounds::PROCESSES_MAX;
use thiserror::Error;

use crate::transport::wire;

/// Processor and memory usage of a node's process and its workers together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Average number of processor cores kept busy since the last reading.
    pub cpu: f64,
    /// Memory that the processes take at the moment, in bytes.
    pub memory_bytes: u64,
}

/// Measures the usage of this process and its workers. On systems without `/proc` everything reads as zero.
#[derive(Debug)]
pub struct UsageMeter {
    last: Instant,
    /// Processor time of each process at the last reading.
    last_cpu: HashMap<String, Duration>,
    /// Resources that this process, and each worker's, had used when the run began.
    began: (Totals, HashMap<u32, Totals>),
    /// Bytes that had come and left over sockets when the run began.
    wire_began: (u64, u64),
    /// Usage of each worker process since the run began. Processes that have ended are kept.
    used: BTreeMap<u32, ProcessUsage>,
}

impl UsageMeter {
    /// Creates a meter of the usage of this process and its workers from now on.
    #[must_use]
    pub fn start(now: Instant) -> Self {
        let mut meter = Self {
            last: now,
            last_cpu: HashMap::new(),
            began: (Totals::default(), HashMap::new()),
            wire_began: (0, 0),
            used: BTreeMap::new(),
        };
        meter.read(now, std::iter::empty());
        meter
    }

    /// Records that a run begins: usage of the run counts from now on.
    pub fn begin(&mut self, workers: impl Iterator<Item = u32>) {
        let of_workers = workers.filter_map(|pid| Some((pid, Totals::read(&pid.to_string())?)));
        self.began = (Totals::read("self").unwrap_or_default(), of_workers.collect());
        self.wire_began = wire::bytes();
        self.used.clear();
    }

    /// Returns the usage of this process and its workers' since the run began.
    pub fn since_begin(&mut self, workers: impl Iterator<Item = u32>) -> NodeUsage {
        for pid in workers {
            let before = self.began.1.get(&pid).copied().unwrap_or_default();
            let has_room = self.used.len() + 1 < PROCESSES_MAX || self.used.contains_key(&pid);
            if let Some(now) = Totals::read(&pid.to_string()).filter(|_| has_room) {
                self.used.insert(pid, now.since(before, String::new()));
            }
        }
        let own = Totals::read("self").unwrap_or_default();
        let own = own.since(self.began.0, "node".into());
        let workers = (1..)
            .zip(self.used.values())
            .map(|(number, used): (u32, _)| ProcessUsage {
                process: format!("worker {number}"),
                ..used.clone()
            });
        let (wire_in, wire_out) = wire::bytes();
        NodeUsage {
            node: String::new(),
            wire_in: wire_in - self.wire_began.0,
            wire_out: wire_out - self.wire_began.1,
            processes: std::iter::once(own).chain(workers).collect(),
        }
    }

    /// Returns the processor usage since the last reading, and the memory in use now, of this process and the processes
    /// with the ids `others`.
    pub fn read(&mut self, now: Instant, others: impl Iterator<Item = u32>) -> Usage {
        let elapsed = now.saturating_duration_since(self.last).as_secs_f64();
        self.last = now;
        let mut usage = Usage::default();
        let mut times = HashMap::new();
        for process in others.map(|pid| pid.to_string()).chain(["self".into()]) {
            let time = processor_time(&process).unwrap_or_default();
            // A process that is new here has used its time before the last reading, too.
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

/// Resources of the machine that a process has used since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Totals {
    cpu: Duration,
    memory_peak: u64,
    read: u64,
    written: u64,
}

impl Totals {
    /// Reads the processor time, peak memory and disk traffic of a process since its start from `/proc`; `None` if the
    /// process is gone.
    fn read(process: &str) -> Option<Self> {
        let cpu = processor_time(process)?;
        let text = |file: &str| std::fs::read_to_string(format!("/proc/{process}/{file}")).unwrap_or_default();
        let io = text("io");
        let bytes = |name: &str| number(&io, name).unwrap_or_default();
        Some(Self {
            cpu,
            memory_peak: kilobytes(&text("status"), "VmHWM:").unwrap_or_default(),
            read: bytes("read_bytes:"),
            written: bytes("write_bytes:"),
        })
    }

    fn since(self, before: Self, process: String) -> ProcessUsage {
        ProcessUsage {
            process,
            cpu_seconds: self.cpu.saturating_sub(before.cpu).as_secs_f64(),
            memory_peak_bytes: self.memory_peak,
            disk_read_bytes: self.read.saturating_sub(before.read),
            disk_write_bytes: self.written.saturating_sub(before.written),
        }
    }
}

/// Returns the user and system time of a process, from the kernel's accounting in hundredths of a second.
fn processor_time(process: &str) -> Option<Duration> {
    const TICK_MS: u64 = 10;
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The program's name stands in parentheses and may hold spaces; user and system time are 12th and 13th after it.
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

/// Returns the bytes of memory that this process may have: the machine's, or a lower limit; `None` if neither is known.
#[must_use]
fn memory_total_bytes() -> Option<u64> {
    let text = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
    let machine = kilobytes(&text("/proc/meminfo"), "MemTotal:");
    // `ulimit -v` sets this limit.
    let process = limit(&text("/proc/self/limits"), "Max address space");
    let groups = text("/proc/self/cgroup");
    // Control groups exist in two versions, and either may be in use.
    let group = |controller, name: &str| {
        group_limit(&groups, controller, |folder| {
            std::fs::read_to_string(Path::new("/sys/fs/cgroup").join(folder).join(name)).ok()
        })
    };
    let (new, old) = (group("", "memory.max"), group("memory", "memory.limit_in_bytes"));
    [machine, process, new, old].into_iter().flatten().min()
}

/// Returns the lowest memory limit in bytes of this process's control group and of the groups that contain it;
/// containers and services are limited in this way. `own` is the text of `/proc/self/cgroup`: each line has a group's
/// controllers, whose names are also the name of a folder, and its path. Control groups of version 2 name no
/// controllers.
fn group_limit(own: &str, controller: &str, limit_of: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let (controllers, path) = own.lines().find_map(|line| {
        let (_, group) = line.split_once(':')?;
        let (controllers, path) = group.split_once(":/")?;
        let is_meant = controllers.split(',').any(|one| one == controller);
        is_meant.then_some((controllers, path))
    })?;
    let folders = Path::new(path)
        .ancestors()
        .map(|folder| Path::new(controllers).join(folder));
    folders
        .filter_map(|folder| limit_of(&folder)?.trim().parse().ok())
        .min()
}

/// Returns a limit of this process by its name in the text of `/proc/self/limits`; `None` if there is none.
fn limit(table: &str, name: &str) -> Option<u64> {
    let line = table.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Returns the number of files and sockets that this process may have open at a time; `None` if it is not known.
#[must_use]
pub fn descriptors_max() -> Option<usize> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    limit(&limits, "Max open files").map(|most| most as usize)
}

/// Error of a job that needs more memory than the machine or its GPU has.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[error("the job needs about {needed:.1} GB of memory, but {holder} has {there:.1} GB")]
pub struct TooLarge {
    needed: f64,
    there: f64,
    holder: &'static str,
}

/// The workers of a machine and their resources.
#[derive(Clone, Copy, Debug)]
pub struct Workers {
    pub count: usize,
    /// Measured speed of the slowest worker in million multiply-adds per second; 0 unless nodes decide where the model
    /// is cut.
    pub speed: u64,
    /// Bytes of the machine's memory, if known.
    pub memory_bytes: Option<u64>,
    /// Bytes of the GPU's memory, if the workers compute on a GPU.
    pub gpu_bytes: Option<u64>,
}

impl Workers {
    /// Describes a number of workers on this machine, with the machine's memory and that of the GPU, to check a job's
    /// memory needs.
    #[must_use]
    pub fn here(count: usize, gpu_bytes: Option<u64>) -> Self {
        Self {
            count,
            speed: 0,
            memory_bytes: memory_total_bytes(),
            gpu_bytes,
        }
    }
}

/// Bytes of memory that a node and its worker are taken to need besides their pipeline stage, with room for a dataset.
/// Without this margin stages would not fit, because a model is cut to fill the memory closely.
const BESIDES_BYTES: u64 = 128 << 20;
/// Bytes that a worker takes of a GPU besides its arrays: for the driver, kernels, and workspace of matrix products.
const BESIDES_GPU_BYTES: u64 = 640 << 20;
/// Maximum number of evaluation samples that go through a model at once.
const MEASURED_AT_ONCE: usize = 128;

/// Refuses a job that needs more memory than this many workers on the machine can have.
pub fn check_memory(job: &Job, layout: &Layout, workers: Workers) -> Result<(), TooLarge> {
    let fits = |needed: u64, there: Option<u64>, holder| {
        const GIGABYTE: f64 = 1e9;
        let needed = needed.saturating_mul(workers.count as u64);
        match there {
            Some(there) if needed > there => Err(TooLarge {
                needed: needed as f64 / GIGABYTE,
                there: there as f64 / GIGABYTE,
                holder,
            }),
            _ => Ok(()),
        }
    };
    fits(host_bytes(job, layout), workers.memory_bytes, "this machine")?;
    fits(gpu_bytes(job, layout), workers.gpu_bytes, "this machine's GPU")
}

/// Returns the bytes of memory that a worker and its node take for a job.
fn host_bytes(job: &Job, layout: &Layout) -> u64 {
    // Gradients that are accumulated take an array of their own; those of a pipeline's micro-batches do not.
    let adds_up = job.exchange.pipelines().is_none() && job.accumulate > 1;
    // A pipeline also keeps the weights with which each minibatch in flight was computed, those with which it is
    // measured, and the copies of a stage that a worker and its node make to save it; all samples in flight are in
    // memory.
    let (in_flight, in_pipeline, samples, besides) = match job.exchange.pipelines() {
        Some(pipelines) => (
            usize::from(pipelines.in_flight(1)),
            3,
            job.step_samples(),
            BESIDES_BYTES,
        ),
        None => (0, 0, job.minibatch, 0),
    };
    let arrays = job.optimiser.rule.state_arrays() + usize::from(adds_up) + in_flight + in_pipeline;
    let each = layout.training_bytes(samples as usize * (1 + in_flight), arrays);
    each.saturating_add(besides)
}

/// Returns a generous estimate of the bytes of GPU memory that a worker takes for a job.
fn gpu_bytes(job: &Job, layout: &Layout) -> u64 {
    // All samples of a step are on the GPU at once.
    let samples = job.step_samples() as usize;
    // A pipeline also keeps the weights of the minibatches in flight, those with which it is measured, and the gradient
    // of a micro-batch that is to be added to the others'.
    let (arrays, at_once, unfolding) = match job.exchange.pipelines() {
        Some(pipelines) => {
            let (in_flight, parts) = (usize::from(pipelines.in_flight(1)), usize::from(pipelines.micro));
            let unfolding = layout.unfolding_bytes(samples.div_ceil(parts), true);
            (
                in_flight + 1 + usize::from(parts > 1),
                samples * (1 + in_flight),
                unfolding,
            )
        }
        None => (0, samples, layout.unfolding_bytes(samples, false)),
    };
    let each = layout.training_bytes(at_once, job.optimiser.rule.state_arrays() + arrays);
    let measuring = layout.measuring_bytes(MEASURED_AT_ONCE);
    each.saturating_add(unfolding)
        .saturating_add(measuring)
        .saturating_add(BESIDES_GPU_BYTES)
}

/// Returns the bytes behind the label `name` in the text of a `/proc` file, which gives them in kB.
fn kilobytes(text: &str, name: &str) -> Option<u64> {
    number(text, name).map(|kilobytes| kilobytes * 1024)
}

/// Returns the number behind the label `name` in the text of a `/proc` file.
fn number(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_limit_of_all_groups_holds() {
        let limits = |folder: &Path| match folder.to_str().unwrap() {
            "" | "memory/" => Some("max\n".into()),
            "a" | "memory/a" => Some("1000\n".into()),
            "a/b" => Some("2000\n".into()),
            "cpu,memory/a" => Some("500\n".into()),
            _ => None,
        };
        for (own, controller, limit) in [
            ("3:cpu:/d\n0::/a/b/c\n", "", Some(1000)),
            ("0::/\n", "", None),
            ("4:memory:/a\n0::/\n", "memory", Some(1000)),
            ("5:cpuset:/\n4:cpu,memory:/a\n0::/\n", "memory", Some(500)),
            ("4:cpu:/a\n", "memory", None),
        ] {
            assert_eq!(group_limit(own, controller, limits), limit, "{own}");
        }
        let table = "Max open files  20  40  files\nMax address space  unlimited  unlimited  bytes\n";
        assert_eq!(
            (limit(table, "Max open files"), limit(table, "Max address space")),
            (Some(20), None)
        );
    }

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
    fn totals_count_from_a_runs_beginning_and_outlive_a_worker() {
        let mut meter = UsageMeter::start(Instant::now());
        let before = meter.since_begin(std::iter::empty());
        meter.begin(std::iter::empty());
        let mut worker = std::process::Command::new("sh")
            .args(["-c", "echo; read line"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut byte = [0];
        std::io::Read::read_exact(worker.stdout.as_mut().unwrap(), &mut byte).unwrap();
        let alive = meter.since_begin(std::iter::once(worker.id()));
        assert!(alive.processes[0].cpu_seconds <= before.processes[0].cpu_seconds);
        assert_eq!(alive.processes[1].process, "worker 1");
        assert!(alive.processes[1].memory_peak_bytes > 0);
        drop(worker.stdin.take());
        worker.wait().unwrap();
        let after = meter.since_begin(std::iter::once(worker.id()));
        assert_eq!(after.processes[1], alive.processes[1]);
    }

    #[test]
    fn the_number_of_descriptors_is_told() {
        assert!(descriptors_max().unwrap() > 3);
    }
}
