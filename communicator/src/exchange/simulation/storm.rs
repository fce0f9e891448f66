//! The storm: random events that happen to the simulated nodes, one at each step.

use std::collections::BTreeSet;

use protocol::ids::NodeId;

use super::world::{Node, UNLIMITED, World};
use crate::exchange::tests::WEIGHTS;
use crate::exchange::{Event, Limits};

impl World {
    pub(super) fn storm_step(&mut self) {
        let alive = self.alive();
        if self.is_bundled() && self.random.below(60) == 0 {
            return self.lull();
        }
        let (a, b) = (self.pick(&alive), self.pick(&alive));
        match self.random.below(1000) {
            0..350 => self.train(a),
            350..880 => {
                self.deliver();
            }
            880..960 => {
                if self.random.below(4) == 0 {
                    self.tell_silent(a);
                }
                self.tell(a, Event::Tick);
                // A node that joined late gets a worker when it has about the others' batches.
                let live = |node| self.nodes[&node].alive;
                if self.nodes[&a].worker.is_none() && self.nodes[&a].exchange.is_caught_up(live) {
                    self.start_worker(a);
                }
            }
            960..966 => self.cut(a, b),
            966..970 => self.cut_one_sided(a, b),
            970..973 => {
                if let Some(channel) = self.channels.get_mut(&(a, b)) {
                    channel.dead = true;
                }
            }
            973..985 => self.mend(a, b),
            985..988 => self.partition(&alive),
            988 => self.mend_all(),
            // A node that the logs have forgotten for lack of memory can get some batches from their origins' nodes
            // only. If those die too, batches may be lost. The product does not promise otherwise, so such nodes are
            // not killed.
            989 if alive.len() > 2 && self.forgets_nobody() && self.is_sound() => self.crash(a),
            990 if self.nodes.len() < 24 => {
                // A new node, or one that died and starts again: one node introduces it, and the others hear of it
                // later.
                let id = self.add();
                let told = self.nodes[&a].knows.clone();
                self.learn_of(id, &told);
                self.learn_of(a, &BTreeSet::from([id]));
            }
            991..993 if self.nodes[&a].worker.is_some() => {
                self.end_worker(a);
                self.start_worker(a);
            }
            993..998 => {
                let told = self.nodes[&b].knows.clone();
                self.learn_of(a, &told);
            }
            998 => self.end_silence(a, b),
            999 => self.flip(a),
            _ => {}
        }
    }

    /// Pauses the random faults for a few simulated steps, so that rounds can be completed.
    fn lull(&mut self) {
        if self.random.below(4) == 0 {
            self.mend_all();
        }
        for _ in 0..2 + self.random.below(4) {
            for at in self.alive() {
                self.train(at);
            }
            for _ in 0..self.random.below(400) {
                self.deliver();
            }
            for at in self.alive() {
                self.tell_silent(at);
                self.tell(at, Event::Tick);
            }
        }
    }

    /// Flips up to two bits of a node's replica and lets the node audit it. The node repairs one bit by itself. Two are
    /// flipped only if another node's replica could replace it, because otherwise no node could repair the damage.
    fn flip(&mut self, at: NodeId) {
        let bits = self.random.below(3);
        let places: Vec<(usize, u32)> = (0..bits)
            .map(|_| (self.random.below(WEIGHTS as u64) as usize, self.random.below(12) as u32))
            .collect();
        let may_replace = |(id, other): (&NodeId, &Node)| {
            let ledger = other.exchange.ledger().clone();
            *id != at
                && other.alive
                && !other.exchange.is_newcomer()
                && self.nodes[&at].exchange.replica().is_replaceable_by(ledger)
        };
        if bits <= 1 || self.is_sound() && self.nodes.iter().any(may_replace) {
            let replica = self.nodes.get_mut(&at).unwrap().exchange.replica_mut();
            for (index, bit) in places {
                replica.flip(index, bit);
            }
            self.tell(at, Event::Audit);
        }
    }

    fn forgets_nobody(&self) -> bool {
        let Limits {
            merged_bytes_max,
            unmarked_bytes_max,
            ..
        } = self.limits;
        merged_bytes_max.min(unmarked_bytes_max) == UNLIMITED
    }

    fn is_sound(&self) -> bool {
        !self.nodes.values().any(|node| node.alive && node.damaged)
    }

    fn crash(&mut self, node: NodeId) {
        for other in self.alive() {
            self.cut(node, other);
        }
        self.nodes.get_mut(&node).unwrap().alive = false;
    }
}
