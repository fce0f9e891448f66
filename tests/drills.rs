//! Drills over real processes: many runs with random faults, and runs that are disturbed at the most awkward moment.
//! Each run must end with equal replicas on all living nodes, and the next one must begin.
//!
//! Drills run by hand because they take minutes: `cargo test -p tau --test system drills -- --ignored --nocapture
//! --test-threads 1`. `TAU_DRILL_RUNS` is the number of runs of a random drill, and `TAU_DRILL_ONLY` selects the
//! strategies with this prefix, such as `layers`. `TAU_DRILL_SEED` selects a series of faults; the timing inside the
//! processes stays random.

use std::fmt::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use protocol::rng::CounterRng;
use serde_json::Value;

use crate::harness::cluster::{Cluster, Node, SOON, asking, job, kill, processes_with};
use crate::harness::memory::flip_behind;
use crate::harness::netlab::Netlab;
use crate::harness::watching::{kill_node, pass, stats, wait_until_all_train, wait_until_trains};
use crate::harness::{Tau, event_lines, skip, variable};
use crate::layers::DEEP;
use crate::network::Training;

/// Number of nodes of a random drill: two pipelines of two.
const NODES: usize = 4;
/// Number of training samples in the table of points.
const SAMPLES: u64 = 480;
/// Number of training samples in the built-in digits.
const DIGITS: u64 = 60_000;

/// One fault in each run: a node or its worker process is killed, or paused for some time or for ever.
#[test]
#[ignore = "a drill: 300 runs take half an hour"]
fn random_faults_end_in_agreement() {
    let only = std::env::var("TAU_DRILL_ONLY").unwrap_or_default();
    let mut exchanges = vec![
        "strom",
        "mesh:every=4",
        "mesh:every=4,async",
        "server:every=4",
        "ring:every=4",
        "ring-reduce",
        "stepwise:every=4",
        "downpour",
        "layers:groups=2",
        "layers:slices=2",
    ];
    exchanges.retain(|exchange| exchange.starts_with(&only));
    random_faults(&exchanges, variable("TAU_DRILL_RUNS", 300), Fault::any);
}

#[test]
fn kills_of_nodes_that_share_layers_end_in_agreement() {
    random_faults(&["layers:groups=2"], 2, Fault::kill);
}

/// A node and its worker get SIGTERM during a run, as from systemd or Slurm: all samples are trained, and only that
/// node is missing.
#[test]
#[ignore = "a drill: 50 runs take ten minutes"]
fn nodes_that_leave_lose_nothing() {
    const EXCHANGES: [&str; 10] = [
        "strom",
        "mesh:every=4",
        "mesh:every=4,async",
        "server",
        "ring:every=4",
        "ring-reduce",
        "stepwise:every=4",
        "downpour",
        "best",
        "mesh:weighted,every=16",
    ];
    let seed = seed();
    let mut cluster = Cluster::of(3);
    for run in 0..variable("TAU_DRILL_RUNS", 50) {
        let mut draw = CounterRng::new(seed, run);
        let exchange = EXCHANGES[run as usize % EXCHANGES.len()];
        let job = ["--model", "dense 512, relu, dense 128, relu, dense", "--epochs", "1"];
        let job = [
            &job[..],
            &["--minibatch", "32", "--trainers", "all", "--exchange", exchange],
        ]
        .concat();
        let client = cluster.tau.start(&cluster.asking("start", &job));
        let leaver = 1 + draw.below(2) as usize;
        let name = cluster.nodes[leaver].name.clone();
        wait_until_trains(&cluster, &name);
        pass(milliseconds(&mut draw, 2000));
        let told = Instant::now();
        let ended = cluster.nodes.remove(leaver).terminate();
        let left = told.elapsed();
        assert_eq!(ended.code, 0, "{exchange}: {}", ended.stderr);
        let last = client.finish().trained(DIGITS);
        let missing = &last["missing"];
        assert!(
            *missing == serde_json::json!([]) || missing[0] == *name,
            "{exchange}: {last}"
        );
        println!(
            "run {run}: {exchange}: {} samples twice, residual_lost {}, left in {left:.1?}, missing {missing}",
            last["repeated_samples"], last["residual_lost"]
        );
        cluster.add(&[]);
        cluster.wait_for_nodes(3);
    }
}

/// Returns the seed of a random drill, and prints it.
fn seed() -> u64 {
    let seed = variable("TAU_DRILL_SEED", 1);
    println!("replay with TAU_DRILL_SEED={seed}");
    seed
}

