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

/// The first message on a connection of the data plane, which carries batches and model files. It says which of these
/// the connection is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Hello {
    /// Asks to set up a link for a run: a connection on which two nodes exchange batches and other messages.
    Link {
        /// Release of Tau on the calling node. A node with another release accepts no link, because the same bytes may
        /// have another meaning there.
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

/// Facts about an origin (a worker's stream of batches). They are sent before the origin's first batch on the same
/// link, so that every batch has a known origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginInfo {
    pub origin: OriginId,
    /// The node that the origin's worker belongs to.
    pub node: NodeId,
    /// The slot of the origin's worker: its number in the run, to which samples are dealt.
    pub slot: u32,
    /// The number of the origin's last batch, if it emits no further ones, because it was closed or its worker is gone.
    pub ended: Option<u64>,
}

impl OriginInfo {
    /// Value of `slot` for origins (streams of batches) whose workers trained before the checkpoint from which a run
    /// was resumed.
    pub const NO_SLOT: u32 = u32::MAX;
}

/// A message between two nodes of a run, on the link that connects them.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// The announcement of an origin (a worker's stream of batches), or of its end.
    Origin(OriginInfo),
    /// A batch (a worker's weight changes and their header), as its worker encoded it.
    Batch(Arc<[u8]>),
    /// The sender's frontier: the last batch that it has applied of each worker. Sent on every link after the origins
    /// are announced, unless the sender is a newcomer, and again whenever the frontier has grown.
    Have(Frontier),
    /// A piece of a parcel (a merged range, snapshot or bundle), which is too large to be sent whole.
    Piece(Piece),
    /// A part of a round: the sum of the round's batches for one section of the weights, which is added up from node to
    /// node.
    Part(RoundPart),
    /// The sum of some workers' differences in sequential averaging, on its way to the next worker.
    Prefix(Prefix),
    /// A message between the workers of a pipeline, as the worker that sends it has encoded it.
    Flow(Arc<[u8]>),
    /// A short message between the two nodes about batches: what one of them has, lacks, remembers or cannot apply.
    Note(Note),
}

/// A short message between two nodes about batches: what one has, lacks, remembers or cannot apply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Note {
    /// Proposes a mark: the sender keeps its batches from this frontier on, so that it can apply merged ranges (sums of
    /// consecutive batches of a worker) that begin there, whatever it receives meanwhile. Answered with
    /// [`Note::Marked`].
    Mark {
        /// Number of the mark (of this frontier), which the sender counts for each receiver; the answer repeats it.
        number: u64,
        /// The sender's frontier at the mark: the last batch that it has applied of each worker.
        frontier: Frontier,
        /// Members that the sender knows, and may have passed batches on to; the receiver may not know them all. From
        /// now on the receiver keeps the batches that these may need.
        members: Vec<NodeId>,
    },
    /// Accepts a mark of the receiver (a frontier from which on the receiver keeps its batches): merged ranges that the
    /// sender of this note makes for it begin at that frontier or later.
    Marked {
        /// Number of the mark (a [`Note::Mark`] that the receiver has sent) that is accepted.
        number: u64,
        /// Origins (workers) for which the mark is not accepted, because the sender of this note has merged their
        /// batches across the mark into one sum, or lacks their batches: their merged ranges begin at the previous
        /// mark.
        except: Vec<OriginId>,
    },
    /// Number of bytes that have arrived of the parcel (a large message in pieces) that the receiver is sending.
    Got(u64),
    /// Refuses a merged range (a sum of consecutive batches): the sender of this note has applied some of these batches
    /// already, and no longer has them singly in order to subtract them.
    Cannot(SequenceRange),
    /// Reports that the sender no longer keeps the batches that the receiver lacks: the receiver must request a
    /// snapshot.
    TooFar,
    /// Requests a snapshot: a copy of the receiver's whole replica.
    Ask,
    /// Reports that the sender is new in the run, has no snapshot (copy of a replica) yet and takes nothing else; it
    /// requests one from one member. Sent at the start of a link in place of [`Message::Have`], and repeated until a
    /// snapshot has come and `Have` follows.
    Newcomer,
    /// Nodes that the sender has links to. If two nodes have no link to each other, a third node passes on their
    /// batches.
    Links(Vec<NodeId>),
}

/// Kind of a parcel: of a message that is sent in pieces because it is too large to be sent whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ParcelKind {
    /// Kind of parcel: a merged range, which is consecutive batches of one origin (worker) as one sum.
    Range,
    /// Kind of parcel: a snapshot, which is a whole ledger (a node's exact replica) with its log of recent batches.
    Snapshot,
    /// Kind of parcel: a bundle, which is the sum of one batch from each of several origins (workers).
    Bundle,
}

/// Some consecutive bytes of a parcel: a merged range, snapshot or bundle that is sent in pieces. Pieces come in order;
/// a parcel takes effect when it is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    pub kind: ParcelKind,
    /// Length in bytes of the whole parcel (a large message in pieces) that this piece belongs to.
    pub total: u64,
    /// Position of the piece's first byte within the parcel.
    pub offset: u64,
    pub bytes: Arc<[u8]>,
}

/// Reason why a frame is not a valid message on a link between two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MessageError {
    /// The contents of the frame cannot be decoded.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// The frame has a kind that is never sent on a link between two nodes.
    #[error("received a message of a kind that links between nodes do not carry")]
    OutOfPlace,
}

impl Message {
    /// Encodes the message as the kind and contents of a frame. A batch's bytes are borrowed as its worker encoded
    /// them, without a copy for each peer.
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

    /// Decodes a message on a link between two nodes from the kind and contents of a frame.
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
