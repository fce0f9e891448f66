//! Tests that start Tau on any machine: with a pasted command, a host name or environment variables; and of the states
//! that nodes report.

use crate::harness::cluster::{Cluster, cut_power, patient_job};
use crate::harness::{Tau, points_csv, tells};

#[test]
fn a_token_is_all_that_a_machine_needs_to_join_and_nodes_say_what_they_do() {
    let tau = Tau::new();
    let data = points_csv(&tau, "points.csv", 300);
    tau.must(&["credentials", "new", "cluster.pem"]);
    let common = ["--threads", "1"];
    let listen = [
        "seed",
        "--listen",
        "localhost:0",
        "--credentials",
        "cluster.pem",
        "--dir",
        "a",
        "--json",
    ];
    let mut seed = tau.start(&[listen.as_slice(), &common].concat());
    let listening = seed.read_object();
    let address = listening["address"].as_str().unwrap();
    let token = tau.run_with(&[("TAU_CREDENTIALS", "cluster.pem")], &["token", "--cluster", address]);
    token.says("loopback addresses");
    let token = token.stdout.trim();

    let place = ["--listen", "127.0.0.1:0", "--dir", "b"];
    let guest = tau.start(&[&["join", token], place.as_slice(), &common].concat());
    let nodes = || tau.run_with(&[("TAU_CLUSTER", token)], &["nodes", "--json"]);
    Cluster::wait_until("nobody joins by token", || nodes().stdout.lines().count() == 2);
    let (data, layers) = (format!("csv:{data}"), "dense 2");
    let job = ["--data", &data, "--model", layers, "--epochs", "2", "--json"];
    let run = tau.must(&[&["start", "--cluster", token], job.as_slice()].concat());
    assert_eq!(run.last()["nodes"], 2);
    for event in ["cluster_joined", "run_started", "run_ended", "model_saved"] {
        Cluster::wait_until(event, || tells(&guest.log(), event));
    }

    let half = &token[..token.len() / 2];
    for (arguments, says) in [
        (vec!["nodes", "--cluster", half], "not a whole token"),
        (
            vec!["nodes", "--cluster", token, "--insecure"],
            "without other addresses",
        ),
        (
            vec!["seed", "--listen", "no-such-host.invalid:0", "--insecure"],
            "--listen no-such-host.invalid:0",
        ),
    ] {
        let refused = tau.run(&arguments);
        refused.fails(2, says);
    }
}

#[test]
fn a_name_stays_with_a_node_that_is_killed_and_started_again() {
    let mut cluster = Cluster::new();
    for name in ["desk", "lab"] {
        assert_eq!(cluster.add(&["--name", name]).name, name);
    }
    cluster.wait_for_nodes(2);
    points_csv(&cluster.tau, "points.csv", 600);
    cluster.must(
        "start",
        &[&*patient_job("1000000"), &["--detach", "--give-up-after", "3600"]].concat(),
    );
    let states = |cluster: &Cluster| {
        let listed = cluster.listed();
        let text = |node: &serde_json::Value, key: &str| node[key].as_str().unwrap().to_owned();
        let states = listed.iter().map(|node| (text(node, "node"), text(node, "state")));
        states.collect::<Vec<_>>()
    };
    let trains = |name: &str| (name.to_owned(), "training".to_owned());
    Cluster::wait_until("they do not train", || {
        states(&cluster) == [trains("desk"), trains("lab")]
    });

    // A second node with the name of a living node is refused.
    let refused = cluster.refused_node(&[], &["--name", "lab"]);
    refused.fails(1, "already called 'lab': give");
    let refused = cluster.refused_node(&[], &["--name", "desk"]);
    refused.says("already called 'desk': give");
    assert_eq!(states(&cluster), [trains("desk"), trains("lab")]);

    let dead = cluster.nodes.pop().unwrap();
    cut_power(dead.process.pid(), dead.dir.to_str().unwrap());
    drop(dead);
    // At once: the remaining nodes may not have noticed the death yet.
    cluster.add(&["--name", "lab"]);
    Cluster::wait_until("the successor takes no part", || {
        let listed = cluster.listed();
        let listed = listed.iter().filter(|node| node["node"] == "lab").collect::<Vec<_>>();
        matches!(listed[..], [node] if node["state"] == "training" && node["address"] == *cluster.nodes[1].address)
    });
    assert_eq!(states(&cluster), [trains("desk"), trains("lab")]);
    // The run does not wait for the dead process, though it would be given up only after an hour.
    cluster.must("stop", &[]);
    let last = cluster.ask("start", &["--attach"]).last();
    assert_eq!(
        (&last["replicas_agree"], &last["nodes"], &last["missing"]),
        (&true.into(), &2.into(), &serde_json::json!([])),
        "{last}"
    );
    for node in &cluster.nodes {
        let log = node.process.log();
        assert!(!tells(&log, "link_missing"), "{log}");
    }
}

#[test]
fn a_name_that_cannot_stand_in_a_file_name_is_refused() {
    let tau = Tau::new();
    for name in ["", "..", "a/b", "a b", "-x", "a\nb", &"x".repeat(33)] {
        let name = format!("--name={name}");
        let refused = tau.run(&["seed", "--insecure", "--listen", "127.0.0.1:0", &name]);
        refused.fails(2, "--name");
    }
    assert!(tau.files_by_kind().is_empty(), "nothing is changed");
}

