//! The exchange of one run on one node: events in, effects out. It has no clock and no sockets; time is a number of
//! ticks.

use std::collections::BTreeSet;
use std::sync::Arc;

use protocol::ids::{NodeId, OriginId};
use protocol::log::batch::{BATCH_BYTES_MAX, Batch, BatchError, OriginStatus};
use protocol::log::bundle::Bundle;
use protocol::log::frontier::{Frontier, SequenceRange};
use protocol::log::merged_range::MergedRange;
use protocol::wire::attach::JumpOrder;
use protocol::wire::link::{Message, Note, OriginInfo, ParcelKind, Piece};
use protocol::wire::run_plan::RunPlan;
use protocol::wire::snapshot;

#[cfg(test)]
use super::barrier::Barrier;
use super::breach::Breach;
use super::bundle_check::BundleCheck;
#[cfg(test)]
use super::bundling::ReductionPath;
use super::event::{Effect, Event, Jump};
use super::limits::{Limits, MEMBERS_MAX};
use super::origins::Origins;
use super::parcel::{Outgoing, PieceOutcome};
use super::peer::{Help, LinkState, Peer};
use super::peers::Peers;
use super::replica::Replica;
#[cfg(test)]
use super::routing::Routing;
use super::snapshots::Snapshots;
use super::strategy::{LetGo, Strategy};
use crate::ledger::{Ledger, LedgerError, Outcome};
use crate::planted::{Bug, planted};

/// In runs whose rounds are bundled (added up by the nodes), peers wait this many times longer before they resend a
/// missing batch, because the origin's node detects the gap itself and resends first.
const BUNDLES_PATIENCE: u32 = 16;
/// Maximum size of a merged range's header in bytes. The header lists the samples that the range covers.
const RANGE_HEAD_BYTES_MAX: usize = 16 << 20;

/// The exchange of one run on one node: it decides which batches are applied here and which are sent to which peer.
#[derive(Clone, Debug)]
pub struct Exchange {
    me: NodeId,
    limits: Limits,
    strategy: Strategy,
    replica: Replica,
    origins: Origins,
    peers: Peers,
    snapshots: Snapshots,
    /// Bytes of single batches in the log beyond which they are merged into ranges.
    compact_at: usize,
    /// True while participants agree on the end of the run: no further batch is taken.
    frozen: bool,
    /// Peers whose batches were dropped while the exchange was frozen. When it thaws, they must resend: the dropped
    /// batches were never acknowledged.
    dropped_while_frozen: BTreeSet<NodeId>,
    /// Bytes of parcels (ranges, bundles and snapshots) that this node received or that peers have confirmed.
    moved: u64,
}

impl Exchange {
    /// Makes the exchange of a run without rounds, at its start, with this replica of the model.
    ///
    /// # Panics
    /// If `window`, `acknowledge_every`, `reset_ticks` or `piece_bytes` of the limits is zero.
    #[must_use]
    pub fn new(me: NodeId, ledger: Ledger, limits: Limits) -> Self {
        Self::with(Strategy::new(me), me, ledger, limits)
    }

    /// Makes the exchange of batches that a run's job asks for, at its start.
    #[must_use]
    pub fn for_run(me: NodeId, ledger: Ledger, plan: &RunPlan) -> Self {
        let weights = ledger.weight_count();
        let strategy = Strategy::of(me, plan, weights);
        Self::with(strategy, me, ledger, Limits::for_weights(weights))
    }

    fn with(strategy: Strategy, me: NodeId, ledger: Ledger, limits: Limits) -> Self {
        assert!(limits.window > 0 && limits.acknowledge_every > 0 && limits.reset_ticks > 0 && limits.piece_bytes > 0);
        // A peer that lacks a batch mostly gets it with the bundle that is in flight.
        let patience = if strategy.is_bundled() { BUNDLES_PATIENCE } else { 1 };
        Self {
            me,
            compact_at: limits.single_bytes_max,
            limits: Limits {
                patience_ticks: limits.patience_ticks * patience,
                ..limits
            },
            strategy,
            replica: Replica::new(ledger),
            origins: Origins::new(me),
            peers: Peers::new(me),
            snapshots: Snapshots::new(),
            frozen: false,
            dropped_while_frozen: BTreeSet::new(),
            moved: 0,
        }
    }

    /// Makes an exchange without rounds whose batches take this routing (path between nodes).
    #[cfg(test)]
    pub(super) fn routed(me: NodeId, ledger: Ledger, limits: Limits, routing: Routing) -> Self {
        Self::with(Strategy::new(me).routed(routing), me, ledger, limits)
    }

    /// Makes an exchange whose rounds are added up along a reduction path.
    #[cfg(test)]
    pub(super) fn bundled(me: NodeId, ledger: Ledger, limits: Limits, barrier: Barrier, path: ReductionPath) -> Self {
        let strategy = Strategy::new(me).in_rounds(barrier, Some(path), ledger.weight_count());
        Self::with(strategy, me, ledger, limits)
    }

    /// Records that a node takes part with this many workers, for whose rounds the other workers wait.
    pub fn reckon_with_workers(&mut self, node: NodeId, workers: usize) {
        self.strategy.joins(node, workers);
    }

    /// The newest round that any worker has reached, and the number of workers that make the next round together;
    /// `None` without rounds.
    #[must_use]
    pub fn rounds(&self) -> Option<(u64, u32)> {
        self.strategy.rounds(&self.origins)
    }

    /// Number of times that a wait for a worker's round timed out.
    #[must_use]
    pub fn waited_in_vain(&self) -> u64 {
        self.strategy.waited_in_vain()
    }

    /// Number of rounds that were applied as bundles (sums of all workers' batches), and of rounds whose batches went
    /// one by one because adding them up was given up.
    #[must_use]
    pub fn bundles(&self) -> (u64, u64) {
        self.strategy.bundles()
    }

