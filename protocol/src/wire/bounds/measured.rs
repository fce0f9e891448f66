//! The bounds of what is measured of a run.

use super::{OutOfBounds, WORKERS_MAX, counts, name, time, within};
use crate::stats::measured::{Course, Evaluation, NodeUsage, ProcessUsage};

impl Evaluation {
    /// Whether weights can have been so good, and then.
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
    /// Whether a run can have had it.
    pub fn check(&self) -> Result<(), OutOfBounds> {
        within(self.evaluations().len() <= Self::MAX, "the number of evaluations")?;
        self.evaluations().iter().try_for_each(Evaluation::check)
    }
}

impl NodeUsage {
    /// Whether a node can have used so much.
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

/// Whether a node can have such processes. Workers that ended while it ran are among them.
pub(super) fn check_processes(processes: &[ProcessUsage]) -> Result<(), OutOfBounds> {
    within(processes.len() <= PROCESSES_MAX, "the number of processes")?;
    processes.iter().try_for_each(ProcessUsage::check)
}

/// Processes of one node that are told of.
pub const PROCESSES_MAX: usize = WORKERS_MAX + 1;

impl ProcessUsage {
    /// Whether a process can have used so much.
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
