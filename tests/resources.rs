//! Tests of resources that run out or disappear during a run: the user gets one sentence that says what to do, and all
//! other nodes go on.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::harness::cluster::{Cluster, job, kill};
use crate::harness::{Output, Tau, event_lines, points_csv, skip};

/// Flags for a model whose file takes 80 KB.
const WIDE: &[&str] = &["--model", "dense 4000, relu, dense 2"];
/// Limit on file sizes for `ulimit`, in blocks of 512 or 1024 bytes, depending on the shell: less than the model of
/// [`WIDE`] takes, more than any other file.
const FILE_LIMIT: &str = "-f 32";

/// Returns the names of the files in and below a node's folder, without its socket.
fn saved(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        if entry.file_type().unwrap().is_dir() {
            found.extend(saved(&entry.path()));
        } else if entry.file_type().unwrap().is_file() {
            found.push(entry.file_name().into_string().unwrap());
        }
    }
    found
}

/// Runs a job on two nodes that agree, one of which (`without`) cannot save the model; the client gets the model from
/// the other.
fn one_cannot_save(cluster: &mut Cluster, without: usize, says: &str) {
    cluster.wait_for_nodes(2);
    points_csv(&cluster.tau, "points.csv", 300);
    let last = cluster.ask("start", &job("2", WIDE)).finished(2);
    assert!(tau_model(&cluster.tau, "tau-out/latest/model.safetensors") == last["digest"]);
    let other = &cluster.nodes[1 - without];
    // A node's journal and a checkpoint of the run may be in the folder too.
    let left = |dir: &Path, endings: &[&str]| -> Vec<String> {
        let is_meant = |name: &String| endings.iter().any(|ending| name.ends_with(ending));
        saved(dir).into_iter().filter(is_meant).collect()
    };
    assert_eq!(
        left(&other.dir, &[".safetensors"]),
        [format!("{}.safetensors", other.name)]
    );
    let full = cluster.nodes.remove(without);
    let (name, dir) = (format!("{}.safetensors", full.name), full.dir.clone());
    let logged = full.stop();
    let failures = event_lines(&logged, "model_save_failed");
    let named = |line: &&str| line.contains(&name) && line.contains(says);
    assert!(failures.iter().any(named), "{logged}");
    let models = left(&dir, &[".safetensors", ".checkpoint", ".part"]);
    assert_eq!(models, [""; 0], "half a model was left");
}

/// Returns the digest of a model, which must be complete.
fn tau_model(tau: &Tau, model: &str) -> serde_json::Value {
    let evaluated = tau.must(&["evaluate", model, "--data", "csv:points.csv", "--json"]);
    evaluated.last()["digest"].clone()
}

#[test]
fn a_node_whose_files_may_not_grow_says_so_and_the_other_saves() {
    for limited in [0, 1] {
        let mut cluster = Cluster::new();
        for node in [0, 1] {
            if node == limited {
                cluster.add_limited(FILE_LIMIT);
            } else {
                cluster.add(&[]);
            }
        }
        one_cannot_save(&mut cluster, limited, "File too large");
    }
}

