//! Tests with a dishonest member that lies on both planes: the other nodes train on, their memory stays bounded, their
//! logs name the liar, and the run ends in agreement.

use protocol::reasons::{Divergence, Excluded, RunFailure, Unwelcome};
use std::sync::atomic::Ordering;
use std::time::Duration;

use communicator::control::EndpointMessage;
use communicator::link::write_hello;
use communicator::transport::Plane;
use protocol::ids::{NodeId, RunId};
use protocol::rng::CounterRng;
use protocol::stats::StatsRecord;
use protocol::wire::bounds::node_name;
use protocol::wire::control::{Beat, ControlMessage, NodeInfo, Request, RunOrder};
use protocol::wire::link::Hello;
use protocol::wire::run_beat::{GivenUp, ParticipantState, RunBeat, Settled, StopReason};
use serde_json::Value;
use tokio::io::AsyncReadExt;

use crate::harness::cluster::{Cluster, job};
use crate::harness::liar::{self, Deaf, Ear, Liar, PATIENCE};
use crate::harness::memory::resident;
use crate::harness::watching::stop;
use crate::harness::{event_lines, points_csv};

/// Largest growth of a node's memory, in bytes.
const GROWTH_MAX: u64 = 64 << 20;
/// Number of random lies; `SEED` is the seed that they are drawn from.
const RANDOM_LIES: u64 = 50;
const SEED: u64 = 13;
/// Name of the ignored test that runs as the liar's process.
const LIAR: &str = "liar::a_liar";

/// Returns the number of samples that each node has trained, with the node's name.
fn samples(cluster: &Cluster) -> Vec<(String, u64)> {
    let records = cluster.must("stats", &["--once"]);
    let of = |record: Value| {
        let name = record["node"].as_str().unwrap().to_string();
        (name, record["samples"].as_u64().unwrap_or(0))
    };
    records.objects().into_iter().map(of).collect()
}

/// Waits until both nodes have trained more samples than at the call.
fn wait_until_trained_on(cluster: &Cluster, after: &str) {
    let before = samples(cluster);
    Cluster::wait_until(&format!("nobody trains after {after}"), || {
        let now = samples(cluster);
        let further = |node: &str| {
            let of = |all: &[(String, u64)]| all.iter().find(|(name, _)| name == node).map(|(_, count)| *count);
            of(&now) > of(&before)
        };
        cluster.nodes.iter().all(|node| further(&node.name))
    });
}

#[test]
fn a_member_that_lies_harms_nobody() {
    let cluster = Cluster::of(2);
    // Enough rows that epochs take a while: the memory that nodes keep for each epoch would count as growth that the
    // liar caused.
    points_csv(&cluster.tau, "points.csv", 60_000);
    cluster.must("start", &job("1000000", &["--detach"]));
    wait_until_trained_on(&cluster, "the start");
    let nodes: Vec<&str> = cluster.nodes.iter().map(|node| node.address.as_str()).collect();
    let credentials = cluster.tau.path("cluster.pem");
    let before: Vec<u64> = cluster.nodes.iter().map(|node| resident(node.process.pid())).collect();

    for first in (0..RANDOM_LIES).step_by(5) {
        liar::run(LIAR, &format!("random {first}"), &nodes, &credentials);
    }
    wait_until_trained_on(&cluster, "random lies");
    for part in ["names", "bounds", "crowd", "records", "questions", "mute", "data"] {
        let output = liar::run(LIAR, part, &nodes, &credentials);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        wait_until_trained_on(&cluster, part);
        for (node, before) in cluster.nodes.iter().zip(&before) {
            let now = resident(node.process.pid());
            assert!(
                now < before + GROWTH_MAX,
                "{part} took {} from {before} to {now} bytes",
                node.name
            );
        }
        // A liar that has not introduced itself is logged by its address.
        let event = match part {
            "questions" => Some("control_connection_closed"),
            "mute" => Some("incoming_connection_rejected"),
            _ => None,
        };
        for node in &cluster.nodes {
            let log = node.process.log();
            let named = |event| {
                event_lines(&log, event)
                    .iter()
                    .any(|line| line.contains("address=127."))
            };
            assert!(
                event.is_none_or(named),
                "{} does not name the liar of {part}: {log}",
                node.name
            );
        }
        // A liar that nodes must log by its id prints that id.
        for id in said.lines().filter_map(|line| line.strip_prefix("liar ")) {
            for node in &cluster.nodes {
                let log = node.process.log();
                let named = event_lines(&log, "peer_banned").iter().any(|line| line.contains(id));
                assert!(named, "{} does not name the liar of {part}: {log}", node.name);
            }
        }
    }

    for (node, before) in cluster.nodes.iter().zip(&before) {
        let now = resident(node.process.pid());
        println!(
            "{}: {} MB before, {} MB after all lies",
            node.name,
            before >> 20,
            now >> 20
        );
    }

    // Invented members are gone or listed as silent; both nodes are listed as alive.
    let alive = cluster
        .listed()
        .into_iter()
        .filter(|node| node["state"] != "silent")
        .count();
    assert_eq!(alive, 2);
    stop(&cluster).finished_by_all(2);
}

