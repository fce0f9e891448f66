//! Messages between nodes about batches, on connections of the data plane.

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

/// The first message on a connection of the data plane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Hello {
    /// Asks to set up a link for a run.
    Link {
        /// The caller's release: with another release, the same bytes may have another meaning.
        version: String,
        run: RunId,
        /// Id of the node that opened the connection.
        from: NodeId,
        /// Id of the node that the connection is meant for.
        to: NodeId,
    },
    /// Accepts a link, in answer to [`Hello::Link`].
    Accepted {
        /// Id of the node that answers.
        from: NodeId,
    },
    /// Requests the model file of a run, which is sent in pieces.
    Model { run: RunId },
}

/// Facts about an origin. They are sent before the origin's first batch on the same link, so that every batch has a
/// known origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginInfo {
    /// The origin's id.
    pub origin: OriginId,
    /// The origin's node.
    pub node: NodeId,
    /// The slot of the origin's worker.
    pub slot: u32,
    /// The last sequence of an origin that emits no further batches, because it was closed or its worker is gone.
    pub ended: Option<u64>,
}

impl OriginInfo {
    /// Slot of origins whose workers trained before the checkpoint from which a run was resumed.
    pub const NO_SLOT: u32 = u32::MAX;
}

/// A message on a link.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// The announcement of an origin, or of its end.
    Origin(OriginInfo),
    /// A batch, as its worker encoded it.
    Batch(Arc<[u8]>),
    /// The sender's frontier. Sent on every link after the origins are announced, unless the sender is a newcomer, and
    /// again whenever the frontier has grown.
    Have(Frontier),
    /// A piece of a parcel that is larger than a batch.
    Piece(Piece),
    /// A part of a round whose batches are being added up along the reduction path.
    Part(RoundPart),
    /// The sum of the first workers' differences in sequential averaging.
    Prefix(Prefix),
    /// A message between the workers of a pipeline, as its worker encoded it.
    Flow(Arc<[u8]>),
    /// A short, less frequent message.
    Note(Note),
}

/// A short, less frequent message between two nodes about batches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Note {
    /// The sender remembers its batches from this frontier on, so it can apply merged ranges that begin here, whatever
    /// it receives meanwhile. Answered with [`Note::Marked`].
    Mark {
        /// Number of the mark among the sender's marks for the receiver.
        number: u64,
        /// The sender's frontier.
        frontier: Frontier,
        /// Members that the sender knows, perhaps unlike the receiver, and that may have the sender's state. The
        /// receiver keeps batches that they may need from now on.
        members: Vec<NodeId>,
    },
    /// Accepts a mark: merged ranges begin there or later.
    Marked {
        /// The mark's number.
        number: u64,
        /// Origins whose batches the sender of this note had already merged across the mark: their ranges begin at the
        /// mark before.
        except: Vec<OriginId>,
    },
    /// Total bytes of the current parcel that have arrived.
    Got(u64),
    /// Refuses a merged range, because it begins at batches that the sender of this note no longer remembers.
    Cannot(SequenceRange),
    /// Reports that the batches that the receiver lacks are not kept any more: the receiver must request a snapshot.
    TooFar,
    /// Requests a snapshot.
    Ask,
    /// Reports that the sender has no snapshot yet and takes nothing else; it requests one from one member. Sent at the
    /// start of a link in place of [`Message::Have`], and repeated until a snapshot has come and `Have` follows.
    Newcomer,
    /// Nodes that the sender has links to. If two nodes have no link to each other, a third node passes on their
    /// batches.
    Links(Vec<NodeId>),
}

/// The contents of a parcel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ParcelKind {
    /// A merged range: consecutive batches of one origin as one sum.
    Range,
    /// A snapshot: a whole ledger with its log.
    Snapshot,
    /// A bundle: the sum of one batch from each of several origins.
    Bundle,
}

/// Some consecutive bytes of a parcel: a merged range, snapshot or bundle that is sent in pieces. Pieces come in order;
/// a parcel takes effect when it is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The contents of the parcel.
    pub kind: ParcelKind,
    /// Length of the whole parcel in bytes.
    pub total: u64,
    /// Position of this piece's first byte within the parcel.
    pub offset: u64,
    /// This piece's bytes.
    pub bytes: Arc<[u8]>,
}

/// Reason why a frame is not a valid message of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MessageError {
    /// The contents of the frame cannot be decoded.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// The kind of the frame does not belong on a link.
    #[error("received a message of a kind that links between nodes do not carry")]
    OutOfPlace,
}

impl Message {
    /// Encodes the message as kind and contents of a frame. A batch's bytes are borrowed as its worker encoded them,
    /// without a copy for each peer.
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

    /// Decodes a message from the kind and contents of a frame.
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
