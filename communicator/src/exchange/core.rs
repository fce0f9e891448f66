//! The exchange of one run on one node: events in, effects out. No clock, no sockets: time is a count of ticks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use protocol::cursor::Cursors;
use protocol::frontier::Frontier;
use protocol::ids::{NodeId, OriginId};
use protocol::sums::Sums;

use super::log::Log;
use super::peer::Peer;
use super::sending::newcomer;
use super::{Message, OriginInfo};
use crate::ledger::{AuditError, Ledger};

/// The borders of everything that could grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Batches of one origin under way to one peer before its acknowledgement is waited for.
    pub window: u64,
    /// Bytes of batches under way to one peer; a single batch may be larger.
    pub window_bytes: usize,
    /// Batches taken from a peer before it is told, between two ticks.
    pub acknowledge_every: u64,
    /// Ticks without progress of a peer before others than the origin's own node help it.
    pub patience_ticks: u32,
    /// Ticks without a word about batches that are under way before their link is taken for dead.
    pub reset_ticks: u32,
    /// Ticks between two marks for a peer.
    pub mark_ticks: u32,
    /// Bytes of single batches kept for those who are behind. Beyond it they are merged.
    pub single_bytes_max: usize,
    /// Bytes of single batches kept unmerged while some member has not said yet what it needs. Beyond it such members are
    /// forgotten.
    pub unmarked_bytes_max: usize,
    /// Bytes of merged ranges kept. Beyond it whoever is furthest behind is forgotten, and takes a snapshot. What
    /// nobody else may have is kept all the same: batches of this node's own workers, and of nodes that are not there.
    pub merged_bytes_max: usize,
    /// A peer that lacks more bytes of one origin than this gets them as a range.
    pub range_worth_bytes: usize,
    /// The bytes of one piece of a parcel.
    pub piece_bytes: usize,
    /// The bytes of a parcel that are under way.
    pub parcel_window: usize,
    /// Snapshots that are given at a time.
    pub snapshots_max: usize,
}

/// More origins than workers and their restarts ever make.
pub(super) const ORIGINS_MAX: usize = 4096;
/// More members than a run ever has, those that died included.
pub(super) const MEMBERS_MAX: usize = 4096;

impl Limits {
    /// The limits for a model of so many weights. What is kept for those who are behind takes at most 64 MiB and 4 bytes
    /// a weight as single batches (256 MiB while somebody new has not been heard), and 256 MiB and 16 bytes a weight as
    /// ranges.
    #[must_use]
    pub const fn for_weights(weights: usize) -> Self {
        Self {
            window: 32,
            window_bytes: 4 << 20,
            acknowledge_every: 4,
            patience_ticks: 5,
            reset_ticks: 50,
            mark_ticks: 20,
            single_bytes_max: (64 << 20) + 4 * weights,
            unmarked_bytes_max: (256 << 20) + 4 * weights,
            merged_bytes_max: (256 << 20) + 16 * weights,
            range_worth_bytes: (64 << 10) + 2 * weights,
            piece_bytes: 256 << 10,
            parcel_window: 1 << 20,
            snapshots_max: 2,
        }
    }
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// One of this node's workers has made a batch.
    Local(Arc<[u8]>),
    /// A link is there. Nothing is under way on it.
    LinkUp(NodeId),
    /// A link is gone, with whatever was under way on it.
    LinkDown(NodeId),
    /// A link is at work: bytes have left on it since the last tick, though nothing is acknowledged.
    Progress(NodeId),
    /// A message came over a link.
    Received {
        /// From whom.
        from: NodeId,
        /// What.
        message: Message,
    },
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
    Send {
        /// To whom.
        to: NodeId,
        /// What.
        message: Message,
    },
    /// Hand an applied batch to this node's workers, except the one that made it.
    Deliver {
        /// Whose it is.
        origin: OriginId,
        /// The batch as it was encoded, checked.
        bytes: Arc<[u8]>,
    },
    /// Move this node's workers, too, by what came other than as batches.
    Shift(Box<Shift>),
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
    /// An origin has said its last word, without having closed: its worker is gone.
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
        /// Who.
        peer: NodeId,
        /// What it said.
        reason: String,
    },
    /// One of this node's own workers sent something that is no batch of this run.
    WorkerFault(String),
    /// A weight left the range: the run is over, with this message.
    Diverged(String),
}

