//! A link: messages of the exchange on a byte stream.
//!
//! Each message is one byte of kind, four of length, and its contents. A batch's contents are the bytes that its worker
//! encoded: they are written as they are, to every peer, without a copy for each. Whoever reads has proven membership, but is
//! believed nothing: lengths are bounded, and memory is taken as bytes arrive, not as they are announced.

use std::io;
use std::sync::Arc;

use protocol::batch::FRAME_BYTES_MAX;
use protocol::frontier::Frontier;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::exchange::Message;

/// A frontier longer than this names more origins than a run ever has.
const HAVE_BYTES_MAX: usize = 64 << 10;
const BATCH: u8 = 1;
const HAVE: u8 = 2;
/// What is read at a time of a message that is longer.
const CHUNK_BYTES: usize = 64 << 10;

/// Why a link ended.
#[derive(Debug, Error)]
pub enum LinkError {
    /// The connection broke.
    #[error("the connection broke")]
    Broken(#[from] io::Error),
    /// The peer announced more than a message may hold.
    #[error("a message of {0} bytes was announced, but {FRAME_BYTES_MAX} are allowed")]
    Oversize(u64),
    /// A kind of message that this version does not know.
    #[error("a message of kind {0} came, which this release does not know: bring all nodes to the same release")]
    UnknownKind(u8),
    /// A message that cannot be read.
    #[error("a message could not be read")]
    Unreadable,
}

/// Writes a message. Give it a buffered stream, and flush when there is nothing more to write.
///
/// Not to be cancelled: half a message spoils the link. Drop the stream with the future.
pub async fn write_message(stream: &mut (impl AsyncWrite + Unpin), message: &Message) -> Result<(), LinkError> {
    let encoded;
    let (kind, contents): (u8, &[u8]) = match message {
        Message::Batch(bytes) => (BATCH, bytes),
        Message::Have(frontier) => {
            encoded = postcard::to_stdvec(frontier).map_err(|_| LinkError::Unreadable)?;
            (HAVE, &encoded)
        }
    };
    if contents.len() > FRAME_BYTES_MAX {
        return Err(LinkError::Oversize(contents.len() as u64));
    }
    let mut header = [kind, 0, 0, 0, 0];
    header[1..].copy_from_slice(&(contents.len() as u32).to_le_bytes());
    stream.write_all(&header).await?;
    stream.write_all(contents).await?;
    Ok(())
}

/// Reads the next message; `None` where the peer has ended the link between two.
///
/// Not to be cancelled: what was read of a message is lost with the future. Drop the stream too.
pub async fn read_message(stream: &mut (impl AsyncRead + Unpin)) -> Result<Option<Message>, LinkError> {
    let mut header = [0; 5];
    if stream.read(&mut header[..1]).await? == 0 {
        return Ok(None);
    }
    stream.read_exact(&mut header[1..]).await?;
    let [kind, length @ ..] = header;
    if kind != BATCH && kind != HAVE {
        return Err(LinkError::UnknownKind(kind));
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > if kind == HAVE { HAVE_BYTES_MAX } else { FRAME_BYTES_MAX } {
        return Err(LinkError::Oversize(length as u64));
    }
    let mut contents = Vec::new();
    while contents.len() < length {
        let before = contents.len();
        contents.resize(length.min(before + CHUNK_BYTES), 0);
        stream.read_exact(&mut contents[before..]).await?;
    }
    if kind == BATCH {
        return Ok(Some(Message::Batch(Arc::from(contents))));
    }
    match postcard::take_from_bytes::<Frontier>(&contents) {
        Ok((frontier, [])) => Ok(Some(Message::Have(frontier))),
        _ => Err(LinkError::Unreadable),
    }
}

#[cfg(test)]
mod tests {
    use protocol::ids::OriginId;

    use super::*;

    fn have() -> Message {
        let mut frontier = Frontier::default();
        frontier.raise(OriginId(7), 300);
        frontier.raise(OriginId(9), 1);
        Message::Have(frontier)
    }

    async fn written(messages: &[Message]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for message in messages {
            write_message(&mut bytes, message).await.unwrap();
        }
        bytes
    }

    #[tokio::test]
    async fn messages_come_back_in_order() {
        let long = Message::Batch(vec![3; 3 * CHUNK_BYTES + 5].into());
        let messages = [
            have(),
            Message::Batch(vec![1, 2].into()),
            long,
            Message::Batch(Vec::new().into()),
            have(),
        ];
        let bytes = written(&messages).await;
        let mut stream = &bytes[..];
        for message in messages {
            assert_eq!(read_message(&mut stream).await.unwrap(), Some(message));
        }
        assert_eq!(read_message(&mut stream).await.unwrap(), None);
    }

    #[tokio::test]
    async fn golden_bytes() {
        let messages = [Message::Batch(vec![0xab, 0xcd].into()), have()];
        assert_eq!(
            written(&messages).await,
            [1, 2, 0, 0, 0, 0xab, 0xcd, 2, 6, 0, 0, 0, 2, 7, 0xac, 2, 9, 1]
        );
    }

    #[tokio::test]
    async fn a_message_that_is_cut_off_is_no_message() {
        let bytes = written(&[have()]).await;
        for end in 1..bytes.len() {
            assert!(
                matches!(read_message(&mut &bytes[..end]).await, Err(LinkError::Broken(_))),
                "cut at {end}"
            );
        }
    }

    #[tokio::test]
    async fn claims_are_checked_before_they_are_believed() {
        let read = async |bytes: &[u8]| read_message(&mut &*bytes).await;
        assert!(matches!(
            read(&[1, 255, 255, 255, 255]).await,
            Err(LinkError::Oversize(_))
        ));
        assert!(matches!(read(&[2, 1, 0, 1, 0]).await, Err(LinkError::Oversize(65_537))));
        assert!(matches!(
            read(&[9, 1, 0, 0, 0, 0]).await,
            Err(LinkError::UnknownKind(9))
        ));
        assert!(matches!(read(&[2, 1, 0, 0, 0, 255]).await, Err(LinkError::Unreadable)));
        assert!(matches!(read(&[2, 2, 0, 0, 0, 0, 0]).await, Err(LinkError::Unreadable)));
        // Sixteen megabytes announced, none sent.
        assert!(matches!(read(&[1, 0, 0, 0, 1]).await, Err(LinkError::Broken(_))));
        let oversize = Message::Batch(vec![0; FRAME_BYTES_MAX + 1].into());
        assert!(matches!(
            write_message(&mut Vec::new(), &oversize).await,
            Err(LinkError::Oversize(_))
        ));
    }
}
