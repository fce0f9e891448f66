//! System tests over the real binary, with one file for each promise.

mod harness;

mod anywhere;
mod chaos;
mod clients;
mod cluster;
mod command_line;
mod controls;
mod defaults;
mod deploy;
#[cfg(target_os = "linux")]
mod drills;
mod faults;
mod fleet;
mod hostile;
mod layers;
#[cfg(target_os = "linux")]
mod liar;
mod mnist;
mod modules;
mod network;
mod networks;
mod older;
mod outputs;
mod page;
mod pipes;
mod refusals;
mod resources;
mod samples;
mod strategies;
mod study;
mod terminal;
mod tutorial;
mod upkeep;
mod using;
