//! A link: messages of the exchange on an asynchronous byte stream. [`protocol::wire`] declares messages and frames;
//! this module reads and writes them.

use std::io;

use protocol::wire::frame::{self, Decoder, FrameError, HEADER_BYTES, Kind};
use protocol::wire::link::{Hello, Message, MessageError};
use protocol::wire::{Unreadable, decode, encode};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Reason for which a link (a data-plane connection between two nodes) ended.
#[derive(Debug, Error)]
pub enum LinkError {
    /// The link's connection broke.
    #[error("the connection broke")]
    Broken(#[from] io::Error),
    /// The other side announced a frame of an unknown kind, or one that is too long for its kind.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A frame held no message that a link may carry.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// The link was ended because the other side was silent for too long.
    #[error("the other end of the connection did not respond in time")]
    Silent,
}

impl From<Unreadable> for LinkError {
    fn from(error: Unreadable) -> Self {
        Self::Message(error.into())
    }
}

/// Writes a frame, and returns its length in bytes. The stream should be buffered, and flushed when there is nothing
/// more to write.
///
/// Must not be cancelled: half a frame spoils the stream. Drop the stream together with the future.
pub async fn write_frame(
    stream: &mut (impl AsyncWrite + Unpin),
    kind: Kind,
    contents: &[u8],
) -> Result<usize, LinkError> {
    stream.write_all(&frame::header(kind, contents.len())?).await?;
    stream.write_all(contents).await?;
    Ok(HEADER_BYTES + contents.len())
}

/// Reads the next frame; `None` if the other side has ended the stream between two frames.
///
/// Must not be cancelled: the bytes that were read of a frame are lost with the future. Drop the stream, too.
pub async fn read_frame(stream: &mut (impl AsyncRead + Unpin)) -> Result<Option<(Kind, Vec<u8>)>, LinkError> {
    let mut decoder = Decoder::default();
    loop {
        let bytes = stream.read(decoder.room()).await?;
        if bytes == 0 && decoder.is_between_frames() {
            return Ok(None);
        }
        if bytes == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        if let Some(frame) = decoder.advance(bytes)? {
            return Ok(Some(frame));
        }
    }
}

/// Writes a message, and returns its length in bytes. Must not be cancelled, like [`write_frame`].
pub async fn write_message(stream: &mut (impl AsyncWrite + Unpin), message: &Message) -> Result<usize, LinkError> {
    let (kind, contents) = message.encode()?;
    write_frame(stream, kind, &contents).await
}

/// Reads the next message, and returns it with its length in bytes; `None` if the peer has ended the link between two
/// messages. Must not be cancelled, like [`read_frame`].
pub async fn read_message(stream: &mut (impl AsyncRead + Unpin)) -> Result<Option<(Message, usize)>, LinkError> {
    let Some((kind, contents)) = read_frame(stream).await? else {
        return Ok(None);
    };
    let bytes = HEADER_BYTES + contents.len();
    Ok(Some((Message::decode(kind, contents)?, bytes)))
}

/// Writes the first message of a data-plane connection, which says what the connection is for, and flushes it.
pub async fn write_hello(stream: &mut (impl AsyncWrite + Unpin), hello: &Hello) -> Result<(), LinkError> {
    write_frame(stream, Kind::Hello, &encode(hello)?).await?;
    stream.flush().await?;
    Ok(())
}

/// Reads the first message of a data-plane connection, which says what the connection is for.
pub async fn read_hello(stream: &mut (impl AsyncRead + Unpin)) -> Result<Hello, LinkError> {
    match read_frame(stream).await? {
        Some((Kind::Hello, contents)) => Ok(decode(&contents)?),
        Some(_) => Err(MessageError::OutOfPlace.into()),
        None => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
    }
}

#[cfg(test)]
mod tests {
    use protocol::ids::OriginId;
    use protocol::log::batch::BATCH_BYTES_MAX;
    use protocol::log::frontier::Frontier;

