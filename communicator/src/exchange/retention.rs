//! What is kept for those who are behind: as long as anybody needs it, merged when it becomes much, and no more than
//! the limits say.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use protocol::frontier::Frontier;
use protocol::ids::{NodeId, OriginId};

use super::core::Exchange;
use super::limits::Limits;
use super::peer::Peer;
use super::planted::{Bug, planted};

impl Exchange {
    /// Forgets batches that no member needs: all have them and have marked it.
    pub(super) fn trim(&mut self) {
        let mut needless = Frontier::default();
        for (origin, applied) in self.ledger.frontier().iter() {
            // Its own node keeps it for everybody, if it is there.
            let elsewhere = self
                .node_of(origin)
                .is_some_and(|origin_node| self.peers.get(&origin_node).is_some_and(Peer::is_heard));
            let peers = self.peers.values();
            let needed = peers.filter_map(|peer| peer.needs_from(origin, applied, elsewhere));
            needless.raise(origin, needed.min().unwrap_or(applied).min(applied));
        }
        self.log.trim(&needless);
    }

    /// Keeps the log within its limits.
    pub(super) fn bound(&mut self) {
        if self.log.single_bytes() > self.compact_at {
            self.compact();
        }
        while self.is_too_much()
            && let Some(node) = self.furthest_behind()
            && let Some(peer) = self.peers.get_mut(&node)
        {
            peer.forgotten = true;
            self.trim();
            // Perhaps nothing could be merged on its account.
            if self.log.single_bytes() > self.compact_at {
                self.compact();
            }
        }
    }

    /// Whether more is kept than can be merged. Batches of bundles are not merged, but for those of this node's own workers:
    /// whoever is offered the bundle has to know by itself what it has of it.
    fn is_too_much(&self) -> bool {
        let Limits {
            single_bytes_max,
            merged_bytes_max,
            ..
        } = self.limits;
        let all = self.log.single_bytes().saturating_add(self.log.merged_bytes());
        let all_max = single_bytes_max.saturating_add(merged_bytes_max);
        self.log.merged_bytes() > merged_bytes_max || self.bundling.is_some() && all > all_max
    }

    fn compact(&mut self) {
        let unmarked = |peer: &&mut Peer| !peer.is_marked && !peer.forgotten && !peer.quarantined;
        if self.log.single_bytes() > self.limits.unmarked_bytes_max {
            self.peers
                .values_mut()
                .filter(unmarked)
                .for_each(|peer| peer.forgotten = true);
        }
        let origins: Vec<OriginId> = self.log.kept().map(|range| range.origin).collect();
        for origin in origins {
            self.merge(origin);
        }
        // What is recent stays single, and may be more than the limit in itself.
        self.compact_at = if self.may_merge() {
            self.log.single_bytes() + self.limits.single_bytes_max
        } else {
            self.limits.single_bytes_max
        };
    }

    /// Whether all points that some member may need are known.
    fn may_merge(&self) -> bool {
        let known = |peer: &Peer| peer.is_marked || peer.forgotten || peer.quarantined;
        self.peers.values().all(known)
    }

    /// Merges an origin's batches, but not over points that some member may still need.
    fn merge(&mut self, origin: OriginId) {
        let is_own = self.node_of(origin) == Some(self.me);
        if !self.may_merge() || self.bundling.is_some() && !is_own || planted(Bug::NoMerge) {
            return;
        }
        let mut points: BTreeSet<u64> = self.peers.values().flat_map(|peer| peer.points(origin)).collect();
        points.extend(self.bundling.iter().flat_map(|bundling| bundling.points(origin)));
        self.log.compact(origin, &points, self.limits.window);
    }

    /// Merges what a peer lacks, where that is so much that ranges of it are shorter.
    pub(super) fn merge_for(&mut self, node: NodeId) {
        let Limits {
            window,
            range_worth_bytes,
            ..
        } = self.limits;
        let Some(peer) = self.peers.get(&node).filter(|peer| peer.is_heard()) else {
            return;
        };
        let lacking = peer.has.lacks(self.ledger.frontier()).into_iter();
        // Others' batches are merged where they are made: each node would do the same work for somebody who returns.
        let worth = lacking
            .filter(|range| self.sends(range.origin, node, peer))
            .filter(|range| range.to - range.from > window)
            .filter(|range| self.log.single_bytes_after(range.origin, range.from, window) > range_worth_bytes)
            .map(|range| range.origin);
        for origin in worth.collect::<Vec<_>>() {
            self.merge(origin);
        }
    }

    /// The peer for whom most is kept.
    fn furthest_behind(&self) -> Option<NodeId> {
        let kept_for = self
            .peers
            .iter()
            .filter(|(_, peer)| !peer.quarantined && !peer.forgotten);
        let (node, lag) = kept_for
            .map(|(&node, peer)| (node, peer.base.behind(self.ledger.frontier())))
            .max_by_key(|&(node, lag)| (lag, Reverse(node)))?;
        (lag > 0).then_some(node)
    }

    /// Whether the log is within its limits, as far as they go: what is recent stays single, what was forgotten is not
    /// there, and what this node's own workers made is kept for everybody. It asks what is there, not how it came there.
    #[cfg(test)]
    pub(super) fn is_bounded(&self, batch_bytes_max: usize) -> bool {
        // Merging leaves of each origin what is recent, and what stands alone between two points of members. Then as much
        // again may come as makes it worth while to merge.
        let members = self.peers.len() + self.left.len();
        let alone_max = self.log.kept().count() * (self.limits.window as usize + 4 * members + 2);
        let merging_max = (self.limits.single_bytes_max).saturating_add((alone_max + 1) * batch_bytes_max);
        let single_max = if self.may_merge() {
            merging_max
        } else {
            merging_max.max(self.limits.unmarked_bytes_max)
        };
        let all_forgotten = self.furthest_behind().is_none();
        let is_merged = self.log.single_bytes() <= single_max || self.bundling.is_some();
        is_merged && (!self.is_too_much() || all_forgotten)
    }
}
