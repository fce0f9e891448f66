//! Values that several formats share, for the corpus.

use protocol::ids::{NodeId, OriginId, RunId};
use protocol::job::data::DataInfo;
use protocol::job::model::Shape;
use protocol::job::target::TargetInfo;
use protocol::job::{Job, JobDraft};
use protocol::log::frontier::Frontier;
use protocol::reasons::{Excluded, LeftOut};
use protocol::stats::measured::{Course, Evaluation, NodeUsage, ProcessUsage, Scores};
use protocol::stats::named::NamedNumbers;
use protocol::stats::{PeerRecord, StatsRecord, WorkerStats};
use protocol::weights::digest::Digest;
use protocol::wire;
use protocol::wire::control::NodeInfo;
use protocol::wire::run_beat::{Ballot, GivenUp, ParticipantState, Settled};
use protocol::wire::run_plan::{Participant, Resumed, RunPlan};
use serde::Serialize;
use std::net::SocketAddr;
use std::time::Duration;

use crate::engine::add_to_corpus;

pub(super) fn wire(target: &str, name: &str, value: &impl Serialize) {
    add_to_corpus(target, name, &wire::encode(value).unwrap());
}

pub(super) fn frontier() -> Frontier {
    let mut frontier = Frontier::default();
    for origin in 1..6 {
        frontier.raise(OriginId(origin << (origin * 10)), origin * 300);
    }
    frontier
}

pub(super) fn job() -> Job {
    let draft = JobDraft {
        data: Some("csv:flowers.csv?label=species&test=0.25".into()),
        model: Some("dense 16, relu, dense 3".into()),
        target_accuracy: Some(0.97),
        target_loss: Some(0.125),
        ..JobDraft::default()
    };
    draft.resolve().unwrap()
}

pub(super) fn address() -> SocketAddr {
    "192.168.1.10:7700".parse().unwrap()
}

pub(super) fn node(id: u64) -> NodeInfo {
    NodeInfo {
        id: NodeId(id),
        name: format!("host-{id:06x}"),
        address: if id.is_multiple_of(2) {
            address()
        } else {
            "[2001:db8::1]:7700".parse().unwrap()
        },
        version: "0.1.0".into(),
        device: "cpu".into(),
        workers: 2,
        since: 1_700_000_000_000,
    }
}

pub(super) fn data_info() -> DataInfo {
    DataInfo {
        hash: [0xa5; 32],
        input: Shape::Image {
            channels: 1,
            height: 28,
            width: 28,
        },
        target: TargetInfo::Classes(10),
        train: 60_000,
        test: 10_000,
        validation: 0,
        most_frequent: 1_135,
        code: None,
    }
}

pub(super) fn worker_stats() -> WorkerStats {
    WorkerStats {
        gpu: Duration::from_millis(900),
        gpu_memory: 1 << 33,
        batches: 1_000,
        samples: 64_000,
        changes: 950_000,
        loss: 12_345.5,
        training: Duration::from_millis(10_500),
        directions: Duration::from_millis(2_500),
        waited: Duration::from_millis(300),
        exchange: Duration::from_micros(400_123),
        throttled: 3,
        tau: 0.000_3,
        staleness: 0.4,
        residual_norm: 1.25,
        residual_lost: 0.5,
        // New fields need no line here.
        ..WorkerStats::default()
    }
}

pub(super) const EVALUATION: Evaluation = Evaluation {
    samples: 6400,
    seconds: 2.5,
    accuracy: Some(0.9),
    loss: 0.3,
    mae: None,
    named: NamedNumbers::NONE,
};

pub(super) fn course() -> Course {
    let mut course = Course::default();
    course.add(EVALUATION);
    course.add(Evaluation {
        accuracy: None,
        named: NamedNumbers::new([("perplexity", 7.5)]).unwrap(),
        ..EVALUATION
    });
    course
}

pub(super) fn usage() -> NodeUsage {
    let process = |process: &str| ProcessUsage {
        process: process.into(),
        cpu_seconds: 1.25,
        memory_peak_bytes: 80 << 20,
        disk_read_bytes: 4096,
        disk_write_bytes: 8192,
    };
    NodeUsage {
        node: "host-3".into(),
        wire_in: 1 << 20,
        wire_out: 1 << 21,
        processes: vec![process("node"), process("worker 1")],
    }
}

pub(super) const SCORES: Scores = Scores {
    accuracy: Some(0.98),
    loss: 0.07,
    mae: None,
    named: NamedNumbers::NONE,
};

pub(super) const RESUMED: Resumed = Resumed {
    run: RunId(8),
    digest: Digest(0xabc),
    first: Digest(0xf00d),
    frontier: 0xdef,
    samples: 19_200,
    slots: 3,
};

/// Returns the exclusion of a node that cannot open the data.
pub(super) fn unable() -> Excluded {
    Excluded::Unable("points.csv could not be read".into())
}

pub(super) fn plan() -> RunPlan {
    let participant = |id| Participant {
        node: NodeId(id),
        name: format!("host-{id}"),
        address: address(),
        workers: 2,
        guest: id > 3,
        lacks_first_weights: false,
        takes: None,
        life: 0,
    };
    RunPlan {
        job: Box::new(job()),
        data: data_info(),
        first: Digest(0xf00d),
        weights: 101_770,
        participants: vec![participant(3), participant(4)],
        resumed: vec![RESUMED],
        left_out: vec![LeftOut::node("host-5", unable())].into(),
        chosen: vec!["epochs".into()].into(),
        succeeds: Some(RunId(8)),
    }
}

fn settled() -> Settled {
    Settled {
        digest: Digest(0xfeed),
        whole: Digest(0xfeed),
        workers_agree: true,
        stats: worker_stats(),
        samples: 64_000,
        repeated: 70,
        bytes_sent: 123_456,
        seconds: 5.5,
        usage: usage(),
        course: course(),
        scores: Some(SCORES),
    }
}

pub(super) fn participant_state() -> ParticipantState {
    ParticipantState {
        number: 88,
        closed: true,
        stands_by: true,
        unmanned: true,
        starved: false,
        fingerprint: 0x5eed,
        catching_up: false,
        attempt: 2,
        ballot: Some(Ballot {
            fingerprint: 0x5eed,
            members: 7,
            attempt: 2,
        }),
        frozen: true,
        decided: true,
        settled: Some(settled()),
        saved: Some(true),
        ended: false,
        withdrawn: false,
        residual_lost: 0.25,
        given_up: vec![(NodeId(5), GivenUp::OutOfReach)],
    }
}

pub(super) fn stats_record() -> StatsRecord {
    let peer = PeerRecord {
        node: "host-4".into(),
        bytes_in: 1_000,
        bytes_out: 2_000,
        lag: 3,
        queue: 4,
    };
    StatsRecord {
        node: "host-3".into(),
        run: RunId(9).to_string(),
        state: "training".into(),
        loss: Some(0.5),
        peers: vec![peer.clone(), peer],
        ..StatsRecord::default()
    }
}
