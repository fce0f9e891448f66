//! Messages on a byte stream: one byte of kind, four of length, the contents. Links between nodes and the sockets
//! between a node and its workers speak it.
//!
//! Nothing that a header announces is believed: lengths are bounded by kind, and readers take memory as bytes arrive.

use thiserror::Error;

use crate::batch::FRAME_BYTES_MAX;

/// The bytes of a header.
pub const HEADER_BYTES: usize = 5;
/// What is read at a time of a message that is longer.
pub const CHUNK_BYTES: usize = 64 << 10;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A batch, as its worker encoded it.
    Batch = 1,
    /// What the sender has applied.
    Have = 2,
    /// A word about an origin.
    Origin = 3,
    /// The first message on every connection of the data plane.
    Hello = 4,
    /// A word between a node and its worker.
    Word = 5,
    /// A piece of something larger than a message.
    Piece = 6,
    /// A rarer word between two nodes about batches.
    Note = 7,
}

impl Kind {
    const ALL: [Self; 7] = [
        Self::Batch,
        Self::Have,
        Self::Origin,
        Self::Hello,
        Self::Word,
        Self::Piece,
        Self::Note,
    ];

    /// The longest contents.
    #[must_use]
    pub const fn bytes_max(self) -> usize {
        match self {
            Self::Batch | Self::Word | Self::Piece => FRAME_BYTES_MAX,
            // A frontier of more than this names more origins than a run ever has.
            Self::Have | Self::Note => 128 << 10,
            Self::Origin | Self::Hello => 1 << 10,
        }
    }
}

/// Why a message is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    /// More was announced than such a message may hold.
    #[error("a message of {0} bytes was announced, which is more than such a message may hold")]
    Oversize(u64),
    /// A kind of message that this version does not know.
    #[error("a message of kind {0} came, which this release does not know: bring all nodes to the same release")]
    UnknownKind(u8),
}

/// The header of a message with such contents.
pub fn header(kind: Kind, contents: usize) -> Result<[u8; HEADER_BYTES], FrameError> {
    if contents > kind.bytes_max() {
        return Err(FrameError::Oversize(contents as u64));
    }
    let mut header = [kind as u8, 0, 0, 0, 0];
    header[1..].copy_from_slice(&(contents as u32).to_le_bytes());
    Ok(header)
}

/// What a header announces: a kind, and the length of the contents.
pub fn announced(header: [u8; HEADER_BYTES]) -> Result<(Kind, usize), FrameError> {
    let [kind, length @ ..] = header;
    let kind = Kind::ALL
        .into_iter()
        .find(|known| *known as u8 == kind)
        .ok_or(FrameError::UnknownKind(kind))?;
    let length = u32::from_le_bytes(length) as usize;
    if length > kind.bytes_max() {
        return Err(FrameError::Oversize(length as u64));
    }
    Ok((kind, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_round_trip() {
        for kind in Kind::ALL {
            for length in [0, 1, kind.bytes_max()] {
                assert_eq!(announced(header(kind, length).unwrap()), Ok((kind, length)));
            }
        }
        assert_eq!(header(Kind::Have, 300).unwrap(), [2, 44, 1, 0, 0]);
    }

    #[test]
    fn claims_are_checked() {
        for kind in Kind::ALL {
            let too_long = kind.bytes_max() + 1;
            assert_eq!(header(kind, too_long), Err(FrameError::Oversize(too_long as u64)));
            let mut header = [kind as u8, 0, 0, 0, 0];
            header[1..].copy_from_slice(&(too_long as u32).to_le_bytes());
            assert_eq!(announced(header), Err(FrameError::Oversize(too_long as u64)));
        }
        assert_eq!(announced([0, 1, 0, 0, 0]), Err(FrameError::UnknownKind(0)));
        assert_eq!(announced([99, 1, 0, 0, 0]), Err(FrameError::UnknownKind(99)));
    }
}
