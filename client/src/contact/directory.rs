//! The addresses of a cluster's nodes: those that the user gave, and those that nodes have told of.

use std::net::SocketAddr;

/// How often a node is asked in vain before the next one is.
const ATTEMPTS: u32 = 2;

/// Whom to ask next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Directory {
    given: Vec<SocketAddr>,
    learned: Vec<SocketAddr>,
    current: SocketAddr,
    /// How often the current one was asked in vain since it answered.
    failed: u32,
}

impl Directory {
    /// What a user knows: some addresses, in the order in which they are tried. None if there is none.
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

    /// Everybody who can be asked.
    pub(crate) fn known(&self) -> Vec<SocketAddr> {
        let more = self.learned.iter().filter(|address| !self.given.contains(address));
        self.given.iter().chain(more).copied().collect()
    }

    /// Who is asked now.
    pub(crate) fn current(&self) -> SocketAddr {
        self.current
    }

    /// A node has told who is there. Nodes that left are forgotten, unless the user gave their addresses.
    pub(crate) fn learn(&mut self, members: Vec<SocketAddr>) {
        self.learned = members;
    }

    /// The current one has answered.
    pub(crate) fn answered(&mut self) {
        self.failed = 0;
    }

    /// This one was asked in vain. It is asked again, and then the next one; whether it is the next one's turn.
    pub(crate) fn failed(&mut self, address: SocketAddr) -> bool {
        // Others may have noticed before, and gone on.
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

    /// Goes on with the next one, round and round.
    pub(crate) fn next(&mut self) {
        let known = self.known();
        let place = known.iter().position(|address| *address == self.current);
        // One that is known no more is followed by the first.
        let next = place.map_or(0, |place| (place + 1) % known.len());
        self.prefer(known[next]);
    }

    /// Goes on with this one.
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
