//! The announced origins of a run. An origin is one worker's numbered stream of batches.

use std::collections::BTreeMap;

use protocol::ids::{NodeId, OriginId};
use protocol::log::frontier::Frontier;
use protocol::wire::link::OriginInfo;

use super::breach::Breach;
use super::limits::ORIGINS_MAX;

/// All announced origins (workers' streams of batches), each with its node.
#[derive(Clone, Debug)]
pub(super) struct Origins {
    me: NodeId,
    known: BTreeMap<OriginId, OriginInfo>,
}

impl Origins {
    pub(super) fn new(me: NodeId) -> Self {
        Self {
            me,
            known: BTreeMap::new(),
        }
    }

    /// The announced origins (workers' streams of batches) by name.
    pub(super) fn known(&self) -> &BTreeMap<OriginId, OriginInfo> {
        &self.known
    }

    /// The origins (streams of batches) of this node's own workers.
    pub(super) fn own(&self) -> impl Iterator<Item = &OriginInfo> {
        self.known.values().filter(|info| info.node == self.me)
    }

    /// The node of the worker that makes an origin's batches; `None` if the origin was never announced.
    pub(super) fn node_of(&self, origin: OriginId) -> Option<NodeId> {
        self.known.get(&origin).map(|info| info.node)
    }

    /// Returns true if the worker that makes an origin's batches is on this node.
    pub(super) fn is_own(&self, origin: OriginId) -> bool {
        self.node_of(origin) == Some(self.me)
    }

    /// Records an origin (a worker's stream of batches) that this node or a peer announces. Returns the origin if it is
    /// new or has changed. The first announcement counts: no other node can take the origin over, and its end, once
    /// announced, does not change.
    pub(super) fn learn(&mut self, from: Option<NodeId>, info: OriginInfo) -> Option<OriginInfo> {
        let before = self.known.get(&info.origin).copied();
        let after = match before {
            // Only this node knows its own origins and their ends, so peers' claims about them are ignored.
            None if from.is_some() && info.node == self.me => return None,
            Some(known) if from.is_some() && known.node == self.me => known,
            None => info,
            Some(known) if known.node == info.node => OriginInfo {
                ended: known.ended.or(info.ended),
                ..known
            },
            Some(known) => known,
        };
        (before != Some(after)).then(|| {
            self.known.insert(info.origin, after);
            after
        })
    }

    /// Records that an origin (a worker's stream of batches) has ended with this batch: no later one will come.
    pub(super) fn end(&mut self, origin: OriginId, to: u64) {
        if let Some(info) = self.known.get_mut(&origin) {
            info.ended.get_or_insert(to);
        }
    }

    /// Makes room for an origin (a worker's stream of batches). Returns true if its announcement can be recorded. If
    /// the table is full, an origin that ended without a batch is removed: workers that fail at once leave many of
    /// those.
    pub(super) fn make_room_for(&mut self, origin: OriginId, applied: &Frontier) -> bool {
        if self.known.contains_key(&origin) || self.known.len() < ORIGINS_MAX {
            return true;
        }
        let empty = |info: &&OriginInfo| info.ended == Some(0) && applied.applied(info.origin) == 0;
        let empty = self.known.values().find(empty).map(|info| info.origin);
        empty.is_some_and(|empty| self.known.remove(&empty).is_some())
    }

    /// Checks batches up to `to` that a peer has sent, and returns the node of the worker that made them. Fails if no
    /// honest member would send them: their origin was not announced, or they are of this node's worker, which has not
    /// made them.
    pub(super) fn check(&self, origin: OriginId, to: u64, applied: &Frontier) -> Result<NodeId, Breach> {
        let node = self.node_of(origin).ok_or(Breach::UnknownOrigin(origin))?;
        if node == self.me && to > applied.applied(origin) {
            return Err(Breach::NeverMade { origin, sequence: to });
        }
        Ok(node)
    }
}
