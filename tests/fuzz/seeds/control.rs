//! Messages, requests and replies of the control plane, for the corpus.

use std::time::Duration;

use protocol::bounded::BoundedVec;
use protocol::ids::{NodeId, RunId};
use protocol::job::JobDraft;
use protocol::reasons::waiting::{NodeTask, Waiting, WaitingFor};
use protocol::reasons::{Divergence, KeptWeights, LeftOut, Refusal, RunFailure, Unwelcome};
use protocol::stats::NodeReport;
use protocol::stats::base_rate::BaseRate;
use protocol::weights::digest::Digest;
use protocol::wire::control::{
    Beat, ControlMessage, DataInspection, FoundCheckpoint, Offer, Phase, Reply, Request, RunOrder, RunResult, RunStatus,
};
use protocol::wire::run_beat::{ParticipantState, RunBeat, StopReason};

use super::values::{
    RESUMED, SCORES, address, course, data_info, job, node, participant_state, plan, stats_record, unable, usage, wire,
    worker_stats,
};

fn divergence() -> Divergence {
    Divergence {
        cause: "the loss is not a number".into(),
        optimiser: "sgd:0.2".into(),
        calmer: "sgd:0.1".into(),
        successor: Some(RunId(10)),
    }
}

fn waiting() -> Waiting {
    let silent = WaitingFor::Silent {
        node: "host-4".into(),
        silence: Duration::from_secs(12),
        limit: Duration::from_secs(30),
    };
    let samples = WaitingFor::Samples {
        holder: "host-5".into(),
        samples: 700,
    };
    let digest = WaitingFor::node("host-4", NodeTask::ReportDigest);
    vec![WaitingFor::OwnModel, digest, silent, samples].into()
}

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
        diverged: Some(divergence()),
        states: vec![
            (NodeId(3), participant_state()),
            (NodeId(4), ParticipantState::default()),
        ],
    };
    let offer = Offer {
        weights: 0,
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
    let order = |order| ControlMessage::Order { run, order };
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
        ("checkpoint", order(RunOrder::Checkpoint)),
        ("stop", order(RunOrder::Stop)),
        ("answer", answer(Ok(offer))),
        ("answer-no", answer(Err(unable()))),
        (
            "abort",
            ControlMessage::Abort {
                run,
                reason: RunFailure::Refused(
                    vec![LeftOut::node("host-5", unable()).into(), Refusal::AllowPartial].into(),
                ),
            },
        ),
        ("stats", ControlMessage::Stats(Box::new(stats_record()))),
        ("leaving", ControlMessage::Leaving(NodeId(3))),
        (
            "unwelcome",
            ControlMessage::Unwelcome(Unwelcome::OtherRelease {
                member: "host-3".into(),
                release: "0.1.0".into(),
                node: "host-4".into(),
                other: "0.2.0".into(),
            }),
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
        ("stop", Request::Order(RunOrder::Stop)),
        ("checkpoint", Request::Order(RunOrder::Checkpoint)),
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
        left_out: vec![LeftOut::node("host-5", unable()), LeftOut::More(3)].into(),
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
            chosen: BoundedVec::default(),
            succeeds: None,
            successor: None,
            outcome,
            waiting: waiting(),
        })))
    };
    let failure = RunFailure::NotSaved(KeptWeights::Checkpoint {
        checkpoint: "tau-node/9/host-3.checkpoint".into(),
        folder: "tau-node/9".into(),
    });
    for (name, reply) in [
        ("nodes", Reply::Nodes(vec![report.clone(), report])),
        ("started", Reply::Started(run)),
        ("ordered", Reply::Ordered(run)),
        ("called-off", Reply::CalledOff(run)),
        ("no-status", Reply::Status(None)),
        ("status", status(Some(Ok(Box::new(result))))),
        ("status-diverged", status(Some(Err(divergence().into())))),
        ("status-failed", status(Some(Err(failure)))),
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
        (
            "refused",
            Reply::Refused(
                vec![
                    Refusal::Busy {
                        node: "host-3".into(),
                        run,
                    },
                    Refusal::NothingToStop,
                ]
                .into(),
            ),
        ),
        ("failed", Reply::Failed(RunFailure::Stopped)),
    ] {
        wire("reply", name, &reply);
    }
}
