//! What a node knows of one peer.

use std::collections::BTreeSet;

use protocol::frontier::Frontier;
use protocol::ids::OriginId;

use super::log::Log;
use super::parcel::Outgoing;
use super::peer_link::PeerLink;

/// A member of the run, with or without a link to it.
#[derive(Clone, Debug, Default)]
pub(super) struct Peer {
    /// What it is known to have applied. It grows only: what was applied stays applied. (A node that starts again is
    /// another node, with another name.)
    pub(super) has: Frontier,
    /// The link to it, if there is one.
    pub(super) link: Option<PeerLink>,
    /// It said something that no honest member says: nothing is taken from it or sent to it any more, and there is no
    /// link to it.
    pub(super) quarantined: bool,
    /// Where ranges for it may begin: its newest mark, from which on it knows what it has.
    pub(super) base: Frontier,
    /// Whether `base` is a mark that the peer really made: it began with the run, or has sent a mark. Nothing is merged
    /// until that is true of all peers, because until then nobody knows which points they need.
    pub(super) is_marked: bool,
    /// What is kept for it became too much: nothing is any more, and it will have to take a snapshot.
    pub(super) forgotten: bool,
    /// This node's mark that the peer has taken, and the one that is proposed: the peer's ranges begin at either.
    pub(super) mark: Frontier,
    pub(super) proposed: Option<(u64, Frontier)>,
    /// Ranges that it could not take, by origin and beginning.
    pub(super) refused: BTreeSet<(OriginId, u64)>,
    /// Frames in a row that were damaged.
    pub(super) damaged: u32,
    /// Counts this node's marks, and the ticks since the last one.
    marks: u64,
    mark_age: u32,
}

impl Peer {
    /// Whether a link to it is up and it has said on it what it has.
    pub(super) fn is_heard(&self) -> bool {
        self.link.as_ref().is_some_and(PeerLink::is_heard)
    }

    /// The parcel that is on its way to it.
    pub(super) fn outgoing(&self) -> Option<&Outgoing> {
        self.link.as_ref()?.outgoing.as_ref()
    }

    /// Counts a tick. Returns a mark to propose when the last one is old enough and the frontier has changed. A mark that
    /// was not confirmed is proposed again unchanged: the peer may already use it, and a log keeps two marks as points, not
    /// three.
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

    /// One more tick without anything to say: whether it has been so many.
    pub(super) fn is_time(&mut self, every: u32) -> bool {
        self.mark_age = self.mark_age.saturating_add(1);
        let time = self.mark_age >= every;
        if time {
            self.mark_age = 0;
        }
        time
    }

    /// The peer has taken a mark, but for some origins.
    pub(super) fn marked(&mut self, number: u64, except: &[OriginId]) {
        if let Some((_, frontier)) = self.proposed.take_if(|(proposed, _)| *proposed == number) {
            let taken = frontier.iter().filter(|(origin, _)| !except.contains(origin));
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

    /// The peer says what it has.
    pub(super) fn confirm(&mut self, frontier: &Frontier) {
        self.has.merge(frontier);
        if let Some(link) = &mut self.link {
            link.confirm(&self.has);
        }
    }

    /// The peer sent a batch, so it has it.
    pub(super) fn showed(&mut self, origin: OriginId, sequence: u64) {
        self.has.raise(origin, sequence);
        if let Some(link) = &mut self.link {
            link.showed(origin, sequence);
        }
    }
}