fn milliseconds(draw: &mut CounterRng, most: u64) -> Duration {
    Duration::from_millis(draw.below(most + 1))
}

/// Process that a fault hits: a worker, a node's own process, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Worker,
    /// The node's own process, whose end its worker has to notice.
    Communicator,
    /// The node and its worker, as in a power cut.
    Node,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Killed,
    Stopped(Duration),
    StoppedForEver,
}

/// The fault of one run: its victim, its kind and its time.
#[derive(Debug)]
struct Fault {
    node: usize,
    victim: Victim,
    fate: Fate,
    /// True if the fault happens while the run is being prepared.
    early: bool,
    /// Time of the fault, from the client's start if `early`, otherwise from the start of the run.
    moment: Duration,
}

impl Fault {
    fn kill(draw: &mut CounterRng) -> Self {
        let victims = [Victim::Worker, Victim::Communicator, Victim::Node];
        Self {
            node: draw.below(NODES as u64) as usize,
            victim: victims[draw.below(3) as usize],
            fate: Fate::Killed,
            early: false,
            moment: milliseconds(draw, 1500),
        }
    }

    /// Draws a fault of any kind at any time.
    fn any(draw: &mut CounterRng) -> Self {
        let fault = Self::kill(draw);
        let fate = match draw.below(10) {
            0..6 => Fate::Killed,
            // The longest pauses exceed the time after which a node is given up; most do not.
            6..9 => Fate::Stopped(milliseconds(draw, 5000) + milliseconds(draw, 10_000)),
            _ => Fate::StoppedForEver,
        };
        let early = draw.below(3) == 0;
        let moment = if early { fault.moment / 4 } else { fault.moment };
        Self {
            fate,
            early,
            moment,
            ..fault
        }
    }

    /// Returns true if the run loses the node: a node that is paused for ever counts as dead.
    fn ends_the_node(&self) -> bool {
        self.victim != Victim::Worker && !matches!(self.fate, Fate::Stopped(_))
    }

    /// Causes the fault, and waits until a victim that is paused for some time runs again.
    fn strike(&self, node: &Node) {
        let (worker, own) = (node.workers(), vec![node.process.pid()]);
        // There is no worker while it is being replaced.
        let pids = match self.victim {
            Victim::Worker => worker,
            Victim::Communicator => own,
            Victim::Node => [own, worker].concat(),
        };
        let signal = if self.fate == Fate::Killed { "-KILL" } else { "-STOP" };
        send(signal, &pids);
        if let Fate::Stopped(time) = self.fate {
            pass(time);
            send("-CONT", &pids);
        }
    }
}

/// Sends a signal to processes, some of which may have ended.
fn send(signal: &str, pids: &[u32]) {
    for pid in pids {
        let _ = Command::new("kill").args([signal, &pid.to_string()]).output();
    }
}

/// Runs jobs with one random fault each.
fn random_faults(exchanges: &[&str], runs: u64, draw_fault: fn(&mut CounterRng) -> Fault) {
    let seed = seed();
    let mut cluster = Cluster::of(NODES);
    for run in 0..runs {
        let mut draw = CounterRng::new(seed, run);
        let exchange = exchanges[draw.below(exchanges.len() as u64) as usize];
        let epochs = [100, 200, 400][draw.below(3) as usize];
        let fault = draw_fault(&mut draw);
        println!("run {run}: {exchange}, {epochs} epochs, {fault:?}");
        run_with(&mut cluster, exchange, epochs, &fault);
    }
}

