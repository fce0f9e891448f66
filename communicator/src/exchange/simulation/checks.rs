//! The invariants of the simulation: of each node after every event, and of all survivors at the end.

use protocol::ids::NodeId;
use protocol::log::frontier::Frontier;
use protocol::weights::digest::Digest;

use super::world::{BATCH_BYTES_MAX, Node, World};

impl World {
    /// Checks the invariants of a node: its replica is the sum of its batches, its worker has the same weights, and its
    /// log is within its limits.
    pub(super) fn check(&self, at: NodeId) {
        let node = &self.nodes[&at];
        let ledger = node.exchange.ledger();
        if node.damaged {
            assert!(ledger.audit().is_err());
            return;
        }
        ledger.audit().unwrap();
        let mut expected = Digest::default();
        for (origin, sequence) in ledger.frontier().iter() {
            let sum = self.made[&origin].get(sequence as usize);
            expected += *sum.unwrap_or_else(|| panic!("node {at} has applied a batch that no worker made"));
        }
        assert_eq!(
            ledger.digest(),
            expected,
            "the ledger of node {at} is not the sum of its batches"
        );
        if let Some(worker) = &node.worker {
            assert_eq!(
                worker.counts,
                ledger.counts(),
                "the weights of node {at}'s worker differ from the node's ledger"
            );
        }
        assert!(
            node.exchange.is_bounded(BATCH_BYTES_MAX),
            "the log of node {at} exceeds its limit: {} bytes",
            node.exchange.log_bytes()
        );
    }

    /// The batches that at least one living node of the simulation has applied.
    pub(super) fn learned(&self) -> Frontier {
        let mut learned = Frontier::default();
        for node in self.nodes.values().filter(|node| node.alive) {
            learned.merge(node.exchange.ledger().frontier());
        }
        learned
    }

    /// Finds a node whose damaged replica was not replaced although another node has an intact one.
    pub(super) fn damaged(&self) -> Option<NodeId> {
        let alive = self.alive();
        let sound = alive.iter().any(|id| !self.nodes[id].damaged);
        alive.into_iter().find(|id| sound && self.nodes[id].damaged)
    }

    /// Finds a node that keeps batches in its log although all nodes that it counts as members have them.
    pub(super) fn kept_in_vain(&self) -> Option<NodeId> {
        let alive = self.alive();
        let waits = |node: &Node| node.exchange.peers().nodes().iter().any(|other| !alive.contains(other));
        let vain = |node: &Node| node.exchange.log_bytes() > 0 && !waits(node);
        alive.iter().copied().find(|id| vain(&self.nodes[id]))
    }

    /// Checks that all surviving nodes have the same batches, and all those that one of them had applied when the
    /// random faults ended. More are allowed: the sum of a round that was in flight at that moment brings the
    /// contribution of a dead node.
    pub(super) fn check_agreement(&self, learned: &Frontier) {
        let mut agreed = None;
        for (id, node) in self.nodes.iter().filter(|(_, node)| node.alive) {
            let frontier = node.exchange.ledger().frontier();
            assert_eq!(
                frontier.lacks(learned),
                [],
                "node {id} lacks a batch that a survivor had applied\n{}",
                self.describe()
            );
            let agreed = agreed.get_or_insert(frontier);
            assert_eq!(
                *agreed,
                frontier,
                "node {id} has other batches than the other survivors\n{}",
                self.describe()
            );
        }
        if let Some(id) = self.damaged() {
            panic!("the ledger of node {id} is still damaged\n{}", self.describe());
        }
        if let Some(id) = self.kept_in_vain() {
            panic!(
                "node {id} keeps {} bytes of batches that all nodes have",
                self.nodes[&id].exchange.log_bytes()
            );
        }
    }

    /// Describes all live nodes, for the report of a failed simulation.
    pub(super) fn describe(&self) -> String {
        let alive = self.nodes.iter().filter(|(_, node)| node.alive);
        let described = alive.map(|(id, node)| format!("{id}: {}", node.exchange.describe()));
        described.collect::<Vec<_>>().concat()
    }
}
