//! This node's view of one peer: the batches that the peer has, its mark, and the state of the link to it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use protocol::ids::{NodeId, OriginId};
use protocol::log::checksum;
use protocol::log::frontier::Frontier;
use protocol::wire::link::{Message, Piece};
use protocol::wire::snapshot::{EntryKind, LogEntry};

use super::event::Effect;
use super::limits::Limits;
use super::log::Log;
use super::parcel::{self, Incoming, Outgoing, PieceOutcome};
use crate::planted::{Bug, planted};

/// A link on which bytes still leave is taken for dead only after this many times more ticks of silence.
const MUTE_FACTOR: u32 = 4;
/// Damaged frames in a row that are taken for an accident; one more quarantines the peer.
const DAMAGED_MAX: u32 = 8;

/// A member of the run other than this node, with or without a link to it.
#[derive(Clone, Debug, Default)]
pub(super) struct Peer {
    /// Batches that the peer is known to have applied. This frontier only grows: applied batches stay applied. (A node
    /// that is started again is another node, with another name.)
    has: Frontier,
    /// State of the link to the peer; `None` if there is no link.
    link: Option<PeerLink>,
    /// True once the peer has sent something that no honest member sends: nothing is taken from it or sent to it any
    /// more, and there is no link to it.
    quarantined: bool,
    /// The peer's newest mark: the point after which the peer's log holds all batches. Merged ranges for the peer may
    /// begin there, because the peer can subtract the batches that it has.
    base: Frontier,
    /// True if the peer really made the mark in `base` (a point after which the peer's log holds all batches): it began
    /// with the run, or has sent a mark. Nothing is merged until that is true of all peers, because until then it is
    /// unknown where ranges for them must begin.
    is_marked: bool,
    /// True once the log for the peer became too large: nothing is kept for it any more, and it will need a snapshot.
    forgotten: bool,
    /// This node's mark (a point after which its log holds all batches) that the peer has accepted. Ranges from the
    /// peer begin there or at the proposed mark.
    mark: Frontier,
    /// The mark (a point after which this node's log holds all batches) that the peer has not confirmed yet.
    proposed: Option<ProposedMark>,
    /// Merged ranges that the peer could not apply: each range's origin (a worker's stream of batches) and start.
    refused: BTreeSet<(OriginId, u64)>,
    /// Number of damaged frames in a row from the peer.
    damaged: u32,
    /// Number of marks (points after which this node's log holds all batches) that this node has proposed to the peer,
    /// which numbers them.
    marks: u64,
    /// Ticks since this node last proposed a mark (a point after which its log holds all batches).
    mark_age: u32,
    /// Nodes that have no link to the peer: this node relays their workers' batches to it at once.
    relayed: BTreeSet<NodeId>,
}

/// A mark (a point after which this node's log holds all batches) that the peer has not confirmed.
#[derive(Clone, Debug)]
pub(super) struct ProposedMark {
    pub(super) number: u64,
    pub(super) frontier: Frontier,
}

/// State of the current link to a peer. It is discarded when the link goes down.
#[derive(Clone, Debug, Default)]
struct PeerLink {
    /// True if the peer has said that it has no replica of the run yet and waits for a snapshot.
    newcomer: bool,
    /// The nodes that the peer has links to, as it last told on this link.
    links: Option<BTreeSet<NodeId>>,
    /// This node's links, as last told to the peer on this link.
    told_links: Option<BTreeSet<NodeId>>,
    /// The parcel (a large item in pieces) that is being sent to the peer.
    outgoing: Option<Outgoing>,
    /// The parcel (a large item in pieces) that is being received from the peer.
    incoming: Option<Incoming>,
    /// True if the peer has asked for a snapshot that is not on its way yet.
    asks: bool,
    /// Batches taken from the peer since they were last acknowledged.
    untold: u64,
    /// For each origin (a worker's stream of batches) of a third node: the peer's progress with its batches, and this
    /// node's help.
    repairs: BTreeMap<OriginId, Repair>,
    /// Ticks since the peer was told that only a snapshot can help it; `None` if it was not told.
    too_far: Option<u32>,
    /// For each origin (a worker's stream of batches), the last batch that was sent to the peer or that it has; `None`
    /// until the peer has told which batches it has.
    sent: Option<Frontier>,
    /// Batches sent to the peer and not acknowledged: each one's origin (a worker's stream of batches), sequence and
    /// number of bytes.
    flight: VecDeque<(OriginId, u64, usize)>,
    /// Total bytes of the batches in `flight`.
    flight_bytes: usize,
    /// The frontier (the batches that this node has) as last told to the peer.
    told: Option<Frontier>,
    /// Ticks since the last message from the peer.
    quiet: u32,
    silence: Silence,
}