    /// This node's replica of the model.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        self.replica.ledger()
    }

    /// Number of bytes of batches, bundles and merged ranges that are kept for peers that are behind.
    #[must_use]
    pub fn log_bytes(&self) -> usize {
        let log = self.replica.log();
        log.single_bytes() + log.merged_bytes()
    }

    /// Returns true if this node's replica is known to be damaged and not yet replaced.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        self.snapshots.is_damaged()
    }

    /// Returns true if this node's workers should be throttled: of the linked peers that this node keeps pace with,
    /// fewer than half have all of its workers' batches but the newest `window` ones of each. So one slow peer among
    /// several slows no worker. Peers that wait for a snapshot do not count, nor do peers that have been silent for a
    /// while, whose links will be given up.
    #[must_use]
    pub fn should_pause(&self) -> bool {
        let heard = self
            .peers
            .iter()
            .filter(|&(node, peer)| peer.is_streaming(self.limits.reset_ticks) && self.strategy.keeps_pace(node));
        let (all, near) = (
            heard.clone().count(),
            heard.filter(|(_, peer)| self.is_near(peer)).count(),
        );
        2 * near < all
    }

    /// Returns true if a peer lacks at most `window` batches of each of this node's workers.
    fn is_near(&self, peer: &Peer) -> bool {
        self.origins.own().all(|info| {
            let applied = self.replica.frontier().applied(info.origin);
            applied.saturating_sub(peer.has().applied(info.origin)) <= self.limits.window
        })
    }

    /// Returns true if this node has nearly all batches that the living peers have told of: it lacks no more than a
    /// window of batches for each worker. Also true for the last living node that has a replica.
    #[must_use]
    pub fn is_caught_up(&self, live: impl Fn(NodeId) -> bool) -> bool {
        let mut living = self.peers.iter().filter(|&(node, _)| live(node)).peekable();
        let heard = living.peek().is_none() || living.any(|(_, peer)| peer.is_heard());
        let lag_max = self.limits.window * self.origins.known().len().max(1) as u64;
        let has_ledger = !self.snapshots.is_newcomer() && !self.snapshots.is_wanted();
        heard && has_ledger && self.lag_behind(live) <= lag_max
    }

    /// Returns true if this node has no replica of the run yet: it waits for a snapshot, and its ledger is a placeholder.
    #[must_use]
    pub fn is_newcomer(&self) -> bool {
        self.snapshots.is_newcomer()
    }

    /// Returns true if this node has no replica of the run yet, and no living or linked node has one to give.
    #[must_use]
    pub fn is_stranded(&self, live: impl Fn(NodeId) -> bool) -> bool {
        let has_nothing = |(node, peer): (NodeId, &Peer)| peer.is_newcomer().unwrap_or_else(|| !live(node));
        self.snapshots.is_newcomer() && self.peers.iter().all(has_nothing)
    }

    /// Returns true if this node's workers have made their last batches, and all living peers are known to have them.
    #[must_use]
    pub fn is_handed_over(&self, live: impl Fn(NodeId) -> bool) -> bool {
        let frontier = self.replica.frontier();
        let has_all = |peer: &Peer| {
            let mut own = self.origins.own();
            own.all(|info| peer.has().applied(info.origin) >= frontier.applied(info.origin))
        };
        let mut living = self
            .peers
            .iter()
            .filter(|&(node, peer)| live(node) && !peer.is_quarantined());
        self.origins.own().all(|info| info.ended.is_some()) && living.all(|(_, peer)| has_all(peer))
    }

    /// A hash of the set of batches that this node has. Nodes with equal hashes have equal weights.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        self.replica.frontier().fingerprint()
    }

    /// Number of bytes of large transfers (ranges, bundles and snapshots) that this node received or that peers have
    /// confirmed. While it grows, some node is catching up.
    #[must_use]
    pub fn moved(&self) -> u64 {
        self.moved
    }

    /// The announced origins (workers' streams of batches) of the run.
    pub fn origins(&self) -> impl Iterator<Item = &OriginInfo> + '_ {
        self.origins.known().values()
    }

    /// The node of the worker that makes an origin's batches; `None` if the origin was never announced.
    pub(crate) fn node_of(&self, origin: OriginId) -> Option<NodeId> {
        self.origins.node_of(origin)
    }

    /// Number of batches that a peer has not acknowledged.
    #[must_use]
    pub fn lag_of(&self, node: NodeId) -> u64 {
        let peer = self.peers.get(node);
        peer.map_or(0, |peer| peer.has().behind(self.replica.frontier()))
    }

    /// Number of batches that peers have and this node has not.
    #[must_use]
    pub fn frontier_lag(&self) -> u64 {
        self.lag_behind(|_| true)
    }

    fn lag_behind(&self, among: impl Fn(NodeId) -> bool) -> u64 {
        self.replica.frontier().behind(&self.peers.have(among))
    }

    /// Handles an event of the exchange, and appends the resulting effects in the order in which they must be carried
    /// out.
    pub fn handle(&mut self, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::Founder(node) if node == self.me => self.snapshots.founds(),
            Event::Founder(node) => {
                self.peers.add_founder(node);
                self.open_link(node, effects);
            }
            Event::Joined(node) => {
                self.peers.add(node);
                self.open_link(node, effects);
            }
            Event::Left(node) => {
                self.peers.remove(node);
                self.trim();
            }
            Event::Origin(info) => self.learn(None, info, effects),
            Event::Silent(nodes) => self.strategy.hears(&nodes),
            Event::Local(bytes) => self.take_local(&bytes, effects),
            Event::Pass(prefix) => self.strategy.average(prefix, &self.origins, effects),
            Event::LinkUp(node) => {
                self.peers.link_up(node);
                self.open_link(node, effects);
            }
            Event::LinkDown(node) => self.peers.link_down(node, effects),
            Event::Progress(node) => {
                if let Some(peer) = self.peers.get_mut(node) {
                    peer.progresses();
                }
            }
            Event::Received { from, message } => self.receive(from, message, effects),
            Event::Audit => drop(self.audit(effects)),
            Event::Freeze(frozen) => self.freeze(frozen, effects),
            Event::Tick => self.tick(effects),
        }
        self.go_on_with_rounds(effects);
        self.strategy.release(&self.origins, effects);
        self.bound_log();
    }

    /// Starts to use a link to a member, once both are known: tells the peer all origins (workers' streams of batches),
    /// and which batches this node has.
    fn open_link(&mut self, node: NodeId, effects: &mut Vec<Effect>) {
        if !self.peers.open_link(node) {
            return;
        }
        let origins = self.origins.known().values().copied().map(Message::Origin);
        effects.extend(origins.map(|message| Effect::Send { to: node, message }));
        if self.snapshots.is_newcomer() {
            effects.push(Effect::note(node, Note::Newcomer));
        }
        self.tell(node, effects);
        self.peers.repeat_mark(node, effects);
        self.peers.tell_links(effects);
    }

    /// Gives a link up so that it is set up again, and both sides tell anew which batches they have.
    fn reset(&mut self, node: NodeId, effects: &mut Vec<Effect>) {
        self.peers.link_down(node, effects);
        effects.push(Effect::Reset(node));
    }

    fn quarantine(&mut self, peer: NodeId, reason: Breach, effects: &mut Vec<Effect>) {
        self.peers.quarantine(peer, effects);
        effects.push(Effect::Quarantine { peer, reason });
        self.trim();
    }

    /// Stops taking batches, or takes them again. Peers whose batches were dropped meanwhile get a new link, so that
    /// they resend.
    fn freeze(&mut self, frozen: bool, effects: &mut Vec<Effect>) {
        self.frozen = frozen;
        if !frozen {
            for node in std::mem::take(&mut self.dropped_while_frozen) {
                self.reset(node, effects);
            }
        }
    }

    /// Returns true if batches are taken: not before a node that joined late has its snapshot, nor while the exchange
    /// is frozen for the agreement on the run's end.
    fn takes_batches(&self) -> bool {
        !self.frozen && !self.snapshots.is_newcomer()
    }

    /// Remembers a peer whose batch was dropped because the exchange is frozen for the agreement on the run's end: if
    /// the run goes on, the peer has to resend. A node without a first snapshot drops batches, too, but has not asked
    /// for them, and remembers no peer.
    fn drop_from(&mut self, from: NodeId) {
        self.dropped_while_frozen.extend(self.frozen.then_some(from));
    }

    /// Records an announced origin (a worker's stream of batches) and forwards the announcement if it is new.
    fn learn(&mut self, from: Option<NodeId>, info: OriginInfo, effects: &mut Vec<Effect>) {
        let Some(info) = self.origins.learn(from, info) else {
            return;
        };
        self.peers.add(info.node);
        if info.ended.is_some() {
            effects.push(Effect::Ended(info.origin));
        }
        self.peers.announce(from, &Message::Origin(info), effects);
    }

    /// Takes a batch from one of this node's workers.
    fn take_local(&mut self, bytes: &Arc<[u8]>, effects: &mut Vec<Effect>) {
        let batch = match Batch::decode(bytes, self.replica.weights()) {
            Ok(batch) => batch,
            Err(error) => return effects.push(Effect::WorkerFault(error.to_string())),
        };
        let origin = batch.header.origin;
        if !self.origins.is_own(origin) {
            return effects.push(Effect::WorkerFault(format!(
                "origin {origin} does not belong to this node"
            )));
        }
        match self.apply(bytes, &batch, effects) {
            Ok(Outcome::Applied(_) | Outcome::Diverged(_)) => {
                let let_go = self.strategy.offer(batch, &self.origins, effects);
                self.send_singly(let_go, effects);
                self.pump_all(effects);
            }
            Ok(Outcome::Duplicate | Outcome::Ahead { .. } | Outcome::Overlaps) => {
                effects.push(Effect::WorkerFault(format!(
                    "a batch of origin {origin} is out of sequence"
                )));
            }
            // The worker does not know yet that the run is over.
            Err(LedgerError::Range(_)) => {}
            Err(error) => effects.push(Effect::WorkerFault(error.to_string())),
        }
    }

    /// Applies a batch, appends it to the log and delivers it to the workers.
    fn apply(&mut self, bytes: &Arc<[u8]>, batch: &Batch, effects: &mut Vec<Effect>) -> Result<Outcome, LedgerError> {
        let outcome = self.replica.apply(batch, bytes)?;
        let header = &batch.header;
        if outcome.is_applied() {
            self.note(
                header.origin,
                header.sequence,
                header.status,
                Some(header.loss),
                effects,
            );
            self.note_outcome(outcome, effects);
        }
        if outcome.is_applied() || outcome == Outcome::Duplicate && planted(Bug::DoubleApply) {
            effects.push(Effect::Deliver {
                origin: header.origin,
                bytes: Arc::clone(bytes),
            });
        }
        Ok(outcome)
    }

    /// Applies a merged range, appends it to the log and moves the workers by it.
    fn apply_range(&mut self, range: MergedRange, effects: &mut Vec<Effect>) -> Result<Outcome, LedgerError> {
        let outcome = self.replica.apply_range(&range)?;
        if outcome.is_applied() {
            let MergedRange { header, sums } = range;
            self.note(header.origin, header.to, header.status, None, effects);
            self.note_outcome(outcome, effects);
            let order = JumpOrder {
                origin: Some(header.origin),
                batches: header.to - header.from,
                samples: header.samples,
                cursors: header.cursors,
            };
            effects.push(Effect::Jump(Box::new(Jump { sums, order })));
        }
        Ok(outcome)
    }

    /// Applies the remainder of a bundle (the sum of one batch from each of several workers) whose known batches were
    /// subtracted, appends it to the log and delivers it to the workers. Returns true if this node now has all of the
    /// bundle's batches.
    fn apply_bundle(&mut self, mut rest: Bundle, effects: &mut Vec<Effect>) -> bool {
        if rest.headers.is_empty() {
            return true;
        }
        // Only this node makes batches of its own origins.
        if rest.headers.iter().any(|header| self.origins.is_own(header.origin)) {
            return false;
        }
        let Some((outcome, bytes)) = self.replica.apply_bundle(&mut rest) else {
            return false;
        };
        effects.push(Effect::Bundle(bytes));
        for header in &rest.headers {
            self.note(
                header.origin,
                header.sequence,
                header.status,
                Some(header.loss),
                effects,
            );
        }
        self.note_outcome(outcome, effects);
        true
    }

    /// Handles the status in the header of an applied batch: the worker's progress through the rounds, and if the batch
    /// is the worker's last one, or says that the run is to stop.
    fn note(&mut self, origin: OriginId, to: u64, status: OriginStatus, loss: Option<f32>, effects: &mut Vec<Effect>) {
        self.strategy.applied(origin, status, loss, self.origins.is_own(origin));
        if status.last {
            self.origins.end(origin, to);
        }
        if status.stop {
            effects.push(Effect::Stop);
        }
    }

    /// Handles a weight that left the range that weights may have (between −16 and 16): the run has diverged, unless
    /// this node's replica is damaged.
    fn note_outcome(&mut self, outcome: Outcome, effects: &mut Vec<Effect>) {
        // A flipped bit can take a weight out of the range, too.
        if let Outcome::Diverged(error) = outcome
            && self.audit(effects)
            && self.replica.ledger().is_diverged()
        {
            effects.push(Effect::Diverged(error.to_string()));
        }
    }

    /// Compares this node's replica with the sum of its batches. One flipped bit is repaired at once; more damage needs
    /// a peer's replica. Returns true if the replica is right.
    fn audit(&mut self, effects: &mut Vec<Effect>) -> bool {
        if self.is_damaged() {
            return false;
        }
        match self.replica.mend() {
            Ok(mended) => {
                effects.extend(mended.map(Effect::Mended));
                true
            }
            Err(error) => {
                effects.push(Effect::Damaged(error));
                self.snapshots.want_for_damage(&self.peers, effects);
                false
            }
        }
    }

    fn receive(&mut self, from: NodeId, message: Message, effects: &mut Vec<Effect>) {
        let Some(peer) = self.peers.get_mut(from) else {
            return;
        };
        if !peer.speaks() {
            return;
        }
        let taken = match message {
            Message::Origin(info) => {
                if self.origins.make_room_for(info.origin, self.replica.frontier()) {
                    self.learn(Some(from), info, effects);
                    Ok(())
                } else {
                    Err(Breach::TooManyOrigins)
                }
            }
            Message::Have(frontier) => {
                let is_first = peer.confirm(&frontier);
                self.snapshots.hears(from, is_first, effects);
                self.catch_up(from, effects);
                Ok(())
            }
            Message::Batch(_) if !self.takes_batches() => {
                self.drop_from(from);
                Ok(())
            }
            Message::Batch(bytes) => self.take(from, &bytes, effects),
            Message::Piece(piece) => self.take_piece(from, &piece, effects),
            Message::Part(part) => {
                if self.takes_batches() {
                    let let_go = self.strategy.take_part(from, part, effects);
                    self.send_singly(let_go, effects);
                }
                Ok(())
            }
            Message::Prefix(prefix) => {
                self.strategy.take_prefix(prefix, &self.origins, effects);
                Ok(())
            }
            Message::Note(note) => self.hear(from, note, effects),
            Message::Flow(_) => Ok(()),
        };
        if let Err(reason) = taken {
            self.quarantine(from, reason, effects);
        }
    }

    fn hear(&mut self, from: NodeId, note: Note, effects: &mut Vec<Effect>) -> Result<(), Breach> {
        let Some(peer) = self.peers.get_mut(from) else {
            return Ok(());
        };
        match note {
            Note::Mark { members: nodes, .. } | Note::Links(nodes) if nodes.len() > MEMBERS_MAX => {
                return Err(Breach::TooManyMembers);
            }
            Note::Links(links) => {
                for node in self.peers.take_links(from, links) {
                    self.pump(node, effects);
                }
            }
            Note::Mark {
                number,
                frontier,
                members,
            } => {
                let except = peer.take_mark(&frontier, self.replica.frontier(), self.replica.log());
                effects.push(Effect::note(from, Note::Marked { number, except }));
                for node in members {
                    self.peers.add(node);
                }
                self.trim();
                self.catch_up(from, effects);
            }
            Note::Newcomer => peer.waits_for_snapshot(),
            Note::Marked { number, except } => {
                peer.marked(number, &except);
                self.trim();
            }
            Note::Got(bytes) => {
                self.moved += peer.got(bytes);
                self.pump(from, effects);
            }
            Note::Cannot(range) => {
                // Without this range, the rest of the data in flight is of no use. On the new link the peer is helped
                // from its mark.
                peer.refuse(range.origin, range.from);
                self.reset(from, effects);
            }
            Note::TooFar => self.snapshots.want_from(from, effects),
            Note::Ask => {
                peer.asks_for_snapshot();
                self.give(from, effects);
            }
        }
        Ok(())
    }

    /// Sends a peer the batches that it lacks, after it has told which batches it has.
    fn catch_up(&mut self, node: NodeId, effects: &mut Vec<Effect>) {
        let is_near = self.peers.get(node).is_some_and(|peer| self.is_near(peer));
        if let Some(peer) = self.peers.get_mut(node).filter(|_| is_near) {
            peer.comes_near();
        }
        self.merge_for(node);
        self.pump(node, effects);
    }

    /// Takes a batch from a peer. Fails if no honest member would send it.
    fn take(&mut self, from: NodeId, bytes: &Arc<[u8]>, effects: &mut Vec<Effect>) -> Result<(), Breach> {
        let decoded = Batch::decode(bytes, self.replica.weights());
        let Some(batch) = self.undamaged(from, decoded, effects)? else {
            return Ok(());
        };
        let (origin, sequence) = (batch.header.origin, batch.header.sequence);
        let origin_node = self.origins.check(origin, sequence, self.replica.frontier())?;
        if self
            .replica
            .log()
            .get(origin, sequence)
            .is_some_and(|known| known != bytes)
        {
            // A peer that only forwards the batch cannot know which contents are right.
            return if from == origin_node {
                Err(Breach::OtherContents { origin, sequence })
            } else {
                Ok(())
            };
        }
        let outcome = self.apply(bytes, &batch, effects);
        let is_new = outcome.as_ref().is_ok_and(Outcome::is_applied);
        if self.took(from, outcome, origin, sequence, effects)? {
            self.relay(origin_node, effects);
        }
        if is_new {
            if from == origin_node {
                let let_go = self.strategy.hear_single(origin_node, &batch.header.status, effects);
                self.send_singly(let_go, effects);
            }
            if batch.payload.is_dense() && self.strategy.has_rounds() {
                // Dense batches are large: they must leave the log as soon as possible.
                self.tell(from, effects);
                self.mark(from, 0, effects);
            }
        }
        Ok(())
    }

    /// Handles the outcome of applying data from a peer. Returns true if the data is now in this node's replica; then
    /// the peer is known to have it, and gets an acknowledgement from time to time.
    fn took(
        &mut self,
        from: NodeId,
        outcome: Result<Outcome, LedgerError>,
        origin: OriginId,
        to: u64,
        effects: &mut Vec<Effect>,
    ) -> Result<bool, Breach> {
        match outcome {
            Ok(Outcome::Ahead { .. }) => {
                self.reset(from, effects);
                return Ok(false);
            }
            Ok(_) => {}
            // The run is over here, which the peer will learn.
            Err(LedgerError::Range(_)) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        if let Some(peer) = self.peers.get_mut(from) {
            peer.showed(origin, to);
            if peer.count_taken(self.limits.acknowledge_every) {
                self.tell(from, effects);
            }
        }
        Ok(true)
    }

    /// Returns the decoded batches of a peer, or `None` if they were damaged. TLS protects the connection, so a bit has
    /// flipped in a machine's memory: the link is set up again, and the sender checks its log. Fails if no honest
    /// member would send the data, or if too many frames in a row are damaged.
    fn undamaged<T>(
        &mut self,
        from: NodeId,
        decoded: Result<T, BatchError>,
        effects: &mut Vec<Effect>,
    ) -> Result<Option<T>, Breach> {
        let peer = self.peers.get_mut(from);
        match decoded {
            Err(BatchError::Damaged) => {
                if peer.is_some_and(Peer::sent_damage) {
                    return Err(Breach::OnlyDamage);
                }
                self.reset(from, effects);
                Ok(None)
            }
            Err(violation) => Err(violation.into()),
            Ok(whole) => {
                peer.into_iter().for_each(Peer::sent_intact);
                Ok(Some(whole))
            }
        }
    }

    /// Maximum size in bytes of a parcel (a large item in pieces) of this kind. A merged range takes at most ten bytes
    /// a weight and its header; a snapshot takes its weights and a log within its limits.
    fn parcel_bytes_max(&self, kind: ParcelKind) -> u64 {
        let Limits {
            single_bytes_max,
            merged_bytes_max,
            ..
        } = self.limits;
        let log_max = single_bytes_max.saturating_add(merged_bytes_max).saturating_mul(2);
        let ranges_max = RANGE_HEAD_BYTES_MAX + 10 * self.replica.weights();
        let total_max = match kind {
            ParcelKind::Range => ranges_max,
            ParcelKind::Bundle => BATCH_BYTES_MAX,
            ParcelKind::Snapshot => snapshot::length_max(self.replica.weights(), log_max).saturating_add(ranges_max),
        };
        total_max as u64
    }

    fn take_piece(&mut self, from: NodeId, piece: &Piece, effects: &mut Vec<Effect>) -> Result<(), Breach> {
        if piece.total > self.parcel_bytes_max(piece.kind) {
            return Err(Breach::OversizeParcel(piece.total));
        }
        self.moved += piece.bytes.len() as u64;
        let (got, whole) = match self.peers.get_mut(from).and_then(|peer| peer.take_piece(piece)) {
            None => return Ok(()),
            Some(PieceOutcome::OutOfPlace) => {
                self.reset(from, effects);
                return Ok(());
            }
            Some(PieceOutcome::Part(got)) => (got, None),
            Some(PieceOutcome::Whole(kind, bytes)) => (piece.total, Some((kind, bytes))),
        };
        effects.push(Effect::note(from, Note::Got(got)));
        if piece.kind == ParcelKind::Snapshot {
            self.snapshots.progresses(from);
        }
        match whole {
            Some((ParcelKind::Snapshot, bytes)) => return self.install(from, &bytes, effects),
            Some(_) if !self.takes_batches() => self.drop_from(from),
            Some((ParcelKind::Range, bytes)) => return self.take_range(from, &bytes, effects),
            Some((ParcelKind::Bundle, bytes)) => return self.take_bundle(from, &bytes, effects),
            None => {}
        }
        Ok(())
    }

    /// Takes a merged range from a peer, without its beginning if this node has that already.
    fn take_range(&mut self, from: NodeId, bytes: &[u8], effects: &mut Vec<Effect>) -> Result<(), Breach> {
        let decoded = MergedRange::decode(bytes, self.replica.weights());
        let Some(range) = self.undamaged(from, decoded, effects)? else {
            return Ok(());
        };
        let whole = SequenceRange {
            origin: range.header.origin,
            from: range.header.from,
            to: range.header.to,
        };
        self.origins.check(whole.origin, whole.to, self.replica.frontier())?;
        let Some(range) = self.replica.without_applied(range) else {
            effects.push(Effect::note(from, Note::Cannot(whole)));
            return Ok(());
        };
        let outcome = self.apply_range(range, effects);
        if self.took(from, outcome, whole.origin, whole.to, effects)? {
            self.tell(from, effects);
        }
        Ok(())
    }

    /// Takes a bundle (the sum of one batch from each of several workers) that a peer forwards.
    fn take_bundle(&mut self, from: NodeId, bytes: &[u8], effects: &mut Vec<Effect>) -> Result<(), Breach> {
        let decoded = Bundle::decode(bytes, self.replica.weights());
        let Some(bundle) = self.undamaged(from, decoded, effects)? else {
            return Ok(());
        };
        let batches: Vec<(OriginId, u64)> = bundle.batches().collect();
        for &(origin, sequence) in &batches {
            self.origins.check(origin, sequence, self.replica.frontier())?;
        }
        let refused = match self.replica.check_bundle(bundle) {
            BundleCheck::New(rest) => !self.apply_bundle(rest, effects),
            BundleCheck::Later => {
                self.reset(from, effects);
                return Ok(());
            }
            BundleCheck::Cannot => true,
        };
        let frontier = self.replica.frontier();
        let lacks = |&(origin, sequence): &(OriginId, u64)| frontier.applied(origin) < sequence;
        if refused && let Some((origin, to)) = batches.iter().copied().find(lacks) {
            let range = SequenceRange {
                origin,
                from: to - 1,
                to,
            };
            effects.push(Effect::note(from, Note::Cannot(range)));
            return Ok(());
        }
        if let Some(peer) = self.peers.get_mut(from) {
            for &(origin, to) in &batches {
                peer.showed(origin, to);
            }
        }
        self.tell(from, effects);
        Ok(())
    }

    /// Replaces the replica by a peer's snapshot, to which this node's further batches are added. Fails if no honest
    /// member would send the snapshot.
    fn install(&mut self, from: NodeId, bytes: &[u8], effects: &mut Vec<Effect>) -> Result<(), Breach> {
        let Some(wanted) = self.snapshots.request_to(from) else {
            return Ok(());
        };
        let snapshot = self.replica.read_snapshot(bytes, &self.origins)?;
        let merged = self.replica.with_own(snapshot);
        // A frozen node has agreed on its batches, so it takes a ledger of exactly these batches only.
        let merged = merged.filter(|merged| !self.frozen || merged.frontier() == self.replica.frontier());
        let Some(merged) = merged else {
            self.snapshots.came_too_old(self.limits.reset_ticks);
            return Ok(());
        };
        self.snapshots.came();
        let jump = self.replica.replace(merged, wanted.damaged);
        if wanted.damaged {
            effects.push(Effect::Healed);
        }
        effects.push(jump.map_or(Effect::RestartWorkers, |jump| Effect::Jump(Box::new(jump))));
        for node in self.peers.nodes() {
            self.tell(node, effects);
        }
        self.trim();
        Ok(())
    }

    /// Sends a peer the snapshot that it has asked for, unless the peer has batches that the snapshot would lack.
    fn give(&mut self, node: NodeId, effects: &mut Vec<Effect>) {
        let may_have = |peer: &Peer| peer.awaits_snapshot() && self.replica.frontier().lacks(peer.has()).is_empty();
        let is_given = self.peers.get(node).is_some_and(may_have)
            && !self.snapshots.is_newcomer()
            && self.peers.given_snapshots() < self.limits.snapshots_max;
        // A peer would quarantine the sender of a damaged ledger.
        if !is_given || !self.audit(effects) {
            return;
        }
        if let Some(peer) = self.peers.get_mut(node) {
            let snapshot = self.replica.snapshot_for(peer.has());
            peer.give_snapshot(Outgoing::snapshot(snapshot));
            effects.push(Effect::Giving(node));
            self.pump(node, effects);
        }
    }

    /// Advances the round that nodes are adding up, and applies its sum if that is complete.
    fn go_on_with_rounds(&mut self, effects: &mut Vec<Effect>) {
        let let_go = self.strategy.go_on(&self.origins, effects);
        self.send_singly(let_go, effects);
        if !self.takes_batches() {
            return;
        }
        let Some(bundle) = self.strategy.take_whole_round(&self.origins, self.replica.ledger()) else {
            return;
        };
        let is_applied = match self.replica.check_bundle(bundle) {
            BundleCheck::New(rest) => self.apply_bundle(rest, effects),
            BundleCheck::Later | BundleCheck::Cannot => false,
        };
        let let_go = self.strategy.end_round(is_applied, effects);
        if is_applied {
            // Peers are told at once which batches this node has, so that the round's batches leave their logs soon.
            for node in self.peers.nodes() {
                self.tell(node, effects);
                self.mark(node, 0, effects);
            }
        }
        self.send_singly(let_go, effects);
    }

    /// Sends the batches of a round that was given up to peers one by one.
    fn send_singly(&mut self, let_go: LetGo, effects: &mut Vec<Effect>) {
        if let_go.0 {
            self.pump_all(effects);
        }
    }

    fn tick(&mut self, effects: &mut Vec<Effect>) {
        let let_go = self.strategy.tick(&self.origins, effects);
        self.send_singly(let_go, effects);
        // A batch that its last receiver has now got needs no more messages; only this removes it from the log.
        self.trim();
        self.snapshots.tick(self.limits.reset_ticks, &self.peers, effects);
        for node in self.peers.nodes() {
            self.tell(node, effects);
            self.mark(node, self.limits.mark_ticks, effects);
            let link = self
                .peers
                .get_mut(node)
                .map_or(LinkState::Down, |peer| peer.tick(&self.limits));
            match link {
                LinkState::Down => continue,
                LinkState::Dead => {
                    self.reset(node, effects);
                    continue;
                }
                // All members prepare the same repairs for a peer that is behind. For one that does not answer they
                // would be of no use.
                LinkState::Mute => {}
                LinkState::Alive => {
                    self.look_for_stalls(node);
                    self.merge_for(node);
                }
            }
            self.give(node, effects);
            self.pump(node, effects);
        }
    }

    /// Tells a peer which batches this node has, if that has changed since the peer was last told. A node that joined
    /// late and has no snapshot yet has nothing to tell.
    fn tell(&mut self, node: NodeId, effects: &mut Vec<Effect>) {
        if !self.snapshots.is_newcomer() {
            self.peers.tell(node, self.replica.frontier(), effects);
        }
    }

    /// Tells a peer, every `every` ticks, after which point this node's log holds all batches (proposes a mark). A node
    /// that waits for its first snapshot has no such point, and tells the peer that it waits.
    fn mark(&mut self, node: NodeId, every: u32, effects: &mut Vec<Effect>) {
        if self.snapshots.is_newcomer() {
            self.peers.tell_newcomer(node, every, effects);
        } else {
            self.peers.propose_mark(node, self.replica.frontier(), every, effects);
        }
    }

    /// Counts the ticks for which a peer has lacked each worker's batches without progress. The node that the routing
    /// names sends them first; the others help one after the other, in the order of their names, so that two rarely
    /// send the same batch.
    fn look_for_stalls(&mut self, node: NodeId) {
        let rank = self.peers.rank_before_me(node);
        let patience = self.limits.patience_ticks.saturating_mul(1 + rank);
        let Some(peer) = self.peers.get_mut(node) else {
            return;
        };
        for (origin, applied) in self.replica.frontier().iter() {
            let origin_node = self.origins.node_of(origin);
            if origin_node.is_some_and(|origin_node| origin_node != node && !self.strategy.sends(origin_node, node)) {
                peer.watch(origin, applied, patience);
            }
        }
    }

    /// Forwards batches that have just come from the node that made them, to those peers that get them from this node.
    fn relay(&mut self, origin_node: NodeId, effects: &mut Vec<Effect>) {
        let goes_on =
            |&(to, peer): &(NodeId, &Peer)| self.strategy.sends(origin_node, to) || peer.is_relayed(origin_node);
        let targets: Vec<NodeId> = self.peers.iter().filter(goes_on).map(|(node, _)| node).collect();
        for node in targets {
            self.pump(node, effects);
        }
    }

    fn pump_all(&mut self, effects: &mut Vec<Effect>) {
        for node in self.peers.nodes() {
            self.pump(node, effects);
        }
    }

    /// Sends a peer the batches that it lacks, as far as the limits on unacknowledged data allow.
    fn pump(&mut self, node: NodeId, effects: &mut Vec<Effect>) {
        let Some(peer) = self.peers.get_mut(node).filter(|peer| peer.has_link()) else {
            return;
        };
        peer.send_pieces(node, &self.limits, effects);
        let mut spoilt = Frontier::default();
        for info in self.origins.known().values() {
            if !sends(&self.strategy, info, node, peer) {
                continue;
            }
            let origin = info.origin;
            let applied = self.replica.frontier().applied(origin);
            while let Some(sent) = peer.lacks_after(origin, applied, &self.limits)
                && !self.strategy.holds(origin, sent + 1, node)
            {
                match peer.help(self.replica.log(), origin, sent, applied) {
                    Help::Batch(bytes) => {
                        peer.send(origin, sent + 1, bytes.len());
                        effects.push(Effect::Send {
                            to: node,
                            message: Message::Batch(bytes),
                        });
                    }
                    Help::Parcel(parcel) => peer.send_parcel(node, parcel, &self.limits, effects),
                    Help::Later => break,
                    Help::Spoilt(to) => {
                        spoilt.raise(origin, to);
                        break;
                    }
                    Help::Snapshot => {
                        if peer.tell_too_far() {
                            effects.push(Effect::note(node, Note::TooFar));
                        }
                        break;
                    }
                }
            }
        }
        // A peer that lacks such a batch takes a snapshot: the ledger has the batch, and is audited before it is sent.
        if spoilt.iter().next().is_some() {
            effects.push(Effect::Spoilt);
            self.replica.trim(&spoilt);
        }
    }

    /// Removes batches that no member needs any more from the log.
    fn trim(&mut self) {
        let needless = self.peers.needless(self.replica.frontier(), &self.origins);
        self.replica.trim(&needless);
    }

    /// Keeps the log of batches within its limits: merges batches, then keeps nothing for the peers that are furthest
    /// behind.
    fn bound_log(&mut self) {
        self.compact();
        while self.is_log_too_long()
            && let Some(node) = self.peers.furthest_behind(self.replica.frontier())
            && let Some(peer) = self.peers.get_mut(node)
        {
            peer.forget();
            self.trim();
            // Merging may be possible now that the log keeps nothing for this peer.
            self.compact();
        }
    }

    /// Returns true if the log is too large and merging cannot help. Batches of bundles are not merged, except those of
    /// this node's own workers: a peer that is offered a bundle must be able to subtract the batches that it has.
    fn is_log_too_long(&self) -> bool {
        let Limits {
            single_bytes_max,
            merged_bytes_max,
            ..
        } = self.limits;
        let all_max = single_bytes_max.saturating_add(merged_bytes_max);
        let merged_bytes = self.replica.log().merged_bytes();
        merged_bytes > merged_bytes_max || self.strategy.is_bundled() && self.log_bytes() > all_max
    }

    /// Merges the single batches in the log into ranges, if they take more than `compact_at` bytes.
    fn compact(&mut self) {
        let single_bytes = self.replica.log().single_bytes();
        if single_bytes <= self.compact_at {
            return;
        }
        if single_bytes > self.limits.unmarked_bytes_max {
            self.peers.forget_unmarked();
        }
        let origins: Vec<OriginId> = self.replica.log().kept().map(|range| range.origin).collect();
        for origin in origins {
            self.merge(origin);
        }
        // Recent batches stay single, and may exceed the limit by themselves.
        self.compact_at = if self.peers.have_known_points() {
            self.replica.log().single_bytes() + self.limits.single_bytes_max
        } else {
            self.limits.single_bytes_max
        };
    }

    /// Merges a worker's batches in the log into ranges. No range spans a sequence up to which a member may have the
    /// batches, because that member could not apply it.
    fn merge(&mut self, origin: OriginId) {
        let may_merge = !self.strategy.is_bundled() || self.origins.is_own(origin);
        if !may_merge || !self.peers.have_known_points() || planted(Bug::NoMerge) {
            return;
        }
        let mut points = self.peers.points(origin);
        points.extend(self.strategy.points(origin));
        self.replica.compact(origin, &points, self.limits.window);
    }

    /// Merges the batches of a worker that a peer lacks, and that this node sends to it, into a range, if they are long
    /// enough to make that worth while.
    fn merge_for(&mut self, node: NodeId) {
        let Limits {
            window,
            range_worth_bytes,
            ..
        } = self.limits;
        let Some(peer) = self.peers.get(node).filter(|peer| peer.is_heard()) else {
            return;
        };
        let (origins, log) = (self.origins.known(), self.replica.log());
        let lacking = peer.has().lacks(self.replica.frontier()).into_iter();
        // Only the node that sends an origin's batches to the peer merges them; otherwise each node would do the same
        // work for a peer that returns.
        let sends = |origin| {
            origins
                .get(&origin)
                .is_some_and(|info| sends(&self.strategy, info, node, peer))
        };
        let worth: Vec<OriginId> = lacking
            .filter(|range| sends(range.origin))
            .filter(|range| range.to - range.from > window)
            .filter(|range| log.single_bytes_after(range.origin, range.from, window) > range_worth_bytes)
            .map(|range| range.origin)
            .collect();
        for origin in worth {
            self.merge(origin);
        }
    }
}