#[test]
fn flags_win_over_the_environment_and_that_over_the_users_file() {
    let cluster = Cluster::of(1);
    let (tau, address) = (&cluster.tau, cluster.nodes[0].address.as_str());
    let folder = tau.path("tau");
    std::fs::create_dir(&folder).unwrap();
    let write = |text: &str| std::fs::write(folder.join("config.toml"), text).unwrap();
    let asks = |environment: &[(&str, &str)], flags: &[&str]| {
        let asked = tau.run_with(environment, &[&["nodes", "--json"], flags].concat());
        (asked.code, asked.stderr)
    };
    let right = format!("cluster = \"{address}\"\ncredentials = \"../cluster.pem\"\n");
    write(&right);
    assert_eq!(asks(&[], &[]).0, 0);
    tau.must(&["token"]);
    // A bad value shows which source of the setting counted.
    let bad = "nowhere.invalid:1";
    assert!(asks(&[("TAU_CLUSTER", bad)], &[]).1.contains("nowhere.invalid"));
    assert_eq!(asks(&[("TAU_CLUSTER", bad)], &["--cluster", address]).0, 0);
    let (code, says) = asks(&[("TAU_CREDENTIALS", "none.pem")], &[]);
    assert!(code == 2 && says.contains("none.pem"), "{says}");
    assert_eq!(
        asks(&[("TAU_CREDENTIALS", "none.pem")], &["--credentials", "cluster.pem"]).0,
        0
    );
    // A node that speaks plain text ignores credentials from the environment.
    let taken = ["seed", "--insecure", "--listen", address, "--dir", "x"];
    let refused = tau.run_with(&[("TAU_CREDENTIALS", "none.pem")], &taken);
    refused.says("cannot be listened on");
    let refused = tau.run(&[&taken[..], &["--credentials", "cluster.pem"]].concat());
    refused.fails(2, "not both");

    write(&format!("{right}colour = \"red\"\n"));
    let (code, says) = asks(&[], &[]);
    assert!(
        code == 2 && says.contains("colour") && says.contains("config.toml"),
        "{says}"
    );
    assert_eq!(asks(&[], &["--cluster", address, "--credentials", "cluster.pem"]).0, 0);
    write("");
    let (code, says) = asks(&[], &[]);
    assert!(code == 2 && says.contains("--cluster HOST:PORT"), "{says}");
}

#[test]
fn the_doctor_names_who_is_ill() {
    let mut cluster = Cluster::of(2);
    let well = cluster.ask("doctor", &[]);
    assert_eq!(well.code, 0, "{}{}", well.stdout, well.stderr);
    let says = |output: &crate::harness::Output, level: &str, text: &str| {
        let mut findings = output.objects().into_iter().filter(|one| one["level"] == level);
        findings.any(|one| one["found"].as_str().unwrap().contains(text))
    };
    assert!(says(&well, "ok", "all 2 nodes hear each other"), "{}", well.stdout);
    assert!(says(&well, "ok", "all clocks agree"), "{}", well.stdout);
    let same = cluster.ask("doctor", &["--data", "builtin:mnist"]);
    assert!(says(&same, "ok", "all 2 nodes hold the same"), "{}", same.stdout);
    let lacking = cluster.ask("doctor", &["--data", "csv:nowhere.csv"]);
    assert_eq!(lacking.code, 1, "{}", lacking.stdout);
    assert!(
        says(&lacking, "problem", "cannot read csv:nowhere.csv"),
        "{}",
        lacking.stdout
    );
    let dead = cluster.nodes.pop().unwrap();
    cut_power(dead.process.pid(), dead.dir.to_str().unwrap());
    let address = dead.address.clone();
    drop(dead);
    Cluster::wait_until("nobody notices", || {
        cluster.listed().iter().any(|node| node["state"] == "silent")
    });
    let ill = cluster.ask("doctor", &[]);
    assert_eq!(ill.code, 1, "{}", ill.stdout);
    assert!(says(&ill, "problem", &address), "{}", ill.stdout);
    let alone = cluster.tau.run(&["doctor"]);
    assert!(alone.code == 0 && alone.stdout.contains("cores"), "{}", alone.stderr);
}

#[test]
fn shells_and_manuals_know_every_command() {
    let tau = Tau::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = tau.must(&["completions", shell]);
        assert!(script.stdout.contains("predict"), "{shell}");
    }
    tau.must(&["man", "pages"]);
    for page in ["tau.1", "tau-train.1", "tau-predict.1"] {
        let text = std::fs::read_to_string(tau.path("pages").join(page)).unwrap();
        assert!(text.contains(".TH"), "{page}");
    }
}

#[test]
fn a_join_that_cannot_be_says_why() {
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let cluster = Cluster::of(1);
    let own = port.to_string();
    let place = ["--listen", &own, "--dir", "own", "--insecure", "--json"];
    let alone = cluster.tau.run(&[&["join", &own], place.as_slice()].concat());
    alone.fails(2, "is this node itself");

    let place = ["--listen", "127.0.0.1:0", "--dir", "plain", "--insecure", "--json"];
    let plain = cluster
        .tau
        .start(&[&["join", &cluster.nodes[0].address], place.as_slice()].concat());
    Cluster::wait_until("nobody says what is wrong", || plain.log().contains("credentials"));
}
