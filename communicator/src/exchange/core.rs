//! The exchange of one run on one node: events in, effects out. No clock, no sockets: time is a count of ticks.

use std::collections::{BTreeMap, BTreeSet};

use protocol::frontier::Frontier;
use protocol::ids::{NodeId, OriginId};

use super::barrier::{Barrier, Patience};
use super::breach::Breach;
use super::bundling::{Bundling, ReductionPath};
use super::event::{Effect, Event};
use super::limits::{Limits, MEMBERS_MAX};
use super::log::Log;
use super::peer::Peer;
use super::peer_link::PeerLink;
use super::routing::{self, Routing};
use super::sequential_averaging::SequentialAveraging;
use crate::ledger::Ledger;
use protocol::wire::link::{Message, OriginInfo};
use protocol::wire::run_plan::RunPlan;

/// With bundled rounds, peers wait this many times longer before they resend a missing batch, because the origin's node detects
/// the gap itself and resends first.
const BUNDLES_PATIENCE: u32 = 16;

/// A snapshot that this node needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct SnapshotRequest {
    /// Who was asked, or is to be.
    pub(super) giver: Option<NodeId>,
    /// Ticks since the transfer last made progress.
    pub(super) ticks: u32,
    /// The ledger is damaged, so that it is needed even if it holds nothing new.
    pub(super) damaged: bool,
}

