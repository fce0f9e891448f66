//! Connections that others open: sorted by plane, and on the data plane by what they are for.

use std::time::Duration;

use protocol::control::NodeInfo;
use protocol::frame::{CHUNK_BYTES, Kind};
use protocol::ids::RunId;
use ractor::ActorRef;
use ractor::rpc::CallResult;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::run::RunMessage;
use crate::control::Sessions;
use crate::link::{Hello, LinkError, read_hello, write_frame, write_hello};
use crate::transport::{Accepted, Plane, Stream};

/// How long a caller may take to say what it wants, and this node to find out whether it can have it.
const HELLO_LIMIT: Duration = Duration::from_secs(5);

/// Takes connections until there are no more.
pub(super) async fn route(
    mut connections: mpsc::Receiver<Accepted>,
    sessions: Sessions,
    run: ActorRef<RunMessage>,
    me: NodeInfo,
) {
    while let Some(Accepted { stream, plane, address }) = connections.recv().await {
        match plane {
            Plane::Control => {
                let sessions = sessions.clone();
                tokio::spawn(async move {
                    if let Err(error) = sessions.accept(stream, address).await {
                        tracing::debug!(%address, %error, "a caller is turned away");
                    }
                });
            }
            Plane::Data => {
                let (run, me) = (run.clone(), me.clone());
                tokio::spawn(async move {
                    if let Err(error) = greet(stream, &run, &me).await {
                        tracing::debug!(%address, %error, "a caller is turned away");
                    }
                });
            }
        }
    }
}

/// Hears what a caller wants, and gives it that.
async fn greet(mut stream: Stream, run_actor: &ActorRef<RunMessage>, me: &NodeInfo) -> Result<(), LinkError> {
    let hello = timeout(HELLO_LIMIT, read_hello(&mut stream)).await;
    match hello.unwrap_or(Err(LinkError::OutOfPlace))? {
        Hello::Link { version, run, from, to } => {
            let expects = run_actor.call(|reply| RunMessage::Expects { run, from, reply }, Some(HELLO_LIMIT));
            if version == me.version && to == me.id && matches!(expects.await, Ok(CallResult::Success(true))) {
                write_hello(&mut stream, &Hello::Accepted { from: me.id }).await?;
                let _ = run_actor.cast(RunMessage::Link { run, from, stream });
            }
            Ok(())
        }
        Hello::Model { run } => send_model(stream, run_actor, run).await,
        Hello::Accepted { .. } => Err(LinkError::OutOfPlace),
    }
}

/// Sends the file of a run's model in pieces; an empty one is the last. Without a file there is none at all.
async fn send_model(mut stream: Stream, run_actor: &ActorRef<RunMessage>, run: RunId) -> Result<(), LinkError> {
    let found = run_actor.call(|reply| RunMessage::Model { run, reply }, Some(HELLO_LIMIT));
    let Ok(CallResult::Success(Some(path))) = found.await else {
        return Ok(stream.shutdown().await?);
    };
    // A node that could not save it knows the run but has no file.
    let Ok(mut file) = tokio::fs::File::open(path).await else {
        return Ok(stream.shutdown().await?);
    };
    let mut piece = vec![0; CHUNK_BYTES];
    loop {
        let length = file.read(&mut piece).await?;
        write_frame(&mut stream, Kind::Piece, &piece[..length]).await?;
        if length == 0 {
            stream.flush().await?;
            return Ok(());
        }
    }
}
