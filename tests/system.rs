//! Whole-system tests over the real binary: one file for each promise.

mod harness;

mod chaos;
mod cluster;
mod command_line;
mod faults;
mod hostile;
mod mnist;
mod network;
mod resources;
