//! Words, questions and answers of the control plane.

use protocol::base_rate::BaseRate;
use protocol::digest::Digest;
use protocol::ids::{NodeId, RunId};
use protocol::job::JobDraft;
use protocol::stats::NodeReport;
use protocol::wire::control::{
    Beat, ControlMessage, DataInspection, FoundCheckpoint, Offer, Phase, Reply, Request, RunResult, RunStatus,
};
use protocol::wire::run_beat::{ParticipantState, RunBeat, StopReason};

use super::values::{
    RESUMED, SCORES, address, course, data_info, job, node, participant_state, plan, stats_record, usage, wire,
    worker_stats,
};

pub(super) fn control() {
    let run = RunId(9);
    let beat = |runs| Beat {
        from: node(3),
        number: 77,
        members: vec![node(3), node(4)],
        runs,
    };
    let in_run = RunBeat {
        run,
        plan: Some(plan()),
        stop: Some(StopReason::TimeUp),
        diverged: None,
        states: vec![
            (NodeId(3), participant_state()),
            (NodeId(4), ParticipantState::default()),
        ],
    };
    let offer = Offer {
        groups: 1,
        data: data_info(),
        digest: Digest(5),
        workers: 2,
        speed: 30_000,
        memory_bytes: Some(16 << 30),
        gpu_bytes: Some(8 << 30),
    };
    let answer = |answer| ControlMessage::Answer {
        run,
        from: NodeId(3),
        answer,
    };
    let find = ControlMessage::Find {
        run,
        coordinator: NodeId(3),
        resumes: RunId(8),
    };
    let found = ControlMessage::FoundCheckpoint {
        run,
        from: NodeId(4),
        found: Some(Box::new(FoundCheckpoint {
            resumed: RESUMED,
            stage: 0,
            job: Box::new(job()),
        })),
    };
    let words = [
        ("beat", ControlMessage::Beat(Box::new(beat(Vec::new())))),
        ("beat-in-run", ControlMessage::Beat(Box::new(beat(vec![in_run])))),
        (
            "echo",
            ControlMessage::Echo {
                from: NodeId(3),
                number: 77,
            },
        ),
        (
            "prepare",
            ControlMessage::Prepare {
                run,
                coordinator: NodeId(3),
                job: Box::new(job()),
            },
        ),
        ("find", find),
        ("found", found),
        ("checkpoint", ControlMessage::Checkpoint(run)),
        ("stop", ControlMessage::Stop(run)),
        ("answer", answer(Ok(offer))),
        ("answer-no", answer(Err("points.csv could not be read".into()))),
        (
            "abort",
            ControlMessage::Abort {
                run,
                reason: "a node is missing".into(),
            },
        ),
        ("stats", ControlMessage::Stats(Box::new(stats_record()))),
        ("leaving", ControlMessage::Leaving(NodeId(3))),
        (
            "unwelcome",
            ControlMessage::Unwelcome("bring it to the same release".into()),
        ),
    ];
    for (name, message) in words {
        wire("control_message", name, &message);
    }
    requests(run);
    replies();
}

fn requests(run: RunId) {
    let start = Request::StartTraining {
        job: Box::new(job()),
        allow_partial: true,
    };
    for (name, request) in [
        ("nodes", Request::Nodes),
        ("start", start),
        ("stop", Request::Stop),
        ("checkpoint", Request::Checkpoint),
        (
            "resume",
            Request::Resume {
                run,
                changes: Box::new(JobDraft {
                    epochs: Some(40),
                    keep: Some("best".into()),
                    ..JobDraft::default()
                }),
                allow_partial: false,
            },
        ),
        ("status", Request::Status),
        ("look", Request::InspectData(Some("csv:iris.csv".parse().unwrap()))),
        ("stats", Request::Stats { after: 1 << 20 }),
    ] {
        wire("request", name, &request);
    }
}

fn replies() {
    let run = RunId(9);
    let report = NodeReport {
        node: "host-3".into(),
        address: address().to_string(),
        state: "alive".into(),
        device: "cpu".into(),
        workers: 2,
        since: 1.7e9,
        rtt_ms: Some(0.4),
    };
    let result = RunResult {
        participants: vec!["host-3".into()],
        missing: vec!["host-4".into()],
        left_out: vec!["host-5: there is no such file".into()],
        samples_before: 0,
        agree: true,
        digest: Digest(5),
        scores: SCORES,
        base_rate: BaseRate::of(10_000, 1_135),
        stats: worker_stats(),
        samples: 64_000,
        repeated: 70,
        weights: 500_000,
        seconds: 5.5,
        bytes_sent: 123_456,
        usage: vec![usage()],
        course: course(),
        stop: Some(StopReason::TargetReached),
        model: "tau-node/9/model.safetensors".into(),
    };
    let status = |outcome| {
        Reply::Status(Some(Box::new(RunStatus {
            run,
            phase: Phase::Ended,
            job: Box::new(job()),
            train: 60_000,
            workers: 3,
            chosen: Vec::new(),
            succeeds: None,
            successor: None,
            outcome,
            waiting: vec!["host-4 to tell its digest".into()],
        })))
    };
    for (name, reply) in [
        ("nodes", Reply::Nodes(vec![report.clone(), report])),
        ("started", Reply::Started(run)),
        ("stopping", Reply::Stopping(run)),
        ("called-off", Reply::CalledOff(run)),
        ("checkpointing", Reply::Checkpointing(run)),
        ("no-status", Reply::Status(None)),
        ("status", status(Some(Ok(Box::new(result))))),
        ("status-failed", status(Some(Err("diverged".into())))),
        (
            "stats",
            Reply::Stats {
                last: 500,
                records: vec![stats_record(), stats_record()],
            },
        ),
        (
            "looked",
            Reply::DataInspected(DataInspection {
                clock: 1.5e9,
                data: Some(Err("it is not there".into())),
            }),
        ),
        ("refused", Reply::Refused(vec!["busy".into(), "no data".into()])),
    ] {
        wire("reply", name, &reply);
    }
}
