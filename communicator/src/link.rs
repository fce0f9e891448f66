//! A link: messages of the exchange on a byte stream, framed as [`protocol::frame`] says.
//!
//! A batch's contents are the bytes that its worker encoded: they are written as they are, to every peer, without a copy
//! for each. Whoever reads has proven membership, but is believed nothing: lengths are bounded, and memory is taken as
//! bytes arrive, not as they are announced.

use std::io;
use std::sync::Arc;

use protocol::frame::{self, CHUNK_BYTES, FrameError, HEADER_BYTES, Kind};
use protocol::ids::{NodeId, RunId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::exchange::{Message, ParcelKind, Piece};

/// The first message on a connection of the data plane: who calls whom, and what for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Hello {
    /// A link for a run.
    Link {
        /// The caller's release; others may mean other things by the same bytes.
        version: String,
        /// The run.
        run: RunId,
        /// Who calls.
        from: NodeId,
        /// Who is meant.
        to: NodeId,
    },
    /// The answer to a link: it stands.
    Accepted {
        /// Who answers.
        from: NodeId,
    },
    /// The model file of a run, please, in pieces.
    Model {
        /// The run.
        run: RunId,
    },
}

/// Why a link ended.
#[derive(Debug, Error)]
pub enum LinkError {
    /// The connection broke.
    #[error("the connection broke")]
    Broken(#[from] io::Error),
    /// What is announced is not taken.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A message that cannot be read.
    #[error("a message could not be read")]
    Unreadable,
    /// Nothing was heard for too long.
    #[error("nothing was heard from it for too long")]
    Silent,
    /// A kind of message that has no place here.
    #[error("a message came that has no place here")]
    OutOfPlace,
}

/// Writes a frame. Give it a buffered stream, and flush when there is nothing more to write.
///
/// Not to be cancelled: half a message spoils the stream. Drop the stream with the future.
pub async fn write_frame(
    stream: &mut (impl AsyncWrite + Unpin),
    kind: Kind,
    contents: &[u8],
) -> Result<usize, LinkError> {
    stream.write_all(&frame::header(kind, contents.len())?).await?;
    stream.write_all(contents).await?;
    Ok(HEADER_BYTES + contents.len())
}

/// Reads the next frame; `None` where the other side has ended the stream between two.
///
/// Not to be cancelled: what was read of a message is lost with the future. Drop the stream too.
pub async fn read_frame(stream: &mut (impl AsyncRead + Unpin)) -> Result<Option<(Kind, Vec<u8>)>, LinkError> {
    let mut header = [0; HEADER_BYTES];
    if stream.read(&mut header[..1]).await? == 0 {
        return Ok(None);
    }
    stream.read_exact(&mut header[1..]).await?;
    let (kind, length) = frame::announced(header)?;
    let mut contents = Vec::new();
    while contents.len() < length {
        let before = contents.len();
        contents.resize(length.min(before + CHUNK_BYTES), 0);
        stream.read_exact(&mut contents[before..]).await?;
    }
    Ok(Some((kind, contents)))
}

/// The contents of a message in postcard.
pub fn encode(value: &impl Serialize) -> Result<Vec<u8>, LinkError> {
    postcard::to_stdvec(value).map_err(|_| LinkError::Unreadable)
}

/// What contents in postcard hold, to the last byte.
pub fn decode<T: DeserializeOwned>(contents: &[u8]) -> Result<T, LinkError> {
    match postcard::take_from_bytes(contents) {
        Ok((value, [])) => Ok(value),
        _ => Err(LinkError::Unreadable),
    }
}

/// Writes a message, and tells its bytes. As [`write_frame`], not to be cancelled.
pub async fn write_message(stream: &mut (impl AsyncWrite + Unpin), message: &Message) -> Result<usize, LinkError> {
    match message {
        Message::Batch(bytes) => write_frame(stream, Kind::Batch, bytes).await,
        Message::Have(frontier) => write_frame(stream, Kind::Have, &encode(frontier)?).await,
        Message::Origin(info) => write_frame(stream, Kind::Origin, &encode(info)?).await,
        Message::Word(word) => write_frame(stream, Kind::Note, &encode(word)?).await,
        Message::Piece(piece) => {
            let mut contents = encode(&(piece.kind, piece.total, piece.offset))?;
            contents.extend_from_slice(&piece.bytes);
            write_frame(stream, Kind::Piece, &contents).await
        }
    }
}

fn decode_piece(contents: &[u8]) -> Result<Piece, LinkError> {
    let head = postcard::take_from_bytes::<(ParcelKind, u64, u64)>(contents);
    let ((kind, total, offset), bytes) = head.map_err(|_| LinkError::Unreadable)?;
    Ok(Piece {
        kind,
        total,
        offset,
        bytes: bytes.into(),
    })
}

/// Reads the next message and its bytes; `None` where the peer has ended the link between two. As [`read_frame`], not
/// to be cancelled.
pub async fn read_message(stream: &mut (impl AsyncRead + Unpin)) -> Result<Option<(Message, usize)>, LinkError> {
    let Some((kind, contents)) = read_frame(stream).await? else {
        return Ok(None);
    };
    let bytes = HEADER_BYTES + contents.len();
    let message = match kind {
        Kind::Batch => Message::Batch(Arc::from(contents)),
        Kind::Have => Message::Have(decode(&contents)?),
        Kind::Origin => Message::Origin(decode(&contents)?),
        Kind::Piece => Message::Piece(decode_piece(&contents)?),
        Kind::Note => Message::Word(decode(&contents)?),
        Kind::Hello | Kind::Word => return Err(LinkError::OutOfPlace),
    };
    Ok(Some((message, bytes)))
}

/// Writes the first message of a connection, and flushes it.
pub async fn write_hello(stream: &mut (impl AsyncWrite + Unpin), hello: &Hello) -> Result<(), LinkError> {
    write_frame(stream, Kind::Hello, &encode(hello)?).await?;
    stream.flush().await?;
    Ok(())
}

/// Reads the first message of a connection.
pub async fn read_hello(stream: &mut (impl AsyncRead + Unpin)) -> Result<Hello, LinkError> {
    match read_frame(stream).await? {
        Some((Kind::Hello, contents)) => decode(&contents),
        Some(_) => Err(LinkError::OutOfPlace),
        None => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
    }
}

#[cfg(test)]
mod tests {
    use protocol::batch::FRAME_BYTES_MAX;
    use protocol::frontier::Frontier;
    use protocol::ids::OriginId;

    use super::*;
    use crate::exchange::{OriginInfo, Word};

    fn have() -> Message {
        let mut frontier = Frontier::default();
        frontier.raise(OriginId(7), 300);
        frontier.raise(OriginId(9), 1);
        Message::Have(frontier)
    }

    fn origin() -> Message {
        Message::Origin(OriginInfo {
            origin: OriginId(7),
            home: NodeId(5),
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
            Message::Word(Word::Got(7)),
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
        assert!(matches!(read(&[2, 1, 0, 0, 0, 255]).await, Err(LinkError::Unreadable)));
        assert!(matches!(read(&[2, 2, 0, 0, 0, 0, 0]).await, Err(LinkError::Unreadable)));
        assert!(matches!(read(&[5, 0, 0, 0, 0]).await, Err(LinkError::OutOfPlace)));
        // Sixteen megabytes announced, none sent.
        assert!(matches!(read(&[1, 0, 0, 0, 1]).await, Err(LinkError::Broken(_))));
        let oversize = Message::Batch(vec![0; FRAME_BYTES_MAX + 1].into());
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
        assert!(matches!(read_hello(&mut &other[..]).await, Err(LinkError::OutOfPlace)));
    }
}