/// Returns true if this node has to send a worker's batches to a peer: by the routing, as a relay between nodes without
/// a link, or as help.
fn sends(strategy: &Strategy, info: &OriginInfo, to: NodeId, peer: &Peer) -> bool {
    info.node != to && (strategy.sends(info.node, to) || peer.is_relayed(info.node) || peer.is_helped(info.origin))
}

/// Access to the state of an exchange for tests.
#[cfg(test)]
impl Exchange {
    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(super) fn replica(&self) -> &Replica {
        &self.replica
    }

    pub(super) fn replica_mut(&mut self) -> &mut Replica {
        &mut self.replica
    }

    pub(super) fn peers(&self) -> &Peers {
        &self.peers
    }

    /// The peers for which the log keeps nothing any more.
    pub(super) fn forgotten(&self) -> impl Iterator<Item = NodeId> + '_ {
        let forgotten = self.peers.iter().filter(|(_, peer)| peer.is_forgotten());
        forgotten.map(|(node, _)| node)
    }

    /// Returns true if the log is within its limits, with an allowance for batches that cannot be merged or are not
    /// worth merging yet. A log that is kept for no peer passes even if it is too long.
    pub(super) fn is_bounded(&self, batch_bytes_max: usize) -> bool {
        // Merging leaves each worker's recent batches, and batches that stand alone between two members' marks. After
        // that, as many bytes again may come before merging is worth while.
        let log = self.replica.log();
        let alone_max = log.kept().count() * (self.limits.window as usize + 4 * self.peers.ever() + 2);
        let merging_max = (self.limits.single_bytes_max).saturating_add((alone_max + 1) * batch_bytes_max);
        let single_max = if self.peers.have_known_points() {
            merging_max
        } else {
            merging_max.max(self.limits.unmarked_bytes_max)
        };
        let all_forgotten = self.peers.furthest_behind(self.replica.frontier()).is_none();
        let is_merged = log.single_bytes() <= single_max || self.strategy.is_bundled();
        is_merged && (!self.is_log_too_long() || all_forgotten)
    }

    /// Describes the exchange's state, for the report of a failed simulation.
    pub(crate) fn describe(&self) -> String {
        use std::fmt::Write as _;

        let kept: Vec<_> = self.replica.log().kept().collect();
        let (frontier, snapshots) = (self.replica.frontier(), &self.snapshots);
        let mut text = format!("{frontier:?}, keeps {kept:?}, {snapshots:?}\n");
        for (id, peer) in self.peers.iter() {
            let _ = writeln!(text, "  {id}: {peer:?}");
        }
        text
    }
}
