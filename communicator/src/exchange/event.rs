//! What an exchange is told, and what it wants done.

use std::collections::BTreeSet;
use std::sync::Arc;

use protocol::ids::{NodeId, OriginId};
use protocol::weights::sums::Sums;

use super::breach::Breach;
use crate::ledger::AuditError;
use protocol::wire::attach::{GoOn, JumpOrder};
use protocol::wire::link::{Message, Note, OriginInfo};
use protocol::wire::prefix::Prefix;

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A node takes part in the run, and has from its first batch on. Of this node itself: it has what the run begins
    /// with, and needs no snapshot.
    Founder(NodeId),
    /// A node takes part in the run. What it needs is not known before it says so.
    Joined(NodeId),
    /// A node will not come back: nothing is kept for it any more.
    Left(NodeId),
    /// A worker of this node is going to send batches under this name, or will send no more.
    Origin(OriginInfo),
    /// These nodes are not heard, or are gone: nobody waits for their rounds.
    Silent(BTreeSet<NodeId>),
    /// One of this node's workers has made a batch.
    Local(Arc<[u8]>),
    /// One of this node's workers has come to a pass.
    Pass(Prefix),
    /// A link is there. Nothing is under way on it.
    LinkUp(NodeId),
    /// A link is gone, with whatever was under way on it.
    LinkDown(NodeId),
    /// A link is at work: bytes have left on it since the last tick, though nothing is acknowledged.
    Progress(NodeId),
    /// A message came over a link.
    Received { from: NodeId, message: Message },
    /// The ledger is to be compared with what its batches add up to.
    Audit,
    /// Participants have agreed on how to end: no further batch is taken. Or they go on after all.
    Freeze(bool),
    /// Some time has passed.
    Tick,
}

/// Something to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Send a message over a link.
    Send { to: NodeId, message: Message },
    /// Hand an applied batch to this node's workers, except the one that made it.
    Deliver {
        origin: OriginId,
        /// The batch as it was encoded, checked.
        bytes: Arc<[u8]>,
    },
    /// Hand applied batches of several origins to this node's workers, as one: a bundle as it was encoded. None of them is
    /// this node's.
    Bundle(Arc<[u8]>),
    /// A worker of this node goes on with its pass, from the mean of a prefix if there is one.
    Pass { origin: OriginId, prefix: Option<Prefix> },
    /// A worker of this node that waits for the others' rounds goes on.
    GoOn { origin: OriginId, order: GoOn },
    /// Move this node's workers, too, by what came other than as batches.
    Jump(Box<Jump>),
    /// A bit of this weight had flipped in the ledger, and is as it was.
    Mended(usize),
    /// The ledger is damaged; a peer's is to take its place.
    Damaged(AuditError),
    /// A peer's ledger has taken the damaged one's place.
    Healed,
    /// Workers are to begin again from the ledger: how it came about cannot be told them.
    RestartWorkers,
    /// A bit had flipped in a batch that was kept for others: they get a snapshot instead.
    Spoilt,
    /// An origin has ended without having closed: its worker is gone.
    Ended(OriginId),
    /// The run is to end: some worker has seen its stop.
    Stop,
    /// A snapshot is being given to a peer: somebody should know.
    Giving(NodeId),
    /// A link has lost something, or is dead: take it down and set it up again. Nothing is lost by that, because then
    /// both sides say what they have, or that they have nothing.
    Reset(NodeId),
    /// A peer said what no honest member says. Nothing is taken from it any more.
    Quarantine {
        peer: NodeId,
        /// What it said.
        reason: Breach,
    },
    /// One of this node's own workers sent something that is no batch of this run.
    WorkerFault(String),
    /// A weight left the range: the run is over, with this message.
    Diverged(String),
}

/// What a range or a snapshot does to a replica that has all the rest.
#[derive(Clone, Debug, PartialEq)]
pub struct Jump {
    /// How far weights move.
    pub sums: Sums,
    /// What it stands for.
    pub order: JumpOrder,
}

impl Effect {
    /// Sends a note to a peer.
    pub(super) fn note(to: NodeId, note: Note) -> Self {
        let message = Message::Note(note);
        Self::Send { to, message }
    }
}
