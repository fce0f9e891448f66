//! Tests of `tau up` and `tau down` on other machines: with a stand-in for ssh on every machine, and with real sshds
//! where this machine can act as several hosts.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::cluster::{Cluster, cut_power, job, processes_with};
use crate::harness::netlab::Netlab;
use crate::harness::{Output, Running, Tau, points_csv, skip};

/// Stand-in for ssh that runs the command on this machine, in a folder for each host. Hosts with 'bad' in their name
/// cannot be reached, and the disks of those with 'full' are full.
const STAND_IN: &str = r#"#!/bin/sh
while [ $# -gt 2 ]; do shift; done
case $1 in
*bad*) echo "ssh: connect to host $1 port 22: No route to host" >&2; exit 255 ;;
*full*) case $2 in *"cat >"*) cat >/dev/null; echo "No space left on device" >&2; exit 3 ;; esac ;;
esac
mkdir -p "HOSTS/$1" && cd "HOSTS/$1" || exit 255
echo "Welcome to $1!"
HOME=$PWD exec sh -c "$2"
"#;

/// Hosts on this machine, as folders. Processes that run in them are killed on drop.
struct Hosts {
    tau: Tau,
    ssh: String,
}

impl Hosts {
    fn new() -> Self {
        let tau = Tau::new();
        let (hosts, ssh) = (tau.path("hosts"), tau.path("ssh"));
        std::fs::create_dir(&hosts).unwrap();
        std::fs::write(&ssh, STAND_IN.replace("HOSTS", hosts.to_str().unwrap())).unwrap();
        std::fs::set_permissions(&ssh, std::fs::Permissions::from_mode(0o755)).unwrap();
        let ssh = ssh.to_str().unwrap().to_owned();
        Self { tau, ssh }
    }

    fn run(&self, command: &str, arguments: &[&str]) -> Output {
        self.tau.run(&[&[command, "--ssh", &self.ssh], arguments].concat())
    }

    /// Runs `tau up` with nodes that can share one machine: on free ports and with one thread.
    fn up(&self, arguments: &[&str]) -> Output {
        let node = ["--port", "0", "--", "--listen", "127.0.0.1:0", "--threads", "1"];
        self.run("up", &[arguments, &node].concat())
    }

    fn folder(&self, host: &str) -> PathBuf {
        self.tau.path("hosts").join(host)
    }

    /// Returns all files and processes on all hosts.
    fn left(&self) -> (Vec<PathBuf>, Vec<u32>) {
        let hosts = self.tau.path("hosts");
        (files(&hosts), processes_with(hosts.to_str().unwrap(), "tau"))
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        // A failed test may have left processes.
        for pid in self.left().1 {
            let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).output();
        }
    }
}

/// Returns all files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_type().unwrap().is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found
}

/// Returns the addresses that `tau up` prints.
fn cluster(up: &Output) -> String {
    assert_eq!(up.code, 0, "{}", up.stderr);
    let first = up.stdout.lines().next().unwrap();
    first.split_once("nodes are up: ").unwrap().1.to_owned()
}

/// Returns the arguments that start a small run on the nodes at these addresses.
fn start(addresses: &str) -> Vec<&str> {
    let cluster = [
        "start",
        "--cluster",
        addresses,
        "--credentials",
        "cluster.pem",
        "--json",
    ];
    [&cluster[..], &job("2", &[])].concat()
}

#[test]
fn bad_hosts_and_flags_are_refused_and_change_nothing() {
    let hosts = Hosts::new();
    for (arguments, says) in [
        (vec!["a b"], "'a b' is no host"),
        (vec!["--", "-oProxyCommand=x"], "required"),
        (vec!["a;reboot"], "'a;reboot' is no host"),
        (vec!["a", "a"], "twice"),
        (vec!["@none"], "none could not be read"),
        (vec!["a", "--dir", ".."], "--dir"),
        (vec!["a", "--port", "99999"], "--port"),
        (vec!["a", "--", "--colour", "red"], "--colour"),
        (vec!["a", "--", "--name", "x"], "leave them out"),
        (vec!["a", "--credentials", "ssh"], "ssh"),
    ] {
        let refused = hosts.run("up", &arguments);
        assert_eq!(refused.code, 2, "{arguments:?}: {}", refused.stderr);
        refused.says(says);
    }
    let refused = hosts.run("down", &["a b"]);
    refused.fails(2, "'a b'");
    assert!(hosts.left().0.is_empty());
    assert!(!hosts.tau.path("cluster.pem").exists());
}

