//! Incoming connections, sorted by plane and, on the data plane, by their first message.
//!
//! The other side has proven membership and has sent nothing yet. Members are few, so these connections are, too; and a
//! caller that does not say what it wants is dropped.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use protocol::ids::RunId;
use protocol::wire::control::NodeInfo;
use protocol::wire::frame::{CHUNK_BYTES, Kind};
use protocol::wire::link::Hello;
use protocol::wire::link::MessageError;
use ractor::ActorRef;
use ractor::rpc::CallResult;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use super::run::RunMessage;
use crate::control::Sessions;
use crate::link::{LinkError, read_hello, write_frame, write_hello};
use crate::log_throttle::LogThrottle;
use crate::timing::CallTimes;
use crate::transport::{Accepted, HalfOpen, HelloReceived, Plane, Stream};

/// Maximum number of incoming connections whose first message has not come yet.
const CALLERS_MAX: usize = 256;
/// Maximum number of models that are being sent to clients at the same time.
const MODELS_MAX: usize = 64;

/// Handles and limits that are needed to serve an incoming connection.
#[derive(Clone)]
struct CallHandler {
    sessions: Sessions,
    run: ActorRef<RunMessage>,
    me: NodeInfo,
    times: CallTimes,
    models: Arc<Semaphore>,
    complaints: Arc<LogThrottle>,
}

/// Serves incoming connections until their channel is closed.
pub(super) async fn route(
    mut connections: mpsc::Receiver<Accepted>,
    sessions: Sessions,
    run: ActorRef<RunMessage>,
    me: NodeInfo,
    times: CallTimes,
) {
    let desk = CallHandler {
        sessions,
        run,
        me,
        times,
        models: Arc::new(Semaphore::new(MODELS_MAX)),
        complaints: Arc::default(),
    };
    let mut calls = JoinSet::new();
    let mut callers: HalfOpen<AbortHandle> = HalfOpen::new(CALLERS_MAX);
    loop {
        let connection = tokio::select! {
            // Finished calls make room before a new connection is taken.
            biased;
            Some(_) = calls.join_next() => {
                callers.retain(|call| !call.is_finished());
                continue;
            }
            connection = connections.recv() => connection,
        };
        let Some(connection) = connection else {
            return;
        };
        let (address, hello_received) = (connection.address, HelloReceived::default());
        let call = calls.spawn(serve(connection, desk.clone(), Arc::clone(&hello_received)));
        if let Some(displaced) = callers.add(address.ip(), hello_received, call) {
            displaced.abort();
            tracing::debug!(
                event = "connection_displaced", %address,
                "dropped an incoming connection that was not served yet to make room for a new connection"
            );
        }
    }
}

/// Serves an incoming connection: opens a session on it, or reads the first message and starts the link or model
/// transfer that it asks for.
async fn serve(connection: Accepted, desk: CallHandler, hello_received: HelloReceived) {
    let Accepted { stream, plane, address } = connection;
    let served = match plane {
        Plane::Control => desk
            .sessions
            .accept(stream, address)
            .await
            .map_err(|error| error.to_string()),
        Plane::Data => answer_hello(stream, address, &desk, &hello_received)
            .await
            .map_err(|error| error.to_string()),
    };
    if let Err(error) = served {
        // The caller is a member: no other process gets so far.
        if desk.complaints.is_due(Instant::now()) {
            tracing::info!(
                event = "incoming_connection_rejected", %address, error,
                "rejected an incoming connection of a cluster member"
            );
        }
    }
}

/// Reads the first message of a connection, and opens the link or the transfer that it asks for.
async fn answer_hello(
    mut stream: Stream,
    address: SocketAddr,
    desk: &CallHandler,
    hello_received: &HelloReceived,
) -> Result<(), LinkError> {
    let hello = timeout(desk.times.hello, read_hello(&mut stream)).await;
    let hello = hello.unwrap_or(Err(MessageError::OutOfPlace.into()))?;
    hello_received.store(true, Ordering::Relaxed);
    let CallHandler { run: run_actor, me, .. } = desk;
    match hello {
        Hello::Link { version, run, from, to } => {
            let expects = run_actor.call(|reply| RunMessage::Expects { run, from, reply }, Some(desk.times.hello));
            if *version == *me.version && to == me.id && matches!(expects.await, Ok(CallResult::Success(true))) {
                write_hello(&mut stream, &Hello::Accepted { from: me.id }).await?;
                let _ = run_actor.cast(RunMessage::Link { run, from, stream });
            }
            Ok(())
        }
        Hello::Model { run } => {
            let desk = desk.clone();
            tokio::spawn(async move {
                // With too many transfers, the client is told that there is no model, and may ask again.
                let Ok(_permit) = desk.models.try_acquire() else {
                    return;
                };
                if let Err(error) = send_model(stream, &desk, run).await {
                    tracing::debug!(
                        event = "model_transfer_failed", %address, %error,
                        "the transfer of a model to a client broke off"
                    );
                }
            });
            Ok(())
        }
        Hello::Accepted { .. } => Err(MessageError::OutOfPlace.into()),
    }
}

/// Sends the model file of a run to a client in pieces; the last one is empty. Without a file, no piece is sent at all.
async fn send_model(mut stream: Stream, desk: &CallHandler, run: RunId) -> Result<(), LinkError> {
    let CallHandler {
        run: run_actor, times, ..
    } = desk;
    let found = run_actor.call(|reply| RunMessage::Model { run, reply }, Some(times.hello));
    let Ok(CallResult::Success(Some(path))) = found.await else {
        return Ok(stream.shutdown().await?);
    };
    // A node that could not save the model knows the run but has no file.
    let Ok(mut file) = tokio::fs::File::open(path).await else {
        return Ok(stream.shutdown().await?);
    };
    let mut piece = vec![0; CHUNK_BYTES];
    loop {
        let length = file.read(&mut piece).await?;
        let writing = async {
            write_frame(&mut stream, Kind::Piece, &piece[..length]).await?;
            Ok(stream.flush().await?)
        };
        timeout(times.piece, writing).await.unwrap_or(Err(LinkError::Silent))?;
        if length == 0 {
            return Ok(());
        }
    }
}
