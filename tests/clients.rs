//! Tests that clients survive silent and dead nodes by asking another node.

use std::fs::File;
use std::io::{PipeWriter, Write};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::harness::cluster::{Cluster, job, kill, patient_job, processes_with};
use crate::harness::{Output, Running, Tau, kept_in, points_csv, tells};

/// Limit for waiting, longer than any step of these tests takes.
const PATIENCE: Duration = Duration::from_mins(1);
/// Number of epochs of a run that the test stops.
const ENDLESS: &str = "1000000";

/// Returns the arguments of a command that asks these nodes.
fn asking<'a>(command: &'a str, nodes: &'a str, extra: &[&'a str]) -> Vec<&'a str> {
    let mut arguments = vec![command, "--cluster", nodes, "--credentials", "cluster.pem", "--json"];
    arguments.extend_from_slice(extra);
    arguments
}

/// Checks that every record is printed once. Records of seconds without training may be equal.
fn assert_no_record_twice(output: &Output) {
    let trained = |line: &&str| line.contains("\"stats\"") && line.contains("\"training\"");
    let mut records: Vec<&str> = output.stdout.lines().filter(trained).collect();
    let printed = records.len();
    assert!(printed > 3, "{}", output.stdout);
    records.sort_unstable();
    if let Some([twice, _]) = records.windows(2).find(|pair| pair[0] == pair[1]) {
        panic!("this is printed twice: {twice}\n{}", output.stderr);
    }
}