/// Time in ticks for which the peer has confirmed nothing of the data in flight to it. After too long a time the link
/// is taken for dead.
#[derive(Clone, Debug, Default)]
struct Silence {
    /// The batches that the peer had when it last made progress.
    has: Frontier,
    /// The bytes of a parcel (a large item in pieces) that the peer had confirmed when it last made progress.
    got: u64,
    ticks: u32,
}

/// A peer's progress with the batches of one worker of a third node, and this node's help with them.
#[derive(Clone, Debug, Default)]
struct Repair {
    /// Number of the worker's batches that the peer had at the last tick, by which progress is noticed.
    seen: u64,
    /// Ticks for which the peer has lacked batches without progress.
    ticks: u32,
    /// The last batch of the worker that this node has sent the peer as help; `None` while this node does not help.
    active: Option<u64>,
}

/// The state of a peer's link after a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkState {
    /// There is no link to the peer.
    Down,
    /// The peer acknowledges nothing, or has been silent for too long: the link is to be reset.
    Dead,
    /// The peer has not answered for a while although data is in flight to it. Batches of other nodes are not resent to
    /// it by this node, because they would only queue behind that data.
    Mute,
    Alive,
}

/// The next thing to send a peer so that it gets one worker's batches.
pub(super) enum Help {
    Batch(Arc<[u8]>),
    Parcel(Outgoing),
    /// The log entry that ends at this sequence has a flipped bit and cannot be sent.
    Spoilt(u64),
    /// Nothing is to be sent now: a transfer in flight has to arrive first.
    Later,
    Snapshot,
}

impl Peer {
    /// Records that the member has taken part since the first batch of the run. It need not send a mark (a point after
    /// which its log holds all batches).
    pub(super) fn founds(&mut self) {
        self.is_marked = true;
    }

    /// Batches that the peer is known to have applied.
    pub(super) fn has(&self) -> &Frontier {
        &self.has
    }

    pub(super) fn has_link(&self) -> bool {
        self.link.is_some()
    }

    pub(super) fn is_quarantined(&self) -> bool {
        self.quarantined
    }

    #[cfg(test)]
    pub(super) fn is_forgotten(&self) -> bool {
        self.forgotten
    }

    /// Stops keeping batches for the peer, which will need a snapshot.
    pub(super) fn forget(&mut self) {
        self.forgotten = true;
    }

    /// Returns true if it is known where merged ranges for the peer may begin, or does not matter because nothing is
    /// kept for the peer.
    pub(super) fn has_known_points(&self) -> bool {
        self.is_marked || self.forgotten || self.quarantined
    }

    /// Number of batches up to `frontier` that the log keeps for the peer; `None` if it keeps nothing for the peer.
    pub(super) fn kept_lag(&self, frontier: &Frontier) -> Option<u64> {
        (!self.quarantined && !self.forgotten).then(|| self.base.behind(frontier))
    }

    pub(super) fn link_up(&mut self) {
        self.link = Some(PeerLink::default());
    }

    pub(super) fn link_down(&mut self) {
        self.link = None;
    }

    pub(super) fn quarantine(&mut self) {
        self.quarantined = true;
        self.link = None;
    }

    /// Records a damaged frame from the peer. Returns true if too many have come in a row.
    pub(super) fn sent_damage(&mut self) -> bool {
        self.damaged += 1;
        self.damaged > DAMAGED_MAX
    }

    /// Records an undamaged frame from the peer, which ends a series of damaged ones.
    pub(super) fn sent_intact(&mut self) {
        self.damaged = 0;
    }

    /// Returns true if a link to the peer is up and the peer has told on it which batches it has.
    pub(super) fn is_heard(&self) -> bool {
        self.link.as_ref().is_some_and(PeerLink::is_heard)
    }

