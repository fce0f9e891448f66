//! Messages between a node and its workers, for the corpus.

use protocol::ids::{OriginId, RunId};
use protocol::log::cursor::Cursors;
use protocol::stats::measured::Moment;
use protocol::weights::contribution::Contribution;
use protocol::weights::digest::Digest;
use protocol::wire::attach::{
    Assignment, FailureCause, FromWorker, GoOn, JumpOrder, Missing, Pace, SaveOrder, ToWorker, WorkerInfo,
};
use std::path::PathBuf;

use super::batches::{header, steps};
use super::values::{EVALUATION, SCORES, data_info, frontier, job, wire, worker_stats};

const GO_ON: GoOn = GoOn {
    contribution: Some(Contribution::ALL),
    round: 300,
    newest: 301,
    workers: 10,
};

const MOMENT: Moment = Moment {
    samples: 640,
    seconds: 1.5,
};

pub(super) fn attached() {
    let run = RunId(9);
    let hello = WorkerInfo {
        version: "0.1.0".into(),
        pid: 4_321,
        device: "cpu".into(),
        gpu_bytes: Some(8 << 30),
        threads: 2,
    };
    let data = data_info();
    let reason = String::from("points.csv could not be read");
    let finished = FromWorker::Finished {
        digest: Some(Digest(5)),
    };
    let saved_model = |saved| FromWorker::SavedModel { run, saved };
    let evaluation = EVALUATION;
    let evaluated = FromWorker::Evaluated { run, evaluation };
    for (name, message) in [
        ("hello", FromWorker::Hello(hello)),
        ("alive", FromWorker::Alive),
        (
            "first",
            FromWorker::First {
                run,
                counts: vec![-5, 0, 1 << 20],
                afresh: vec!["4.weight".into()],
            },
        ),
        (
            "prepared",
            FromWorker::Prepared {
                run,
                data,
                speed: 30_000,
            },
        ),
        (
            "refused",
            FromWorker::Refused {
                run,
                reason: reason.clone(),
            },
        ),
        ("stats", FromWorker::Stats(Box::new(worker_stats()))),
        ("evaluated", evaluated),
        (
            "saved",
            FromWorker::Saved {
                sequence: Some(300),
                path: PathBuf::from("tau-node/9/host.0.1.state"),
            },
        ),
        ("starved", FromWorker::Starved(vec![Missing { slot: 3, samples: 40 }])),
        ("fed", FromWorker::Fed),
        ("closed", FromWorker::Closed { residual_norm: 1.5 }),
        ("finished", finished),
        ("saved-model", saved_model(Ok(Some(SCORES)))),
        ("unsaved-model", saved_model(Err("the disk is full".into()))),
        ("idle", FromWorker::Idle),
        (
            "failed",
            FromWorker::Failed {
                reason,
                cause: FailureCause::Diverged,
            },
        ),
    ] {
        wire("from_worker", name, &message);
    }
    to_workers(run);
}

fn to_workers(run: RunId) {
    let assignment = Assignment {
        run,
        job: Box::new(job()),
        paced: Some(Pace {
            every: 1000,
            seconds: 0.5,
        }),
        founders: 4,
        origin: OriginId(7),
        slot: 1,
        slots: 4,
        cursors: Cursors::from(header(&steps(&[]), 9).cursors),
        batches: 300,
        samples: 19_200,
        restore: Some("tau-node/9/host.0.1.state".into()),
        round: 3,
        workers: 2,
        pipeline: None,
    };
    let path = PathBuf::from("tau-node/9/host.0.1.state");
    let save = Some(SaveOrder {
        path: "tau-node/9/model.safetensors".into(),
        frontier: frontier(),
        with_pipeline: true,
    });
    let job = Box::new(job());
    for (name, message) in [
        ("prepare", ToWorker::Prepare { run, job }),
        ("counts", ToWorker::Counts((-50..50).map(|i: i32| i.pow(3)).collect())),
        ("begin", ToWorker::Begin(Box::new(assignment))),
        ("sums", ToWorker::Sums(vec![(0, 5), (7, -9), (4_999, i32::MAX)])),
        (
            "shift",
            ToWorker::Jump(Box::new(JumpOrder {
                origin: Some(OriginId(7)),
                batches: 300,
                samples: 19_200,
                cursors: Cursors::from(header(&steps(&[]), 9).cursors),
            })),
        ),
        ("pause", ToWorker::Pause(true)),
        ("leave", ToWorker::Leave),
        ("go-on", ToWorker::GoOn(GO_ON)),
        (
            "origin-dead",
            ToWorker::Origin {
                origin: OriginId(7),
                alive: false,
            },
        ),
        ("slot", ToWorker::Slot { slot: 3, alive: false }),
        ("evaluate", ToWorker::Evaluate(MOMENT)),
        ("save", ToWorker::Save { path }),
        ("stop", ToWorker::Stop),
        ("stand-by", ToWorker::StandBy),
        ("go-back", ToWorker::GoBack(MOMENT)),
        ("finish", ToWorker::Finish { save }),
        ("abort", ToWorker::Abort),
    ] {
        wire("to_worker", name, &message);
    }
}