#[test]
#[ignore = "it is a process that another test starts"]
fn a_liar() {
    let Some(part) = liar::part() else {
        return;
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut liar = Liar::new().await;
        match part.split_once(' ') {
            Some((_, first)) => random(&mut liar, first.parse().unwrap()).await,
            None => match part.as_str() {
                "names" => names(&mut liar).await,
                "bounds" => bounds(&mut liar).await,
                "crowd" => crowd(&mut liar).await,
                "records" => records(&mut liar).await,
                "questions" => questions(&mut liar).await,
                "mute" => mute(&liar).await,
                "data" => data(&liar).await,
                other => panic!("{other} is no part"),
            },
        }
    });
}

/// Returns a beat from the liar itself, with the members and runs of another node's beat.
fn own_beat(liar: &Liar, ear: &Ear) -> Beat {
    Beat {
        from: liar.info(),
        ..liar.beat_of(ear.node)
    }
}

/// Returns invented values of the state that a node reports when it has settled.
fn settled() -> Settled {
    Settled {
        digest: protocol::weights::digest::Digest(1),
        whole: protocol::weights::digest::Digest(1),
        workers_agree: true,
        stats: protocol::stats::WorkerStats::default(),
        samples: 1,
        repeated: 0,
        bytes_sent: 1,
        seconds: 1.0,
        usage: protocol::stats::measured::NodeUsage::default(),
        course: protocol::stats::measured::Course::default(),
        scores: None,
    }
}

/// Sends lies to all nodes in turn, until each has closed its session.
async fn say_until_sent_away(liar: &mut Liar, lie: impl Fn(&Liar, &Ear) -> Vec<ControlMessage>) {
    for ear in liar.meet_all().await {
        for _ in 0..3 {
            for message in lie(liar, &ear) {
                ear.say(message);
            }
        }
        liar.sent_away(&ear).await;
    }
    println!("liar {}", liar.id);
}

/// Lies in the names of other nodes: that they leave, have settled or have failed.
async fn names(liar: &mut Liar) {
    say_until_sent_away(liar, |liar, ear| {
        let mut beat = liar.beat_of(ear.node);
        // Each node is told lies about the other, in the form in which it knows that one.
        beat.from = beat.members[0].clone();
        let mut ended = settled();
        ended.stats.training = Duration::MAX;
        beat.runs[0].states[0].1.settled = Some(ended);
        let other = beat.from.id;
        vec![
            ControlMessage::Leaving(other),
            ControlMessage::Beat(Box::new(beat.clone())),
            ControlMessage::Stats(Box::new(StatsRecord {
                node: beat.from.name.clone(),
                ..StatsRecord::default()
            })),
            ControlMessage::Echo { from: other, number: 1 },
        ]
    })
    .await;
}