    /// Returns true if the peer takes batches as they come: it has told which batches it has, does not wait for a
    /// snapshot, and has sent a message within this many ticks.
    pub(super) fn is_streaming(&self, ticks: u32) -> bool {
        let streams = |link: &PeerLink| link.is_heard() && link.too_far.is_none() && link.quiet < ticks;
        self.link.as_ref().is_some_and(streams)
    }

    /// Returns true if the peer has said on its link that it waits for its first snapshot; `None` if there is no link.
    pub(super) fn is_newcomer(&self) -> Option<bool> {
        self.link.as_ref().map(|link| link.newcomer)
    }

    /// The nodes that the peer has links to, if it has told them.
    pub(super) fn links(&self) -> Option<&BTreeSet<NodeId>> {
        self.link.as_ref()?.links.as_ref()
    }

    /// Records the nodes that the peer says it has links to.
    pub(super) fn take_links(&mut self, links: Vec<NodeId>) {
        if let Some(link) = &mut self.link {
            link.links = Some(links.into_iter().collect());
        }
    }

    /// Records that the peer is told this node's links. Returns true if they have changed since it was last told.
    pub(super) fn tell_links(&mut self, linked: &BTreeSet<NodeId>) -> bool {
        let Some(link) = self
            .link
            .as_mut()
            .filter(|link| link.told_links.as_ref() != Some(linked))
        else {
            return false;
        };
        link.told_links = Some(linked.clone());
        true
    }

    /// Sets the nodes whose workers' batches this node relays to the peer.
    pub(super) fn relay(&mut self, relayed: BTreeSet<NodeId>) {
        self.relayed = relayed;
    }

    /// Returns true if this node relays the batches of `origin_node`'s workers to the peer.
    pub(super) fn is_relayed(&self, origin_node: NodeId) -> bool {
        self.relayed.contains(&origin_node)
    }

    /// Records that a message came from the peer. Returns `false` if there is no link on which it could have come.
    pub(super) fn speaks(&mut self) -> bool {
        self.link.as_mut().map(|link| link.quiet = 0).is_some()
    }

    /// Records that bytes have left on the link. The link may be slow but is not dead, so its silence is counted anew.
    pub(super) fn progresses(&mut self) {
        if let Some(link) = &mut self.link {
            link.silence.ticks = 0;
        }
    }

    /// Records that the peer says that it has no snapshot yet, and so no batches to acknowledge. The message proves
    /// that the peer is alive, unless a parcel (a large item in pieces) is in flight to it, which it would acknowledge.
    pub(super) fn waits_for_snapshot(&mut self) {
        if let Some(link) = &mut self.link {
            link.newcomer = link.sent.is_none();
            if link.outgoing.is_none() {
                link.silence.ticks = 0;
            }
        }
    }

    /// Records that the peer is told to ask for a snapshot. Returns true if it was not told before.
    pub(super) fn tell_too_far(&mut self) -> bool {
        let Some(link) = self.link.as_mut().filter(|link| link.too_far.is_none()) else {
            return false;
        };
        link.too_far = Some(0);
        true
    }

    /// Records that the peer needs no snapshot any more.
    pub(super) fn comes_near(&mut self) {
        if let Some(link) = &mut self.link {
            link.too_far = None;
        }
    }

    /// Records that the peer asks for a snapshot, unless one is already on its way to it.
    pub(super) fn asks_for_snapshot(&mut self) {
        if let Some(link) = &mut self.link {
            link.asks = !link.outgoing.as_ref().is_some_and(Outgoing::is_snapshot);
        }
    }

    /// Returns true if the peer has asked for a snapshot and no other parcel is in flight to it.
    pub(super) fn awaits_snapshot(&self) -> bool {
        let awaits = |link: &PeerLink| link.asks && link.outgoing.is_none();
        self.link.as_ref().is_some_and(awaits)
    }

    /// Returns true if a snapshot is on its way to the peer.
    pub(super) fn is_given_snapshot(&self) -> bool {
        let outgoing = self.link.as_ref().and_then(|link| link.outgoing.as_ref());
        outgoing.is_some_and(Outgoing::is_snapshot)
    }

    /// Starts to send a snapshot to the peer.
    pub(super) fn give_snapshot(&mut self, snapshot: Outgoing) {
        if let Some(link) = &mut self.link {
            link.asks = false;
            link.outgoing = Some(snapshot);
        }
    }

