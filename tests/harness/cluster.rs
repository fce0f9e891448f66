//! A test cluster whose nodes are started by commands, as users do.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Output, Running, Tau, points_csv};

/// Limit for waiting, longer than any step of these tests takes.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// Name of the folder of temporary files.
const TEMPORARY: &str = "tmp";

/// Flags of a small job; ten thousand samples per epoch would take a second.
pub(crate) const SMALL: &[&str] = &[
    "--data",
    "csv:points.csv",
    "--model",
    "dense 16, relu, dense 2",
    "--minibatch",
    "16",
];

/// Flag that lets a run end soon after the death of a node.
pub(crate) const SOON: &[&str] = &["--give-up-after", "8"];

/// Returns the flags of a small job with this many epochs, in which dead nodes are given up after 8 seconds.
pub(crate) fn job<'a>(epochs: &'a str, extra: &[&'a str]) -> Vec<&'a str> {
    [&patient_job(epochs), SOON, extra].concat()
}

/// Returns the flags of a small job with this many epochs, in which nodes that are paused for a while are not given up.
pub(crate) fn patient_job(epochs: &str) -> Vec<&str> {
    [SMALL, &["--density", "0.05", "--epochs", epochs]].concat()
}

/// A folder with credentials, and the nodes that were started in it.
pub(crate) struct Cluster {
    // Nodes are dropped before their folder: running nodes would create the folders of their sockets again.
    pub(crate) nodes: Vec<Node>,
    pub(crate) tau: Tau,
}

/// A running node.
pub(crate) struct Node {
    pub(crate) process: Running,
    pub(crate) address: String,
    pub(crate) name: String,
    pub(crate) dir: PathBuf,
}

impl Cluster {
    /// Creates a folder with credentials and no nodes.
    pub(crate) fn new() -> Self {
        let tau = Tau::new();
        tau.must(&["credentials", "new", "cluster.pem"]);
        std::fs::create_dir(tau.path(TEMPORARY)).unwrap();
        Self { nodes: Vec::new(), tau }
    }

    /// Starts a cluster of this many nodes, waits until all know each other, and writes the table that small jobs train
    /// on.
    pub(crate) fn of(nodes: usize) -> Self {
        let mut cluster = Self::new();
        points_csv(&cluster.tau, "points.csv", 600);
        for _ in 0..nodes {
            cluster.add(&[]);
        }
        for node in &cluster.nodes {
            cluster.wait_until_lists(node, nodes);
        }
        cluster
    }

    /// Starts a cluster with a run under way that does not end by itself.
    pub(crate) fn training(nodes: usize) -> Self {
        let cluster = Self::of(nodes);
        cluster.must("start", &job("1000000", &["--detach"]));
        cluster
    }

    /// Starts a node: the first is the seed, the others join it.
    pub(crate) fn add(&mut self, flags: &[&str]) -> &Node {
        let seed = self.nodes.first().map(|node| node.address.clone());
        self.start(seed.as_deref(), "127.0.0.1:0", flags)
    }

    /// Starts a node that listens on an address, as a seed or joined to `seeds`.
    pub(crate) fn start(&mut self, seeds: Option<&str>, listen: &str, flags: &[&str]) -> &Node {
        let dir = self.next_dir();
        let arguments = arguments(seeds, listen, &dir, flags);
        let temporary = self.temporary();
        let process = self
            .tau
            .start_with(&[("TAU_LOG", "info"), ("TMPDIR", &temporary)], &arguments);
        self.listening(process, &dir)
    }

    /// Starts a node like [`Cluster::add`], under a limit of the shell's `ulimit`.
    pub(crate) fn add_limited(&mut self, limit: &str) -> &Node {
        let seed = self.nodes.first().map(|node| node.address.clone());
        let dir = self.next_dir();
        let arguments = arguments(seed.as_deref(), "127.0.0.1:0", &dir, &[]);
        let process = self
            .tau
            .start_limited(limit, &[("TMPDIR", &self.temporary())], &arguments);
        self.listening(process, &dir)
    }

    /// Returns the folder for the nodes' temporary files, which is removed with the cluster.
    fn temporary(&self) -> String {
        self.tau.path(TEMPORARY).to_str().unwrap().into()
    }

    /// Returns the folder of the next node: the first that no living node has, which may be a dead node's.
    pub(crate) fn next_dir(&self) -> String {
        let is_free = |dir: &String| self.nodes.iter().all(|node| !node.dir.ends_with(dir));
        let mut dirs = (0..=self.nodes.len()).map(|number| format!("node{number}"));
        dirs.find(is_free).unwrap()
    }

    fn listening(&mut self, mut process: Running, dir: &str) -> &Node {
        let line = process.read_object();
        assert_eq!(line["event"], "listening");
        self.nodes.push(Node {
            process,
            address: line["address"].as_str().unwrap().into(),
            name: line["node"].as_str().unwrap().into(),
            dir: self.tau.path(dir),
        });
        self.nodes.last().unwrap()
    }

    /// Runs a node that is expected to end by itself.
    pub(crate) fn refused_node(&self, environment: &[(&str, &str)], flags: &[&str]) -> Output {
        let seed = self.nodes[0].address.as_str();
        self.tau
            .run_with(environment, &arguments(Some(seed), "127.0.0.1:0", "refused", flags))
    }

    /// Returns the arguments of a command that asks the first node.
    pub(crate) fn asking<'a>(&'a self, command: &'a str, extra: &[&'a str]) -> Vec<&'a str> {
        asking(&self.nodes[0], command, extra)
    }

    pub(crate) fn ask(&self, command: &str, extra: &[&str]) -> Output {
        self.tau.run(&self.asking(command, extra))
    }

    /// Runs a command that asks the first node and must succeed.
    #[track_caller]
    pub(crate) fn must(&self, command: &str, extra: &[&str]) -> Output {
        self.ask(command, extra).ok()
    }

    /// Returns the nodes that `tau nodes` lists.
    pub(crate) fn listed(&self) -> Vec<Value> {
        self.listed_by(&self.nodes[0])
    }

    pub(crate) fn listed_by(&self, node: &Node) -> Vec<Value> {
        let output = self.tau.must(&asking(node, "nodes", &[]));
        output.objects()
    }

    /// Waits until this many nodes are listed with a worker each.
    pub(crate) fn wait_for_nodes(&self, count: usize) {
        self.wait_until_lists(&self.nodes[0], count);
    }

    fn wait_until_lists(&self, node: &Node, count: usize) {
        Self::wait_until("the nodes are not all there", || {
            let listed = self.listed_by(node);
            let ready = |node: &&Value| node["state"] != "silent" && node["workers"].as_u64() >= Some(1);
            listed.iter().filter(ready).count() == count
        });
    }

    pub(crate) fn wait_until(what: &str, done: impl FnMut() -> bool) {
        Self::wait_until_or(done, || what.to_owned());
    }

    /// Waits until `done`, and panics after a minute with the text of `wrong` at that time.
    pub(crate) fn wait_until_or(mut done: impl FnMut() -> bool, wrong: impl Fn() -> String) {
        let start = Instant::now();
        while !done() {
            assert!(start.elapsed() < PATIENCE, "{}", wrong());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Asserts that the nodes have saved the models of exactly these runs. Each run is given by its result and its
    /// number of nodes.
    pub(crate) fn assert_saved(&self, runs: &[(&Value, usize)]) {
        let mut saved = BTreeMap::<String, usize>::new();
        for node in &self.nodes {
            let folders = std::fs::read_dir(&node.dir).unwrap().flatten();
            for run in folders.filter(|entry| entry.path().is_dir()) {
                let model = run.path().join(format!("{}.safetensors", node.name));
                let model = model.to_str().unwrap();
                let evaluated = self
                    .tau
                    .must(&["evaluate", model, "--data", "csv:points.csv", "--json"]);
                let digest = evaluated.last()["digest"].as_str().unwrap().to_owned();
                *saved.entry(digest).or_default() += 1;
            }
        }
        let digest = |run: &Value| run["digest"].as_str().unwrap().to_owned();
        let expected = runs.iter().map(|(run, nodes)| (digest(run), *nodes));
        assert_eq!(saved, expected.collect::<BTreeMap<_, _>>());
    }

    /// Returns the processes with this word and the cluster's folder in their arguments.
    pub(crate) fn processes(&self, word: &str) -> Vec<u32> {
        processes_with(self.tau.path("").to_str().unwrap(), word)
    }
}

impl Node {
    /// Returns the process ids of the node's workers.
    pub(crate) fn workers(&self) -> Vec<u32> {
        processes_with(self.dir.to_str().unwrap(), "worker")
    }

    /// Returns the process id of the node's only worker.
    pub(crate) fn worker(&self) -> u32 {
        let [worker] = self.workers()[..] else {
            panic!("{} has not one worker", self.name);
        };
        worker
    }

    /// Sends SIGTERM to the node and its workers, as systemd and Slurm do to all processes of a service, and waits for
    /// the node's end.
    pub(crate) fn terminate(self) -> Output {
        for pid in self.workers().into_iter().chain([self.process.pid()]) {
            kill("-TERM", pid);
        }
        self.process.finish()
    }

    /// Interrupts the node as Ctrl-C does, waits for its end and returns its log.
    pub(crate) fn stop(self) -> String {
        self.process.interrupt();
        let output = self.process.finish().ok();
        output.stderr
    }
}

/// Returns the arguments of a command that asks this node.
pub(crate) fn asking<'a>(node: &'a Node, command: &'a str, extra: &[&'a str]) -> Vec<&'a str> {
    let common = [
        command,
        "--cluster",
        &node.address,
        "--credentials",
        "cluster.pem",
        "--json",
    ];
    [&common, extra].concat()
}