fn run_with(cluster: &mut Cluster, exchange: &str, epochs: u64, fault: &Fault) {
    let text = epochs.to_string();
    let mut job = [DEEP, SOON, &["--exchange", exchange, "--epochs", &text]].concat();
    if !exchange.starts_with("layers") {
        job.extend(["--trainers", "all"]);
    }
    let mut client = cluster.tau.start(&cluster.asking("start", &job));
    if !fault.early {
        client.read_line();
    }
    pass(fault.moment);
    let name = cluster.nodes[fault.node].name.clone();
    fault.strike(&cluster.nodes[fault.node]);
    if fault.ends_the_node() && fault.fate == Fate::Killed {
        bury(cluster, fault.node);
    }
    // A client whose node is paused for ever waits a minute for it before it asks another, or gives up.
    let output = client.finish();
    println!("    {}", output.stdout.lines().last().unwrap_or_default());
    let has_begun = output.objects().iter().any(|line| line["event"] == "started");
    // A run that could not begin does not count as a failure.
    let is_too_few = fault.early && !has_begun && output.last()["event"] == "failed";
    if !is_too_few {
        let last = output.trained(epochs * SAMPLES);
        let named = |list: &str| last[list].as_array().unwrap().clone();
        assert!(
            named("missing").iter().all(|one| *one == *name),
            "{last}\n{}",
            logs(cluster)
        );
        let all = [named("participants"), named("missing")].concat();
        // With layers spread over nodes, nodes that do not fill a pipeline stay idle.
        let all_take_part = !exchange.starts_with("layers");
        for node in cluster.nodes.iter().filter(|node| all_take_part && node.name != name) {
            assert!(
                all.contains(&(*node.name).into()),
                "{}: {last}\n{}",
                node.name,
                logs(cluster)
            );
        }
    }
    if fault.fate == Fate::StoppedForEver {
        match fault.victim {
            Victim::Worker => send("-KILL", &cluster.nodes[fault.node].workers()),
            _ => bury(cluster, fault.node),
        }
    }
    while cluster.nodes.len() < NODES {
        cluster.add(&[]);
    }
    wait_until_free(cluster);
}

/// Removes a dead node from the cluster and kills its paused worker. A running worker ends by itself when its node's
/// process is gone.
fn bury(cluster: &mut Cluster, node: usize) {
    let dir = cluster.nodes[node].dir.to_str().unwrap().to_owned();
    drop(cluster.nodes.remove(node));
    let is_stopped = |pid: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.contains("\nState:\tT")
    };
    let mut stopped = processes_with(&dir, "worker");
    stopped.retain(is_stopped);
    send("-KILL", &stopped);
    Cluster::wait_until("a worker outlives its node", || {
        processes_with(&dir, "worker").is_empty()
    });
}

/// Waits until every node lists all nodes as idle and with a worker.
fn wait_until_free(cluster: &Cluster) {
    let is_free = |node: &&Value| node["state"] == "idle" && node["workers"].as_u64() >= Some(1);
    let all_free = |node: &Node| cluster.listed_by(node).iter().filter(is_free).count() == cluster.nodes.len();
    Cluster::wait_until_or(|| cluster.nodes.iter().all(all_free), || logs(cluster));
}

/// Returns the last lines of all nodes' logs, for the message of a failure.
fn logs(cluster: &Cluster) -> String {
    let mut text = String::new();
    for node in &cluster.nodes {
        let log = node.process.log();
        let lines: Vec<&str> = log.lines().collect();
        let _ = writeln!(
            text,
            "{}:\n{}",
            node.name,
            lines[lines.len().saturating_sub(25)..].join("\n")
        );
    }
    text
}

/// Returns the state of a node as the node itself reports it.
fn state(cluster: &Cluster, node: &Node) -> Value {
    let mut listed = cluster.listed_by(node).into_iter();
    listed.find(|one| one["node"] == *node.name).unwrap_or_default()["state"].clone()
}

fn stop_at(cluster: &Cluster, node: &Node) {
    cluster.tau.must(&asking(node, "stop", &[]));
}

/// Waits until one node reports the end of the run, and checks that the run failed or its replicas agree.
fn ended(cluster: &Cluster, node: &Node) {
    let last = cluster
        .tau
        .run(&asking(node, "start", &["--attach", "--out", "attached"]))
        .last();
    println!("{}: {last}", node.name);
    assert!(last["event"] == "failed" || last["replicas_agree"] == true, "{last}");
}

/// Asserts that the run has ended on all living nodes, and that the next one begins.
fn assert_ends(cluster: &Cluster) {
    for node in &cluster.nodes {
        ended(cluster, node);
    }
    let is_idle = |node: &Node| state(cluster, node) == "idle";
    Cluster::wait_until_or(|| cluster.nodes.iter().all(is_idle), || logs(cluster));
    let next = cluster.must("start", &job("3", &["--allow-partial"]));
    assert_eq!(next.last()["replicas_agree"], true, "{}", next.stdout);
}

/// Starts a cluster in which every node trains, in a run that does not end by itself.
fn trained_by_all(nodes: usize) -> Cluster {
    let cluster = Cluster::training(nodes);
    wait_until_all_train(&cluster);
    cluster
}

