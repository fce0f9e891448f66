//! Tests of the worker supervisor with real sockets and processes, and short times.

use std::path::Path;

use protocol::wire;
use protocol::wire::attach::{FromWorker, WorkerInfo};
use protocol::wire::frame::Kind;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{sleep, timeout};

use super::*;
use crate::link;
use crate::node::ear::{Heard, listen};
use crate::timing::Timing;

const PATIENCE: Duration = Duration::from_secs(30);

/// Starts a worker supervisor in a folder, with this many worker processes that run this script.
async fn supervisor(folder: &Path, count: usize, script: &str) -> (ActorRef<WorkersMessage>, UnboundedReceiver<Heard>) {
    let (parent, heard) = listen().await;
    let timing = Timing::DEFAULT.faster(100);
    let arguments = WorkersArguments {
        socket: folder.join("n.sock"),
        command: WorkerCommand {
            program: "/bin/sh".into(),
            arguments: vec!["-c".into(), script.into()],
            environment: Vec::new(),
            count,
        },
        version: "1".into(),
        socket_look: timing.clocks.socket_look,
        times: timing.workers,
        parent: parent.get_derived(),
    };
    (Actor::spawn(None, WorkersActor, arguments).await.unwrap().0, heard)
}

async fn next(heard: &mut UnboundedReceiver<Heard>) -> WorkersNotice {
    match timeout(PATIENCE, heard.recv()).await.unwrap() {
        Some(Heard::Workers(notice)) => notice,
        _ => panic!("expected a notice from the workers' supervisor"),
    }
}

async fn say_hello(stream: &mut UnixStream, version: &str) {
    let hello = FromWorker::Hello(WorkerInfo {
        version: version.into(),
        device: "cpu".into(),
        gpu_bytes: None,
        pid: 1,
        threads: 1,
    });
    let hello = wire::encode(&hello).unwrap();
    link::write_frame(stream, Kind::Message, &hello).await.unwrap();
    stream.flush().await.unwrap();
}

/// Returns true if the other end closes the connection without sending anything.
async fn is_hung_up(stream: &mut UnixStream) -> bool {
    let mut said = Vec::new();
    let read = timeout(PATIENCE, stream.read_to_end(&mut said)).await;
    read.is_ok() && said.is_empty()
}

#[tokio::test]
async fn who_does_not_say_in_time_who_it_is_is_turned_away() {
    let folder = tempfile::tempdir().unwrap();
    let (actor, mut heard) = supervisor(folder.path(), 0, "").await;
    let mut silent = UnixStream::connect(folder.path().join("n.sock")).await.unwrap();
    assert!(is_hung_up(&mut silent).await);
    let mut other = UnixStream::connect(folder.path().join("n.sock")).await.unwrap();
    say_hello(&mut other, "2").await;
    assert!(
        is_hung_up(&mut other).await,
        "a worker of another release must be rejected"
    );
    for _ in 0..2 {
        assert!(matches!(next(&mut heard).await, WorkersNotice::Gone(_)));
    }
    actor.stop_and_wait(None, None).await.unwrap();
}

#[tokio::test]
async fn a_worker_that_falls_silent_is_hung_up() {
    let folder = tempfile::tempdir().unwrap();
    let (actor, mut heard) = supervisor(folder.path(), 0, "").await;
    let mut worker = UnixStream::connect(folder.path().join("n.sock")).await.unwrap();
    say_hello(&mut worker, "1").await;
    let WorkersNotice::Attached(handle) = next(&mut heard).await else {
        panic!("expected the worker to attach");
    };
    assert!(is_hung_up(&mut worker).await);
    assert!(matches!(next(&mut heard).await, WorkersNotice::Gone(key) if key == handle.key));
    actor.stop_and_wait(None, None).await.unwrap();
}

#[tokio::test]
async fn processes_that_end_are_started_again_until_the_supervisor_stops() {
    let folder = tempfile::tempdir().unwrap();
    let starts = folder.path().join("starts");
    let script = format!("echo started >> '{}'", starts.display());
    let (actor, _heard) = supervisor(folder.path(), 1, &script).await;
    let count = || std::fs::read_to_string(&starts).map_or(0, |lines| lines.lines().count());
    let often = async {
        while count() < 4 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, often).await.expect("the process is not restarted");
    actor.stop_and_wait(None, None).await.unwrap();
    assert!(!folder.path().join("n.sock").exists());
}
