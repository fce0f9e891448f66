//! What a node knows of one peer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use protocol::frontier::Frontier;
use protocol::ids::{NodeId, OriginId};

use super::log::Log;
use super::parcel::{Incoming, Outgoing};

/// A link at work is given so many times as long before it is taken for dead.
const MUTE_FACTOR: u32 = 4;

/// A member of the run, with or without a link to it.
#[derive(Clone, Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts that have nothing to do with each other"
)]
pub(super) struct Peer {
    /// What it is known to have applied. It grows only: what was applied stays applied. (A node that starts again is
    /// another node, with another name.)
    pub(super) has: Frontier,
    pub(super) linked: bool,
    /// It has nothing yet, has said so on the present link, and waits for somebody's snapshot.
    pub(super) newcomer: bool,
    /// It said something that no honest member says: nothing is taken from it or sent to it any more.
    pub(super) quarantined: bool,
    /// Where ranges for it may begin: its newest mark, from which on it knows what it has.
    pub(super) base: Frontier,
    /// Whether that mark is one: it was there from the first batch on, or has said it. Nothing is merged before all have:
    /// nobody knows over which points.
    pub(super) is_marked: bool,
    /// What is kept for it became too much: nothing is any more, and it will have to take a snapshot.
    pub(super) forgotten: bool,
    /// This node's mark that the peer has taken, and the one that is proposed: the peer's ranges begin at either.
    pub(super) mark: Frontier,
    pub(super) proposed: Option<(u64, Frontier)>,
    /// Ranges that it could not take, by origin and beginning.
    pub(super) refused: BTreeSet<(OriginId, u64)>,
    /// Whom it has links to, and whom it was told that this node has, on the present link.
    pub(super) links: Option<BTreeSet<NodeId>>,
    pub(super) told_links: Option<BTreeSet<NodeId>>,
    /// Frames in a row that were damaged.
    pub(super) damaged: u32,
    /// Parcels on the present link.
    pub(super) outgoing: Option<Outgoing>,
    pub(super) incoming: Option<Incoming>,
    /// It was told on the present link that it needs a snapshot.
    pub(super) too_far: bool,
    /// It has asked for a snapshot on the present link, and has not got it yet.
    pub(super) asks: bool,
    /// Ticks since it was told so.
    too_far_age: u32,
    /// Counts this node's marks, and the ticks since the last one.
    marks: u64,
    mark_age: u32,
    /// Batches of it that were taken since it was last told what this node has.
    pub(super) untold: u64,
    /// Origins that are not this node's own and that the peer may need help with.
    pub(super) repairs: BTreeMap<OriginId, Repair>,
    /// What was sent on the present link, or is applied; `None` until the peer has said on it what it has.
    sent: Option<Frontier>,
    /// Batches sent on the present link and not acknowledged, with their bytes, and the sum of those.
    flight: VecDeque<(OriginId, u64, usize)>,
    flight_bytes: usize,
    /// What it was last told that this node has, on the present link.
    told: Option<Frontier>,
    /// Ticks since it said anything on the present link.
    quiet: u32,
    /// What it had at the last tick, and for how many ticks that has not changed while something was under way.
    silence: (Frontier, u64, u32),
}

/// How a peer gets on with one origin of a third node.
#[derive(Clone, Debug, Default)]
pub(super) struct Repair {
    /// What it had when its progress was last looked at.
    seen: u64,
    /// Ticks that it has lacked batches without progress.
    ticks: u32,
    /// This node sends it what it lacks, up to and including this sequence so far.
    active: Option<u64>,
}

impl Repair {
    pub(super) fn is_active(&self) -> bool {
        self.active.is_some()
    }
}

impl Peer {
    /// Whether a link to it is up and it has said on it what it has.
    pub(super) fn is_heard(&self) -> bool {
        self.linked && !self.quarantined && self.sent.is_some()
    }

    /// Whether it takes batches as they come: it is heard, and does not wait for a snapshot.
    pub(super) fn is_streaming(&self) -> bool {
        self.is_heard() && !self.too_far
    }

    /// One more tick: a mark to propose, if the last one is old enough and does not say the same. One that is not taken
    /// is proposed again: the peer may know it or not, so there cannot be a third.
    pub(super) fn propose(&mut self, frontier: &Frontier, every: u32) -> Option<(u64, Frontier)> {
        if !self.is_time(every) || self.mark == *frontier {
            return None;
        }
        if self.proposed.is_none() {
            self.marks += 1;
            self.proposed = Some((self.marks, frontier.clone()));
        }
        self.proposed.clone()
    }