/// What a range or a snapshot does to a replica that has all the rest.
#[derive(Clone, Debug, PartialEq)]
pub struct Shift {
    /// Whose batches they are, if they are of one origin.
    pub origin: Option<OriginId>,
    /// How far weights move.
    pub sums: Sums,
    /// How many batches it stands for.
    pub batches: u64,
    /// The samples in them.
    pub samples: u64,
    /// Which samples are done with them.
    pub cursors: Cursors,
}

/// A snapshot that this node needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// Who was asked, or is to be.
    pub(super) giver: Option<NodeId>,
    /// Ticks since anything came of it.
    pub(super) ticks: u32,
    /// The ledger is damaged, so that it is needed even if it holds nothing new.
    pub(super) damaged: bool,
}

/// The exchange of one run on one node.
#[derive(Clone, Debug)]
pub struct Exchange {
    pub(super) me: NodeId,
    pub(super) limits: Limits,
    pub(super) ledger: Ledger,
    pub(super) log: Log,
    /// Single batches beyond this are merged.
    pub(super) compact_at: usize,
    pub(super) peers: BTreeMap<NodeId, Peer>,
    pub(super) origins: BTreeMap<OriginId, OriginInfo>,
    /// Links that are up, whether their other ends are members yet or not.
    pub(super) links: BTreeSet<NodeId>,
    pub(super) wanted: Option<Wanted>,
    /// It has come late and has nothing yet. A snapshot comes first: then it stands where its giver stands, and whoever
    /// can help the giver can help it, too, even before having heard of it.
    pub(super) newcomer: bool,
    /// Those who will not come back.
    pub(super) left: BTreeSet<NodeId>,
    /// No further batch is taken.
    pub(super) frozen: bool,
    /// Bytes of parcels that came, or are known to have come to others.
    pub(super) moved: u64,
    /// Homes and the peers that they have no link to: this node hands their batches on at once.
    pub(super) relays: BTreeSet<(NodeId, NodeId)>,
}

impl Exchange {
    /// The exchange at the start of a run: with a ledger and nothing else.
    ///
    /// # Panics
    /// If the limits let nothing through.
    #[must_use]
    pub fn new(me: NodeId, ledger: Ledger, limits: Limits) -> Self {
        assert!(limits.window > 0 && limits.acknowledge_every > 0 && limits.reset_ticks > 0 && limits.piece_bytes > 0);
        Self {
            me,
            limits,
            log: Log::new(ledger.run(), ledger.weight_count()),
            ledger,
            compact_at: limits.single_bytes_max,
            peers: BTreeMap::new(),
            origins: BTreeMap::new(),
            links: BTreeSet::new(),
            wanted: None,
            newcomer: true,
            left: BTreeSet::new(),
            frozen: false,
            moved: 0,
            relays: BTreeSet::new(),
        }
    }

    /// This node's replica.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The bytes of batches and ranges that are kept for those who are behind.
    #[must_use]
    pub fn log_bytes(&self) -> usize {
        self.log.single_bytes() + self.log.merged_bytes()
    }