/// Returns the processes whose arguments contain both texts.
pub(crate) fn processes_with(one: &str, other: &str) -> Vec<u32> {
    let running = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let arguments = std::fs::read(entry.path().join("cmdline")).ok()?;
        let arguments = String::from_utf8_lossy(&arguments).replace('\0', " ");
        (arguments.contains(one) && arguments.contains(other)).then_some(pid)
    });
    running.collect()
}

pub(crate) fn kill(signal: &str, pid: u32) {
    let status = Command::new("kill").args([signal, &pid.to_string()]).status().unwrap();
    assert!(status.success());
}

/// Kills a node and the workers of its folder, as a power cut would.
pub(crate) fn cut_power(node: u32, dir: &str) {
    let workers = processes_with(dir, "worker");
    kill("-KILL", node);
    for worker in workers {
        // The worker may have noticed the death and ended by itself.
        let _ = Command::new("kill").args(["-KILL", &worker.to_string()]).output();
    }
}

fn arguments<'a>(seeds: Option<&'a str>, listen: &'a str, dir: &'a str, flags: &[&'a str]) -> Vec<&'a str> {
    let mut arguments = match seeds {
        None => vec!["seed"],
        Some(seeds) => vec!["join", seeds],
    };
    arguments.extend(["--listen", listen, "--dir", dir, "--threads", "1", "--json"]);
    if !flags.contains(&"--credentials") && !flags.contains(&"--insecure") {
        arguments.extend(["--credentials", "cluster.pem"]);
    }
    arguments.extend_from_slice(flags);
    arguments
}
