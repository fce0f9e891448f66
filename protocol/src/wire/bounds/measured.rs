//! Limits of the measurements of a run: evaluations and the use of machines.

use super::{OutOfBounds, WORKERS_MAX, counts, name, time, within};
use crate::stats::measured::{Course, Evaluation, NodeUsage, ProcessUsage};

impl Evaluation {
    /// Checks an evaluation that another node sent: its counts, time and scores must be within the limits of honest
    /// nodes.
    pub fn check(&self) -> Result<(), OutOfBounds> {
        let Self {
            samples,
            seconds,
            accuracy: _,
            loss: _,
            mae: _,
            named: _,
        } = self;
        counts([*samples])?;
        time(*seconds)?;
        self.scores().check()
    }
}

impl Course {
    /// Checks evaluations that another node sent: their number must be within its limit, and each of them valid.
    pub fn check(&self) -> Result<(), OutOfBounds> {
        within(self.evaluations().len() <= Self::MAX, "the number of evaluations")?;
        within(self.named_bytes() <= Self::NAMED_BYTES_MAX, "the size of named numbers")?;
        self.evaluations().iter().try_for_each(Evaluation::check)
    }
}

impl NodeUsage {
    /// Checks a node's resource usage, as another node sent it, against the limits that honest nodes keep.
    pub fn check(&self) -> Result<(), OutOfBounds> {
        let Self {
            node,
            wire_in,
            wire_out,
            processes,
        } = self;
        name(node)?;
        counts([*wire_in, *wire_out])?;
        check_processes(processes)
    }
}

/// Checks the usage of processes that another node sent: their number must be within its limit, and each of them valid.
/// Workers that ended while the node ran are included.
pub(super) fn check_processes(processes: &[ProcessUsage]) -> Result<(), OutOfBounds> {
    within(processes.len() <= PROCESSES_MAX, "the number of processes")?;
    processes.iter().try_for_each(ProcessUsage::check)
}

/// Maximum number of processes in a report of a node's resource usage: all workers and the node itself.
pub const PROCESSES_MAX: usize = WORKERS_MAX + 1;

impl ProcessUsage {
    /// Checks a process's resource usage, as another node sent it, against the limits that honest nodes keep.
    pub fn check(&self) -> Result<(), OutOfBounds> {
        let Self {
            process,
            cpu_seconds,
            memory_peak_bytes,
            disk_read_bytes,
            disk_write_bytes,
        } = self;
        name(process)?;
        counts([*memory_peak_bytes, *disk_read_bytes, *disk_write_bytes])?;
        time(*cpu_seconds)
    }
}
