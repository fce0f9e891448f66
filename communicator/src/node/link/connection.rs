//! One connection of a link: dialling the peer, reading and writing.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use protocol::ids::NodeId;
use protocol::wire::link::Hello;
use protocol::wire::link::Message;
use protocol::wire::link::MessageError;
use ractor::DerivedActorRef;
use tokio::io::{AsyncWriteExt, BufWriter};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

use super::messages::{LinkNotice, Traffic};
use crate::link::{LinkError, read_hello, read_message, write_hello, write_message};
use crate::node::mailbox::acquire;
use crate::transport::{Plane, Security, Stream, dial};

/// Maximum number of messages from one peer that were read and not handled yet. With more, the peer has to wait.
const INBOX_MAX: usize = 64;

/// Dials a peer, and checks that the node that answers is the one that was meant.
pub(super) async fn connect(
    address: SocketAddr,
    node: NodeId,
    security: &Security,
    hello: &Hello,
    limit: Duration,
) -> Result<Stream, LinkError> {
    let dialled = dial(address, Plane::Data, security, limit).await;
    let mut stream = dialled.map_err(|error| LinkError::Broken(std::io::Error::other(error)))?;
    let answer = async {
        write_hello(&mut stream, hello).await?;
        read_hello(&mut stream).await
    };
    match timeout(limit, answer).await {
        Ok(Ok(Hello::Accepted { from })) if from == node => Ok(stream),
        Ok(Err(error)) => Err(error),
        Ok(Ok(_)) => Err(MessageError::OutOfPlace.into()),
        Err(_) => Err(LinkError::Broken(std::io::ErrorKind::TimedOut.into())),
    }
}

/// Reads messages from a connection and sends them to the parent actor, until the connection ends.
pub(super) async fn read(
    mut reader: impl tokio::io::AsyncRead + Unpin,
    peer: NodeId,
    generation: u64,
    traffic: Arc<Traffic>,
    parent: DerivedActorRef<LinkNotice>,
) -> Result<(), LinkError> {
    let room = Arc::new(Semaphore::new(INBOX_MAX));
    while let Some((message, bytes)) = read_message(&mut reader).await? {
        traffic.bytes_in.fetch_add(bytes as u64, Ordering::Relaxed);
        let permit = acquire(&room).await;
        let received = LinkNotice::Received {
            peer,
            generation,
            message,
            permit,
        };
        if parent.send_message(received).is_err() {
            break;
        }
    }
    Ok(())
}

/// Writes the messages of a link's queue to its connection, until no sender of the queue is left.
pub(super) async fn write(
    mut writer: BufWriter<impl tokio::io::AsyncWrite + Unpin>,
    mut messages: mpsc::Receiver<Message>,
    traffic: Arc<Traffic>,
) -> Result<(), LinkError> {
    while let Some(message) = messages.recv().await {
        let bytes = write_message(&mut writer, &message).await?;
        traffic.bytes_out.fetch_add(bytes as u64, Ordering::Relaxed);
        if messages.is_empty() {
            writer.flush().await?;
        }
    }
    Ok(())
}
