//! Chaos test: five nodes on five hosts, whose workers and nodes are killed and restarted, paused, disconnected,
//! partitioned and slowed down. In the end all replicas agree, and the model is as accurate as without faults.
//!
//! Needs root; skipped with a message without. For a longer run by hand: `TAU_CHAOS_SECONDS=300 cargo test -p tau
//! --test system chaos -- --nocapture`; `TAU_CHAOS_SEED=n` for another series of events,
//! `TAU_CHAOS_EXCHANGE=mesh:every=64` for another strategy.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::File;
use std::time::{Duration, Instant};

use protocol::rng::CounterRng;
use serde_json::Value;

use crate::harness::cluster::{Cluster, cut_power, kill, processes_with};
use crate::harness::netlab::Netlab;
use crate::harness::watching::pass;
use crate::harness::{Output, Running, Tau, tells, variable};

const HOSTS: usize = 5;
/// Time between two random events.
const BETWEEN: Duration = Duration::from_secs(2);

/// The hosts of the test and their present faults.
struct World {
    lab: Netlab,
    tau: Tau,
    nodes: BTreeMap<usize, Node>,
    /// Number of nodes started so far, each of which has a folder of its own.
    started: usize,
    cut: BTreeSet<usize>,
    blocked: BTreeSet<(usize, usize)>,
    still: BTreeSet<usize>,
}

struct Node {
    process: Running,
    name: String,
    dir: String,
}

fn address(host: usize) -> String {
    Netlab::address(host) + ":7700"
}

impl World {
    fn new() -> Option<Self> {
        let lab = Netlab::up(HOSTS, "none")?;
        let tau = Tau::new();
        tau.run(&["credentials", "new", "cluster.pem"]);
        let mut world = Self {
            lab,
            tau,
            nodes: BTreeMap::new(),
            started: 0,
            cut: BTreeSet::new(),
            blocked: BTreeSet::new(),
            still: BTreeSet::new(),
        };
        (1..=HOSTS).for_each(|host| world.start(host));
        world.wait_for_all("nodes do not find each other", |node| node["workers"] == 1);
        Some(world)
    }

    /// Starts the node of a host, which joins all others.
    fn start(&mut self, host: usize) {
        self.started += 1;
        let dir = format!("node{}", self.started);
        let others: Vec<String> = (1..=HOSTS).filter(|&other| other != host).map(address).collect();
        let (listen, others) = (address(host), others.join(","));
        let mut arguments = if self.started == 1 {
            vec!["seed"]
        } else {
            vec!["join", &others]
        };
        arguments.extend(["--listen", &listen, "--dir", &dir, "--credentials", "cluster.pem"]);
        arguments.extend(["--threads", "1", "--json"]);
        let mut command = self.lab.command(host, env!("CARGO_BIN_EXE_tau"));
        command
            .args(&arguments)
            .current_dir(self.tau.path(""))
            .env("TAU_LOG", "info");
        let log = File::create(self.tau.path(&format!("{dir}.log"))).unwrap();
        let mut process = Tau::spawn_with(&mut command, log);
        let line = process.read_object();
        let name = line["node"].as_str().unwrap().into();
        let dir = self.tau.path(&dir).to_str().unwrap().into();
        self.nodes.insert(host, Node { process, name, dir });
    }

    fn workers(&self, host: usize) -> Vec<u32> {
        self.nodes
            .get(&host)
            .map_or_else(Vec::new, |node| processes_with(&node.dir, "worker"))
    }

    /// Kills a node and its workers as a power cut would.
    fn kill(&mut self, host: usize) {
        if let Some(node) = self.nodes.remove(&host) {
            cut_power(node.process.pid(), &node.dir);
            self.still.remove(&host);
        }
    }

    /// Runs a command on the first host that is neither cut off nor paused.
    fn ask(&self, command: &str, extra: &[&str]) -> Output {
        let sound = |host: &&usize| !self.cut.contains(host) && !self.still.contains(host);
        let host = *self.nodes.keys().find(sound).unwrap();
        let address = address(host);
        let mut arguments = vec![command, "--cluster", &address, "--credentials", "cluster.pem", "--json"];
        arguments.extend(extra);
        let mut command = self.lab.command(host, env!("CARGO_BIN_EXE_tau"));
        Tau::spawn(command.args(&arguments).current_dir(self.tau.path(""))).finish()
    }

    fn records(&self, command: &str, extra: &[&str]) -> Vec<Value> {
        let output = self.ask(command, extra);
        if output.code != 0 {
            // The asked node has just been restarted, or is down.
            println!("`tau {command}`: {}", output.stderr.trim());
            return Vec::new();
        }
        output.objects()
    }

    /// Waits until all nodes are listed and `holds` is true for each.
    fn wait_for_all(&self, what: &str, holds: impl Fn(&Value) -> bool) {
        let names: Vec<&str> = self.nodes.values().map(|node| node.name.as_str()).collect();
        Cluster::wait_until(what, || {
            let listed = self.records("nodes", &[]);
            let found = listed
                .iter()
                .filter(|node| names.contains(&node["node"].as_str().unwrap()));
            found.filter(|node| node["state"] != "silent" && holds(node)).count() == HOSTS
        });
    }

