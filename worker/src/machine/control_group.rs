//! The memory that a process's control group may still take, as in a container; it can be less than the machine has.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

const ROOT: &str = "/sys/fs/cgroup";

/// Names of the files in which one version of Linux control groups describes memory.
struct Version {
    limit: &'static str,
    used: &'static str,
    /// Name of the entry of `memory.stat` with the bytes of cached pages, which the kernel frees when memory is needed.
    cached: &'static str,
}

const VERSION_1: Version = Version {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    cached: "total_inactive_file",
};
const VERSION_2: Version = Version {
    limit: "memory.max",
    used: "memory.current",
    cached: "inactive_file",
};

/// Returns the bytes that this process's control group and all groups above it may still take; `None` without a limit.
pub(crate) fn memory_left() -> Option<u64> {
    memory_left_in(&read_to_string("/proc/self/cgroup").ok()?, Path::new(ROOT))
}

fn memory_left_in(groups: &str, root: &Path) -> Option<u64> {
    let left = groups.lines().filter_map(|line| {
        let (version, root, path) = match line.splitn(3, ':').collect::<Vec<_>>()[..] {
            [_, "", path] => (VERSION_2, root.to_owned(), path),
            [_, kinds, path] if kinds.split(',').any(|kind| kind == "memory") => (VERSION_1, root.join("memory"), path),
            _ => return None,
        };
        // Also looks at the root itself: a container may see its own group there, whatever the path is.
        let group: PathBuf = root.join(path.trim_start_matches('/'));
        let folders = group.ancestors().take_while(|folder| folder.starts_with(&root));
        folders.filter_map(|folder| version.left(folder)).min()
    });
    left.min()
}

impl Version {
    fn left(&self, group: &Path) -> Option<u64> {
        let number = |name: &str| read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
        let stat = read_to_string(group.join("memory.stat")).unwrap_or_default();
        let cached = stat
            .lines()
            .find_map(|line| line.strip_prefix(self.cached)?.trim().parse().ok());
        let used = number(self.used)?.saturating_sub(cached.unwrap_or(0));
        Some(number(self.limit)?.saturating_sub(used))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_group_counts_and_cached_pages_are_left() {
        let root = tempfile::tempdir().unwrap();
        let group = |path: &str, files: &[(&str, &str)]| {
            let folder = root.path().join(path);
            std::fs::create_dir_all(&folder).unwrap();
            for (name, text) in files {
                std::fs::write(folder.join(name), text).unwrap();
            }
        };
        let left = |groups: &str| memory_left_in(groups, root.path());
        group("a/b", &[("memory.max", "max\n"), ("memory.current", "10\n")]);
        assert_eq!(left("0::/a/b\n"), None);
        let stat = "anon 5\ninactive_file 300\n";
        group(
            "a",
            &[
                ("memory.max", "1000\n"),
                ("memory.current", "400\n"),
                ("memory.stat", stat),
            ],
        );
        assert_eq!(left("0::/a/b\n"), Some(900));
        assert_eq!(left("0::/elsewhere\n"), None);
        group(
            "memory",
            &[("memory.limit_in_bytes", "700"), ("memory.usage_in_bytes", "800")],
        );
        assert_eq!(left("5:cpu,memory:/docker/7\n0::/a\n"), Some(0));
    }
}
