//! What belongs to the present link to a peer. It comes and goes with the link, as one value.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use protocol::frontier::Frontier;
use protocol::ids::{NodeId, OriginId};

use super::parcel::{Incoming, Outgoing};

/// A link at work is given so many times as long before it is taken for dead.
const MUTE_FACTOR: u32 = 4;

/// The present link to a peer.
#[derive(Clone, Debug, Default)]
pub(super) struct PeerLink {
    /// The peer has nothing yet, has said so, and waits for somebody's snapshot.
    pub(super) newcomer: bool,
    /// Whom the peer has links to, and whom it was told that this node has.
    pub(super) links: Option<BTreeSet<NodeId>>,
    pub(super) told_links: Option<BTreeSet<NodeId>>,
    /// Parcels on their way.
    pub(super) outgoing: Option<Outgoing>,
    pub(super) incoming: Option<Incoming>,
    /// The peer has asked for a snapshot, and has not got it yet.
    pub(super) asks: bool,
    /// Batches of the peer that were taken since it was last told what this node has.
    pub(super) untold: u64,
    /// Origins that are not this node's own and that the peer may need help with.
    pub(super) repairs: BTreeMap<OriginId, Repair>,
    /// Ticks since the peer was told that it needs a snapshot; none if it does not.
    too_far: Option<u32>,
    /// What was sent, or is applied; `None` until the peer has said what it has.
    sent: Option<Frontier>,
    /// Batches that were sent and are not acknowledged, with their bytes, and the sum of those.
    flight: VecDeque<(OriginId, u64, usize)>,
    flight_bytes: usize,
    /// What the peer was last told that this node has.
    told: Option<Frontier>,
    /// Ticks since the peer said anything.
    quiet: u32,
    silence: Silence,
}

/// How long nothing has become of what is under way to a peer.
#[derive(Clone, Debug, Default)]
struct Silence {
    /// What the peer had, and had got of a parcel, when that last changed.
    has: Frontier,
    got: u64,
    ticks: u32,
}

/// How a peer gets on with one origin of a third node.
#[derive(Clone, Debug, Default)]
pub(super) struct Repair {
    /// What the peer had when its progress was last looked at.
    seen: u64,
    /// Ticks that the peer has lacked batches without progress.
    ticks: u32,
    /// This node sends the peer what it lacks, up to and including this sequence so far.
    active: Option<u64>,
}

impl Repair {
    pub(super) fn is_active(&self) -> bool {
        self.active.is_some()
    }

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

impl PeerLink {
    /// Whether the peer has said what it has.
    pub(super) fn is_heard(&self) -> bool {
        self.sent.is_some()
    }

    /// Whether the peer takes batches as they come: it is heard, and does not wait for a snapshot.
    pub(super) fn is_streaming(&self) -> bool {
        self.is_heard() && self.too_far.is_none()
    }

    /// The peer says that it is a newcomer, which has nothing to acknowledge. Unless a parcel is under way to it, which
    /// it would acknowledge, this message shows that it is there.
    pub(super) fn waits(&mut self) {
        self.newcomer = self.sent.is_none();
        if self.outgoing.is_none() {
            self.at_work();
        }
    }

    /// Whether to tell the peer that it needs a snapshot.
    pub(super) fn tell_too_far(&mut self) -> bool {
        let news = self.too_far.is_none();
        self.too_far.get_or_insert(0);
        news
    }

    /// The peer needs no snapshot any more.
    pub(super) fn comes_near(&mut self) {
        self.too_far = None;
    }

    /// One more tick: a message that the peer has not acted upon for `every` ticks is sent again.
    pub(super) fn remind(&mut self, every: u32) {
        let idle = !self.asks && self.outgoing.is_none();
        self.too_far = self.too_far.map(|age| age + 1).filter(|&age| age < every || !idle);
    }

    /// The peer says what it has, all in all.
    pub(super) fn confirm(&mut self, has: &Frontier) {
        self.newcomer = false;
        self.sent.get_or_insert_default().merge(has);
        let bytes = &mut self.flight_bytes;
        self.flight.retain(|&(origin, sequence, length)| {
            let flies = sequence > has.applied(origin);
            *bytes -= if flies { 0 } else { length };
            flies
        });
    }

    /// The peer sent a batch, so it has it.
    pub(super) fn showed(&mut self, origin: OriginId, sequence: u64) {
        if let Some(sent) = &mut self.sent {
            sent.raise(origin, sequence);
        }
    }

    /// Counts a batch as sent.
    pub(super) fn send(&mut self, origin: OriginId, sequence: u64, bytes: usize) {
        self.flight.push_back((origin, sequence, bytes));
        self.flight_bytes += bytes;
        self.showed(origin, sequence);
        if let Some(Repair {
            active: Some(up_to), ..
        }) = self.repairs.get_mut(&origin)
        {
            *up_to = sequence;
        }
    }

    /// The bytes of batches that were sent and are not acknowledged.
    pub(super) fn bytes_under_way(&self) -> usize {
        self.flight_bytes
    }

    /// The highest sequence of an origin that need not be sent again; `None` while that is not known.
    pub(super) fn sent(&self, origin: OriginId) -> Option<u64> {
        self.sent.as_ref().map(|sent| sent.applied(origin))
    }

    /// Takes note of what the peer is told; `false` if that is no news.
    pub(super) fn told(&mut self, frontier: &Frontier) -> bool {
        self.untold = 0;
        let news = self.told.as_ref() != Some(frontier);
        if news {
            self.told = Some(frontier.clone());
        }
        news
    }

    /// Bytes move or the peer speaks, so the link may be slow but is not dead: silence is counted anew.
    pub(super) fn at_work(&mut self) {
        self.silence.ticks = 0;
    }

    /// Counts one more tick, and says whether the peer has been silent for too many. A peer is silent that acknowledges
    /// nothing of what is under way to it, or that has said nothing at all since the link was set up. While bytes leave,
    /// the limit is longer: they may be a large parcel on a slow link, but also notes that nobody reads.
    pub(super) fn is_silent(&mut self, has: &Frontier, ticks_max: u32) -> bool {
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

    /// Whether the peer has said nothing for so many ticks though something is under way to it: it stands still, or the
    /// link does. More of anything would only lie there with the rest.
    pub(super) fn is_mute(&self, has: &Frontier, ticks: u32) -> bool {
        self.quiet >= ticks && self.awaits_word(has)
    }

    /// The peer has said something.
    pub(super) fn speaks(&mut self) {
        self.quiet = 0;
    }

    /// Whether the peer has said something within so many ticks.
    pub(super) fn has_spoken(&self, ticks: u32) -> bool {
        self.quiet < ticks
    }

    /// Whether this node helps the peer on with an origin of a third node.
    pub(super) fn is_helped(&self, origin: OriginId) -> bool {
        self.repairs.get(&origin).is_some_and(Repair::is_active)
    }

    /// One more tick with an origin of a third node, of which the peer has `has` and this node has `applied`.
    pub(super) fn watch(&mut self, origin: OriginId, has: u64, applied: u64, patience: u32) {
        self.repairs.entry(origin).or_default().watch(has, applied, patience);
    }
}