    /// The peer says that it has nothing yet: it is there, as far as nothing is under way to it.
    pub(super) fn waits(&mut self) {
        self.newcomer = self.sent.is_none();
        if self.outgoing.is_none() {
            self.at_work();
        }
    }

    /// One more tick without anything to say: whether it has been so many.
    pub(super) fn is_time(&mut self, every: u32) -> bool {
        self.mark_age = self.mark_age.saturating_add(1);
        let time = self.mark_age >= every;
        if time {
            self.mark_age = 0;
        }
        time
    }

    /// Whether to tell it that it needs a snapshot.
    pub(super) fn tell_too_far(&mut self) -> bool {
        let news = !std::mem::replace(&mut self.too_far, true);
        if news {
            self.too_far_age = 0;
        }
        news
    }

    /// One more tick: a word that it has not acted upon for so long is said again.
    pub(super) fn remind(&mut self, every: u32) {
        self.too_far_age += 1;
        if self.too_far_age >= every && !self.asks && self.outgoing.is_none() {
            self.too_far = false;
        }
    }

    /// The peer has taken a mark, but for some origins.
    pub(super) fn marked(&mut self, number: u64, except: &[OriginId]) {
        if let Some((_, frontier)) = self.proposed.take_if(|(proposed, _)| *proposed == number) {
            let taken = frontier.iter().filter(|(origin, _)| !except.contains(origin));
            taken.for_each(|(origin, sequence)| self.mark.raise(origin, sequence));
        }
    }

    /// The peer has a new mark. It is of no use for origins whose batches are merged over it, or are not here yet and may
    /// come merged over it: those are returned.
    pub(super) fn take_mark(&mut self, frontier: &Frontier, applied: &Frontier, log: &Log) -> Vec<OriginId> {
        self.confirm(frontier);
        self.forgotten = false;
        self.is_marked = true;
        let mut except = Vec::new();
        for (origin, sequence) in frontier.iter() {
            if sequence <= applied.applied(origin) && log.is_point(origin, sequence) {
                self.base.raise(origin, sequence);
                self.refused
                    .retain(|&(refused, from)| refused != origin || from >= sequence);
            } else {
                except.push(origin);
            }
        }
        except
    }

    /// From where on an origin's batches are kept because of this peer, when this node has `applied` of them and they
    /// are surely kept elsewhere or not. None if it needs nothing.
    pub(super) fn needs_from(&self, origin: OriginId, applied: u64, elsewhere: bool) -> Option<u64> {
        if self.quarantined {
            return None;
        }
        let base = (!elsewhere || !self.forgotten).then(|| self.base.applied(origin));
        // Somebody forgotten may still have more of an origin than this node, and will send it as a range; what it
        // lacks itself it will not send.
        let sends = !self.forgotten || self.has.applied(origin) >= applied;
        let proposed = self.proposed.as_ref().map(|(_, frontier)| frontier.applied(origin));
        let marks = [Some(self.mark.applied(origin)), proposed];
        marks.into_iter().flatten().filter(|_| sends).chain(base).min()
    }