#[test]
#[ignore = "a drill"]
fn a_run_is_stopped_at_a_node_that_is_just_joining_it() {
    let mut cluster = trained_by_all(2);
    let guest = preparing_guest(&mut cluster);
    stop_at(&cluster, &cluster.nodes[guest]);
    ended(&cluster, &cluster.nodes[0]);
    send("-CONT", &cluster.nodes[guest].workers());
    assert_ends(&cluster);
}

/// Adds nodes until one is caught while it joins the run, with its worker paused, and returns its index. The moment is
/// short, so several nodes may be needed.
fn preparing_guest(cluster: &mut Cluster) -> usize {
    for guest in cluster.nodes.len()..7 {
        cluster.add(&[]);
        let node = &cluster.nodes[guest];
        Cluster::wait_until("the guest has no worker", || !node.workers().is_empty());
        send("-STOP", &node.workers());
        let since = Instant::now();
        while since.elapsed() < Duration::from_secs(5) {
            if state(cluster, node) == "preparing" {
                return guest;
            }
        }
        send("-CONT", &node.workers());
    }
    panic!("no guest could be stopped while it was joining");
}

#[test]
#[ignore = "a drill"]
fn a_node_stands_still_over_the_end_and_the_next_run() {
    let cluster = trained_by_all(3);
    let still = cluster.nodes[2].process.pid();
    kill("-STOP", still);
    stop_at(&cluster, &cluster.nodes[0]);
    ended(&cluster, &cluster.nodes[0]);
    cluster.must("start", &job("3", &["--allow-partial"]));
    kill("-CONT", still);
    assert_ends(&cluster);
}

#[test]
#[ignore = "a drill"]
fn a_worker_dies_after_it_has_prepared_and_before_it_is_seated() {
    let cluster = Cluster::of(3);
    let held = cluster.nodes[0].worker();
    kill("-STOP", held);
    let client = cluster.tau.start(&cluster.asking("start", &job("10", &["--detach"])));
    // The worker has prepared long before its node reports that it waits for others.
    Cluster::wait_until("the second node does not prepare", || {
        let log = cluster.nodes[1].process.log();
        event_lines(&log, "run_waiting")
            .iter()
            .any(|line| line.contains("other nodes to get ready"))
    });
    kill("-KILL", cluster.nodes[1].worker());
    kill("-CONT", held);
    client.finish().ok();
    assert_ends(&cluster);
}

#[test]
#[ignore = "a drill"]
fn the_only_worker_hangs_at_the_end() {
    let cluster = trained_by_all(1);
    kill("-STOP", cluster.nodes[0].worker());
    stop_at(&cluster, &cluster.nodes[0]);
    assert_ends(&cluster);
}

#[test]
#[ignore = "a drill"]
fn all_workers_die_at_the_end() {
    let cluster = trained_by_all(3);
    stop_at(&cluster, &cluster.nodes[0]);
    for node in &cluster.nodes {
        send("-KILL", &node.workers());
    }
    assert_ends(&cluster);
}

#[test]
#[ignore = "a drill"]
fn a_run_is_stopped_while_its_only_worker_is_started_again() {
    let cluster = trained_by_all(1);
    kill("-KILL", cluster.nodes[0].worker());
    stop_at(&cluster, &cluster.nodes[0]);
    assert_ends(&cluster);
}

#[test]
#[ignore = "a drill"]
fn a_node_cannot_be_dialled() {
    let mut cluster = Cluster::of(1);
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string();
    let seed = cluster.nodes[0].address.clone();
    // Nothing listens at the port that the node advertises.
    cluster.start(Some(&seed), &free, &["--advertise", "127.0.0.1:9"]);
    cluster.nodes[1].address = free;
    cluster.wait_for_nodes(2);
    cluster.must("start", &job("200", &["--detach"]));
    assert_ends(&cluster);
}

/// Flips bits in the batches that a node keeps for a paused node.
#[test]
#[ignore = "a drill"]
fn bits_flip_in_the_log() {
    let cluster = trained_by_all(3);
    let [first, second, third] = &cluster.nodes[..] else {
        panic!("there are three nodes");
    };
    let run = stats(&cluster)[0]["run"].as_str().unwrap().to_owned();
    kill("-STOP", third.process.pid());
    pass(Duration::from_secs(1));
    // A batch begins with its kind and its run, and its payload follows after a header of this length.
    let begin = [&[2][..], &varint(u64::from_str_radix(&run, 16).unwrap())].concat();
    let hit = flip_behind(second.process.pid(), &begin, 25, 40);
    kill("-CONT", third.process.pid());
    pass(Duration::from_secs(2));
    stop_at(&cluster, first);
    let told = |node: &Node, event: &str| !event_lines(&node.process.log(), event).is_empty();
    let is_noticed = told(second, "kept_batch_damaged") || told(third, "peer_quarantined");
    println!("{hit} batches are hit; noticed: {is_noticed}");
    assert!(hit > 0, "no batch is kept for the node that stands still");
    assert_ends(&cluster);
}

