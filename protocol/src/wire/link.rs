//! What nodes say to each other about batches, on a connection of the data plane.

use std::borrow::Cow;
use std::sync::Arc;

use crate::ids::{NodeId, OriginId, RunId};
use crate::log::frontier::{Frontier, SequenceRange};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::frame::Kind;
use super::part::RoundPart;
use super::prefix::Prefix;
use super::{Unreadable, decode, encode};

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

/// What is known of an origin. It is told before the origin's first batch, on the same link, so that no batch comes
/// from nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginInfo {
    /// Its name.
    pub origin: OriginId,
    /// The node that its worker belongs to.
    pub node: NodeId,
    /// The worker's place in the run.
    pub slot: u32,
    /// Its last sequence, once there will be no more: it was closed, or its worker is gone.
    pub ended: Option<u64>,
}

impl OriginInfo {
    /// The slot of origins whose workers were there before a checkpoint.
    pub const NO_SLOT: u32 = u32::MAX;
}

/// One message on the data plane.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// The announcement of an origin, or of its end.
    Origin(OriginInfo),
    /// A batch, as encoded by its worker.
    Batch(Arc<[u8]>),
    /// What the sender has applied. Said on every link once origins are told, unless the sender is a newcomer, and then
    /// again whenever it has grown.
    Have(Frontier),
    /// A piece of what is larger than a batch.
    Piece(Piece),
    /// A part of a round that is being added up on its way.
    Part(RoundPart),
    /// What the first workers of a pass have come to.
    Prefix(Prefix),
    /// What passes between the workers of a pipeline, as its worker encoded it.
    Flow(Arc<[u8]>),
    /// A shorter message.
    Note(Note),
}

/// The rarer and shorter messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Note {
    /// The sender knows what it has applied since here, and so can take ranges that begin here, whatever it gets
    /// meanwhile. Answered with [`Note::Marked`].
    Mark {
        /// Counts the sender's marks for the receiver.
        number: u64,
        /// What the sender has applied.
        frontier: Frontier,
        /// Whom the sender knows. It may have let them in, with what it had, and the receiver may never have heard of
        /// them: from now on it keeps what they may need.
        members: Vec<NodeId>,
    },
    /// A mark is taken: ranges begin there or later.
    Marked {
        /// Its number.
        number: u64,
        /// Origins of which the sender had merged batches over it before it came: their ranges begin at the mark before.
        except: Vec<OriginId>,
    },
    /// So many bytes of the present parcel have come.
    Got(u64),
    /// A range cannot be taken: it begins where the sender of this has forgotten what it had.
    Cannot(SequenceRange),
    /// What the receiver lacks is not kept any more: it has to ask for a snapshot.
    TooFar,
    /// A snapshot, please.
    Ask,
    /// The sender has nothing and takes nothing before it has a snapshot: it asks one member for it. Said at the start
    /// of a link in place of [`Message::Have`], which follows when it has one, and now and then until it does.
    Newcomer,
    /// Whom the sender has links to. Where two have none to each other, a third hands on what they make.
    Links(Vec<NodeId>),
}

/// What a parcel holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ParcelKind {
    /// A merged range.
    Range,
    /// A snapshot.
    Snapshot,
    /// A bundle.
    Bundle,
}

/// Some bytes of a parcel. They come in order; a parcel takes effect when it is whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// What the parcel holds.
    pub kind: ParcelKind,
    /// The bytes of the whole parcel.
    pub total: u64,
    /// Where these begin.
    pub offset: u64,
    /// The bytes.
    pub bytes: Arc<[u8]>,
}

/// Why a frame is no message of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MessageError {
    /// Its contents make no sense.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// Its kind belongs elsewhere.
    #[error("received a message of a kind that links between nodes do not carry")]
    OutOfPlace,
}

impl Message {
    /// Its kind and contents. A batch's contents are the bytes that its worker encoded, without a copy for each peer.
    pub fn encode(&self) -> Result<(Kind, Cow<'_, [u8]>), Unreadable> {
        Ok(match self {
            Self::Batch(bytes) => (Kind::Batch, Cow::Borrowed(bytes)),
            Self::Flow(bytes) => (Kind::Flow, Cow::Borrowed(bytes)),
            Self::Have(frontier) => (Kind::Have, encode(frontier)?.into()),
            Self::Origin(info) => (Kind::Origin, encode(info)?.into()),
            Self::Note(note) => (Kind::Note, encode(note)?.into()),
            Self::Part(part) => (Kind::Part, part.encode()?.into()),
            Self::Prefix(prefix) => (Kind::Prefix, prefix.encode()?.into()),
            Self::Piece(piece) => {
                let mut contents = encode(&(piece.kind, piece.total, piece.offset))?;
                contents.extend_from_slice(&piece.bytes);
                (Kind::Piece, contents.into())
            }
        })
    }

    /// The message that a frame holds.
    pub fn decode(kind: Kind, contents: Vec<u8>) -> Result<Self, MessageError> {
        Ok(match kind {
            Kind::Batch => Self::Batch(contents.into()),
            Kind::Flow => Self::Flow(contents.into()),
            Kind::Have => Self::Have(decode(&contents)?),
            Kind::Origin => Self::Origin(decode(&contents)?),
            Kind::Piece => Self::Piece(Piece::decode(&contents)?),
            Kind::Note => Self::Note(decode(&contents)?),
            Kind::Part => Self::Part(RoundPart::decode(&contents)?),
            Kind::Prefix => Self::Prefix(Prefix::decode(&contents)?),
            Kind::Hello | Kind::Message | Kind::Bundle => return Err(MessageError::OutOfPlace),
        })
    }
}

impl Piece {
    fn decode(contents: &[u8]) -> Result<Self, Unreadable> {
        let head = postcard::take_from_bytes(contents);
        let ((kind, total, offset), bytes) = head.map_err(|_| Unreadable)?;
        Ok(Self {
            kind,
            total,
            offset,
            bytes: bytes.into(),
        })
    }
}
