//! Limits of the measurements of a run: evaluations and the use of machines.

use super::{OutOfBounds, WORKERS_MAX, counts, name, time, within};
use crate::stats::measured::{Course, Evaluation, NodeUsage, ProcessUsage};

impl Evaluation {
    /// Checks that the evaluation's counts, time and scores are within their limits.
    pub fn check(&self) -> Result<(), OutOfBounds> {
        let Self {
            samples,
            seconds,
            accuracy: _,
            loss: _,
            mae: _,
        } = self;
        counts([*samples])?;
        time(*seconds)?;
        self.scores().check()
    }
}

impl Course {
    /// Checks that there are not too many evaluations and that each is within its limits.
    pub fn check(&self) -> Result<(), OutOfBounds> {
        within(self.evaluations().len() <= Self::MAX, "the number of evaluations")?;
        self.evaluations().iter().try_for_each(Evaluation::check)
    }
}

impl NodeUsage {
    /// Checks that a node's usage is within its limits.
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

/// Checks that there are not too many processes and that each is within its limits. Workers that ended while the node
/// ran are included.
pub(super) fn check_processes(processes: &[ProcessUsage]) -> Result<(), OutOfBounds> {
    within(processes.len() <= PROCESSES_MAX, "the number of processes")?;
    processes.iter().try_for_each(ProcessUsage::check)
}

/// Maximum number of processes in a node's usage: all workers and the node itself.
pub const PROCESSES_MAX: usize = WORKERS_MAX + 1;

impl ProcessUsage {
    /// Checks that a process's usage is within its limits.
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