    /// The peers for whom nothing is kept any more.
    pub fn forgotten(&self) -> impl Iterator<Item = NodeId> + '_ {
        let forgotten = self.peers.iter().filter(|(_, peer)| peer.forgotten);
        forgotten.map(|(&node, _)| node)
    }

    /// Whether this node waits for a snapshot.
    #[must_use]
    pub fn wants_snapshot(&self) -> bool {
        self.wanted.is_some()
    }

    /// Whether the ledger is known to be damaged, and not yet replaced.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        self.wanted.is_some_and(|wanted| wanted.damaged)
    }

    /// Whether workers should hold back: fewer than half of the linked peers have what this node's workers made, to
    /// within a window. One slow peer among several slows nobody, nor does one that waits for a snapshot, nor one that has
    /// said nothing for a while: it hangs, or the cable is out, and the link will tell in the end.
    #[must_use]
    pub fn should_pause(&self) -> bool {
        let streams = |peer: &&Peer| peer.is_streaming() && peer.has_spoken(self.limits.reset_ticks);
        let heard = self.peers.values().filter(streams);
        let (all, near) = (heard.clone().count(), heard.filter(|peer| self.is_near(peer)).count());
        2 * near < all
    }

    /// Whether a peer has what this node's workers made, to within a window.
    pub(super) fn is_near(&self, peer: &Peer) -> bool {
        self.own_origins().all(|origin| {
            let applied = self.ledger.frontier().applied(origin);
            applied.saturating_sub(peer.has.applied(origin)) <= self.limits.window
        })
    }

    /// Takes note of an event and appends what is to be done.
    pub fn handle(&mut self, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::Founder(node) if node == self.me => self.newcomer = false,
            Event::Founder(node) => {
                self.peers.entry(node).or_default().is_marked = true;
                self.greet(node, effects);
            }
            Event::Joined(node) => {
                self.reckon_with(node);
                self.greet(node, effects);
            }
            Event::Left(node) => {
                self.left.insert(node);
                self.peers.remove(&node);
                self.lay_relays();
                self.trim();
            }
            Event::Origin(info) => {
                self.learn(None, info, effects);
            }
            Event::Local(bytes) => self.local(&bytes, effects),
            Event::LinkUp(node) => {
                self.links.insert(node);
                self.greet(node, effects);
            }
            Event::LinkDown(node) => {
                self.links.remove(&node);
                if let Some(peer) = self.peers.get_mut(&node) {
                    peer.unlink();
                }
                self.tell_links(effects);
            }
            Event::Progress(node) => {
                if let Some(peer) = self.peers.get_mut(&node) {
                    peer.at_work();
                }
            }
            Event::Received { from, message } => self.received(from, message, effects),
            Event::Audit => drop(self.audit(effects)),
            Event::Freeze(frozen) => self.frozen = frozen,
            Event::Tick => self.tick(effects),
        }
        self.bound();
    }

    /// Whether this node has about what the living have, as far as they have said it. If it is the last one that has
    /// anything, it has.
    #[must_use]
    pub fn is_caught_up(&self, live: impl Fn(NodeId) -> bool) -> bool {
        let living: Vec<&Peer> = self
            .peers
            .iter()
            .filter_map(|(&node, peer)| live(node).then_some(peer))
            .collect();
        let heard = living.is_empty() || living.iter().any(|peer| peer.is_heard());
        let lag = self.lag_behind(living.into_iter());
        heard && !self.newcomer && self.wanted.is_none() && lag <= self.limits.window * self.origins.len().max(1) as u64
    }

    /// Whether this node has nothing of the run and nobody is there, or linked, who has anything to give.
    #[must_use]
    pub fn is_stranded(&self, live: impl Fn(NodeId) -> bool) -> bool {
        let has_nothing = |(&node, peer): (&NodeId, &Peer)| peer.newcomer || !live(node) && !peer.linked;
        self.newcomer && self.peers.iter().all(has_nothing)
    }

    /// The fingerprint of the batches that this node has.
    #[must_use]
    pub fn stand(&self) -> u64 {
        self.ledger.frontier().fingerprint()
    }

    /// Whether no further batch is taken.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// Bytes of parcels that came here, or are known to have come to others: a sign that somebody catches up.
    #[must_use]
    pub fn moved(&self) -> u64 {
        self.moved
    }

    /// Everything known of the run's origins.
    pub fn origins(&self) -> impl Iterator<Item = &OriginInfo> + '_ {
        self.origins.values()
    }

    /// The batches that a peer has not acknowledged.
    #[must_use]
    pub fn lag_of(&self, node: NodeId) -> u64 {
        let Some(peer) = self.peers.get(&node) else {
            return 0;
        };
        peer.has.behind(self.ledger.frontier())
    }

    /// The batches that peers have and this node has not.
    #[must_use]
    pub fn frontier_lag(&self) -> u64 {
        self.lag_behind(self.peers.values())
    }

    fn lag_behind<'a>(&self, peers: impl Iterator<Item = &'a Peer>) -> u64 {
        let mut known = Frontier::default();
        peers.for_each(|peer| known.merge(&peer.has));
        self.ledger.frontier().behind(&known)
    }

    pub(super) fn home(&self, origin: OriginId) -> Option<NodeId> {
        self.origins.get(&origin).map(|info| info.home)
    }

    pub(super) fn own_origins(&self) -> impl Iterator<Item = OriginId> + '_ {
        let own = self.origins.values().filter(|info| info.home == self.me);
        own.map(|info| info.origin)
    }

    /// Takes note of an origin and hands the news on. The first word counts: nobody can take over another node's
    /// origin, and an end stays where it was.
    pub(super) fn learn(&mut self, from: Option<NodeId>, info: OriginInfo, effects: &mut Vec<Effect>) {
        let before = self.origins.get(&info.origin).copied();
        let after = match before {
            // Nobody else can know of an origin of this node's that it does not know itself.
            None if from.is_some() && info.home == self.me => return,
            None => info,
            Some(known) if known.home == info.home => OriginInfo {
                ended: known.ended.or(info.ended),
                ..known
            },
            Some(known) => known,
        };
        if before == Some(after) {
            return;
        }
        self.origins.insert(info.origin, after);
        self.reckon_with(after.home);
        if after.ended.is_some() {
            effects.push(Effect::Ended(info.origin));
        }
        self.announce(from, after, effects);
    }

    /// Whoever makes batches takes part, heard of or not, and so does whoever a member knows: what it may need is kept
    /// until it says that it needs it no more.
    pub(super) fn reckon_with(&mut self, node: NodeId) {
        // More of them than a run ever has are somebody's inventions.
        if node != self.me && !self.left.contains(&node) && self.peers.len() < MEMBERS_MAX {
            self.peers.entry(node).or_default();
        }
    }

    fn announce(&self, except: Option<NodeId>, info: OriginInfo, effects: &mut Vec<Effect>) {
        let linked = self.peers.iter().filter(|(_, peer)| peer.linked && !peer.quarantined);
        effects.extend(
            linked
                .filter(|&(&to, _)| Some(to) != except)
                .map(|(&to, _)| Effect::Send {
                    to,
                    message: Message::Origin(info),
                }),
        );
    }

    /// Says hello on a link to a member: what this node has, if it has anything.
    fn greet(&mut self, node: NodeId, effects: &mut Vec<Effect>) {
        let Some(peer) = self.peers.get_mut(&node).filter(|peer| !peer.quarantined) else {
            return;
        };
        if !self.links.contains(&node) {
            return;
        }
        peer.unlink();
        peer.linked = true;
        // A mark that was proposed on the last link may have come through or not.
        let mark = peer.proposed.clone();
        let origins = self.origins.values().copied().map(Message::Origin);
        effects.extend(origins.map(|message| Effect::Send { to: node, message }));
        effects.extend(self.newcomer.then(|| newcomer(node)));
        self.tell(node, effects);
        effects.extend(mark.map(|mark| self.marking(node, mark)));
        self.tell_links(effects);
    }

    pub(super) fn quarantine(&mut self, peer: NodeId, reason: String, effects: &mut Vec<Effect>) {
        if let Some(state) = self.peers.get_mut(&peer) {
            state.quarantined = true;
            state.unlink();
        }
        self.tell_links(effects);
        effects.push(Effect::Quarantine { peer, reason });
        self.trim();
    }

    /// Gives a link up. What still comes on it is not listened to; the next one starts afresh.
    pub(super) fn reset(&mut self, node: NodeId, effects: &mut Vec<Effect>) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.unlink();
        }
        self.links.remove(&node);
        self.tell_links(effects);
        effects.push(Effect::Reset(node));
    }
}