/// Sends values beyond the limits under its own name.
async fn bounds(liar: &mut Liar) {
    say_until_sent_away(liar, |liar, ear| {
        let mut endless = own_beat(liar, ear);
        let plan = endless.runs[0].plan.as_mut().unwrap();
        plan.admit(protocol::wire::run_plan::Participant {
            node: liar.id,
            name: liar.info().name,
            address: liar.nodes[0],
            workers: 1 << 50,
            guest: true,
            lacks_first_weights: false,
            takes: None,
            life: 0,
        });
        let mut eternal = own_beat(liar, ear);
        let mut ended = settled();
        ended.stats.training = Duration::MAX;
        eternal.runs[0].states[0].1.settled = Some(ended);
        [endless, eternal]
            .map(|beat| ControlMessage::Beat(Box::new(beat)))
            .into()
    })
    .await;
}

/// Returns the description of a node that does not exist.
fn invented(number: u64) -> NodeInfo {
    let id = NodeId(0x5eed_0000_0000_0000 + number);
    NodeInfo {
        id,
        name: node_name("invented", id),
        // An address of this machine at which nothing listens.
        address: format!("127.9.0.{}:{}", number % 254 + 1, 1 + number % 500)
            .parse()
            .unwrap(),
        version: "0.1.0".into(),
        device: "cpu".into(),
        workers: 1,
        since: 1,
    }
}

/// Invents members: as many as a beat may list, and then far more.
async fn crowd(liar: &mut Liar) {
    for ear in liar.meet_all().await {
        for beat in 0..20 {
            let mut told = own_beat(liar, &ear);
            told.runs = Vec::new();
            told.members = (0..1000).map(|number| invented(beat * 1000 + number)).collect();
            ear.say(ControlMessage::Beat(Box::new(told)));
        }
        for beat in 0..12 {
            let mut told = own_beat(liar, &ear);
            told.members = (0..15_000).map(|number| invented(beat * 15_000 + number)).collect();
            ear.say(ControlMessage::Beat(Box::new(told)));
        }
        liar.sent_away(&ear).await;
    }
    println!("liar {}", liar.id);
}

/// Sends its own records: larger ones, and more of them, than allowed.
async fn records(liar: &mut Liar) {
    for ear in liar.meet_all().await {
        let own = StatsRecord {
            node: liar.info().name,
            ..StatsRecord::default()
        };
        for _ in 0..1000 {
            ear.say(ControlMessage::Stats(Box::new(own.clone())));
        }
        for _ in 0..40 {
            let digest = "x".repeat(900_000);
            ear.say(ControlMessage::Stats(Box::new(StatsRecord { digest, ..own.clone() })));
        }
        liar.sent_away(&ear).await;
    }
    println!("liar {}", liar.id);
}

