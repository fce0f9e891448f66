//! The exchange of one run on one node: events in, effects out. No clock, no sockets: time is a count of ticks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use protocol::batch::Batch;
use protocol::frontier::Frontier;
use protocol::ids::{NodeId, OriginId};

use super::log::Log;
use super::peer::{Peer, Repair};
use super::{Frame, Message, OriginInfo};
use crate::ledger::{Ledger, LedgerError, Outcome};

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
    /// Bytes of batches kept for those who are behind. Beyond it the oldest are dropped, and who needs them takes a
    /// snapshot.
    pub log_bytes_max: usize,
}

/// More origins than workers and their restarts ever make.
const ORIGINS_MAX: usize = 4096;

impl Default for Limits {
    fn default() -> Self {
        Self {
            window: 32,
            window_bytes: 4 << 20,
            acknowledge_every: 4,
            patience_ticks: 5,
            reset_ticks: 50,
            log_bytes_max: 256 << 20,
        }
    }
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A node takes part in the run.
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
    /// An origin has said its last word, without having closed: its worker is gone.
    Ended(OriginId),
    /// The run is to end: some worker has seen its stop.
    Stop,
    /// A peer needs batches that are kept no more: it has to take a snapshot.
    Snapshot {
        /// Who.
        to: NodeId,
    },
    /// A link has lost something, or is dead: take it down and set it up again. Nothing is lost by that, because then
    /// both sides say what they have.
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

/// The exchange of one run on one node.
#[derive(Clone, Debug)]
pub struct Exchange {
    me: NodeId,
    limits: Limits,
    ledger: Ledger,
    log: Log,
    peers: BTreeMap<NodeId, Peer>,
    origins: BTreeMap<OriginId, OriginInfo>,
    /// Links that are up, whether their other ends are members yet or not.
    links: BTreeSet<NodeId>,
}

impl Exchange {
    /// The exchange at the start of a run: with a ledger and nothing else.
    ///
    /// # Panics
    /// If the limits let nothing through.
    #[must_use]
    pub fn new(me: NodeId, ledger: Ledger, limits: Limits) -> Self {
        assert!(limits.window > 0 && limits.acknowledge_every > 0 && limits.reset_ticks > 0);
        Self {
            me,
            limits,
            ledger,
            log: Log::default(),
            peers: BTreeMap::new(),
            origins: BTreeMap::new(),
            links: BTreeSet::new(),
        }
    }

    /// This node's replica.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The bytes of batches that are kept for those who are behind.
    #[must_use]
    pub fn log_bytes(&self) -> usize {
        self.log.bytes()
    }

    /// Whether workers should hold back: fewer than half of the linked peers have what this node's workers made, to
    /// within a window. One slow peer among several slows nobody.
    #[must_use]
    pub fn should_pause(&self) -> bool {
        let heard = self.peers.values().filter(|peer| peer.is_heard());
        let near = |peer: &&Peer| {
            self.own_origins().all(|origin| {
                let applied = self.ledger.frontier().applied(origin);
                applied.saturating_sub(peer.has.applied(origin)) <= self.limits.window
            })
        };
        let (all, near) = (heard.clone().count(), heard.filter(near).count());
        2 * near < all
    }

    /// Takes note of an event and appends what is to be done.
    pub fn handle(&mut self, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::Joined(node) => {
                if node != self.me {
                    self.peers.entry(node).or_default();
                    self.greet(node, effects);
                }
            }
            Event::Left(node) => {
                self.peers.remove(&node);
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
            }
            Event::Progress(node) => {
                if let Some(peer) = self.peers.get_mut(&node) {
                    peer.at_work();
                }
            }
            Event::Received { from, message } => self.received(from, message, effects),
            Event::Tick => self.tick(effects),
        }
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
        let lacking = peer.has.lacks(self.ledger.frontier());
        lacking.iter().map(|range| range.to - range.from).sum()
    }

    /// The batches that peers have and this node has not.
    #[must_use]
    pub fn frontier_lag(&self) -> u64 {
        let mut known = Frontier::default();
        for peer in self.peers.values() {
            known.merge(&peer.has);
        }
        let lacking = self.ledger.frontier().lacks(&known);
        lacking.iter().map(|range| range.to - range.from).sum()
    }

    /// Whether nothing more will come: each of these slots has had a worker, every origin has ended or its node is not
    /// among the living, and all living peers have what this node has.
    pub fn is_settled(&self, mut slots: impl Iterator<Item = usize>, live: impl Fn(NodeId) -> bool) -> bool {
        let frontier = self.ledger.frontier();
        let ended = |info: &OriginInfo| info.ended.is_some_and(|at| frontier.applied(info.origin) >= at);
        slots.all(|slot| self.origins.values().any(|info| info.slot as usize == slot))
            && self.origins.values().all(|info| ended(info) || !live(info.home))
            && self
                .peers
                .iter()
                .all(|(&node, peer)| !live(node) || peer.has == *frontier)
    }

    fn home(&self, origin: OriginId) -> Option<NodeId> {
        self.origins.get(&origin).map(|info| info.home)
    }

