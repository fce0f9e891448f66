//! Threads, devices and data folder that nodes and commands on this machine compute with.

use std::path::{Path, PathBuf};

use worker::backend::device::Device;
use worker::machine::parallel::Threads;

use crate::args::ComputeFlags;
use crate::failure::Failure;
use crate::output::quantity;

/// Upper limit of `--threads`; `WORKERS_MAX` is that of `--workers`. Larger numbers are typing errors, whose threads
/// and processes would only wait for each other.
const THREADS_MAX: usize = 1024;
const WORKERS_MAX: usize = 256;
/// Returns the number of threads for each of `among` workers: the given one, or an equal share of all cores.
pub(crate) fn threads(asked: Option<usize>, among: usize) -> Result<Threads, Failure> {
    match asked {
        None => {
            let cores = cores();
            Ok(Threads((cores / among.max(1)).max(1)))
        }
        Some(threads) if (1..=THREADS_MAX).contains(&threads) => Ok(Threads(threads)),
        Some(threads) => Err(Failure::input(format!(
            "--threads must be from 1 to {THREADS_MAX}, not {threads}"
        ))),
    }
}

/// Returns the number of cores of this machine that the process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns a warning if more threads train on this machine's CPU than it has cores.
pub(crate) fn crowded(workers: usize, threads: usize, device: &Device) -> Option<String> {
    let cores = cores();
    let all = workers.saturating_mul(threads);
    (matches!(device, Device::Cpu) && all > cores).then(|| {
        format!(
            "{} with {} each share {} and slow each other down: lower --nodes, --workers or --threads, training is \
             as fast",
            quantity::of(workers, "worker"),
            quantity::of(threads, "thread"),
            quantity::of(cores, "core")
        )
    })
}

/// Checks a node's compute flags and returns the device that they name.
pub(crate) fn check_compute(flags: &ComputeFlags) -> Result<Device, Failure> {
    if !(1..=WORKERS_MAX).contains(&flags.workers) {
        return Err(Failure::input(format!(
            "--workers must be from 1 to {WORKERS_MAX}, not {}",
            flags.workers
        )));
    }
    if flags.python.is_none() {
        return device(&flags.device, flags.precision.as_deref());
    }
    // Workers that run Python compute on CPUs.
    match flags.device.as_str() {
        "auto" | "cpu" => Ok(Device::Cpu),
        other => Err(Failure::input(format!(
            "--python needs CPUs, but --device is {other}: use --device cpu"
        ))),
    }
}

/// Returns the device (CPU or a GPU) that flags name.
pub(crate) fn device(device: &str, precision: Option<&str>) -> Result<Device, Failure> {
    let choice = device.parse().map_err(Failure::input)?;
    let precision = precision.map(str::parse).transpose().map_err(Failure::input)?;
    Device::find(choice, precision).map_err(Failure::bad)
}

/// Returns the folder below which jobs may open data: the given one, or the working directory.
pub(crate) fn data_root(given: Option<&Path>) -> Result<PathBuf, Failure> {
    let root = given.unwrap_or(Path::new("."));
    let is_folder = root.canonicalize().ok().filter(|root| root.is_dir());
    is_folder.ok_or_else(|| {
        Failure::input(format!(
            "{} is not an existing folder: give the folder of the data with --data-root",
            root.display()
        ))
    })
}
