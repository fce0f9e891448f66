//! This machine: its threads and their panics, its memory and the limits that its control group sets.

mod control_group;
pub mod memory;
pub mod panics;
pub mod parallel;
pub(crate) mod thread_time;