    fn own_origins(&self) -> impl Iterator<Item = OriginId> + '_ {
        let own = self.origins.values().filter(|info| info.home == self.me);
        own.map(|info| info.origin)
    }

    /// Takes note of an origin and hands the news on. The first word counts: nobody can take over another node's
    /// origin, and an end stays where it was.
    fn learn(&mut self, from: Option<NodeId>, info: OriginInfo, effects: &mut Vec<Effect>) {
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
        if after.ended.is_some() {
            effects.push(Effect::Ended(info.origin));
        }
        self.announce(from, after, effects);
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

    fn local(&mut self, bytes: &Arc<[u8]>, effects: &mut Vec<Effect>) {
        let batch = match Batch::decode(bytes, self.ledger.weight_count()) {
            Ok(batch) => batch,
            Err(error) => return effects.push(Effect::WorkerFault(error.to_string())),
        };
        let origin = batch.header.origin;
        if self.home(origin) != Some(self.me) {
            return effects.push(Effect::WorkerFault(format!("origin {origin} is none of this node's")));
        }
        match self.apply(bytes, &batch, effects) {
            Ok(Outcome::Applied(_) | Outcome::Diverged(_)) => self.pump_all(effects),
            Ok(Outcome::Duplicate | Outcome::Ahead { .. }) => {
                effects.push(Effect::WorkerFault(format!(
                    "a batch of origin {origin} is out of turn"
                )));
            }
            // The worker has not heard yet that the run is over.
            Err(LedgerError::Range(_)) => {}
            Err(error) => effects.push(Effect::WorkerFault(error.to_string())),
        }
    }

    /// Applies a batch, keeps it and hands it to the workers.
    fn apply(&mut self, bytes: &Arc<[u8]>, batch: &Batch, effects: &mut Vec<Effect>) -> Result<Outcome, LedgerError> {
        let outcome = self.ledger.apply(batch)?;
        if let Outcome::Applied(_) | Outcome::Diverged(_) = outcome {
            let (origin, sequence, flags) = (batch.header.origin, batch.header.sequence, batch.header.flags);
            self.log.append(Frame {
                origin,
                sequence,
                bytes: Arc::clone(bytes),
            });
            if flags.last
                && let Some(info) = self.origins.get_mut(&origin)
            {
                info.ended.get_or_insert(sequence);
            }
            if flags.stop {
                effects.push(Effect::Stop);
            }
            while self.log.bytes() > self.limits.log_bytes_max && self.log.drop_oldest() {}
            effects.push(Effect::Deliver {
                origin,
                bytes: Arc::clone(bytes),
            });
        }
        if let Outcome::Diverged(error) = outcome {
            effects.push(Effect::Diverged(error.to_string()));
        }
        Ok(outcome)
    }

    /// Says hello on a link to a member: what this node has.
    fn greet(&mut self, node: NodeId, effects: &mut Vec<Effect>) {
        let Some(peer) = self.peers.get_mut(&node).filter(|peer| !peer.quarantined) else {
            return;
        };
        if !self.links.contains(&node) {
            return;
        }
        peer.unlink();
        peer.linked = true;
        peer.told(self.ledger.frontier());
        let origins = self.origins.values().copied().map(Message::Origin);
        let have = Message::Have(self.ledger.frontier().clone());
        effects.extend(origins.chain([have]).map(|message| Effect::Send { to: node, message }));
    }

    fn received(&mut self, from: NodeId, message: Message, effects: &mut Vec<Effect>) {
        let Some(peer) = self
            .peers
            .get_mut(&from)
            .filter(|peer| peer.linked && !peer.quarantined)
        else {
            return;
        };
        match message {
            Message::Origin(info) => {
                if self.origins.len() < ORIGINS_MAX || self.origins.contains_key(&info.origin) {
                    self.learn(Some(from), info, effects);
                } else {
                    self.quarantine(from, "it names more origins than a run has".into(), effects);
                }
            }
            Message::Have(frontier) => {
                peer.confirm(&frontier);
                self.trim();
                self.pump(from, effects);
            }
            Message::Batch(bytes) => {
                if let Err(reason) = self.take(from, &bytes, effects) {
                    self.quarantine(from, reason, effects);
                }
            }
        }
    }

    /// Takes a batch from a peer; an error is something that an honest member never sends.
    fn take(&mut self, from: NodeId, bytes: &Arc<[u8]>, effects: &mut Vec<Effect>) -> Result<(), String> {
        let batch = Batch::decode(bytes, self.ledger.weight_count()).map_err(|error| error.to_string())?;
        let (origin, sequence) = (batch.header.origin, batch.header.sequence);
        let home = self
            .home(origin)
            .ok_or_else(|| format!("origin {origin} is unknown in this run"))?;
        // Own batches come back only as duplicates: nobody else can have more of them.
        if home == self.me && sequence > self.ledger.frontier().applied(origin) {
            return Err(format!(
                "batch {sequence} of this node's own origin {origin} was never made"
            ));
        }
        if self.log.get(origin, sequence).is_some_and(|known| known != bytes) {
            // Who only hands it on cannot know which of the two is right.
            return if from == home {
                Err(format!(
                    "batch {sequence} of origin {origin} was seen with other contents"
                ))
            } else {
                Ok(())
            };
        }
        match self.apply(bytes, &batch, effects) {
            Ok(Outcome::Applied(_) | Outcome::Diverged(_) | Outcome::Duplicate) => {}
            Ok(Outcome::Ahead { .. }) => {
                self.reset(from, effects);
                return Ok(());
            }
            // The run is over here; the peer will hear of it.
            Err(LedgerError::Range(_)) => return Ok(()),
            Err(error) => return Err(error.to_string()),
        }
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.showed(origin, sequence);
            peer.untold += 1;
            if peer.untold >= self.limits.acknowledge_every {
                self.tell(from, effects);
            }
        }
        Ok(())
    }

    fn quarantine(&mut self, peer: NodeId, reason: String, effects: &mut Vec<Effect>) {
        if let Some(state) = self.peers.get_mut(&peer) {
            state.quarantined = true;
            state.unlink();
        }
        effects.push(Effect::Quarantine { peer, reason });
        self.trim();
    }

    /// Gives a link up. What still comes on it is not listened to; the next one starts afresh.
    fn reset(&mut self, node: NodeId, effects: &mut Vec<Effect>) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.unlink();
        }
        self.links.remove(&node);
        effects.push(Effect::Reset(node));
    }

    fn tell(&mut self, node: NodeId, effects: &mut Vec<Effect>) {
        let frontier = self.ledger.frontier();
        if let Some(peer) = self.peers.get_mut(&node)
            && peer.linked
            && peer.told(frontier)
        {
            let message = Message::Have(frontier.clone());
            effects.push(Effect::Send { to: node, message });
        }
    }

    fn tick(&mut self, effects: &mut Vec<Effect>) {
        // The last one to get a batch hears no more about it from those who had it before.
        self.trim();
        let nodes: Vec<NodeId> = self.peers.keys().copied().collect();
        for &node in &nodes {
            self.tell(node, effects);
            if self
                .peers
                .get_mut(&node)
                .is_some_and(|peer| peer.is_silent(self.limits.reset_ticks))
            {
                self.reset(node, effects);
                continue;
            }
            self.look_for_stalls(node);
            self.pump(node, effects);
        }
    }

    /// Counts for how long a peer has lacked batches of each origin without progress. The origin's own node is the first
    /// to send; the others follow one after the other, in the order of their names, so that rarely two send the same.
    fn look_for_stalls(&mut self, node: NodeId) {
        let frontier = self.ledger.frontier();
        let rivals = self
            .peers
            .iter()
            .filter(|&(&other, peer)| other < self.me && other != node && peer.linked);
        let rank = rivals.count() as u32;
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        let helped: Vec<(OriginId, u64)> = frontier
            .iter()
            .filter(|(origin, _)| {
                let home = self.origins.get(origin).map(|info| info.home);
                home.is_some_and(|home| home != self.me && home != node)
            })
            .collect();
        for (origin, applied) in helped {
            peer.watch(origin, applied, self.limits.patience_ticks.saturating_mul(1 + rank));
        }
    }

    fn pump_all(&mut self, effects: &mut Vec<Effect>) {
        let nodes: Vec<NodeId> = self.peers.keys().copied().collect();
        for node in nodes {
            self.pump(node, effects);
        }
    }

    /// Sends a peer what it lacks, as far as its windows reach.
    fn pump(&mut self, node: NodeId, effects: &mut Vec<Effect>) {
        let Some(peer) = self.peers.get_mut(&node).filter(|peer| !peer.quarantined) else {
            return;
        };
        for &OriginInfo { origin, home, .. } in self.origins.values() {
            let sends = home == self.me || peer.repairs.get(&origin).is_some_and(Repair::is_active);
            if !sends || home == node {
                continue;
            }
            let applied = self.ledger.frontier().applied(origin);
            while let Some(sent) = peer.sent(origin)
                && sent < applied
                && peer.under_way(origin) < self.limits.window
                && peer.bytes_under_way() < self.limits.window_bytes
            {
                let Some(bytes) = self.log.get(origin, sent + 1) else {
                    if home != self.me {
                        // Somebody else may have what this node has no more.
                        peer.repairs.remove(&origin);
                    } else if peer.snapshot_due(origin, sent) {
                        effects.push(Effect::Snapshot { to: node });
                    }
                    break;
                };
                effects.push(Effect::Send {
                    to: node,
                    message: Message::Batch(Arc::clone(bytes)),
                });
                peer.send(origin, sent + 1, bytes.len());
            }
        }
    }

    /// Forgets batches that every member has.
    fn trim(&mut self) {
        let members = self.peers.values().filter(|peer| !peer.quarantined);
        let everybody = members.fold(self.ledger.frontier().clone(), |common: Frontier, peer| {
            common.meet(&peer.has)
        });
        self.log.trim(&everybody);
    }
}