/// Waits until a client reports that it asks another node.
fn wait_until_it_asks_another(client: &Running) {
    let start = Instant::now();
    while !client.log().contains("; asking 127.0.0.1:") {
        assert!(start.elapsed() < PATIENCE, "{}", client.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_client_whose_node_stands_still_goes_on_with_another() {
    let cluster = Cluster::of(3);
    let [first, second, _] = &cluster.nodes[..] else {
        unreachable!()
    };
    let mut client = cluster.tau.start(&cluster.asking("start", &patient_job(ENDLESS)));
    client.wait_until_trains();
    kill("-STOP", first.process.pid());
    wait_until_it_asks_another(&client);
    for _ in 0..2 {
        client.wait_until_trains();
    }
    // Other commands ask another node too, given only the address of the paused node and one more.
    let both = format!("{},{}", first.address, second.address);
    let stopped = cluster.tau.run(&asking("stop", &both, &[]));
    assert_eq!(stopped.last()["event"], "stopping", "{}", stopped.stderr);
    kill("-CONT", first.process.pid());
    let output = client.finish();
    output.finished(3);
    assert_no_record_twice(&output);
}

#[test]
fn a_client_whose_node_dies_names_it_and_has_the_model() {
    let mut cluster = Cluster::of(3);
    let mut client = cluster.tau.start(&cluster.asking("start", &job(ENDLESS, &[])));
    client.wait_until_trains();
    let dead = cluster.nodes.remove(0);
    kill("-KILL", dead.process.pid());
    wait_until_it_asks_another(&client);
    // Records that were read before, and some of later seconds.
    for _ in 0..8 {
        client.wait_until_trains();
    }
    client.interrupt();
    let output = client.finish();
    let finished = output.finished(2);
    assert_eq!(finished["missing"], serde_json::json!([dead.name]), "{finished}");
    assert_no_record_twice(&output);
}

#[test]
fn any_address_of_a_list_will_do() {
    let cluster = Cluster::of(1);
    let port = cluster.nodes[0].address.rsplit(':').next().unwrap();
    // A host name may stand for several addresses, of which a node listens on one.
    for nodes in [
        format!("127.0.0.1:9,{}", cluster.nodes[0].address),
        format!("localhost:{port}"),
    ] {
        let output = cluster.tau.run(&asking("nodes", &nodes, &[]));
        assert_eq!(output.code, 0, "{nodes}: {}", output.stderr);
        assert_eq!(output.last()["node"], cluster.nodes[0].name.as_str());
    }
}

#[test]
fn what_no_node_answers_for_a_minute_is_given_up_and_all_are_named() {
    let cluster = Cluster::of(2);
    let mut client = cluster.tau.start(&cluster.asking("start", &job(ENDLESS, &[])));
    client.wait_until_trains();
    let since = Instant::now();
    for node in &cluster.nodes {
        kill("-KILL", node.process.pid());
    }
    let output = client.finish();
    assert!(since.elapsed() >= Duration::from_secs(59), "{}", output.stderr);
    assert_eq!(output.code, 1);
    let failed = output.last();
    let error = failed["error"].as_str().unwrap();
    assert!(error.contains("no node has answered for"), "{error}");
    for node in &cluster.nodes {
        assert!(error.contains(&node.address), "{error}");
    }
}

#[test]
fn wrong_credentials_are_said_at_once() {
    let cluster = Cluster::of(1);
    cluster.tau.run(&["credentials", "new", "other.pem"]);
    let since = Instant::now();
    let address = &cluster.nodes[0].address;
    let output = cluster
        .tau
        .run(&["nodes", "--cluster", address, "--credentials", "other.pem"]);
    output.fails(1, "same credentials");
    assert!(
        since.elapsed() < Duration::from_secs(50),
        "no minute is waited for that"
    );
}

#[test]
fn a_client_without_credentials_is_told_to_give_them() {
    let cluster = Cluster::of(1);
    let address = &cluster.nodes[0].address;
    let output = cluster.tau.run(&["nodes", "--cluster", address, "--insecure"]);
    output.fails(1, "give them with --credentials FILE");
    assert!(!output.stderr.contains("same release"), "{}", output.stderr);
}

#[test]
fn a_run_is_attached_to_at_a_node_that_was_started_again() {
    let mut cluster = Cluster::of(2);
    let early = cluster.ask("start", &["--attach"]);
    assert_eq!(early.code, 1);
    for node in &cluster.nodes {
        early.says(&node.address);
    }
    let started = cluster.ask("start", &job("2", &[]));
    let run = started.finished(2)["run"].clone();
    let first = cluster.nodes.remove(0);
    first.stop();
    let second = cluster.nodes[0].address.clone();
    let again = cluster.start(Some(&second), "127.0.0.1:0", &[]).address.clone();
    Cluster::wait_until("the node has not joined", || {
        let listed = cluster.tau.run(&asking("nodes", &again, &[])).objects();
        listed.iter().any(|node| node["address"] == *second)
    });
    let attached = cluster
        .tau
        .must(&asking("start", &again, &["--attach", "--out", "attached"]));
    assert_eq!(attached.last()["run"], run);
}

#[test]
fn two_signals_of_one_key_press_end_the_run_in_good_order() {
    let cluster = Cluster::of(1);
    let mut client = cluster.tau.start(&cluster.asking("start", &job(ENDLESS, &[])));
    client.wait_until_trains();
    client.interrupt();
    // Two signals at the same moment would be delivered as one.
    std::thread::sleep(Duration::from_millis(20));
    client.interrupt();
    let output = client.finish().ok();
    assert_eq!(output.last()["event"], "finished");
}

#[test]
fn the_user_who_leaves_a_run_is_told_that_it_goes_on() {
    let cluster = Cluster::of(1);
    let mut client = cluster.tau.start(&cluster.asking("start", &job(ENDLESS, &[])));
    client.wait_until_trains();
    // The request to stop reaches no node.
    let node = cluster.nodes[0].process.pid();
    kill("-STOP", node);
    Cluster::wait_until("the client stays", || {
        client.interrupt();
        client.log().contains("continues on its nodes")
    });
    let output = client.finish();
    kill("-CONT", node);
    assert_eq!(
        (output.code, &output.last()["event"]),
        (1, &"failed".into()),
        "{}",
        output.stderr
    );
}

#[test]
fn a_signal_ends_a_client_that_no_node_has_answered() {
    let tau = Tau::new();
    tau.run(&["credentials", "new", "cluster.pem"]);
    points_csv(&tau, "points.csv", 60);
    // An address on which nothing listens any more.
    let closed = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string();
    let start = job("1", &[]);
    let commands: [(&str, &[&str]); 3] = [("stats", &["--once"]), ("start", &start), ("start", &["--attach"])];
    for (command, flags) in commands {
        let mut client = tau.start(&asking(command, &closed, flags));
        Cluster::wait_until("the client says nothing", || client.log().contains("; asking again"));
        // Ctrl-C may be ignored where tests run in the background.
        kill("-TERM", client.pid());
        // Ended by the signal, not by the client's own time limit.
        assert_eq!(client.end().code, -1, "{command} {flags:?}");
    }
}

#[test]
fn a_signal_calls_off_a_run_that_is_being_prepared() {
    let cluster = Cluster::of(2);
    // Watching starts before the worker is paused, because a paused worker is replaced after ten seconds.
    let mut watching = cluster.tau.start(&asking("stats", &cluster.nodes[0].address, &[]));
    watching.read_line();
    // The run cannot begin while this worker does not answer.
    let held = cluster.nodes[1].worker();
    kill("-STOP", held);
    let client = cluster.tau.start(&cluster.asking("start", &job(ENDLESS, &[])));
    while !watching.read_line().contains("\"state\":\"preparing\"") {}
    client.interrupt();
    let output = client.finish();
    kill("-CONT", held);
    assert_eq!(output.code, 1, "{}", output.stderr);
    assert_eq!(output.last()["error"], "the run was stopped before it began");
    assert_eq!(output.objects().len(), 1, "{}", output.stdout);
}

#[test]
fn a_report_that_does_not_get_ready_keeps_no_result() {
    let cluster = Cluster::of(1);
    let started = cluster.ask("start", &job("3", &["--detach"]));
    let run = started.last()["run"].as_str().unwrap().to_owned();
    // Records are written to this pipe, and read from it for the report, which never reaches their end.
    let folder = cluster.tau.path("out").join(&run);
    std::fs::create_dir_all(&folder).unwrap();
    let pipe = folder.join("metrics.jsonl");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let _end = File::options().read(true).write(true).open(&pipe).unwrap();
    let attach = ["--attach", "--out", "out"];
    let mut client = cluster.tau.start(&cluster.asking("start", &attach));
    while !client.read_line().contains("\"event\":\"finished\"") {}
    Cluster::wait_until("the client stays", || {
        client.interrupt();
        client.is_over()
    });
    client.end().ok();
    assert!(folder.join("result.json").exists() && folder.join("model.safetensors").exists());
    assert!(!folder.join("report.html").exists(), "the report was never held up");
}

#[test]
fn a_start_whose_node_dies_before_it_begins_is_asked_of_another_once() {
    let mut cluster = Cluster::of(3);
    // Watching starts before the worker is paused, because a paused worker is replaced after ten seconds.
    let mut watching = cluster.tau.start(&asking("stats", &cluster.nodes[1].address, &[]));
    watching.read_line();
    // The run cannot begin while this worker does not answer.
    let held = cluster.nodes[2].worker();
    kill("-STOP", held);
    let client = cluster.tau.start(&cluster.asking("start", &job("3", &[])));
    let mut prepare: Vec<&str> = cluster.nodes[1..].iter().map(|node| &*node.name).collect();
    while !prepare.is_empty() {
        let record = watching.read_object();
        prepare.retain(|name| !(record["node"] == **name && record["state"] == "preparing"));
    }
    let dead = cluster.nodes.remove(0);
    kill("-KILL", dead.process.pid());
    kill("-CONT", held);
    let output = client.finish();
    let finished = output.finished(2);
    output.trained(3 * 480);
    let started = output.objects().into_iter().filter(|line| line["event"] == "started");
    assert_eq!(started.count(), 1, "{}", output.stdout);
    cluster.assert_saved(&[(&finished, 2)]);
}

#[test]
fn a_model_that_is_not_the_runs_is_fetched_from_another_node() {
    let cluster = Cluster::of(2);
    let output = cluster.ask("start", &job("3", &[]));
    let digest = output.finished(2)["digest"].clone();
    let node = &cluster.nodes[0];
    let run = std::fs::read_dir(&node.dir)
        .unwrap()
        .flatten()
        .find(|entry| entry.path().is_dir());
    let model = run.unwrap().path().join(format!("{}.safetensors", node.name));
    let mut bytes = std::fs::read(&model).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&model, bytes).unwrap();
    let again = cluster.ask("start", &["--attach", "--out", "again"]);
    assert_eq!(again.finished(2)["digest"], digest);
    let saved = cluster.tau.path("again/latest/model.safetensors");
    let evaluated = cluster.tau.run(&[
        "evaluate",
        saved.to_str().unwrap(),
        "--data",
        "csv:points.csv",
        "--json",
    ]);
    assert_eq!(evaluated.last()["digest"], digest);
}

/// A running `tau train`, with a folder for its temporary files.
struct Training {
    tau: Tau,
    temporary: String,
    client: Running,
}

impl Training {
    fn start(epochs: &str) -> Self {
        Self::start_with(epochs, Tau::spawn)
    }

    fn start_with(epochs: &str, spawn: impl FnOnce(&mut Command) -> Running) -> Self {
        let tau = Tau::new();
        points_csv(&tau, "points.csv", 600);
        let temporary = tau.path("tmp").to_str().unwrap().to_string();
        std::fs::create_dir(&temporary).unwrap();
        let mut client = spawn(&mut Self::command(&tau, &temporary, epochs));
        client.wait_until_trains();
        Self { tau, temporary, client }
    }

    fn command(tau: &Tau, temporary: &str, epochs: &str) -> Command {
        let mut arguments = vec!["train", "--nodes", "3", "--threads", "1", "--json", "--out", "out"];
        arguments.extend(patient_job(epochs));
        let mut command = tau.command(&arguments);
        command.env("TMPDIR", temporary);
        command
    }

    /// Trains once more for one epoch in the same folders.
    fn again(tau: &Tau, temporary: &str) -> Output {
        Tau::spawn(&mut Self::command(tau, temporary, "1")).finish()
    }

    /// Returns the process id of the seed node.
    fn first_node(&self) -> u32 {
        let [first] = processes_with(&self.temporary, "seed")[..] else {
            panic!("there is not one seed");
        };
        first
    }

    /// Makes all three nodes write checkpoints. The address and the credentials are taken from a node's command line.
    fn checkpoint(&self) {
        let joined = processes_with(&self.temporary, " join ")[0];
        let arguments = std::fs::read_to_string(format!("/proc/{joined}/cmdline")).unwrap();
        let arguments: Vec<&str> = arguments.split('\0').collect();
        let after = |word: &str| arguments[arguments.iter().position(|one| *one == word).unwrap() + 1];
        let (address, credentials) = (after("join"), after("--credentials"));
        let asked = ["checkpoint", "--cluster", address, "--credentials", credentials];
        self.tau.must(&asked);
        Cluster::wait_until("no checkpoints are written", || self.checkpoints("tmp/").len() == 3);
    }

    /// Returns the checkpoints in a folder.
    fn checkpoints(&self, folder: &str) -> Vec<String> {
        let mut files = self.tau.files();
        files.retain(|file| file.starts_with(folder) && file.ends_with(".checkpoint"));
        files
    }

    /// Pauses all nodes with SIGSTOP, so that they ignore requests.
    fn hold_nodes(&self) {
        for word in ["seed", " join "] {
            for node in processes_with(&self.temporary, word) {
                kill("-STOP", node);
            }
        }
    }

    fn wait_for_no_processes(&self) {
        Cluster::wait_until("nodes outlive their client", || {
            processes_with(&self.temporary, "").is_empty()
        });
    }
}

/// Fills a pipe so that further writes block, as those to a terminal do after Ctrl-S.
fn fill(pipe: &PipeWriter) {
    // Opened once more because this end is non-blocking, and other writers must block.
    let mut writer = File::options()
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(format!("/proc/self/fd/{}", pipe.as_raw_fd()))
        .unwrap();
    for size in [4096, 1] {
        while writer.write(&[b'x'; 4096][..size]).is_ok() {}
    }
}

#[test]
fn a_local_cluster_whose_first_node_stands_still_ends_well() {
    let training = Training::start(ENDLESS);
    let first = training.first_node();
    kill("-STOP", first);
    wait_until_it_asks_another(&training.client);
    kill("-CONT", first);
    training.client.interrupt();
    let output = training.client.finish();
    output.finished(3);
    assert_eq!(
        training.tau.files_by_kind(),
        [kept_in("out"), vec!["points.csv".into()]].concat()
    );
}

#[test]
fn a_local_cluster_whose_first_node_is_killed_ends_well() {
    let mut training = Training::start(ENDLESS);
    kill("-KILL", training.first_node());
    wait_until_it_asks_another(&training.client);
    training.client.wait_until_trains();
    training.client.interrupt();
    let output = training.client.finish();
    let finished = output.finished(2);
    assert_eq!(finished["missing"].as_array().unwrap().len(), 1, "{finished}");
    assert_eq!(
        training.tau.files_by_kind(),
        [kept_in("out"), vec!["points.csv".into()]].concat()
    );
}

#[test]
fn a_model_that_finds_no_place_in_the_end_is_left_with_its_nodes_files() {
    let training = Training::start(ENDLESS);
    // The folder was writable when the run began.
    std::fs::remove_dir_all(training.tau.path("out")).unwrap();
    std::fs::write(training.tau.path("out"), "in the way").unwrap();
    training.client.interrupt();
    let output = training.client.finish();
    assert_eq!(output.code, 1, "{}", output.stderr);
    let error = output.last()["error"].as_str().unwrap().to_string();
    assert!(
        error.contains("could not be written") && error.contains("stay in"),
        "{error}"
    );
    let left = training.tau.files();
    assert!(left.iter().any(|file| file.ends_with(".safetensors")), "{left:?}");
    assert!(
        !left.iter().any(|file| file.ends_with("cluster.pem")),
        "what is private goes: {left:?}"
    );
    // The files are the user's now: the next command leaves them alone.
    std::fs::remove_file(training.tau.path("out")).unwrap();
    Training::again(&training.tau, &training.temporary).finished(3);
    let models = training.tau.files().into_iter().filter(|file| left.contains(file));
    assert!(models.into_iter().any(|file| file.ends_with(".safetensors")));
}

#[test]
fn what_a_killed_local_cluster_leaves_is_removed_by_the_next() {
    let training = Training::start(ENDLESS);
    kill("-KILL", training.client.pid());
    drop(training.client);
    // The nodes of a local cluster end with its client.
    Cluster::wait_until("nodes outlive their client", || {
        processes_with(&training.temporary, "").is_empty()
    });
    let left = |tau: &Tau| tau.files().iter().filter(|file| file.starts_with("tmp/")).count();
    assert!(left(&training.tau) > 0, "a killed process cleans nothing up");
    Training::again(&training.tau, &training.temporary).finished(3);
    assert_eq!(left(&training.tau), 0);
    let folders = std::fs::read_dir(&training.temporary).unwrap().count();
    assert_eq!(folders, 0);
}

#[test]
fn a_terminated_local_cluster_leaves_nothing_but_its_model() {
    let mut training = Training::start(ENDLESS);
    training.checkpoint();
    kill("-TERM", training.client.pid());
    let output = training.client.end();
    training.wait_for_no_processes();
    if output.code == 0 {
        let model = output.finished(3)["model"].as_str().unwrap().to_owned();
        assert!(Path::new(&model).is_file(), "{model}");
        assert_eq!(std::fs::read_dir(&training.temporary).unwrap().count(), 0);
    } else {
        // A machine that is too slow to end the run in time still has the last checkpoints.
        let places = ["its copy is ", "were copied to ", "stay in "];
        let is_said = places.iter().any(|place| output.stderr.contains(place));
        assert!(is_said, "{}", output.stderr);
    }
}

#[test]
fn a_terminated_client_ends_though_its_nodes_and_its_output_stand_still() {
    let (_reader, writer) = std::io::pipe().unwrap();
    let errors = writer.try_clone().unwrap();
    let mut training = Training::start_with(ENDLESS, |command| Tau::spawn_with(command, errors));
    training.checkpoint();
    training.hold_nodes();
    fill(&writer);
    kill("-TERM", training.client.pid());
    let output = training.client.end();
    assert_eq!(output.code, 1);
    training.wait_for_no_processes();
    // The checkpoints are copied if there is time.
    let is_kept = |folder: &&str| training.checkpoints(folder).len() == 3;
    assert!(["out/", "tmp/"].iter().any(is_kept), "{:?}", training.tau.files());
}

#[test]
fn what_a_terminated_client_cannot_copy_stays_where_it_says() {
    let mut training = Training::start(ENDLESS);
    training.checkpoint();
    training.hold_nodes();
    // The folder was writable when the run began.
    std::fs::remove_dir_all(training.tau.path("out")).unwrap();
    std::fs::write(training.tau.path("out"), "in the way").unwrap();
    let kept = training.checkpoints("tmp/");
    kill("-TERM", training.client.pid());
    let output = training.client.end();
    assert_eq!(output.code, 1, "{}", output.stderr);
    training.wait_for_no_processes();
    let folder = std::fs::read_dir(&training.temporary).unwrap().next().unwrap().unwrap();
    let sentence = format!(
        "stay in {}, because they could not be copied to --out: ",
        folder.path().display()
    );
    output.says(&sentence);
    assert!(!folder.path().join("cluster.pem").exists(), "what is private goes");
    // The files are the user's now: the next command leaves them alone.
    std::fs::remove_file(training.tau.path("out")).unwrap();
    Training::again(&training.tau, &training.temporary).finished(3);
    assert_eq!(training.checkpoints("tmp/"), kept);
}

#[test]
fn a_terminated_client_stops_its_run_though_the_nodes_it_asks_first_stand_still() {
    let cluster = Cluster::of(3);
    let [first, second, third] = &cluster.nodes[..] else {
        unreachable!()
    };
    let asked = format!("{},{}", first.address, second.address);
    let mut client = cluster.tau.start(&asking("start", &asked, &patient_job(ENDLESS)));
    client.wait_until_trains();
    for node in [first, second] {
        kill("-STOP", node.process.pid());
    }
    kill("-TERM", client.pid());
    let output = client.end();
    // The third node waits for the paused nodes longer than a terminated client can wait.
    assert_eq!(output.code, 1, "{}", output.stderr);
    let error = output.last()["error"].as_str().unwrap().to_owned();
    assert!(error.contains("'tau start --attach' fetches it"), "{error}");
    Cluster::wait_until("the third node is not told to stop", || {
        tells(&third.process.log(), "run_stopping")
    });
    for node in [first, second] {
        kill("-CONT", node.process.pid());
    }
    let attached = cluster.must("start", &["--attach"]);
    assert_eq!(attached.last()["event"], "finished");
}

#[test]
fn sockets_of_dead_nodes_are_removed_when_a_node_starts() {
    let mut cluster = Cluster::of(1);
    let dead = cluster.nodes.remove(0);
    kill("-KILL", dead.process.pid());
    drop(dead.process);
    let socket = || {
        let found = std::fs::read_dir(&dead.dir).unwrap().flatten();
        let sockets = found.filter(|entry| entry.path().extension().is_some_and(|ending| ending == "sock"));
        sockets.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let [left] = &socket()[..] else {
        panic!("a killed node leaves its socket")
    };
    // A young socket may belong to another node that is about to listen.
    let old = Command::new("touch")
        .args(["-d", "1 hour ago"])
        .arg(left)
        .status()
        .unwrap();
    assert!(old.success());
    // The new node takes the folder of the dead one.
    cluster.add(&[]);
    assert!(!left.exists());
    assert_eq!(socket().len(), 1);
}

#[test]
fn a_job_that_nodes_would_not_take_is_refused() {
    let tau = Tau::new();
    points_csv(&tau, "points.csv", 40);
    let model = "dense 2, relu, ".repeat(5_000) + "dense 2";
    std::fs::write(
        tau.path("job.toml"),
        format!("data = \"csv:points.csv\"\nmodel = \"{model}\"\n"),
    )
    .unwrap();
    let start = tau.run(&asking("start", "127.0.0.1:9", &["job.toml"]));
    let train = tau.run(&["train", "job.toml"]);
    for output in [start, train] {
        output.fails(2, "the job text has");
    }
}

#[test]
fn the_version_says_which_build_it_is() {
    let output = Tau::new().run(&["--version"]);
    let version = output.stdout.trim().strip_prefix("tau ").unwrap();
    let (release, commit) = version.split_once('+').unwrap_or((version, ""));
    assert_eq!(release, env!("CARGO_PKG_VERSION"));
    let commit = commit.strip_suffix("-dirty").unwrap_or(commit);
    assert!(commit.chars().all(|digit| digit.is_ascii_hexdigit()), "{version}");
}