    /// Takes a piece of a parcel (a large item in pieces) from the peer; `None` if there is no link.
    pub(super) fn take_piece(&mut self, piece: &Piece) -> Option<PieceOutcome> {
        let link = self.link.as_mut()?;
        Some(parcel::take(&mut link.incoming, piece))
    }

    /// Records that the peer has received this many bytes of the parcel (a large item in pieces) that this node is
    /// sending to it. Returns the number of bytes that the peer had not confirmed before.
    pub(super) fn got(&mut self, bytes: u64) -> u64 {
        let Some(link) = &mut self.link else {
            return 0;
        };
        let Some(parcel) = &mut link.outgoing else {
            return 0;
        };
        let before = parcel.got();
        let is_whole = parcel.confirm(bytes);
        let moved = parcel.got() - before;
        link.outgoing.take_if(|_| is_whole);
        moved
    }

    /// Records that the peer cannot apply the merged range of one worker's batches that begins at `from`.
    pub(super) fn refuse(&mut self, origin: OriginId, from: u64) {
        self.refused.insert((origin, from));
    }

    /// Counts a batch that was taken from the peer. Returns true if it is time to acknowledge: after every `every`
    /// batches.
    pub(super) fn count_taken(&mut self, every: u64) -> bool {
        self.link.as_mut().is_some_and(|link| {
            link.untold += 1;
            link.untold >= every
        })
    }

    /// Records that the peer is told which batches this node has. Returns true if that has changed since the peer was
    /// last told.
    pub(super) fn tell(&mut self, frontier: &Frontier) -> bool {
        let Some(link) = &mut self.link else {
            return false;
        };
        link.untold = 0;
        let is_news = link.told.as_ref() != Some(frontier);
        if is_news {
            link.told = Some(frontier.clone());
        }
        is_news
    }

    /// Counts a tick of the link to the peer, and returns the link's state.
    pub(super) fn tick(&mut self, limits: &Limits) -> LinkState {
        let Some(link) = &mut self.link else {
            return LinkState::Down;
        };
        if link.count_silence(&self.has, limits.reset_ticks) {
            return LinkState::Dead;
        }
        link.remind(limits.reset_ticks);
        if link.quiet >= limits.patience_ticks && link.awaits_word(&self.has) {
            return LinkState::Mute;
        }
        LinkState::Alive
    }

    /// Counts a tick in which the peer may lack batches of a third node's worker (`origin`), of which this node has
    /// `applied`. After `patience` ticks without progress of the peer this node begins to send it the missing ones.
    pub(super) fn watch(&mut self, origin: OriginId, applied: u64, patience: u32) {
        let has = self.has.applied(origin);
        if let Some(link) = &mut self.link {
            link.repairs.entry(origin).or_default().watch(has, applied, patience);
        }
    }

    /// Returns true if this node sends the peer the missing batches of a third node's worker (`origin`).
    pub(super) fn is_helped(&self, origin: OriginId) -> bool {
        let link = self.link.as_ref();
        link.is_some_and(|link| link.is_helped(origin)) && !planted(Bug::DroppedRepair)
    }

    /// Counts a tick. Returns a mark (a point after which this node's log holds all batches) to propose, if `every`
    /// ticks have passed since the last one and the frontier has changed. An unconfirmed mark is proposed again
    /// unchanged: the peer may already use it, and the log keeps ranges from spanning two marks, not three.
    pub(super) fn propose(&mut self, frontier: &Frontier, every: u32) -> Option<ProposedMark> {
        if !self.count_mark_tick(every) || self.mark == *frontier {
            return None;
        }
        if self.proposed.is_none() {
            self.marks += 1;
            self.proposed = Some(ProposedMark {
                number: self.marks,
                frontier: frontier.clone(),
            });
        }
        self.proposed.clone()
    }

    /// The mark (a point after which this node's log holds all batches) that the peer has not confirmed yet.
    pub(super) fn proposed(&self) -> Option<&ProposedMark> {
        self.proposed.as_ref()
    }

    /// Counts a tick since this node last proposed a mark (a point after which its log holds all batches) or said that
    /// it waits for a snapshot. Returns true, and starts again, after every `every` ticks.
    pub(super) fn count_mark_tick(&mut self, every: u32) -> bool {
        self.mark_age = self.mark_age.saturating_add(1);
        let time = self.mark_age >= every;
        if time {
            self.mark_age = 0;
        }
        time
    }

