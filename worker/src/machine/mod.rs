//! This machine: its threads and their panics, its memory, and the limits of its control group.

mod control_group;
pub mod memory;
pub mod panics;
pub mod parallel;
pub(crate) mod thread_time;
