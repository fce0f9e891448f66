//! One peer as this node knows it, with or without a link to it.

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

/// A link at work is given this many times longer before it is taken for dead.
const MUTE_FACTOR: u32 = 4;
/// Damaged frames in a row that may be an accident.
const DAMAGED_MAX: u32 = 8;

/// A member of the run, with or without a link to it.
#[derive(Clone, Debug, Default)]
pub(super) struct Peer {
    /// Batches that the peer is known to have applied. It grows only: applied batches stay applied. (A node that starts
    /// again is another node, with another name.)
    has: Frontier,
    /// The link to the peer, if there is one.
    link: Option<PeerLink>,
    /// The peer sent something that no honest member sends: nothing is taken from it or sent to it any more, and there is
    /// no link to it.
    quarantined: bool,
    /// The peer's newest mark. Ranges for it may begin there: from that frontier on the peer knows what it has.
    base: Frontier,
    /// `base` is a mark that the peer really made: it began with the run, or has sent a mark. Nothing is merged until that
    /// is true of all peers, because until then the points that they need are unknown.
    is_marked: bool,
    /// The log for the peer became too large: nothing is kept for it any more, and it will have to take a snapshot.
    forgotten: bool,
    /// This node's mark that the peer has taken, and the one that is proposed: the peer's ranges begin at either.
    mark: Frontier,
    proposed: Option<ProposedMark>,
    /// Ranges that the peer could not take, by origin and beginning.
    refused: BTreeSet<(OriginId, u64)>,
    /// Frames in a row that were damaged.
    damaged: u32,
    /// This node's marks, counted, and the ticks since the last one.
    marks: u64,
    mark_age: u32,
    /// Origins' nodes that have no link to the peer: this node hands their batches on to it at once.
    relayed: BTreeSet<NodeId>,
}

/// A mark of this node that the peer has not confirmed.
#[derive(Clone, Debug)]
pub(super) struct ProposedMark {
    pub(super) number: u64,
    pub(super) frontier: Frontier,
}

/// The present link to a peer: everything that comes and goes with it.
#[derive(Clone, Debug, Default)]
struct PeerLink {
    /// The peer has nothing yet, has said so, and waits for a snapshot.
    newcomer: bool,
    /// The nodes that the peer has links to, and those that it was told this node has links to.
    links: Option<BTreeSet<NodeId>>,
    told_links: Option<BTreeSet<NodeId>>,
    /// Parcels on their way.
    outgoing: Option<Outgoing>,
    incoming: Option<Incoming>,
    /// The peer has asked for a snapshot, and has not got it yet.
    asks: bool,
    /// Batches of the peer that were taken since it was last told what this node has.
    untold: u64,
    /// Origins that are not this node's own and that the peer may need help with.
    repairs: BTreeMap<OriginId, Repair>,
    /// Ticks since the peer was told that it needs a snapshot; none if it does not.
    too_far: Option<u32>,
    /// Batches that were sent, or are applied; `None` until the peer has said what it has.
    sent: Option<Frontier>,
    /// Batches that were sent and are not acknowledged, with their bytes, and the sum of those.
    flight: VecDeque<(OriginId, u64, usize)>,
    flight_bytes: usize,
    /// The frontier of this node that the peer was last told.
    told: Option<Frontier>,
    /// Ticks since the peer said anything.
    quiet: u32,
    silence: Silence,
}

/// The time without progress of anything under way to a peer.
#[derive(Clone, Debug, Default)]
struct Silence {
    /// The peer's batches, and its bytes of a parcel, when either last changed.
    has: Frontier,
    got: u64,
    ticks: u32,
}

/// A peer's progress with one origin of a third node.
#[derive(Clone, Debug, Default)]
struct Repair {
    /// The peer's batches when its progress was last looked at.
    seen: u64,
    /// Ticks that the peer has lacked batches without progress.
    ticks: u32,
    /// This node sends the peer what it lacks, up to and including this sequence so far.
    active: Option<u64>,
}

/// The state of a peer's link after a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkState {
    /// There is no link.
    Down,
    /// The peer acknowledges nothing, or has said nothing for long: the link is taken for dead.
    Dead,
    /// The peer has said nothing for a while, though it should. More of anything would only lie there with the rest.
    Mute,
    Alive,
}

