//! Framing of messages on a byte stream: one byte for the kind, four for the length, then the contents. Used on links
//! between nodes and on the sockets between a node and its workers.
//!
//! A header's claims are not trusted: lengths are limited by kind, and memory is reserved only as bytes arrive. One
//! [`Decoder`] without I/O of its own serves blocking and asynchronous readers.

use thiserror::Error;

use crate::log::batch::BATCH_BYTES_MAX;

/// Length of a frame's header in bytes.
pub const HEADER_BYTES: usize = 5;
/// Most bytes by which the buffer for a message grows at a time, as the bytes arrive: the length in a header is only a
/// claim.
pub const CHUNK_BYTES: usize = 64 << 10;

/// The kind of a message, as the first byte of its frame says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A batch (a worker's weight changes and their header), as its worker encoded it.
    Batch = 1,
    /// The sender's frontier: the last batch of each worker that the sender has applied.
    Have = 2,
    /// The announcement of an origin (a worker's stream of batches), or of its end.
    Origin = 3,
    /// Kind of the first message on every connection of the data plane, which carries batches and model files.
    Hello = 4,
    /// Kind of a message between a node and one of its workers.
    Message = 5,
    /// A piece of a parcel (a message between nodes that is too large to be sent whole) or of a model file.
    Piece = 6,
    /// A short message between two nodes about batches, as [`Note`](super::link::Note) lists them.
    Note = 7,
    /// A bundle: batches of several workers, added up to one.
    Bundle = 8,
    /// Kind of a message with a part of a round: the sum of the round's batches for one section of the weights, which
    /// is added up from node to node.
    Part = 9,
    /// Kind of a message with a prefix: the sum of some workers' differences in sequential averaging, on its way to the
    /// next worker.
    Prefix = 10,
    /// A message between the workers of a pipeline, such as activations or gradients.
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

    /// Returns the maximum length in bytes of the contents of a message of this kind.
    #[must_use]
    pub const fn bytes_max(self) -> usize {
        match self {
            Self::Batch | Self::Message | Self::Piece | Self::Bundle | Self::Part | Self::Prefix | Self::Flow => {
                BATCH_BYTES_MAX
            }
            // A frontier longer than this would name more origins than a run ever has.
            Self::Have | Self::Note => 128 << 10,
            Self::Origin | Self::Hello => 1 << 10,
        }
    }
}

/// Reason why the header of a received frame is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    /// The header announces more bytes than a message of its kind may have.
    #[error("a message header announces {0} bytes, more than a message of its kind may hold")]
    Oversize(u64),
    /// The kind of message is unknown to this release.
    #[error("received a message of unknown kind {0}: bring all nodes to the same release")]
    UnknownKind(u8),
}

/// Returns the frame header of a message whose contents have this many bytes.
pub fn header(kind: Kind, contents: usize) -> Result<[u8; HEADER_BYTES], FrameError> {
    if contents > kind.bytes_max() {
        return Err(FrameError::Oversize(contents as u64));
    }
    let mut header = [kind as u8, 0, 0, 0, 0];
    header[1..].copy_from_slice(&(contents as u32).to_le_bytes());
    Ok(header)
}

/// Parses a frame header into the kind and the length of the contents, and checks both.
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

/// A received message: its kind and its contents.
pub type Frame = (Kind, Vec<u8>);

/// Extracts frames from a byte stream. The caller writes bytes into [`Decoder::room`] and reports their number to
/// [`Decoder::advance`].
#[derive(Debug, Default)]
pub struct Decoder {
    header: [u8; HEADER_BYTES],
    announced: Option<(Kind, usize)>,
    contents: Vec<u8>,
    /// Number of bytes that have arrived of the current frame's header or, after that, of its contents.
    come: usize,
}

impl Decoder {
    /// Returns the buffer for the next bytes of the stream, of at least one byte. The buffer never extends into the
    /// next frame.
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

    /// Takes in the bytes that were written to [`Decoder::room`]. Returns the frame if they complete one.
    ///
    /// # Panics
    /// If `bytes` is larger than the buffer was.
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

    /// Returns true if no byte of a frame has come yet: a stream that ends here has ended cleanly.
    #[must_use]
    pub fn is_between_frames(&self) -> bool {
        self.announced.is_none() && self.come == 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns all frames of a stream that is read in chunks whose sizes are `stages`, over and over, and true if it
    /// ends after a whole frame.
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