/// Encodes a number as batches carry it: seven bits in each byte, the lowest first.
fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number > 0x7f {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// A mounted file system that can be frozen. It is thawed and unmounted on drop.
struct FreezableDisk(PathBuf);

impl FreezableDisk {
    /// Mounts a file system. Returns `None`, after a visible message, if this user may not mount.
    fn mount(tau: &Tau, place: &Path) -> Option<Self> {
        let image = tau.path("disk").to_str().unwrap().to_owned();
        std::fs::create_dir(place).unwrap();
        let place = place.to_str().unwrap();
        let commands: [&[&str]; 3] = [
            &["truncate", "-s", "64M", &image],
            &["mkfs.ext4", "-q", &image],
            &["mount", "-o", "loop", &image, place],
        ];
        for command in commands {
            let ran = Command::new(command[0]).args(&command[1..]).output();
            if !ran.is_ok_and(|output| output.status.success()) {
                skip(&format!(
                    "a disk that hangs needs root: {} does not work here",
                    command[0]
                ));
                return None;
            }
        }
        Some(Self(place.into()))
    }

    fn freeze(&self, flag: &str) {
        let _ = Command::new("fsfreeze").arg(flag).arg(&self.0).output();
    }
}

impl Drop for FreezableDisk {
    fn drop(&mut self) {
        self.freeze("-u");
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

#[test]
#[ignore = "a drill, which needs root"]
fn a_disk_hangs_at_the_end() {
    let mut cluster = Cluster::of(1);
    let place = cluster.tau.path(&cluster.next_dir());
    let Some(disk) = FreezableDisk::mount(&cluster.tau, &place) else {
        return;
    };
    let name = cluster.add(&[]).name.clone();
    cluster.wait_for_nodes(2);
    cluster.must("start", &job("1000000", &["--detach"]));
    wait_until_trains(&cluster, &name);
    disk.freeze("-f");
    stop_at(&cluster, &cluster.nodes[0]);
    ended(&cluster, &cluster.nodes[0]);
    disk.freeze("-u");
    assert_ends(&cluster);
    while !cluster.nodes.is_empty() {
        kill_node(&mut cluster, 0);
    }
}

/// Asserts that the run has ended on all hosts of a lab, and that the next one begins.
fn assert_ends_on_hosts(training: &Training) {
    for host in 1..=training.nodes.len() {
        let last = training
            .ask(host, &["start", "--attach", "--out", "attached"])
            .pop()
            .unwrap();
        println!("host {host}: {last}");
        assert!(last["event"] == "failed" || last["replicas_agree"] == true, "{last}");
    }
    Cluster::wait_until("not all hosts are idle", || {
        let listed = training.ask(1, &["nodes"]);
        listed.len() == training.nodes.len() && listed.iter().all(|node| node["state"] == "idle")
    });
    let next = [&["start"][..], &job("3", &["--allow-partial"])].concat();
    let last = training.ask(1, &next).pop().unwrap();
    assert_eq!(last["replicas_agree"], true, "{last}");
}

#[test]
#[ignore = "a drill, which needs root"]
fn a_cable_is_out_over_the_end() {
    let Some(lab) = Netlab::up(2, "none") else {
        return;
    };
    let training = Training::on(lab, 2);
    training.lab.cut(2);
    training.ask(1, &["stop"]);
    let told = training.ask(1, &["start", "--attach"]);
    println!("while it is out: {}", told.last().unwrap());
    training.lab.mend(2);
    assert_ends_on_hosts(&training);
}

/// Two nodes reach each other only over a third one, and one of them is paused when the run is stopped.
#[test]
#[ignore = "a drill, which needs root"]
fn a_node_without_a_link_to_another_stands_still_at_the_end() {
    let Some(lab) = Netlab::up(3, "none") else {
        return;
    };
    let training = Training::on(lab, 3);
    training.lab.block(2, 3);
    pass(Duration::from_secs(35));
    let still = training.nodes[2].pid();
    kill("-STOP", still);
    training.ask(1, &["stop"]);
    pass(Duration::from_millis(1500));
    kill("-CONT", still);
    assert_ends_on_hosts(&training);
}
