//! The simulated links between nodes: set up, cut on one side or both, and lossy.

use protocol::ids::NodeId;

use super::world::{Path, World};
use crate::exchange::Event;
use protocol::wire::link::Message;

/// Upper bound, per pair of nodes, on the messages that may pass in a simulation without new faults before it falls
/// silent. A pair usually needs a few, and some hundreds if twenty nodes have rounds to make up for.
const DELIVERIES_MAX: usize = 2_000;

impl World {
    /// Cuts a link; both sides notice at once.
    pub(super) fn cut(&mut self, a: NodeId, b: NodeId) {
        for (from, to) in [(a, b), (b, a)] {
            if self.channels.remove(&(from, to)).is_some() {
                self.tell(to, Event::LinkDown(from));
            }
        }
    }

    /// Cuts a link. `a` notices at once; `b` goes on receiving the messages in flight until it notices later.
    pub(super) fn cut_one_sided(&mut self, a: NodeId, b: NodeId) {
        if self.channels.contains_key(&(a, b)) && self.channels.remove(&(b, a)).is_some() {
            self.tell(a, Event::LinkDown(b));
            if let Some(channel) = self.channels.get_mut(&(a, b)) {
                channel.dangling = true;
            }
        }
    }

    /// Lets node `b` notice that its link with `a` is gone, if the link was cut so that only `a` noticed.
    pub(super) fn end_silence(&mut self, a: NodeId, b: NodeId) {
        if self.channels.get(&(a, b)).is_some_and(|channel| channel.dangling) {
            self.cut(a, b);
        }
    }

    /// Splits these nodes into two groups at a random place of the list, and cuts all links between the groups.
    pub(super) fn partition(&mut self, alive: &[NodeId]) {
        let border = self.random.below(alive.len() as u64) as usize;
        for &left in &alive[..border] {
            for &right in &alive[border..] {
                self.cut(left, right);
            }
        }
    }

    pub(super) fn mend(&mut self, a: NodeId, b: NodeId) {
        let both = self.nodes[&a].alive && self.nodes[&b].alive;
        let known = self.nodes[&a].knows.contains(&b) && self.nodes[&b].knows.contains(&a);
        let whole = self.channels.contains_key(&(a, b)) && self.channels.contains_key(&(b, a));
        if a == b || !both || !known || whole {
            return;
        }
        self.cut(a, b);
        self.channels.insert((a, b), Path::default());
        self.channels.insert((b, a), Path::default());
        self.tell(a, Event::LinkUp(b));
        self.tell(b, Event::LinkUp(a));
    }

    pub(super) fn mend_all(&mut self) {
        let ids = self.alive();
        for &a in &ids {
            for &b in &ids {
                self.mend(a, b);
            }
        }
    }

    /// Delivers one message in flight, chosen at random. A lossy network may drop or repeat the message, or let another
    /// overtake it. Returns false if no message is in flight.
    pub(super) fn deliver(&mut self) -> bool {
        let busy: Vec<(NodeId, NodeId)> = self
            .channels
            .iter()
            .filter(|(_, channel)| !channel.queue.is_empty())
            .map(|(&channel, _)| channel)
            .collect();
        if busy.is_empty() {
            return false;
        }
        let (from, to) = busy[self.random.below(busy.len() as u64) as usize];
        if self.stormy && self.slow == Some(to) && self.random.below(8) > 0 {
            return true;
        }
        let chance = if self.lossy { self.random.below(100) } else { 99 };
        let queue = &mut self.channels.get_mut(&(from, to)).unwrap().queue;
        // Announcements of origins are never lost or reordered: without them an honest batch would look like a forged
        // one.
        let moves = |message: Option<&Message>| message.is_some_and(|message| !matches!(message, Message::Origin(_)));
        if chance == 0 && moves(queue.front()) && moves(queue.get(1)) {
            queue.swap(0, 1);
        }
        let message = queue.pop_front().unwrap();
        if chance == 1 && moves(Some(&message)) {
            return true;
        }
        if chance == 2 {
            queue.push_front(message.clone());
        }
        self.tell(to, Event::Received { from, message });
        true
    }

    /// Delivers all messages in flight and those that follow from them. Panics if they do not end by themselves.
    pub(super) fn deliver_all(&mut self) {
        let mut delivered = 0;
        let max = DELIVERIES_MAX * self.nodes.len() * self.nodes.len();
        while self.deliver() {
            delivered += 1;
            assert!(
                delivered < max,
                "nodes send each other messages without end\n{}",
                self.describe()
            );
        }
    }
}