    /// Records that the peer has accepted the mark (a point after which this node's log holds all batches) with this
    /// number, except for the batches of some workers.
    pub(super) fn marked(&mut self, number: u64, except: &[OriginId]) {
        if let Some(mark) = self.proposed.take_if(|proposed| proposed.number == number) {
            let taken = mark.frontier.iter().filter(|(origin, _)| !except.contains(origin));
            taken.for_each(|(origin, sequence)| self.mark.raise(origin, sequence));
        }
    }

    /// Takes a new mark of the peer: a point after which the peer's log holds all batches. Returns the origins
    /// (workers' streams of batches) for which the mark is useless, because here their batches are merged across it,
    /// belong to a bundle that goes beyond it, or have not arrived and may come merged across it.
    pub(super) fn take_mark(&mut self, frontier: &Frontier, applied: &Frontier, log: &Log) -> Vec<OriginId> {
        self.confirm(frontier);
        self.forgotten = false;
        self.is_marked = true;
        let mut except = Vec::new();
        for (origin, sequence) in frontier.iter() {
            let is_point = log.is_point(origin, sequence) && !log.is_cut(origin, frontier);
            if sequence <= applied.applied(origin) && is_point {
                self.base.raise(origin, sequence);
                self.refused
                    .retain(|&(refused, from)| refused != origin || from >= sequence);
            } else {
                except.push(origin);
            }
        }
        except
    }

    /// Returns the sequence after which batches of a worker (`origin`) must stay in the log for this peer, if this node
    /// has `applied` of them; `None` if none must. `elsewhere` says that the worker's own node is linked and keeps the
    /// batches as well.
    pub(super) fn needs_from(&self, origin: OriginId, applied: u64, elsewhere: bool) -> Option<u64> {
        if self.quarantined {
            return None;
        }
        let base = (!elsewhere || !self.forgotten).then(|| self.base.applied(origin));
        // A peer for which no log is kept may still have more of an origin than this node, and then sends it as a range
        // from this node's mark. It will not send batches that it lacks itself.
        let sends = !self.forgotten || self.has.applied(origin) >= applied;
        let proposed = self.proposed.as_ref().map(|mark| mark.frontier.applied(origin));
        let marks = [Some(self.mark.applied(origin)), proposed];
        marks.into_iter().flatten().filter(|_| sends).chain(base).min()
    }

