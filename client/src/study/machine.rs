//! Description of the machine that a study was measured on.

use std::fmt;

use serde::{Deserialize, Serialize};
use worker::backend::device::Device;

use crate::local::compute;
use crate::output::quantity;

/// Properties of a machine that explain the figures measured on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Machine {
    /// Name of the machine's processor, or the addresses of the nodes if they run on other machines.
    pub(crate) processor: String,
    /// Number of cores that this process may use; 0 if the nodes run on other machines.
    pub(crate) cores: usize,
    pub(crate) memory_gb: u64,
    /// Device that workers compute on, and the number of threads of each if the user has set it.
    #[serde(default)]
    pub(crate) workers: String,
    /// Version of Tau that was measured.
    pub(crate) version: String,
}

impl Machine {
    /// Describes this machine and the device of its workers, to be stored with the figures measured on it. `threads` is
    /// the number of threads of each worker if the user has set it.
    pub(crate) fn here(device: &Device, threads: Option<usize>) -> Self {
        let threads = threads.map_or("all cores shared out".into(), |threads| {
            format!("{} each", quantity::of(threads, "thread"))
        });
        let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let value = |text: &str, key: &str| {
            let line = text.lines().find(|line| line.starts_with(key))?;
            Some(line.split_once(':')?.1.trim().to_string())
        };
        let memory = value(&text("/proc/meminfo"), "MemTotal").unwrap_or_default();
        let kilobytes: u64 = memory
            .split_whitespace()
            .next()
            .and_then(|number| number.parse().ok())
            .unwrap_or(0);
        Self {
            processor: value(&text("/proc/cpuinfo"), "model name").unwrap_or_else(|| std::env::consts::ARCH.into()),
            cores: compute::cores(),
            memory_gb: (kilobytes + (1 << 19)) >> 20,
            workers: format!("workers on {device}, {threads}"),
            version: crate::version::VERSION.into(),
        }
    }

    /// Describes a cluster of nodes that were running before the study, in place of a machine.
    pub(crate) fn cluster(addresses: &[String]) -> Self {
        Self {
            processor: format!("the cluster at {}", addresses.join(", ")),
            version: crate::version::VERSION.into(),
            ..Self::default()
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.processor)?;
        if self.cores > 0 {
            write!(f, ", {} cores, {} GB", self.cores, self.memory_gb)?;
        }
        if !self.workers.is_empty() {
            write!(f, "; {}", self.workers)?;
        }
        write!(f, "; tau {}", self.version)
    }
}