    /// The points of an origin that must stay points.
    pub(super) fn points(&self, origin: OriginId) -> impl Iterator<Item = u64> + '_ {
        let proposed = self.proposed.as_ref().map(|(_, frontier)| frontier.applied(origin));
        let known = [&self.base, &self.mark, &self.has].map(|frontier| frontier.applied(origin));
        known.into_iter().chain(proposed)
    }

    /// Forgets everything about the present link.
    pub(super) fn unlink(&mut self) {
        self.linked = false;
        self.newcomer = false;
        self.sent = None;
        self.flight.clear();
        self.flight_bytes = 0;
        self.told = None;
        self.untold = 0;
        self.silence.2 = 0;
        self.quiet = 0;
        self.outgoing = None;
        self.incoming = None;
        self.too_far = false;
        self.asks = false;
        self.links = None;
        self.told_links = None;
        self.repairs.clear();
    }

    /// The peer says what it has.
    pub(super) fn confirm(&mut self, frontier: &Frontier) {
        self.newcomer = false;
        self.has.merge(frontier);
        self.sent.get_or_insert_default().merge(&self.has);
        self.land();
    }

    /// Forgets what was under way and has arrived.
    fn land(&mut self) {
        let (has, bytes) = (&self.has, &mut self.flight_bytes);
        self.flight.retain(|&(origin, sequence, length)| {
            let flies = sequence > has.applied(origin);
            *bytes -= if flies { 0 } else { length };
            flies
        });
    }

    /// The bytes of batches that were sent and are not acknowledged.
    pub(super) fn bytes_under_way(&self) -> usize {
        self.flight_bytes
    }

    /// The peer sent a batch, so it has it.
    pub(super) fn showed(&mut self, origin: OriginId, sequence: u64) {
        self.has.raise(origin, sequence);
        if let Some(sent) = &mut self.sent {
            sent.raise(origin, sequence);
        }
    }

    /// Counts a batch as sent.
    pub(super) fn send(&mut self, origin: OriginId, sequence: u64, bytes: usize) {
        self.flight.push_back((origin, sequence, bytes));
        self.flight_bytes += bytes;
        if let Some(sent) = &mut self.sent {
            sent.raise(origin, sequence);
        }
        if let Some(Repair {
            active: Some(up_to), ..
        }) = self.repairs.get_mut(&origin)
        {
            *up_to = sequence;
        }
    }

    /// The highest sequence of an origin that need not be sent again on this link; `None` while that is not known.
    pub(super) fn sent(&self, origin: OriginId) -> Option<u64> {
        self.sent.as_ref().map(|sent| sent.applied(origin))
    }

    /// Batches of an origin that were sent and are not acknowledged.
    pub(super) fn under_way(&self, origin: OriginId) -> u64 {
        self.sent(origin)
            .map_or(0, |sent| sent.saturating_sub(self.has.applied(origin)))
    }

    /// Takes note of what it is told; `false` if that is no news.
    pub(super) fn told(&mut self, frontier: &Frontier) -> bool {
        self.untold = 0;
        let news = self.told.as_ref() != Some(frontier);
        if news {
            self.told = Some(frontier.clone());
        }
        news
    }

    /// Its link is slow, not dead.
    pub(super) fn at_work(&mut self) {
        self.silence.2 = 0;
    }

    /// One more tick: whether it has kept silent for so many ticks, either about what is under way to it or, at the
    /// start of a link, altogether. While bytes leave, silence may take longer: they may be a large parcel on a slow
    /// link, or words that nobody reads.
    pub(super) fn is_silent(&mut self, ticks_max: u32) -> bool {
        let under_way = self.awaits_word();
        let got = self.outgoing.as_ref().map_or(0, Outgoing::got);
        if !(self.linked && under_way) || self.silence.0 != self.has || self.silence.1 != got {
            self.silence = (self.has.clone(), got, 0);
        } else {
            self.silence.2 += 1;
        }
        self.quiet = self.quiet.saturating_add(1);
        let mute = self.linked && under_way && self.quiet >= MUTE_FACTOR * ticks_max;
        self.silence.2 >= ticks_max || mute
    }

    /// Whether there is something to hear from it: what it has, or that it got what is under way.
    fn awaits_word(&self) -> bool {
        self.outgoing.is_some() || self.sent.as_ref().is_none_or(|sent| *sent != self.has)
    }

    /// Whether it has said nothing for so many ticks though something is under way to it: it stands still, or its link
    /// does. More of anything would only lie there with the rest.
    pub(super) fn is_mute(&self, ticks: u32) -> bool {
        self.quiet >= ticks && self.awaits_word()
    }

    /// It has said something.
    pub(super) fn speaks(&mut self) {
        self.quiet = 0;
    }

    /// Whether it has said something within so many ticks.
    pub(super) fn has_spoken(&self, ticks: u32) -> bool {
        self.quiet < ticks
    }

    /// One more tick with an origin of a third node: help starts after `patience` ticks without progress, and ends
    /// when the peer has got further than this node helped it.
    pub(super) fn watch(&mut self, origin: OriginId, applied: u64, patience: u32) {
        let has = self.has.applied(origin);
        let repair = self.repairs.entry(origin).or_default();
        if has >= applied || has > repair.seen {
            repair.ticks = 0;
        } else {
            repair.ticks += 1;
        }
        repair.seen = has;
        match repair.active {
            Some(up_to) if has > up_to || has >= applied => repair.active = None,
            None if repair.ticks >= patience => repair.active = Some(has),
            _ => {}
        }
    }
}
