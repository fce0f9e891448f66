//! Memory of a process: how much is available, large pages, and freed blocks kept for reuse.

use std::ffi::OsString;

use crate::machine::control_group;

/// Data in memory takes at most 1/`DATA_SHARE` of the memory that is left. The rest is for its copies while it is
/// scaled and split, and for other processes.
pub const DATA_SHARE: u64 = 2;

/// Largest block, in bytes, that glibc serves from its heap; larger blocks come zeroed from the system, page by page.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const HEAP_BLOCK_BYTES_MAX: libc::c_int = 32 << 20;
/// Bytes of freed memory that glibc's heap keeps for the next training step instead of returning them to the system.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const KEPT_BYTES_MAX: libc::c_int = 128 << 20;

/// The environment variable from which glibc's allocator reads its settings when a process starts.
const SETTINGS: &str = "GLIBC_TUNABLES";
/// The setting that makes glibc's allocator ask the system for large pages.
const LARGE_PAGES: &str = "glibc.malloc.hugetlb=1";

/// Returns the variable that a worker's environment needs so that its memory is in large pages; `None` if the present
/// environment already has a setting for them.
///
/// A step runs through all weights several times, and changes are spread over all of them: with pages of 4 KiB a worker
/// spends up to a fifth of its time on finding them.
#[must_use]
pub fn large_pages() -> Option<(OsString, OsString)> {
    let settings = match std::env::var_os(SETTINGS) {
        None => LARGE_PAGES.into(),
        // A setting that the user has made stays.
        Some(given) if given.to_string_lossy().contains("hugetlb") => return None,
        Some(mut given) => {
            given.push(":");
            given.push(LARGE_PAGES);
            given
        }
    };
    Some((SETTINGS.into(), settings))
}

/// Returns the bytes that this machine, or the control group of this process, can still give; `None` where neither is
/// known.
#[must_use]
pub fn available() -> Option<u64> {
    let machine = std::fs::read_to_string("/proc/meminfo").ok();
    let machine = machine.and_then(|text| available_in(&text));
    machine.into_iter().chain(control_group::memory_left()).min()
}

/// Returns the bytes that a dataset may take in memory; `None` where the available memory is unknown.
#[must_use]
pub fn left_for_data() -> Option<u64> {
    available().map(|left| left / DATA_SHARE)
}

fn available_in(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes * 1024)
}

/// Keeps freed activations for the next step instead of giving them back to the system.
///
/// Every step allocates the same few large blocks. By default glibc returns each of them to the system and faults it in
/// again, zeroed, page by page: a tenth of a convolutional network's time. Call this once, when the process starts.
pub fn keep_freed_blocks() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `mallopt` only sets the allocator's parameters. It is called before other threads exist, so nothing races
    // with it.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, HEAP_BLOCK_BYTES_MAX);
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES_MAX);
        // Further arenas have heaps of 64 MiB, too small for blocks of this size.
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read_where_it_is_told() {
        let text = "MemTotal:       24583652 kB\nMemFree:        20000000 kB\nMemAvailable:   22000000 kB\n";
        assert_eq!(available_in(text), Some(22_000_000 * 1024));
        assert_eq!(available_in("MemTotal: 5 kB"), None);
        #[cfg(target_os = "linux")]
        assert!(available().is_some_and(|bytes| bytes > 0));
    }
}