/// A small mounted file system, which fills up soon.
struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    /// Mounts a file system. Returns `None`, after a visible message, if this user may not mount.
    fn mount(path: &'a Path) -> Option<Self> {
        std::fs::create_dir(path).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=32k", "tmpfs"]).arg(path);
        let mounted = mount.output().is_ok_and(|output| output.status.success());
        if !mounted {
            skip("a full disk needs root to mount one");
        }
        mounted.then(|| Self(path))
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[test]
fn a_node_whose_disk_is_full_says_so_and_the_other_saves() {
    let mut cluster = Cluster::new();
    cluster.add(&[]);
    let dir = cluster.tau.path(&cluster.next_dir());
    let Some(_disk) = SmallDisk::mount(&dir) else {
        return;
    };
    cluster.add(&[]);
    one_cannot_save(&mut cluster, 1, "No space left");
}

#[test]
fn a_client_that_cannot_save_says_where_and_can_come_back() {
    let mut cluster = Cluster::new();
    cluster.add(&[]);
    cluster.wait_for_nodes(1);
    points_csv(&cluster.tau, "points.csv", 300);
    let start = cluster.asking("start", &job("2", WIDE));
    let output = cluster.tau.start_limited(FILE_LIMIT, &[], &start).finish();
    assert_eq!(output.code, 1, "{}", output.stderr);
    let error = output.last()["error"].as_str().unwrap().to_owned();
    assert!(
        error.contains("model.safetensors could not be written") && error.contains("File too large"),
        "{error}"
    );
    assert!(!cluster.tau.path("tau-out/latest/model.safetensors").exists());
    cluster.must("start", &["--attach"]);
}

/// Checks that a node was refused as a user's mistake in one sentence, and has left no files.
fn refused(tau: &Tau, before: &[String], output: &Output, says: &[&str]) {
    assert_eq!(output.code, 2, "{}", output.stderr);
    assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
    assert!(
        says.iter().all(|says| output.stderr.contains(says)),
        "{}",
        output.stderr
    );
    assert_eq!(tau.files(), before);
    assert!(!tau.path("new").exists(), "a folder was left");
}

#[test]
fn a_port_in_use_is_named() {
    let mut cluster = Cluster::new();
    let seed = cluster.add(&[]).address.clone();
    let before = cluster.tau.files();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let flags = ["--listen", &taken, "--dir", "new", "--credentials", "cluster.pem"];
    for command in [&["seed"][..], &["join", &seed]] {
        let output = cluster.tau.run(&[command, &flags].concat());
        refused(&cluster.tau, &before, &output, &[&taken, "--listen"]);
    }
    assert_eq!(cluster.listed().len(), 1);
}

#[test]
fn a_folder_too_deep_for_a_socket_is_named() {
    let tau = Tau::new();
    let dir = format!("new/{}", "deep/".repeat(25));
    let seed = ["seed", "--listen", "127.0.0.1:0", "--insecure", "--dir", &dir];
    refused(&tau, &[], &tau.run(&seed), &["new/deep", "107", "shorter --dir"]);
}

/// Returns the processor time that a process has used, in hundredths of a second.
fn processor_time(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The process's name, in parentheses, may contain spaces.
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let fields: Vec<&str> = fields.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
#[cfg(target_os = "linux")]
fn a_network_that_is_too_large_for_a_node_is_refused_and_told_how_to_be_spread() {
    let mut cluster = Cluster::of(1);
    cluster.nodes.remove(0).stop();
    // In kilobytes, the unit of `ulimit`.
    cluster.add_limited("-v 3000000");
    cluster.wait_for_nodes(1);
    let large = "dense 8192, relu, dense 8192, relu, dense 8192, relu, dense 2";
    let job = ["--data", "csv:points.csv", "--model", large, "--optimiser", "adam"];
    let refused = cluster.ask("start", &job);
    assert_eq!(refused.code, 1, "{}", refused.stderr);
    for word in ["GB", "--exchange layers"] {
        refused.says(word);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_node_without_descriptors_waits_quietly_and_recovers() {
    // The limit is a few more descriptors than a node uses by itself, so that the quarter that strangers may have
    // exceeds it.
    let mut cluster = Cluster::of(1);
    let usual = cluster.nodes.remove(0);
    let own = std::fs::read_dir(format!("/proc/{}/fd", usual.process.pid()))
        .unwrap()
        .count();
    usual.stop();
    cluster.add_limited(&format!("-S -n {}", own + 4));
    cluster.wait_for_nodes(1);
    let (address, pid) = (cluster.nodes[0].address.clone(), cluster.nodes[0].process.pid());
    let before = processor_time(pid);
    // More connections than the node can open; the strangers send nothing and stay as long as they may.
    let mut strangers: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(&address).unwrap()).collect();
    // Members can still connect.
    assert_eq!(cluster.listed().len(), 1);
    for stranger in &mut strangers {
        stranger.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
        // A reset also counts as an end; a timeout does not.
        if let Err(error) = stranger.read_to_end(&mut Vec::new()) {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
        }
    }
    // The last strangers had their five seconds: a busy loop would have used all of that time.
    let taken = processor_time(pid) - before;
    assert!(taken < 200, "{taken} hundredths of a second were spent on strangers");
    // The node still works, once the limit allows the descriptors of a run: two journals, saved files and two clients.
    let more = ["--nofile=64:", "--pid", &pid.to_string()];
    assert!(Command::new("prlimit").args(more).status().unwrap().success());
    points_csv(&cluster.tau, "points.csv", 300);
    cluster.must("start", &job("2", &[]));
    let logged = cluster.nodes.remove(0).stop();
    let about_it = event_lines(&logged, "accept_failed").len();
    assert!((1..5).contains(&about_it), "{logged}");
}

#[test]
fn data_that_is_gone_or_changed_is_named_by_the_node_and_the_others_go_on() {
    for (rows, event, file) in [
        (None, "worker_refused", "points.csv"),
        (Some(500), "worker_data_changed", ""),
    ] {
        let mut cluster = Cluster::new();
        for root in ["one", "other"] {
            std::fs::create_dir(cluster.tau.path(root)).unwrap();
            points_csv(&cluster.tau, &format!("{root}/points.csv"), 600);
            cluster.add(&["--data-root", root]);
        }
        cluster.wait_for_nodes(2);
        cluster.must("start", &job("1000000", &["--detach"]));
        match rows {
            None => std::fs::remove_file(cluster.tau.path("other/points.csv")).unwrap(),
            Some(rows) => drop(points_csv(&cluster.tau, "other/points.csv", rows)),
        }
        kill("-KILL", cluster.nodes[1].worker());
        // A refused worker ends within milliseconds, and is restarted at growing intervals.
        Cluster::wait_until("no worker that was started again was refused", || {
            let log = cluster.nodes[1].process.log();
            event_lines(&log, event).iter().any(|line| line.contains(file))
        });
        cluster.must("stop", &[]);
        cluster.ask("start", &["--attach"]).finished(2);
        cluster.nodes.pop().unwrap().stop();
    }
}

#[test]
fn data_outside_a_nodes_root_is_not_read() {
    let mut cluster = Cluster::new();
    std::fs::create_dir(cluster.tau.path("root")).unwrap();
    cluster.add(&["--data-root", "root"]);
    cluster.wait_for_nodes(1);
    points_csv(&cluster.tau, "points.csv", 100);
    let outside = cluster.tau.path("points.csv");
    std::os::unix::fs::symlink(&outside, cluster.tau.path("root/link.csv")).unwrap();
    let outside = outside.to_str().unwrap();
    // The message must not reveal whether the file exists.
    let nothing = "../nothing.csv";
    for path in ["../points.csv", outside, "link.csv", nothing, "/nothing/at/all.csv"] {
        let data = format!("csv:{path}");
        let output = cluster.ask("start", &job("1", &["--data", &data]));
        assert_eq!(output.code, 1, "{}", output.stderr);
        let error = output.last()["error"].as_str().unwrap().to_owned();
        assert!(
            error.contains(&format!("{path} lies outside of the data directory")),
            "{error}"
        );
        assert!(!error.contains("side0"), "{error}");
    }
    std::fs::copy(outside, cluster.tau.path("root/points.csv")).unwrap();
    cluster.must("start", &job("1", &[]));
}

#[test]
fn a_seed_of_another_cluster_does_not_keep_a_node_from_the_next() {
    let mut cluster = Cluster::of(1);
    cluster.tau.must(&["credentials", "new", "other.pem"]);
    let ours = cluster.nodes[0].address.clone();
    let theirs = cluster
        .start(None, "127.0.0.1:0", &["--credentials", "other.pem"])
        .address
        .clone();
    cluster.start(Some(&format!("{theirs},{ours}")), "127.0.0.1:0", &[]);
    cluster.wait_for_nodes(2);
}

#[test]
fn flags_that_a_local_cluster_would_ignore_are_refused() {
    let tau = Tau::new();
    let flags: [&[&str]; 4] = [
        &["--credentials", "cluster.pem"],
        &["--insecure"],
        &["--advertise", "127.0.0.1:1"],
        &["--dir", "folder"],
    ];
    for flag in flags {
        let output = tau.run(&[&["train", "--json"], flag].concat());
        assert_eq!(output.code, 2, "{flag:?}: {}", output.stderr);
        assert!(
            output.last()["error"].as_str().unwrap().contains(flag[0]),
            "{}",
            output.stdout
        );
    }
    assert!(tau.files().is_empty());
}