/// The next thing to send a peer of one origin.
pub(super) enum Help {
    Batch(Arc<[u8]>),
    Parcel(Outgoing),
    /// The log's entry up to this sequence has lost a bit.
    Spoilt(u64),
    /// Something is under way that has to arrive first.
    Later,
    Snapshot,
}

impl Peer {
    /// A member that has everything from the first batch of the run on: its mark is the beginning.
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

    /// Nothing is kept for the peer any more.
    pub(super) fn forget(&mut self) {
        self.forgotten = true;
    }

    /// Whether the points that the peer needs are known, or do not matter.
    pub(super) fn has_known_points(&self) -> bool {
        self.is_marked || self.forgotten || self.quarantined
    }

    /// The peer's lag behind a frontier since its last mark, if a log is kept for it.
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

    /// Records a damaged frame. Returns whether the peer has sent too many in a row.
    pub(super) fn sent_damage(&mut self) -> bool {
        self.damaged += 1;
        self.damaged > DAMAGED_MAX
    }

    /// A frame came undamaged.
    pub(super) fn sent_intact(&mut self) {
        self.damaged = 0;
    }

    /// Whether a link to the peer is up and the peer has said on it what it has.
    pub(super) fn is_heard(&self) -> bool {
        self.link.as_ref().is_some_and(PeerLink::is_heard)
    }

    /// Whether the peer takes batches as they come: it is heard, does not wait for a snapshot, and has said something
    /// within this many ticks.
    pub(super) fn is_streaming(&self, ticks: u32) -> bool {
        let streams = |link: &PeerLink| link.is_heard() && link.too_far.is_none() && link.quiet < ticks;
        self.link.as_ref().is_some_and(streams)
    }

    /// Whether the peer waits for its first snapshot, if there is a link on which it would have said so.
    pub(super) fn is_newcomer(&self) -> Option<bool> {
        self.link.as_ref().map(|link| link.newcomer)
    }

    /// The nodes that the peer has links to, if it has told them.
    pub(super) fn links(&self) -> Option<&BTreeSet<NodeId>> {
        self.link.as_ref()?.links.as_ref()
    }

    /// The peer tells which nodes it has links to.
    pub(super) fn take_links(&mut self, links: Vec<NodeId>) {
        if let Some(link) = &mut self.link {
            link.links = Some(links.into_iter().collect());
        }
    }

    /// Records that the peer is told this node's links. Returns whether they are news to it.
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

    /// This node hands on the batches of these origins' nodes.
    pub(super) fn relay(&mut self, relayed: BTreeSet<NodeId>) {
        self.relayed = relayed;
    }

    /// Whether this node hands on the batches of an origin's node.
    pub(super) fn is_relayed(&self, origin_node: NodeId) -> bool {
        self.relayed.contains(&origin_node)
    }

    /// The peer has said something. Returns `false` if there is no link on which it could have.
    pub(super) fn speaks(&mut self) -> bool {
        self.link.as_mut().map(|link| link.quiet = 0).is_some()
    }

    /// Bytes have left on the link, so it may be slow but is not dead: silence is counted anew.
    pub(super) fn progresses(&mut self) {
        if let Some(link) = &mut self.link {
            link.silence.ticks = 0;
        }
    }

    /// The peer says that it is a newcomer, which has nothing to acknowledge. Unless a parcel is under way to it, which
    /// it would acknowledge, this message shows that it is there.
    pub(super) fn waits_for_snapshot(&mut self) {
        if let Some(link) = &mut self.link {
            link.newcomer = link.sent.is_none();
            if link.outgoing.is_none() {
                link.silence.ticks = 0;
            }
        }
    }

    /// Records that the peer is told to take a snapshot. Returns whether that is news to it.
    pub(super) fn tell_too_far(&mut self) -> bool {
        let Some(link) = self.link.as_mut().filter(|link| link.too_far.is_none()) else {
            return false;
        };
        link.too_far = Some(0);
        true
    }

    /// The peer needs no snapshot any more.
    pub(super) fn comes_near(&mut self) {
        if let Some(link) = &mut self.link {
            link.too_far = None;
        }
    }

    /// The peer asks for a snapshot. One that is on its way already is not sent again.
    pub(super) fn asks_for_snapshot(&mut self) {
        if let Some(link) = &mut self.link {
            link.asks = !link.outgoing.as_ref().is_some_and(Outgoing::is_snapshot);
        }
    }

