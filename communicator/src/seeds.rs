//! Runs a simulation with many seeds, on all cores, and names a seed that fails.
//!
//! The environment variable `TAU_SIMULATION_SEED=n` replays one seed, `TAU_SIMULATION_SEEDS=n` sets the number of
//! seeds, and `TAU_SIMULATION_FROM=n` the first one. With `TAU_SIMULATION_DRAWN=n` the last quarter of them is counted
//! from `n`: CI derives it from the commit, so that each landing tries new seeds.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns the message of a panic.
pub(crate) fn message_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string))
        .unwrap_or_default()
}

/// Runs `run` with `count` seeds and panics if one fails. Returns the number of seeds tried. `test` is the name of the
/// test, for the command that replays the failure.
pub(crate) fn none_fails(test: &str, count: u64, run: impl Fn(u64) -> Result<(), String> + Sync) -> u64 {
    let first = variable("TAU_SIMULATION_FROM").unwrap_or(0);
    let count = variable("TAU_SIMULATION_SEEDS").unwrap_or(count);
    let replayed = variable("TAU_SIMULATION_SEED");
    let count = if replayed.is_some() { 1 } else { count };
    let drawn = variable("TAU_SIMULATION_DRAWN").filter(|_| replayed.is_none());
    let seed_of = |place: u64| match drawn {
        Some(drawn) if place >= count - count / 4 => drawn + place,
        _ => replayed.unwrap_or(first) + place,
    };
    let next = AtomicU64::new(0);
    let runner = || {
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            if place >= count {
                return None;
            }
            let seed = seed_of(place);
            let ran = catch_unwind(AssertUnwindSafe(|| run(seed)));
            if let Err(what) = ran.unwrap_or_else(|panic| Err(message_of(&*panic))) {
                next.store(count, Ordering::Relaxed);
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
    count
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}
