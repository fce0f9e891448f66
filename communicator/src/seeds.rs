//! Runs a simulation over many seeds, on all cores, and names the first seed that fails.
//!
//! `TAU_SIMULATION_SEED=n` replays one, `TAU_SIMULATION_SEEDS=n` runs so many, and `TAU_SIMULATION_FROM=n` others than the
//! first.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

/// What a panic said.
pub(crate) fn message_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string))
        .unwrap_or_default()
}

/// Demands that no seed fails, and says how many were tried. A test's name finds it again.
pub(crate) fn none_fails(test: &str, count: u64, run: impl Fn(u64) -> Result<(), String> + Sync) -> u64 {
    let first = variable("TAU_SIMULATION_FROM").unwrap_or(0);
    let count = variable("TAU_SIMULATION_SEEDS").unwrap_or(count);
    let seeds = variable("TAU_SIMULATION_SEED").map_or(first..first + count, |seed| seed..seed + 1);
    let next = AtomicU64::new(seeds.start);
    let runner = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return None;
            }
            let ran = catch_unwind(AssertUnwindSafe(|| run(seed)));
            if let Err(what) = ran.unwrap_or_else(|panic| Err(message_of(&*panic))) {
                next.store(seeds.end, Ordering::Relaxed);
                return Some((seed, what));
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let failed = std::thread::scope(|scope| {
        let runners: Vec<_> = (0..threads).map(|_| scope.spawn(runner)).collect();
        let failures = runners.into_iter().filter_map(|runner| runner.join().unwrap());
        failures.min()
    });
    if let Some((seed, what)) = failed {
        panic!("{what}\nreplay with TAU_SIMULATION_SEED={seed} cargo test -p tau-communicator {test}");
    }
    seeds.end - seeds.start
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}