#[test]
fn a_cluster_comes_up_trains_and_goes_without_a_trace() {
    let hosts = Hosts::new();
    // The name of the folder contains characters that a shell interprets.
    let dir = "it's $HOME; a `folder`";
    std::fs::write(hosts.tau.path("list"), "u@two # the second\nthree:2222\n").unwrap();
    let all = ["one", "@list", "--dir", dir];
    let up = hosts.up(&all);
    let addresses = cluster(&up);
    let credentials = hosts.folder("one").join(dir).join("cluster.pem");
    let mode = std::fs::metadata(credentials).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let nodes = || {
        let asked = [
            "nodes",
            "--cluster",
            &addresses,
            "--credentials",
            "cluster.pem",
            "--json",
        ];
        let listed = hosts.tau.run(&asked);
        let names = listed
            .objects()
            .into_iter()
            .map(|node| node["node"].as_str().unwrap().to_owned());
        names.collect::<Vec<_>>()
    };
    assert_eq!(nodes(), ["one", "three", "two"]);

    // Running nodes are left alone, and a killed node comes back under its name.
    let running = hosts.left();
    assert_eq!(cluster(&hosts.up(&all)), addresses);
    assert_eq!(hosts.left().1, running.1);
    let home = hosts.folder("u@two").join(dir);
    let pid = std::fs::read_to_string(home.join("pid"))
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    cut_power(pid, home.to_str().unwrap());
    let again = hosts.up(&all);
    assert_ne!(cluster(&again), addresses);
    again.says("u@two: node two has joined the cluster");
    assert!(
        !again.stderr.contains("copied"),
        "the same program was there: {}",
        again.stderr
    );
    assert_eq!(nodes(), ["one", "three", "two"]);

    for host in ["one", "u@two", "three"] {
        let data = points_csv(&hosts.tau, "points.csv", 300);
        std::fs::copy(hosts.tau.path(&data), hosts.folder(host).join("points.csv")).unwrap();
    }
    let run = hosts.tau.must(&start(&addresses));
    assert_eq!(
        (&run.last()["nodes"], &run.last()["replicas_agree"]),
        (&3.into(), &true.into())
    );

    hosts.run("down", &all).ok();
    let (kept, running) = hosts.left();
    assert!(running.is_empty(), "{running:?}");
    let is_data = |path: &PathBuf| path.ends_with("points.csv");
    let models = kept
        .iter()
        .filter(|path| path.extension().is_some_and(|ending| ending == "safetensors"));
    assert_eq!(models.count(), 3, "{kept:?}");
    // Only the files that nodes keep of the run remain, beside its model.
    let has_model = |path: &PathBuf| {
        let folder = path.parent().unwrap();
        let files = std::fs::read_dir(folder).unwrap().flatten();
        let mut names = files.map(|file| file.path());
        names.any(|name| name.extension().is_some_and(|ending| ending == "safetensors"))
    };
    assert!(kept.iter().all(|path| is_data(path) || has_model(path)), "{kept:?}");
    let down = hosts.run("down", &[&all[..], &["--purge"]].concat());
    assert!(
        down.code == 0 && down.stderr.contains("all files were removed"),
        "{}",
        down.stderr
    );
    let (kept, _) = hosts.left();
    assert!(kept.len() == 3 && kept.iter().all(is_data), "{kept:?}");
    assert!(!home.exists());
    let down = hosts.run("down", &all);
    down.says("one: no node and no files of Tau were found");
}

#[test]
fn where_one_host_fails_nothing_is_left_on_the_others() {
    let hosts = Hosts::new();
    let refused = hosts.up(&["one", "u@bad:22"]);
    assert_eq!(refused.code, 1, "{}", refused.stderr);
    assert!(
        refused
            .stderr
            .contains("u@bad:22: the host could not be reached (ssh: connect"),
        "{}",
        refused.stderr
    );
    assert!(!hosts.tau.path("cluster.pem").exists());
    let refused = hosts.up(&["one", "full"]);
    refused.fails(1, "full: No space left");
    // A node that does not start shows the reason: no interface has this address.
    let node = ["one", "two", "--", "--listen", "192.0.2.1:0"];
    let refused = hosts.run("up", &node);
    refused.fails(1, "one: the node did not start");
    assert!(
        refused.stderr.contains("| error: 192.0.2.1:0 cannot be listened on"),
        "{}",
        refused.stderr
    );
    let left = hosts.left();
    assert!(left.0.is_empty() && left.1.is_empty(), "{left:?}");
    let down = hosts.run("down", &["one", "bad"]);
    down.fails(1, "bad: the host could not");
}

