//! The calm after the storm: links hold, and the surviving nodes must agree.

use protocol::ids::NodeId;

use super::world::World;
use crate::exchange::Event;

/// Ticks after the end of random faults within which the surviving nodes must agree.
const CALM_TICKS: usize = 1500;

impl World {
    /// Ends the storm of random faults: links hold, dead nodes are declared dead with probability 1/2, and ticks pass
    /// until all survivors agree.
    pub(super) fn settle(&mut self) {
        self.lossy = false;
        self.stormy = false;
        let dead: Vec<NodeId> = self.nodes.keys().copied().filter(|id| !self.nodes[id].alive).collect();
        let declared = self.random.below(2) == 0;
        for at in self.alive() {
            self.learn_all(at);
            for gone in dead.iter().filter(|_| declared) {
                self.nodes.get_mut(&at).unwrap().knows.remove(gone);
                self.tell(at, Event::Left(*gone));
            }
        }
        let broken: Vec<(NodeId, NodeId)> = self.channels.keys().copied().collect();
        for (a, b) in broken {
            let channel = self.channels.get(&(a, b));
            if channel.is_some_and(|channel| channel.dead || channel.dangling) {
                self.cut(a, b);
            }
        }
        for _ in 0..CALM_TICKS {
            self.mend_all();
            self.deliver_all();
            for at in self.alive() {
                self.tell_silent(at);
                self.tell(at, Event::Tick);
            }
            if self.channels.values().all(|channel| channel.queue.is_empty()) && self.is_agreed() {
                break;
            }
        }
    }

    fn is_agreed(&self) -> bool {
        let mut alive = self.nodes.values().filter(|node| node.alive);
        let first = alive.next().unwrap();
        alive.all(|node| node.exchange.ledger().frontier() == first.exchange.ledger().frontier())
            && self.kept_in_vain().is_none()
            && self.damaged().is_none()
    }
}
