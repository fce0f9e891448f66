//! Checks of this machine for `tau doctor`: cores, open files, memory, GPU, port and host name.

use communicator::usage;

use super::{Finding, ok, warning};
use crate::args::PORT;
use crate::local::compute;
use crate::output::quantity;

/// Number of files and sockets that a process may open below which `tau doctor` warns; `MEMORY_LOW` is the threshold
/// for free memory, in bytes.
const DESCRIPTORS_LOW: usize = 1024;
const MEMORY_LOW: u64 = 512 << 20;

pub(super) async fn machine() -> Vec<Finding> {
    let cores = compute::cores();
    let mut findings = vec![ok(format!("this machine has {}", quantity::of(cores, "core")))];
    findings.extend(usage::descriptors_max().map(descriptors));
    findings.extend(worker::machine::memory::available().map(memory));
    findings.push(gpu());
    findings.push(match tokio::net::TcpListener::bind(("0.0.0.0", PORT)).await {
        Ok(_) => ok(format!("port {PORT} is free")),
        Err(error) => warning(
            format!("cannot listen on port {PORT} ({error})"),
            "a node may already run on this machine; start another one with --listen and another port",
        ),
    });
    findings.push(host_name().await);
    findings
}

fn descriptors(max: usize) -> Finding {
    let found = format!("a process may open {max} files and sockets");
    if max < DESCRIPTORS_LOW {
        warning(
            found,
            format!(
                "raise the limit with 'ulimit -n {}' before starting a node",
                4 * DESCRIPTORS_LOW
            ),
        )
    } else {
        ok(found)
    }
}

fn memory(bytes: u64) -> Finding {
    let found = format!("{} MiB of memory are free", bytes >> 20);
    if bytes < MEMORY_LOW {
        warning(
            found,
            "a node keeps all data and several copies of the model in memory: stop other programs first",
        )
    } else {
        ok(found)
    }
}

fn gpu() -> Finding {
    if !cfg!(feature = "cuda") {
        return ok("this build trains on CPUs only; build with '--features cuda' for GPUs");
    }
    match compute::device("cuda:0", None) {
        Ok(_) => ok("a GPU and its libraries are available"),
        Err(failure) => warning("no GPU can be used", failure.reasons().join("; ")),
    }
}

async fn host_name() -> Finding {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    let found = tokio::net::lookup_host((name, PORT)).await;
    match found.ok().and_then(|mut found| found.next()) {
        Some(address) => ok(format!("this host's name, {name}, resolves to {}", address.ip())),
        None => warning(
            format!("this host's name, {name}, does not resolve to an address"),
            "on other machines, use this host's IP address, or add this host's name to their /etc/hosts",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::Level;

    #[test]
    fn what_is_short_is_a_warning() {
        assert_eq!(descriptors(256).level, Level::Warning);
        assert_eq!(descriptors(65536).level, Level::Ok);
        assert_eq!(memory(1 << 20).level, Level::Warning);
        assert_eq!(memory(1 << 40).level, Level::Ok);
    }
}