    /// Whether the peer has asked for a snapshot and one could be sent now.
    pub(super) fn awaits_snapshot(&self) -> bool {
        let awaits = |link: &PeerLink| link.asks && link.outgoing.is_none();
        self.link.as_ref().is_some_and(awaits)
    }

    /// Whether a snapshot is on its way to the peer.
    pub(super) fn is_given_snapshot(&self) -> bool {
        let outgoing = self.link.as_ref().and_then(|link| link.outgoing.as_ref());
        outgoing.is_some_and(Outgoing::is_snapshot)
    }

    /// Sends a snapshot to the peer.
    pub(super) fn give_snapshot(&mut self, snapshot: Outgoing) {
        if let Some(link) = &mut self.link {
            link.asks = false;
            link.outgoing = Some(snapshot);
        }
    }

    /// Takes a piece of a parcel from the peer; none if there is no link.
    pub(super) fn take_piece(&mut self, piece: &Piece) -> Option<PieceOutcome> {
        let link = self.link.as_mut()?;
        Some(parcel::take(&mut link.incoming, piece))
    }

    /// The peer has this many bytes of the parcel under way. Returns how many of them it had not confirmed before.
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

    /// The peer cannot take a range of this origin that begins here.
    pub(super) fn refuse(&mut self, origin: OriginId, from: u64) {
        self.refused.insert((origin, from));
    }

    /// Records a batch that was taken from the peer. Returns whether to tell it so: after every `every` of them.
    pub(super) fn count_taken(&mut self, every: u64) -> bool {
        self.link.as_mut().is_some_and(|link| {
            link.untold += 1;
            link.untold >= every
        })
    }

    /// Records that the peer is told this node's frontier. Returns whether that is news to it.
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

    /// One more tick, as far as the link goes.
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

    /// One more tick with an origin of a third node, of which this node has `applied`.
    pub(super) fn watch(&mut self, origin: OriginId, applied: u64, patience: u32) {
        let has = self.has.applied(origin);
        if let Some(link) = &mut self.link {
            link.repairs.entry(origin).or_default().watch(has, applied, patience);
        }
    }

    /// Whether this node helps the peer on with an origin of a third node.
    pub(super) fn is_helped(&self, origin: OriginId) -> bool {
        let link = self.link.as_ref();
        link.is_some_and(|link| link.is_helped(origin)) && !planted(Bug::DroppedRepair)
    }

    /// Counts a tick. Returns a mark to propose when the last one is old enough and the frontier has changed. A mark that
    /// was not confirmed is proposed again unchanged: the peer may already use it, and a log keeps two marks as points, not
    /// three.
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

    /// The mark that the peer has not confirmed.
    pub(super) fn proposed(&self) -> Option<&ProposedMark> {
        self.proposed.as_ref()
    }

    /// Counts a tick without anything to say. Returns whether `every` of them have passed.
    pub(super) fn count_mark_tick(&mut self, every: u32) -> bool {
        self.mark_age = self.mark_age.saturating_add(1);
        let time = self.mark_age >= every;
        if time {
            self.mark_age = 0;
        }
        time
    }

    /// The peer has taken a mark, but for some origins.
    pub(super) fn marked(&mut self, number: u64, except: &[OriginId]) {
        if let Some(mark) = self.proposed.take_if(|proposed| proposed.number == number) {
            let taken = mark.frontier.iter().filter(|(origin, _)| !except.contains(origin));
            taken.for_each(|(origin, sequence)| self.mark.raise(origin, sequence));
        }
    }

    /// The peer has a new mark. It is of no use for origins whose batches are merged over it, or are in a bundle that goes
    /// beyond it, or are not here yet and may come merged over it: those are returned.
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

    /// The first sequence of an origin that must be kept for this peer, when this node has `applied` of them; `None` if
    /// nothing must. `elsewhere` says that the origin's own node is linked and keeps these batches as well.
    pub(super) fn needs_from(&self, origin: OriginId, applied: u64, elsewhere: bool) -> Option<u64> {
        if self.quarantined {
            return None;
        }
        let base = (!elsewhere || !self.forgotten).then(|| self.base.applied(origin));
        // A forgotten peer may still have more of an origin than this node, and will send it as a range; it will not send
        // batches that it lacks itself.
        let sends = !self.forgotten || self.has.applied(origin) >= applied;
        let proposed = self.proposed.as_ref().map(|mark| mark.frontier.applied(origin));
        let marks = [Some(self.mark.applied(origin)), proposed];
        marks.into_iter().flatten().filter(|_| sends).chain(base).min()
    }