    /// Causes a random event and returns its description.
    fn event(&mut self, random: &mut CounterRng) -> String {
        let host = 1 + random.below(HOSTS as u64) as usize;
        let other = 1 + random.below(HOSTS as u64) as usize;
        match random.below(12) {
            0 | 1 => {
                for worker in self.workers(host) {
                    kill("-KILL", worker);
                }
                format!("the worker of {host} is killed")
            }
            // At least three nodes must be left to remember the run.
            2 if self.nodes.len() > 3 => {
                self.kill(host);
                format!("node {host} is killed")
            }
            2 | 3 => {
                let missing = (1..=HOSTS).find(|host| !self.nodes.contains_key(host));
                missing.inspect(|&host| self.start(host));
                format!("{missing:?} is started again")
            }
            4 if self.still.is_empty() && self.nodes.contains_key(&host) => {
                kill("-STOP", self.nodes[&host].process.pid());
                self.still.insert(host);
                format!("node {host} stands still")
            }
            5 => {
                for worker in self.workers(host) {
                    kill("-STOP", worker);
                }
                format!("the worker of {host} stands still")
            }
            4 | 6 => {
                self.wake();
                "all go on".into()
            }
            7 if self.cut.len() < 2 => {
                self.lab.cut(host);
                self.cut.insert(host);
                format!("the cable of {host} is out")
            }
            8 if host != other => {
                self.lab.block(host, other);
                self.blocked.insert((host, other));
                format!("{host} and {other} do not hear each other")
            }
            9 => {
                let rate = ["none", "100mbit", "10mbit", "2mbit"][random.below(4) as usize];
                self.lab.rate(host, rate);
                format!("the cable of {host} has {rate}")
            }
            _ => {
                self.mend();
                "all cables are in".into()
            }
        }
    }

    fn wake(&mut self) {
        for host in std::mem::take(&mut self.still) {
            kill("-CONT", self.nodes[&host].process.pid());
        }
    }

    fn mend(&mut self) {
        for host in std::mem::take(&mut self.cut) {
            self.lab.mend(host);
        }
        for (one, other) in std::mem::take(&mut self.blocked) {
            self.lab.unblock(one, other);
        }
    }

    /// Removes all faults and restarts all nodes.
    fn calm(&mut self) {
        self.wake();
        self.mend();
        for host in 1..=HOSTS {
            self.lab.rate(host, "none");
            if !self.nodes.contains_key(&host) {
                self.start(host);
            }
        }
    }

    /// Returns the last lines of all logs, for the message of a failure.
    fn logs(&self) -> String {
        let mut text = String::new();
        for started in 1..=self.started {
            let log = std::fs::read_to_string(self.tau.path(&format!("node{started}.log"))).unwrap_or_default();
            let lines: Vec<&str> = log.lines().filter(|line| !tells(line, "model_evaluated")).collect();
            let last = lines[lines.len().saturating_sub(25)..].join("\n");
            let _ = writeln!(text, "node{started}:\n{last}");
        }
        text
    }
}

/// Starts a job that takes longer than the faults on two cores, so that the run has to recover from them.
fn train(world: &World, seconds: u64, extra: &[&str]) -> Output {
    let epochs = (seconds / 3).max(20).to_string();
    let exchange = std::env::var("TAU_CHAOS_EXCHANGE").unwrap_or_else(|_| "strom".into());
    world.ask(
        "start",
        &[&["--epochs", &epochs, "--exchange", &exchange], extra].concat(),
    )
}

#[test]
fn chaos_ends_in_agreement() {
    let Some(mut world) = World::new() else {
        return;
    };
    let (seed, seconds) = (variable("TAU_CHAOS_SEED", 1), variable("TAU_CHAOS_SECONDS", 20));
    println!("replay with TAU_CHAOS_SEED={seed} TAU_CHAOS_SECONDS={seconds}");
    let mut random = CounterRng::new(seed, 0);
    train(&world, seconds, &["--detach"]).ok();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(seconds) {
        pass(BETWEEN);
        let event = world.event(&mut random);
        println!("{:6.1} s: {event}", begun.elapsed().as_secs_f64());
    }
    world.calm();
    world.wait_for_all("not all are back", |_| true);
    let names: Vec<String> = world.nodes.values().map(|node| node.name.clone()).collect();
    Cluster::wait_until("not all train", || {
        let records = world.records("stats", &["--once"]);
        let trains = |name: &&String| {
            let own = records.iter().find(|record| record["node"] == name.as_str());
            own.is_some_and(|own| own["state"] == "training" && own["samples_per_second"].as_f64() > Some(0.0))
        };
        let training = names.iter().filter(trains).count();
        training == HOSTS || begun.elapsed() > Duration::from_secs(seconds + 55) && panic!("{}", world.logs())
    });
    // By hand the run goes on to its end, and is compared with one without faults. That takes ten minutes on two cores.
    let is_by_hand = std::env::var_os("TAU_CHAOS_SECONDS").is_some();
    if !is_by_hand {
        world.ask("stop", &[]).ok();
    }
    let output = world.ask("start", &["--attach"]);
    let last = output.last();
    println!("{last}");
    assert_eq!(last["replicas_agree"], true, "{last}\n{}", world.logs());
    for name in &names {
        let participants = last["participants"].as_array().unwrap();
        assert!(
            participants.iter().any(|one| one == name.as_str()),
            "{name} is missing: {last}\n{}",
            world.logs()
        );
    }

    let accuracy = |result: &Value| result["accuracy"].as_f64().unwrap();
    // Measured on two cores: 0.986 at the end, with and without faults, and 0.9866 where the run was stopped after 1.8
    // epochs. A busy machine has trained less by then: the first evaluations were 0.9406 and 0.9816.
    let demanded = if is_by_hand {
        let quiet = train(&world, seconds, &[]).last();
        println!("{quiet}");
        accuracy(&quiet) - 0.005
    } else {
        0.95
    };
    assert!(accuracy(&last) > demanded, "{last}, but {demanded} is demanded");
    let folder = world.tau.path("").to_str().unwrap().to_owned();
    for node in std::mem::take(&mut world.nodes).into_values() {
        node.process.interrupt();
        node.process.finish().ok();
    }
    assert_eq!(processes_with(&folder, "tau"), Vec::<u32>::new(), "processes are left");
}