    /// The sequences in a worker's stream of batches that merged ranges must not span: both sides' marks (the points
    /// after which their logs hold all batches), and the last batch that the peer has.
    pub(super) fn points(&self, origin: OriginId) -> impl Iterator<Item = u64> + '_ {
        let proposed = self.proposed.as_ref().map(|mark| mark.frontier.applied(origin));
        let known = [&self.base, &self.mark, &self.has].map(|frontier| frontier.applied(origin));
        known.into_iter().chain(proposed)
    }

    /// Records which batches the peer has, according to the peer's own message. Returns true if this is the first such
    /// message on the present link.
    pub(super) fn confirm(&mut self, frontier: &Frontier) -> bool {
        let is_first = !self.is_heard();
        self.has.merge(frontier);
        if let Some(link) = &mut self.link {
            link.confirm(&self.has);
        }
        is_first
    }

    /// Records that the peer has a batch, because it sent the batch itself.
    pub(super) fn showed(&mut self, origin: OriginId, sequence: u64) {
        self.has.raise(origin, sequence);
        if let Some(link) = &mut self.link {
            link.showed(origin, sequence);
        }
    }

    /// The last batch of a worker that was sent to the peer, or that the peer is known to have; `None` until the peer
    /// has told which batches it has.
    pub(super) fn sent(&self, origin: OriginId) -> Option<u64> {
        self.link.as_ref()?.sent(origin)
    }

    /// If the peer lacks a worker's next batch and its windows have room for that batch, returns the batch before: the
    /// last one that was sent to the peer or that it has.
    pub(super) fn lacks_after(&self, origin: OriginId, applied: u64, limits: &Limits) -> Option<u64> {
        let link = self.link.as_ref()?;
        let sent = link.sent(origin)?;
        let has_room =
            sent.saturating_sub(self.has.applied(origin)) < limits.window && link.flight_bytes < limits.window_bytes;
        (sent < applied && has_room).then_some(sent)
    }

    /// Chooses the message with which the peer gets a worker's batches after batch `sent`, if this node has `applied`
    /// of them: a batch, a merged range, a bundle or a snapshot. The choice takes account of the peer's mark (a point
    /// after which the peer's log holds all batches) and of the ranges that the peer could not apply.
    ///
    /// The peer gets the log's entries as they are, so that it can help every node that this node can help.
    pub(super) fn help(&self, log: &Log, origin: OriginId, sent: u64, applied: u64) -> Help {
        let outgoing = self.link.as_ref().and_then(|link| link.outgoing.as_ref());
        if outgoing.is_some_and(|parcel| parcel.blocks(origin)) {
            return Help::Later;
        }
        match log.after(origin, sent) {
            // Older entries are checked before they are sent: a bit may have flipped in memory, and the log has no
            // audit as the ledger has.
            Some(entry)
                if (entry.kind != EntryKind::Batch || entry.to < applied) && !checksum::is_intact(&entry.bytes) =>
            {
                return Help::Spoilt(entry.to);
            }
            Some(entry) if entry.kind == EntryKind::Batch => return Help::Batch(Arc::clone(&entry.bytes)),
            _ if outgoing.is_some() => return Help::Later,
            Some(entry) if entry.kind == EntryKind::Bundle => return self.help_with_bundle(log, entry),
            Some(entry) if !self.refused.contains(&(origin, sent)) => {
                return Help::Parcel(Outgoing::range(origin, entry.to, Arc::clone(&entry.bytes)));
            }
            _ => {}
        }
        // The peer stands within a merged entry. It can subtract the batches that it has if the range begins at its own
        // mark, or at any earlier point, because it may have taken over a log that has that point.
        let Some(to) = log.end_around(origin, sent) else {
            return Help::Snapshot;
        };
        let range = std::iter::once(self.base.applied(origin))
            .chain(log.points_before(origin, sent))
            .filter(|&from| !self.refused.contains(&(origin, from)))
            .find_map(|from| log.merged(origin, from, to));
        range.map_or(Help::Snapshot, |range| {
            Help::Parcel(Outgoing::range(origin, to, range.encode().into()))
        })
    }

    /// Chooses the help for a peer whose next batch is in a bundle (the sum of one batch from each of several workers).
    /// Nodes that have the batches one by one send them first; a node that has only the bundle sends it when the peer
    /// has lacked it for a while.
    fn help_with_bundle(&self, log: &Log, entry: &LogEntry) -> Help {
        let Some(batches) = log.bundled_after(entry.origin, entry.from) else {
            return Help::Snapshot;
        };
        let is_ready =
            |&(origin, sequence): &(OriginId, u64)| self.sent(origin).is_some_and(|sent| sent + 1 >= sequence);
        let is_refused = |&(origin, sequence): &(OriginId, u64)| self.refused.contains(&(origin, sequence - 1));
        let is_helped = self.link.as_ref().is_some_and(|link| link.is_helped(entry.origin));
        if batches.iter().any(is_refused) {
            Help::Snapshot
        } else if is_helped && batches.iter().all(is_ready) {
            Help::Parcel(Outgoing::bundle(Arc::clone(batches), Arc::clone(&entry.bytes)))
        } else {
            Help::Later
        }
    }

    /// Counts a batch as sent to the peer, and as in flight until the peer acknowledges it.
    pub(super) fn send(&mut self, origin: OriginId, sequence: u64, bytes: usize) {
        if let Some(link) = &mut self.link {
            link.send(origin, sequence, bytes);
        }
    }

    /// Starts to send a parcel (a large item in pieces) to the peer, whose name is `to`.
    pub(super) fn send_parcel(&mut self, to: NodeId, parcel: Outgoing, limits: &Limits, effects: &mut Vec<Effect>) {
        if let Some(link) = &mut self.link {
            link.outgoing = Some(parcel);
        }
        self.send_pieces(to, limits, effects);
    }

    /// Sends pieces of the current parcel to the peer as far as the window allows. After the last piece of a range or
    /// bundle, later batches of the same workers may be sent.
    pub(super) fn send_pieces(&mut self, to: NodeId, limits: &Limits, effects: &mut Vec<Effect>) {
        let Some(link) = &mut self.link else {
            return;
        };
        let Some(parcel) = link.outgoing.as_mut().filter(|parcel| !parcel.is_sent()) else {
            return;
        };
        while let Some(piece) = parcel.next(limits.piece_bytes, limits.parcel_window) {
            let message = Message::Piece(piece);
            effects.push(Effect::Send { to, message });
        }
        if parcel.is_sent() {
            for (origin, sequence) in parcel.ends() {
                link.send(origin, sequence, 0);
            }
        }
    }
}

