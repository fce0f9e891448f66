//! The addresses of a cluster's nodes, given by the user or learned from nodes, and the choice of the node to ask.

use std::net::SocketAddr;

/// Failed requests to one node after which the next node is asked.
const ATTEMPTS: u32 = 2;

/// The known addresses of a cluster's nodes, and the one that is asked at present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Directory {
    given: Vec<SocketAddr>,
    learned: Vec<SocketAddr>,
    current: SocketAddr,
    /// Number of failed requests to the current node since its last answer.
    failed: u32,
}

impl Directory {
    /// Returns a directory of the addresses that the user gave, which are tried in this order; none if there are none.
    pub(crate) fn new(given: Vec<SocketAddr>) -> Option<Self> {
        let mut known = Vec::new();
        for address in given {
            if !known.contains(&address) {
                known.push(address);
            }
        }
        Some(Self {
            current: *known.first()?,
            given: known,
            learned: Vec::new(),
            failed: 0,
        })
    }

    /// Returns the addresses of all known nodes.
    pub(crate) fn known(&self) -> Vec<SocketAddr> {
        let more = self.learned.iter().filter(|address| !self.given.contains(address));
        self.given.iter().chain(more).copied().collect()
    }

    /// Returns the address of the node that is asked at present.
    pub(crate) fn current(&self) -> SocketAddr {
        self.current
    }

    /// Replaces the learned addresses by those of the current members. Addresses that the user gave stay.
    pub(crate) fn learn(&mut self, members: Vec<SocketAddr>) {
        self.learned = members;
    }

    /// Records that the node that requests are sent to has answered, so that its earlier failures no longer count.
    pub(crate) fn answered(&mut self) {
        self.failed = 0;
    }

    /// Records a failed request to a node. Returns true if this was one failure too many, so that the next node is
    /// asked from now on.
    pub(crate) fn failed(&mut self, address: SocketAddr) -> bool {
        // Another request may have failed earlier and moved on to the next node.
        if address != self.current {
            return false;
        }
        self.failed += 1;
        let turn = self.failed >= ATTEMPTS;
        if turn {
            self.next();
        }
        turn
    }

    /// Moves on to the next of the known nodes, the one that requests are sent to from now on; the first follows the
    /// last.
    pub(crate) fn next(&mut self) {
        let known = self.known();
        let place = known.iter().position(|address| *address == self.current);
        // If the current address is no longer known, the first one is next.
        let next = place.map_or(0, |place| (place + 1) % known.len());
        self.prefer(known[next]);
    }

    /// Makes the node at this address the one that requests are sent to.
    pub(crate) fn prefer(&mut self, address: SocketAddr) {
        self.current = address;
        self.failed = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[test]
    fn every_node_is_asked_twice_and_then_the_next_one() {
        let mut directory = Directory::new(vec![at(1), at(2), at(1)]).unwrap();
        directory.learn(vec![at(2), at(3)]);
        let mut asked = Vec::new();
        for _ in 0..7 {
            asked.push(directory.current().port());
            directory.failed(directory.current());
        }
        assert_eq!(asked, [1, 1, 2, 2, 3, 3, 1]);
        directory.failed(at(2));
        assert!(
            directory.failed(at(1)),
            "a failure at another address must not count for the current node"
        );
        assert_eq!(directory.current(), at(2));
    }

    #[test]
    fn an_answer_makes_up_for_a_failure() {
        let mut directory = Directory::new(vec![at(1), at(2)]).unwrap();
        for _ in 0..5 {
            assert!(!directory.failed(at(1)));
            directory.answered();
        }
        assert_eq!(directory.current(), at(1));
    }

    #[test]
    fn who_left_is_forgotten_but_for_what_the_user_gave() {
        let mut directory = Directory::new(vec![at(1)]).unwrap();
        directory.learn(vec![at(1), at(2), at(3)]);
        assert_eq!(directory.known(), [at(1), at(2), at(3)]);
        directory.prefer(at(2));
        directory.learn(vec![at(3)]);
        assert_eq!(directory.known(), [at(1), at(3)]);
        directory.next();
        assert_eq!(directory.current(), at(1));
        assert_eq!(Directory::new(Vec::new()), None);
    }
}
