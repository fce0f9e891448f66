//! This machine: its threads, its memory and the limits that its control group sets.

mod control_group;
pub mod memory;
pub mod parallel;
pub(crate) mod thread_time;
