//! Messages on a byte stream: one byte of kind, four of length, the contents. Links between nodes and the sockets
//! between a node and its workers speak it.
//!
//! Nothing that a header announces is believed: lengths are bounded by kind, and memory is taken as bytes arrive. One
//! [`Decoder`] without input and output of its own serves everybody, whether the reader blocks or awaits.

use thiserror::Error;

use crate::log::batch::BATCH_BYTES_MAX;

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
    /// A message about an origin.
    Origin = 3,
    /// The first message on every connection of the data plane.
    Hello = 4,
    /// A message between a node and its worker.
    Message = 5,
    /// A piece of something larger than a message.
    Piece = 6,
    /// A rarer message between two nodes about batches.
    Note = 7,
    /// Batches of several workers, added up.
    Bundle = 8,
    /// A part of a round that is being added up on its way.
    Part = 9,
    /// What the first workers of a pass have come to.
    Prefix = 10,
    /// What passes between the workers of a pipeline.
    Flow = 11,
}

impl Kind {
    const ALL: [Self; 11] = [
        Self::Batch,
        Self::Have,
        Self::Origin,
        Self::Hello,
        Self::Message,
        Self::Piece,
        Self::Note,
        Self::Bundle,
        Self::Part,
        Self::Prefix,
        Self::Flow,
    ];

    /// The longest contents.
    #[must_use]
    pub const fn bytes_max(self) -> usize {
        match self {
            Self::Batch | Self::Message | Self::Piece | Self::Bundle | Self::Part | Self::Prefix | Self::Flow => {
                BATCH_BYTES_MAX
            }
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
    #[error("a message header announces {0} bytes, more than a message of its kind may hold")]
    Oversize(u64),
    /// A kind of message that this version does not know.
    #[error("received a message of unknown kind {0}: bring all nodes to the same release")]
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

/// A message as it came: what it is, and its contents.
pub type Frame = (Kind, Vec<u8>);

/// Takes frames out of a stream: it says where the next bytes belong, and is told how many have come.
#[derive(Debug, Default)]
pub struct Decoder {
    header: [u8; HEADER_BYTES],
    announced: Option<(Kind, usize)>,
    contents: Vec<u8>,
    /// The bytes that have come of what is read now: the header, or the contents.
    come: usize,
}

impl Decoder {
    /// Where the next bytes are to be written; there is always room for one at least. It never reaches into the next
    /// frame.
    pub fn room(&mut self) -> &mut [u8] {
        match self.announced {
            None => &mut self.header[self.come..],
            Some((_, length)) => {
                let end = length.min(self.come + CHUNK_BYTES);
                if self.contents.len() < end {
                    self.contents.resize(end, 0);
                }
                &mut self.contents[self.come..end]
            }
        }
    }

    /// So many bytes were written there. Returns the frame if that was the last of it.
    ///
    /// # Panics
    /// If there was no room for so many.
    pub fn advance(&mut self, bytes: usize) -> Result<Option<Frame>, FrameError> {
        self.come += bytes;
        let (kind, length) = if let Some(announced) = self.announced {
            announced
        } else {
            assert!(
                self.come <= HEADER_BYTES,
                "the caller wrote more bytes than the decoder gave room for"
            );
            if self.come < HEADER_BYTES {
                return Ok(None);
            }
            self.come = 0;
            *self.announced.insert(announced(self.header)?)
        };
        assert!(
            self.come <= self.contents.len(),
            "the caller wrote more bytes than the decoder gave room for"
        );
        if self.come < length {
            return Ok(None);
        }
        let contents = std::mem::take(self).contents;
        Ok(Some((kind, contents)))
    }

    /// Whether nothing of a frame has come yet: a stream that ends here has ended well.
    #[must_use]
    pub fn is_between_frames(&self) -> bool {
        self.announced.is_none() && self.come == 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// All frames of a stream, read in stages of these sizes, over and over.
    fn frames(mut stream: &[u8], stages: &[usize]) -> Result<(Vec<Frame>, bool), FrameError> {
        let mut decoder = Decoder::default();
        let mut found = Vec::new();
        let mut stages = stages.iter().cycle();
        while !stream.is_empty() {
            let room = decoder.room();
            let count = room.len().min(stream.len()).min(*stages.next().unwrap());
            room[..count].copy_from_slice(&stream[..count]);
            stream = &stream[count..];
            found.extend(decoder.advance(count)?);
        }
        Ok((found, decoder.is_between_frames()))
    }

    proptest! {
        #[test]
        fn frames_come_out_whole_however_they_arrive(
            lengths in proptest::collection::vec(prop_oneof![0..10usize, 0..200_000usize], 1..6),
            stages in proptest::collection::vec(1..100_000usize, 1..5),
            cut: prop::sample::Index,
        ) {
            let kinds = [Kind::Batch, Kind::Message, Kind::Piece];
            let expected: Vec<Frame> = lengths
                .iter()
                .enumerate()
                .map(|(at, &length)| (kinds[at % 3], (0..length).map(|byte| byte as u8).collect()))
                .collect();
            let mut stream = Vec::new();
            let mut ends = vec![0];
            for (kind, contents) in &expected {
                stream.extend(header(*kind, contents.len()).unwrap());
                stream.extend_from_slice(contents);
                ends.push(stream.len());
            }
            prop_assert_eq!(frames(&stream, &stages), Ok((expected.clone(), true)));
            let cut = cut.index(stream.len());
            let whole = ends.iter().filter(|&&end| 0 < end && end <= cut).count();
            let (found, between) = frames(&stream[..cut], &stages).unwrap();
            prop_assert_eq!(&found[..], &expected[..whole]);
            prop_assert_eq!(between, ends.contains(&cut));
        }
    }

    #[test]
    fn memory_is_taken_as_bytes_arrive() {
        let mut decoder = Decoder::default();
        let announced = header(Kind::Batch, Kind::Batch.bytes_max()).unwrap();
        decoder.room().copy_from_slice(&announced);
        assert_eq!(decoder.advance(HEADER_BYTES), Ok(None));
        assert_eq!(decoder.room().len(), CHUNK_BYTES);
        assert!(decoder.contents.capacity() <= 2 * CHUNK_BYTES);
    }

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