    use super::*;
    use protocol::ids::{NodeId, RunId};
    use protocol::wire::frame::CHUNK_BYTES;
    use protocol::wire::link::{Note, OriginInfo, ParcelKind, Piece};

    fn have() -> Message {
        let mut frontier = Frontier::default();
        frontier.raise(OriginId(7), 300);
        frontier.raise(OriginId(9), 1);
        Message::Have(frontier)
    }

    fn origin() -> Message {
        Message::Origin(OriginInfo {
            origin: OriginId(7),
            node: NodeId(5),
            slot: 2,
            ended: Some(300),
        })
    }

    async fn written(messages: &[Message]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for message in messages {
            let before = bytes.len();
            let told = write_message(&mut bytes, message).await.unwrap();
            assert_eq!(told, bytes.len() - before);
        }
        bytes
    }

    #[tokio::test]
    async fn messages_come_back_in_order() {
        let long = Message::Batch(vec![3; 3 * CHUNK_BYTES + 5].into());
        let messages = [
            origin(),
            have(),
            Message::Batch(vec![1, 2].into()),
            long,
            Message::Batch(Vec::new().into()),
            have(),
            Message::Piece(Piece {
                kind: ParcelKind::Snapshot,
                total: 1 << 40,
                offset: 77,
                bytes: vec![5; 300].into(),
            }),
            Message::Note(Note::Got(7)),
        ];
        let bytes = written(&messages).await;
        let mut stream = &bytes[..];
        for message in messages {
            let before = stream.len();
            let (read, told) = read_message(&mut stream).await.unwrap().unwrap();
            assert_eq!((read, told), (message, before - stream.len()));
        }
        assert_eq!(read_message(&mut stream).await.unwrap(), None);
    }

    #[tokio::test]
    async fn golden_bytes() {
        let messages = [Message::Batch(vec![0xab, 0xcd].into()), have(), origin()];
        assert_eq!(
            written(&messages).await,
            [
                1, 2, 0, 0, 0, 0xab, 0xcd, 2, 6, 0, 0, 0, 2, 7, 0xac, 2, 9, 1, 3, 6, 0, 0, 0, 7, 5, 2, 1, 0xac, 2
            ]
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
        for oversize in [[1, 255, 255, 255, 255], [2, 1, 0, 2, 0]] {
            let error = read(&oversize).await;
            assert!(matches!(error, Err(LinkError::Frame(FrameError::Oversize(_)))));
        }
        assert!(matches!(
            read(&[2, 1, 0, 0, 0, 255]).await,
            Err(LinkError::Message(MessageError::Unreadable(_)))
        ));
        assert!(matches!(
            read(&[2, 2, 0, 0, 0, 0, 0]).await,
            Err(LinkError::Message(MessageError::Unreadable(_)))
        ));
        assert!(matches!(
            read(&[5, 0, 0, 0, 0]).await,
            Err(LinkError::Message(MessageError::OutOfPlace))
        ));
        // Sixteen megabytes announced, none sent.
        assert!(matches!(read(&[1, 0, 0, 0, 1]).await, Err(LinkError::Broken(_))));
        let oversize = Message::Batch(vec![0; BATCH_BYTES_MAX + 1].into());
        assert!(matches!(
            write_message(&mut Vec::new(), &oversize).await,
            Err(LinkError::Frame(FrameError::Oversize(_)))
        ));
    }

    #[tokio::test]
    async fn a_connection_begins_with_a_hello() {
        let hello = Hello::Link {
            version: "1".into(),
            run: RunId(3),
            from: NodeId(1),
            to: NodeId(2),
        };
        let mut bytes = Vec::new();
        write_hello(&mut bytes, &hello).await.unwrap();
        assert_eq!(read_hello(&mut &bytes[..]).await.unwrap(), hello);
        assert!(read_hello(&mut &[][..]).await.is_err());
        let other = written(&[have()]).await;
        assert!(matches!(
            read_hello(&mut &other[..]).await,
            Err(LinkError::Message(MessageError::OutOfPlace))
        ));
    }
}
