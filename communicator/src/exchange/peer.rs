//! What a node knows of one peer.

use std::collections::{BTreeMap, VecDeque};

use protocol::frontier::Frontier;
use protocol::ids::OriginId;

/// A member of the run, with or without a link to it.
#[derive(Clone, Debug, Default)]
pub(super) struct Peer {
    /// What it is known to have applied. It grows only: what was applied stays applied. (A node that starts again is
    /// another node, with another name.)
    pub(super) has: Frontier,
    pub(super) linked: bool,
    /// It said something that no honest member says: nothing is taken from it or sent to it any more.
    pub(super) quarantined: bool,
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
    /// Where it was, of which origin, when a snapshot was last due.
    snapshot_due: Option<(OriginId, u64)>,
    /// What it had at the last tick, and for how many ticks that has not changed while batches were under way.
    silence: (Frontier, u32),
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

    /// Whether it is news that a peer that stands there needs a snapshot.
    pub(super) fn snapshot_due(&mut self, origin: OriginId, sent: u64) -> bool {
        self.snapshot_due.replace((origin, sent)) != Some((origin, sent))
    }

    /// Forgets everything about the present link.
    pub(super) fn unlink(&mut self) {
        self.linked = false;
        self.sent = None;
        self.flight.clear();
        self.flight_bytes = 0;
        self.told = None;
        self.untold = 0;
        self.silence.1 = 0;
        self.snapshot_due = None;
        self.repairs.clear();
    }

    /// The peer says what it has.
    pub(super) fn confirm(&mut self, frontier: &Frontier) {
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
        self.silence.1 = 0;
    }

    /// One more tick: whether it has kept silent for so many ticks, either about batches that are under way to it or, at
    /// the start of a link, altogether.
    pub(super) fn is_silent(&mut self, ticks_max: u32) -> bool {
        let waiting = self.linked && self.sent.as_ref().is_none_or(|sent| *sent != self.has);
        if !waiting || self.silence.0 != self.has {
            self.silence = (self.has.clone(), 0);
        } else {
            self.silence.1 += 1;
        }
        self.silence.1 >= ticks_max
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