impl PeerLink {
    fn is_heard(&self) -> bool {
        self.sent.is_some()
    }

    fn is_helped(&self, origin: OriginId) -> bool {
        self.repairs.get(&origin).is_some_and(|repair| repair.active.is_some())
    }

    fn sent(&self, origin: OriginId) -> Option<u64> {
        self.sent.as_ref().map(|sent| sent.applied(origin))
    }

    /// Counts a tick since the peer was told that it needs a snapshot. After `every` ticks without a transfer that is
    /// forgotten, so that the peer is told again.
    fn remind(&mut self, every: u32) {
        let idle = !self.asks && self.outgoing.is_none();
        self.too_far = self.too_far.map(|age| age + 1).filter(|&age| age < every || !idle);
    }

    /// Records which batches the peer has acknowledged, and drops these from the list of batches in flight.
    fn confirm(&mut self, has: &Frontier) {
        self.newcomer = false;
        self.sent.get_or_insert_default().merge(has);
        let bytes = &mut self.flight_bytes;
        self.flight.retain(|&(origin, sequence, length)| {
            let flies = sequence > has.applied(origin);
            *bytes -= if flies { 0 } else { length };
            flies
        });
    }

    fn showed(&mut self, origin: OriginId, sequence: u64) {
        if let Some(sent) = &mut self.sent {
            sent.raise(origin, sequence);
        }
    }

    fn send(&mut self, origin: OriginId, sequence: u64, bytes: usize) {
        self.flight.push_back((origin, sequence, bytes));
        self.flight_bytes += bytes;
        self.showed(origin, sequence);
        if let Some(up_to) = self.repairs.get_mut(&origin).and_then(|repair| repair.active.as_mut()) {
            *up_to = sequence;
        }
    }

    /// Counts a tick of silence. Returns true if the link is dead: for `ticks_max` ticks the peer has acknowledged
    /// nothing in flight, or has not told which batches it has. These ticks are counted anew whenever bytes leave, as
    /// on a slow link; but `MUTE_FACTOR` times as many ticks without any message from the peer end the link all the
    /// same.
    fn count_silence(&mut self, has: &Frontier, ticks_max: u32) -> bool {
        let under_way = self.awaits_word(has);
        let got = self.outgoing.as_ref().map_or(0, Outgoing::got);
        if !under_way || self.silence.has != *has || self.silence.got != got {
            self.silence = Silence {
                has: has.clone(),
                got,
                ticks: 0,
            };
        } else {
            self.silence.ticks += 1;
        }
        self.quiet = self.quiet.saturating_add(1);
        let mute = under_way && self.quiet >= MUTE_FACTOR * ticks_max;
        self.silence.ticks >= ticks_max || mute
    }

    /// Returns true if this node waits for a message from the peer: the peer has not told which batches it has, or has
    /// not acknowledged data in flight.
    fn awaits_word(&self, has: &Frontier) -> bool {
        self.outgoing.is_some() || self.sent.as_ref().is_none_or(|sent| sent != has)
    }
}

impl Repair {
    /// Counts a tick in which the peer may lack batches of the worker. Help starts after `patience` ticks without
    /// progress, and ends when the peer has advanced beyond the batches that this node has sent it as help.
    fn watch(&mut self, has: u64, applied: u64, patience: u32) {
        if has >= applied || has > self.seen {
            self.ticks = 0;
        } else {
            self.ticks += 1;
        }
        self.seen = has;
        match self.active {
            Some(up_to) if has > up_to || has >= applied => self.active = None,
            None if self.ticks >= patience => self.active = Some(has),
            _ => {}
        }
    }
}
