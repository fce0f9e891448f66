//! The input of an exchange (events) and its output (effects, which its actor carries out).

use std::collections::BTreeSet;
use std::sync::Arc;

use protocol::ids::{NodeId, OriginId};
use protocol::weights::sums::Sums;

use super::breach::Breach;
use crate::ledger::AuditError;
use protocol::wire::attach::{GoOn, JumpOrder};
use protocol::wire::link::{Message, Note, OriginInfo};
use protocol::wire::prefix::Prefix;

/// An event that the exchange of a run handles.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A node takes part in the run from the beginning and has all batches since the first. For this node itself: it
    /// holds the first weights and needs no peer's replica.
    Founder(NodeId),
    /// A node has joined the run. Until it tells which batches it has, the log keeps all that it may need.
    Joined(NodeId),
    /// A node has left the run for good: no batches are kept for it any more.
    Left(NodeId),
    /// A worker of this node will send batches under this origin (its stream of batches), or has ended it.
    Origin(OriginInfo),
    /// The complete set of nodes that are silent (out of reach) or gone, in place of the last one: workers do not wait
    /// for the rounds of these nodes.
    Silent(BTreeSet<NodeId>),
    /// A worker of this node has made this encoded batch.
    Local(Arc<[u8]>),
    /// A worker of this node has reached a sequential averaging step, with the partial sum that holds its own values.
    Pass(Prefix),
    /// A link to the given peer is up. No message is in flight on it yet.
    LinkUp(NodeId),
    /// The link to the given peer is down, and all messages in flight on it are lost.
    LinkDown(NodeId),
    /// Bytes have left on the link to the given peer since the last tick, so the link is alive even if the peer
    /// acknowledges nothing.
    Progress(NodeId),
    /// A message came over a link.
    Received { from: NodeId, message: Message },
    /// It is time to compare this node's replica with the sum of its batches.
    Audit,
    /// `true`: participants have agreed on how the run ends, so no further batch is taken. `false`: the run goes on
    /// after all.
    Freeze(bool),
    /// One tick has passed. The exchange measures time in ticks only.
    Tick,
}

/// An effect: an action that the exchange asks its actor to carry out.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Send a message over a link.
    Send { to: NodeId, message: Message },
    /// Hand an applied batch to this node's workers, except the one that made it.
    Deliver {
        origin: OriginId,
        /// The encoded batch, already checked.
        bytes: Arc<[u8]>,
    },
    /// Hand an encoded bundle (the sum of one batch from each of several workers) to this node's workers. None of the
    /// batches was made on this node.
    Bundle(Arc<[u8]>),
    /// Let a worker of this node go on with its averaging step, from the mean of the given prefix (the sum of the
    /// workers before it) if there is one.
    Pass { origin: OriginId, prefix: Option<Prefix> },
    /// Let a worker of this node go on that waits for the other workers' rounds.
    GoOn { origin: OriginId, order: GoOn },
    /// Move this node's workers by the sum of a merged range or a snapshot, which did not come as single batches.
    Jump(Box<Jump>),
    /// One bit of the weight with this index had flipped in this node's replica and has been repaired.
    Mended(usize),
    /// This node's replica is damaged; a peer's replica will replace it.
    Damaged(AuditError),
    /// This node's replica was damaged, and has been replaced by a peer's.
    Healed,
    /// Restart this node's workers from its replica: a snapshot has replaced the replica, and the log cannot tell the
    /// workers the difference between its old and its new weights.
    RestartWorkers,
    /// A bit has flipped in a batch of the log. Peers that lack the batch get a snapshot (a whole replica) instead.
    Spoilt,
    /// An origin (a worker's stream of batches) has ended, because it was closed or its worker is gone: no later batch
    /// of it will come.
    Ended(OriginId),
    /// End the run on this node: the header of a batch says that its worker was told to stop.
    Stop,
    /// Tell people, in a log notice, that a snapshot is being sent to this peer.
    Giving(NodeId),
    /// Take the link to the given peer down and set it up again, because a message was lost on it or it is dead. No
    /// batch is lost by that: on the new link both sides tell which batches they have.
    Reset(NodeId),
    /// A peer sent what no honest member sends. Nothing is taken from it any more.
    Quarantine {
        peer: NodeId,
        /// The protocol violation that the peer has committed.
        reason: Breach,
    },
    /// A worker of this node sent bytes that are not a batch of this run.
    WorkerFault(String),
    /// A weight left the range that weights may have (between −16 and 16): the run has diverged. The text says so to
    /// people.
    Diverged(String),
}

/// The difference by which a merged range or a peer's snapshot moves weights that already hold all earlier batches.
#[derive(Clone, Debug, PartialEq)]
pub struct Jump {
    /// The difference itself: for each weight, the sum of its movements.
    pub sums: Sums,
    /// Facts about the batches that the movement stands for: their number, their samples, and the samples done after
    /// them.
    pub order: JumpOrder,
}

impl Effect {
    /// Makes the effect that sends a peer a note: a short message about batches, such as a request for a snapshot.
    pub(super) fn note(to: NodeId, note: Note) -> Self {
        let message = Message::Note(note);
        Self::Send { to, message }
    }
}