    /// The points of an origin that must stay points.
    pub(super) fn points(&self, origin: OriginId) -> impl Iterator<Item = u64> + '_ {
        let proposed = self.proposed.as_ref().map(|mark| mark.frontier.applied(origin));
        let known = [&self.base, &self.mark, &self.has].map(|frontier| frontier.applied(origin));
        known.into_iter().chain(proposed)
    }

    /// The peer says what it has. Returns whether that is the first time on this link.
    pub(super) fn confirm(&mut self, frontier: &Frontier) -> bool {
        let is_first = !self.is_heard();
        self.has.merge(frontier);
        if let Some(link) = &mut self.link {
            link.confirm(&self.has);
        }
        is_first
    }

    /// The peer sent a batch, so it has it.
    pub(super) fn showed(&mut self, origin: OriginId, sequence: u64) {
        self.has.raise(origin, sequence);
        if let Some(link) = &mut self.link {
            link.showed(origin, sequence);
        }
    }

    /// The highest sequence of an origin that need not be sent again; `None` while that is not known.
    pub(super) fn sent(&self, origin: OriginId) -> Option<u64> {
        self.link.as_ref()?.sent(origin)
    }

    /// The batch of an origin after which the peer lacks the next one, if its windows let one more out.
    pub(super) fn lacks_after(&self, origin: OriginId, applied: u64, limits: &Limits) -> Option<u64> {
        let link = self.link.as_ref()?;
        let sent = link.sent(origin)?;
        let has_room =
            sent.saturating_sub(self.has.applied(origin)) < limits.window && link.flight_bytes < limits.window_bytes;
        (sent < applied && has_room).then_some(sent)
    }

    /// What to send the peer next of an origin of which it will have `sent` and this node has `applied`, by the peer's
    /// mark and the ranges that it could not take.
    ///
    /// It gets the log's entries as they are. So it inherits their points, and can help whomever this node can help.
    pub(super) fn help(&self, log: &Log, origin: OriginId, sent: u64, applied: u64) -> Help {
        let outgoing = self.link.as_ref().and_then(|link| link.outgoing.as_ref());
        if outgoing.is_some_and(|parcel| parcel.blocks(origin)) {
            return Help::Later;
        }
        match log.after(origin, sent) {
            // An old entry may have lost a bit: the ledger is audited, the log is not.
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
        // The peer stands within a merged entry. It can subtract what it already has if the range begins at its own mark, or
        // at any earlier point, because it may have taken over a log that has that point.
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

    /// A bundle that comes next of an origin. Nodes that know its batches one by one send them first: one that has only
    /// the bundle hands it on when the peer has lacked it for a while.
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

    /// Counts a batch as sent.
    pub(super) fn send(&mut self, origin: OriginId, sequence: u64, bytes: usize) {
        if let Some(link) = &mut self.link {
            link.send(origin, sequence, bytes);
        }
    }

    /// Begins to send a parcel to the peer, whose name is `to`.
    pub(super) fn send_parcel(&mut self, to: NodeId, parcel: Outgoing, limits: &Limits, effects: &mut Vec<Effect>) {
        if let Some(link) = &mut self.link {
            link.outgoing = Some(parcel);
        }
        self.send_pieces(to, limits, effects);
    }

    /// Sends pieces of the present parcel to the peer as far as the window reaches. After the last one of a range its origin
    /// can go on.
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

    /// One more tick: a message that the peer has not acted upon for `every` ticks is sent again.
    fn remind(&mut self, every: u32) {
        let idle = !self.asks && self.outgoing.is_none();
        self.too_far = self.too_far.map(|age| age + 1).filter(|&age| age < every || !idle);
    }

    /// The peer has said all that it has.
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

    /// Counts one more tick. Returns whether the peer has been silent for too many: it acknowledges nothing of what is
    /// under way to it, or has said nothing at all since the link was set up. While bytes leave, the limit is longer: they
    /// may be a large parcel on a slow link, but also notes that the peer does not read.
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

    /// Whether there is something to hear from the peer: what it has, or that it got what is under way.
    fn awaits_word(&self, has: &Frontier) -> bool {
        self.outgoing.is_some() || self.sent.as_ref().is_none_or(|sent| sent != has)
    }
}

impl Repair {
    /// One more tick: help starts after `patience` ticks without progress, and ends when the peer has got further than
    /// this node helped it.
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