/// A running sshd on every host of a lab, each with a home folder of its own.
struct Doors {
    _doors: Vec<Running>,
    ssh: String,
}

/// Starts an sshd on each host that admits the test's key. Returns `None`, after a message, if sshd is not installed.
fn doors(lab: &Netlab, tau: &Tau, hosts: usize) -> Option<Doors> {
    const SSHD: &str = "/usr/sbin/sshd";
    if !Path::new(SSHD).exists() {
        skip("it needs sshd: install openssh-server");
        return None;
    }
    let path = |name: &str| tau.path(name).to_str().unwrap().to_owned();
    for key in ["host_key", "key"] {
        let made = Command::new("ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", "", "-f", &path(key)])
            .status();
        assert!(made.unwrap().success());
    }
    // The folder in which sshd confines itself before authentication.
    std::fs::create_dir_all("/run/sshd").unwrap();
    let doors = (1..=hosts).map(|host| {
        let home = tau.path(&format!("home{host}"));
        std::fs::create_dir(&home).unwrap();
        let mut config = String::new();
        for line in [
            format!("ListenAddress {}:22", Netlab::address(host)),
            format!("HostKey {}", path("host_key")),
            format!("AuthorizedKeysFile {}", path("key.pub")),
            "PidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin prohibit-password"
                .into(),
            // All hosts share this machine's files, and each has a home folder of its own.
            format!(
                "ForceCommand cd {0} && HOME={0} exec sh -c \"$SSH_ORIGINAL_COMMAND\"",
                home.display()
            ),
        ] {
            writeln!(config, "{line}").unwrap();
        }
        let file = tau.path(&format!("sshd{host}"));
        std::fs::write(&file, config).unwrap();
        Tau::spawn(lab.command(host, SSHD).args(["-D", "-e", "-f"]).arg(file))
    });
    let doors: Vec<Running> = doors.collect();
    for door in &doors {
        Cluster::wait_until("an sshd does not listen", || door.log().contains("listening"));
    }
    let known = path("known_hosts");
    let ssh = format!(
        "ssh -F none -i {} -o UserKnownHostsFile={known} -o StrictHostKeyChecking=no",
        path("key")
    );
    Some(Doors { _doors: doors, ssh })
}

#[test]
fn a_cluster_comes_up_over_ssh_trains_and_goes_without_a_trace() {
    const HOSTS: usize = 3;
    let (Some(lab), tau) = (Netlab::up(HOSTS + 1, "none"), Tau::new()) else {
        return;
    };
    let Some(doors) = doors(&lab, &tau, HOSTS) else {
        return;
    };
    points_csv(&tau, "points.csv", 300);
    let hosts: Vec<String> = (1..=HOSTS)
        .map(|host| format!("root@{}:22", Netlab::address(host)))
        .collect();
    // Commands run on the last host, which has no node.
    let tau_there = |arguments: &[&str]| {
        let mut command = lab.command(HOSTS + 1, env!("CARGO_BIN_EXE_tau"));
        let command = command.args(arguments).current_dir(tau.path(""));
        let output = command.env("XDG_CONFIG_HOME", tau.path("")).output().unwrap();
        Output {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    };
    let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
    let fleet = |command| [&[command, "--ssh", &doors.ssh], &hosts[..]].concat();
    let data_root = tau.path("").to_str().unwrap().to_owned();
    let up = tau_there(&[&fleet("up")[..], &["--", "--threads", "1", "--data-root", &data_root]].concat());
    let addresses = cluster(&up);
    assert_eq!(addresses, "10.77.0.1:7700,10.77.0.2:7700,10.77.0.3:7700");
    let run = tau_there(&start(&addresses)).ok();
    assert_eq!(
        (&run.last()["nodes"], &run.last()["replicas_agree"]),
        (&3.into(), &true.into())
    );
    let names: Vec<_> = (1..=HOSTS).map(Netlab::address).collect();
    assert_eq!(run.last()["participants"], serde_json::json!(names));

    tau_there(&[&fleet("down")[..], &["--purge"]].concat()).ok();
    for host in 1..=HOSTS {
        let home = tau.path(&format!("home{host}"));
        assert_eq!(
            std::fs::read_dir(&home).unwrap().count(),
            0,
            "something is left in {}",
            home.display()
        );
        assert!(processes_with(home.to_str().unwrap(), "tau-up").is_empty());
    }
}