/// Sends requests without end, and does not read the replies.
async fn questions(liar: &mut Liar) {
    for address in liar.nodes.clone() {
        let (stream, deaf) = Deaf::new(liar.dial(address, Plane::Control).await);
        let ear = liar.meet(address, Box::new(stream)).await;
        deaf.store(true, Ordering::Relaxed);
        for _ in 0..20_000 {
            let (reply, _answer) = ractor::concurrency::oneshot();
            let question = ear.endpoint.envelope(Request::Stats { after: 0 });
            if ear
                .endpoint
                .actor()
                .cast(EndpointMessage::Ask(question, reply.into()))
                .is_err()
            {
                break;
            }
        }
        // The liar reads nothing, so it notices the end of the session by failing writes.
        let ended = async {
            while ear
                .endpoint
                .actor()
                .cast(EndpointMessage::Tell(
                    ear.endpoint.envelope(ControlMessage::Leaving(liar.id)),
                ))
                .is_ok()
            {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        assert!(
            tokio::time::timeout(PATIENCE, ended).await.is_ok(),
            "{address} goes on answering"
        );
    }
}

/// Opens connections to the nodes and sends nothing.
async fn mute(liar: &Liar) {
    let mut mute = Vec::new();
    for number in 0..600 {
        mute.push(liar.dial(liar.nodes[number % liar.nodes.len()], Plane::Control).await);
    }
    for mut stream in mute {
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await;
        assert!(ended.is_ok(), "a mute connection stays");
    }
}

/// Requests links that no node expects, and models that it does not fetch.
async fn data(liar: &Liar) {
    let mut held = Vec::new();
    for number in 0..100 {
        let mut stream = liar.dial(liar.nodes[number % liar.nodes.len()], Plane::Data).await;
        let run = RunId(number as u64);
        let hello = match number % 3 {
            0 => Some(Hello::Model { run }),
            1 => Some(Hello::Link {
                version: "0.1.0".into(),
                run,
                from: liar.id,
                to: liar.id,
            }),
            _ => None,
        };
        if let Some(hello) = hello {
            write_hello(&mut stream, &hello).await.unwrap();
        }
        held.push(stream);
    }
    for mut stream in held {
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await;
        assert!(ended.is_ok(), "a connection stays that nobody expects");
    }
}

/// Tells five random lies, each drawn from its number.
async fn random(liar: &mut Liar, first: u64) {
    let ears = liar.meet_all().await;
    for number in first..first + 5 {
        for ear in &ears {
            let mut rng = CounterRng::new(SEED, number);
            ear.say(random_lie(liar, ear, &mut rng));
        }
    }
    // Waits until the messages are delivered; a node that was sent too much has closed the session.
    for ear in &ears {
        let asked = ear.endpoint.ask(Request::Status, PATIENCE);
        let _ = tokio::time::timeout(PATIENCE, asked).await;
    }
}

/// Returns a message that an honest node might send, with a false value in it.
fn random_lie(liar: &Liar, ear: &Ear, rng: &mut CounterRng) -> ControlMessage {
    let extremes = [0, 1, 255, 1 << 32, 1 << 53, u64::MAX - 1, u64::MAX];
    let extreme = |rng: &mut CounterRng| extremes[rng.below(extremes.len() as u64) as usize];
    let others = liar.beat_of(ear.node);
    let run = others.runs.first().map_or(RunId(1), |run| run.run);
    let run = if rng.below(4) == 0 { RunId(extreme(rng)) } else { run };
    let names = [liar.id, ear.node, others.members[0].id, NodeId(extreme(rng))];
    let from = names[rng.below(4) as usize];
    match rng.below(12) {
        0 => ControlMessage::Leaving(from),
        1 => ControlMessage::Abort {
            run,
            reason: RunFailure::Stopped,
        },
        2 => ControlMessage::Order {
            run,
            order: RunOrder::Checkpoint,
        },
        3 => ControlMessage::Echo {
            from,
            number: extreme(rng),
        },
        4 => ControlMessage::Answer {
            run,
            from,
            answer: Err(Excluded::NoWorker),
        },
        5 => ControlMessage::FoundCheckpoint { run, from, found: None },
        6 => ControlMessage::Find {
            run,
            coordinator: from,
            resumes: RunId(extreme(rng)),
        },
        7 => ControlMessage::Unwelcome(Unwelcome::Succeeded("liar".into())),
        8 => ControlMessage::Stats(Box::new(StatsRecord {
            node: node_name("liar", from),
            samples: extreme(rng),
            tau: f64::from_bits(extreme(rng)),
            ..StatsRecord::default()
        })),
        _ => {
            let mut beat = own_beat(liar, ear);
            beat.from.id = from;
            beat.from.name = node_name("liar", from);
            beat.from.workers = extreme(rng) as usize;
            beat.number = extreme(rng);
            let mut ended = settled();
            ended.samples = extreme(rng);
            ended.seconds = f64::from_bits(extreme(rng));
            let choice = rng.below(4);
            // The liar passes on a participant's state as if it had received that.
            let state = ParticipantState {
                number: extreme(rng),
                closed: true,
                settled: (choice == 1).then_some(ended),
                ended: choice == 1,
                withdrawn: choice == 3,
                given_up: vec![(ear.node, GivenUp::Lied)],
                ..ParticipantState::default()
            };
            beat.runs = vec![RunBeat {
                run,
                plan: None,
                stop: (choice == 0).then_some(StopReason::Asked),
                diverged: (choice == 2).then(|| Divergence {
                    cause: "so says a liar".into(),
                    optimiser: "sgd".into(),
                    calmer: "sgd".into(),
                    successor: None,
                }),
                states: vec![(names[rng.below(4) as usize], state)],
            }];
            ControlMessage::Beat(Box::new(beat))
        }
    }
}