/// The exchange of one run on one node.
#[derive(Clone, Debug)]
pub struct Exchange {
    pub(super) me: NodeId,
    pub(super) limits: Limits,
    pub(super) routing: Routing,
    /// What workers wait for, where the strategy has rounds.
    pub(super) barrier: Option<Barrier>,
    /// How rounds are added up on their way, where they are.
    pub(super) bundling: Option<Bundling>,
    /// How passes go from worker to worker, where they do.
    pub(super) averaging: Option<SequentialAveraging>,
    pub(super) ledger: Ledger,
    pub(super) log: Log,
    /// Single batches beyond this are merged.
    pub(super) compact_at: usize,
    pub(super) peers: BTreeMap<NodeId, Peer>,
    pub(super) origins: BTreeMap<OriginId, OriginInfo>,
    /// Links that are up, whether their other ends are members yet or not.
    pub(super) links: BTreeSet<NodeId>,
    pub(super) wanted: Option<SnapshotRequest>,
    /// It has come late and has nothing yet. A snapshot comes first: then it stands where its giver stands, and whoever
    /// can help the giver can help it, too, even before having heard of it.
    pub(super) newcomer: bool,
    /// Nodes that have left the run for good.
    pub(super) left: BTreeSet<NodeId>,
    /// No further batch is taken.
    pub(super) frozen: bool,
    /// Peers whose batches were dropped while the exchange was frozen. When it thaws, they must resend: the dropped batches
    /// were never acknowledged.
    pub(super) dropped_while_frozen: BTreeSet<NodeId>,
    /// Bytes of parcels that came, or are known to have come to others.
    pub(super) moved: u64,
    /// Origins' nodes, each with a peer that it has no link to: this node hands its batches on to that peer at once.
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
            routing: Routing::Mesh,
            barrier: None,
            bundling: None,
            averaging: None,
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
            dropped_while_frozen: BTreeSet::new(),
            moved: 0,
            relays: BTreeSet::new(),
        }
    }

    /// The exchange that a run's job asks for, at its start.
    #[must_use]
    pub fn for_run(me: NodeId, ledger: Ledger, plan: &RunPlan) -> Self {
        let limits = Limits::for_weights(ledger.weight_count());
        let exchange = Self::new(me, ledger, limits).routed(Routing::of(plan));
        if !plan.job.exchange.waits() {
            return exchange;
        }
        let mut exchange = exchange.in_rounds(Barrier::new(me, Patience::DEFAULT, plan));
        if plan.job.exchange.has_passes() {
            exchange.averaging = Some(SequentialAveraging::new(me, exchange.ledger.weight_count()));
        }
        match routing::reduction_path_of(plan.job.exchange) {
            Some(path) => exchange.bundled(path),
            None => exchange,
        }
    }

    /// The same exchange with batches that go another way.
    #[must_use]
    pub fn routed(self, routing: Routing) -> Self {
        Self { routing, ..self }
    }

    /// The same exchange with workers that wait for each other.
    #[must_use]
    pub fn in_rounds(self, barrier: Barrier) -> Self {
        let barrier = Some(barrier);
        Self { barrier, ..self }
    }

    /// The same exchange with rounds that are added up on their way.
    #[must_use]
    pub fn bundled(self, path: ReductionPath) -> Self {
        let bundling = Some(Bundling::new(path, self.me, self.ledger.weight_count()));
        // Somebody who lacks a batch mostly gets it with the bundle that is under way.
        let limits = Limits {
            patience_ticks: self.limits.patience_ticks * BUNDLES_PATIENCE,
            ..self.limits
        };
        Self {
            limits,
            bundling,
            ..self
        }
    }

    /// A node takes part with so many workers, who are waited for.
    pub fn reckon_with_workers(&mut self, node: NodeId, workers: usize) {
        if let Some(barrier) = &mut self.barrier {
            barrier.joins(node, workers);
        }
    }

    /// The newest round that anybody has come to, and how many workers make the next one together.
    #[must_use]
    pub fn rounds(&self) -> Option<(u64, u32)> {
        let barrier = self.barrier.as_ref()?;
        Some((barrier.newest(), barrier.workers(&self.origins)))
    }

    /// How often somebody's round was waited for in vain.
    #[must_use]
    pub fn waited_in_vain(&self) -> u64 {
        self.barrier.as_ref().map_or(0, Barrier::in_vain)
    }

    /// How many rounds came added up on their way, and how many were given up.
    #[must_use]
    pub fn bundles(&self) -> (u64, u64) {
        self.bundling
            .as_ref()
            .map_or((0, 0), |bundling| (bundling.bundled, bundling.given_up))
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

    /// Whether workers should be throttled: fewer than half of the linked peers that this node keeps pace with have
    /// what its workers made, to within a window. One slow peer among several slows nobody. Nor does a peer that waits
    /// for a snapshot, or one that has said nothing for a while: it hangs, or its cable is out, and its link will be
    /// given up.
    #[must_use]
    pub fn should_pause(&self) -> bool {
        let speaks = |link: &PeerLink| link.is_streaming() && link.has_spoken(self.limits.reset_ticks);
        let heard = self.peers.iter().filter_map(|(&node, peer)| {
            let streams = peer.link.as_ref().is_some_and(speaks);
            (streams && self.routing.keeps_pace(self.me, node)).then_some(peer)
        });
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
                self.open_link(node, effects);
            }
            Event::Joined(node) => {
                self.reckon_with(node);
                self.open_link(node, effects);
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
            Event::Silent(nodes) => {
                self.routing.lay(&nodes);
                if let Some(barrier) = &mut self.barrier {
                    barrier.hears(&nodes);
                }
            }
            Event::Local(bytes) => self.local(&bytes, effects),
            Event::Pass(prefix) => self.pass(prefix, effects),
            Event::LinkUp(node) => {
                self.links.insert(node);
                self.open_link(node, effects);
            }
            Event::LinkDown(node) => {
                self.links.remove(&node);
                if let Some(peer) = self.peers.get_mut(&node) {
                    peer.link = None;
                }
                self.tell_links(effects);
            }
            Event::Progress(node) => {
                if let Some(link) = self.link_mut(node) {
                    link.at_work();
                }
            }
            Event::Received { from, message } => self.received(from, message, effects),
            Event::Audit => drop(self.audit(effects)),
            Event::Freeze(frozen) => self.freeze(frozen, effects),
            Event::Tick => self.tick(effects),
        }
        self.go_on_bundling(effects);
        self.release(effects);
        self.bound();
    }

    /// Lets workers go on that need wait no longer. What they waited for was handed to them before.
    fn release(&mut self, effects: &mut Vec<Effect>) {
        if let Some(barrier) = &mut self.barrier {
            let released = barrier.release(&self.origins).into_iter();
            effects.extend(released.map(|(origin, order)| Effect::GoOn { origin, order }));
        }
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
        let has_nothing = |(&node, peer): (&NodeId, &Peer)| {
            let newcomer = peer.link.as_ref().map(|link| link.newcomer);
            newcomer.unwrap_or_else(|| !live(node))
        };
        self.newcomer && self.peers.iter().all(has_nothing)
    }

    /// Whether this node's workers have made their last batches, and all of the living are known to have them.
    #[must_use]
    pub fn is_handed_over(&self, live: impl Fn(NodeId) -> bool) -> bool {
        let frontier = self.ledger.frontier();
        let own: Vec<&OriginInfo> = self.origins.values().filter(|info| info.node == self.me).collect();
        let has_all = |peer: &Peer| {
            let has = |info: &&OriginInfo| peer.has.applied(info.origin) >= frontier.applied(info.origin);
            own.iter().all(has)
        };
        let mut living = self
            .peers
            .iter()
            .filter(|(node, peer)| live(**node) && !peer.quarantined);
        own.iter().all(|info| info.ended.is_some()) && living.all(|(_, peer)| has_all(peer))
    }

    /// The fingerprint of the batches that this node has.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
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

    pub(super) fn link_mut(&mut self, node: NodeId) -> Option<&mut PeerLink> {
        self.peers.get_mut(&node)?.link.as_mut()
    }

    /// The node of an origin; none if the origin was never announced.
    pub(crate) fn node_of(&self, origin: OriginId) -> Option<NodeId> {
        self.origins.get(&origin).map(|info| info.node)
    }

    pub(super) fn own_origins(&self) -> impl Iterator<Item = OriginId> + '_ {
        let own = self.origins.values().filter(|info| info.node == self.me);
        own.map(|info| info.origin)
    }

    /// Takes note of an origin and hands the news on. The first announcement counts: nobody can take over another
    /// node's origin, and an end stays where it was.
    pub(super) fn learn(&mut self, from: Option<NodeId>, info: OriginInfo, effects: &mut Vec<Effect>) {
        let before = self.origins.get(&info.origin).copied();
        let after = match before {
            // Nobody else can know of an origin of this node's that it does not know itself.
            None if from.is_some() && info.node == self.me => return,
            // Nor can anybody else say of one that it has ended.
            Some(known) if from.is_some() && known.node == self.me => known,
            None => info,
            Some(known) if known.node == info.node => OriginInfo {
                ended: known.ended.or(info.ended),
                ..known
            },
            Some(known) => known,
        };
        if before == Some(after) {
            return;
        }
        self.origins.insert(info.origin, after);
        self.reckon_with(after.node);
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
        let linked = self.peers.iter().filter(|(_, peer)| peer.link.is_some());
        effects.extend(
            linked
                .filter(|&(&to, _)| Some(to) != except)
                .map(|(&to, _)| Effect::Send {
                    to,
                    message: Message::Origin(info),
                }),
        );
    }

    /// Begins with a link to a member, once it is up: tells all origins, and what this node has, if it has anything.
    fn open_link(&mut self, node: NodeId, effects: &mut Vec<Effect>) {
        let Some(peer) = self.peers.get_mut(&node).filter(|peer| !peer.quarantined) else {
            return;
        };
        if !self.links.contains(&node) {
            return;
        }
        peer.link = Some(PeerLink::default());
        // A mark that was proposed on the last link may have come through or not.
        let mark = peer.proposed.clone();
        let origins = self.origins.values().copied().map(Message::Origin);
        effects.extend(origins.map(|message| Effect::Send { to: node, message }));
        effects.extend(self.newcomer.then(|| Effect::newcomer(node)));
        self.tell(node, effects);
        effects.extend(mark.map(|mark| self.marking(node, mark)));
        self.tell_links(effects);
    }

    pub(super) fn quarantine(&mut self, peer: NodeId, reason: Breach, effects: &mut Vec<Effect>) {
        if let Some(state) = self.peers.get_mut(&peer) {
            state.quarantined = true;
            state.link = None;
        }
        self.tell_links(effects);
        effects.push(Effect::Quarantine { peer, reason });
        self.trim();
    }

    /// Takes no further batches, or takes them again.
    fn freeze(&mut self, frozen: bool, effects: &mut Vec<Effect>) {
        self.frozen = frozen;
        if !frozen {
            for node in std::mem::take(&mut self.dropped_while_frozen) {
                self.reset(node, effects);
            }
        }
    }

    /// Gives a link up. What still comes on it is not listened to; the next one starts afresh.
    pub(super) fn reset(&mut self, node: NodeId, effects: &mut Vec<Effect>) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.link = None;
        }
        self.links.remove(&node);
        self.tell_links(effects);
        effects.push(Effect::Reset(node));
    }
}
