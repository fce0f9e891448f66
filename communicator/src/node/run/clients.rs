//! Clients that wait for replies. The run's core knows them by tickets.

use std::collections::BTreeMap;

use crate::run::Ticket;

/// Reply ports of the clients that wait, by ticket.
#[derive(Debug)]
pub(super) struct Clients<R> {
    last: u64,
    waiting: BTreeMap<Ticket, R>,
}

impl<R> Default for Clients<R> {
    fn default() -> Self {
        Self {
            last: 0,
            waiting: BTreeMap::new(),
        }
    }
}

impl<R> Clients<R> {
    /// Adds a client's reply port and returns its ticket.
    pub(super) fn add(&mut self, reply: R) -> Ticket {
        self.last += 1;
        let ticket = Ticket(self.last);
        self.waiting.insert(ticket, reply);
        ticket
    }

    /// Removes and returns a client's reply port: a client is answered once.
    pub(super) fn take(&mut self, ticket: Ticket) -> Option<R> {
        self.waiting.remove(&ticket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_gets_its_own_answer_once() {
        let mut clients = Clients::default();
        let (one, other) = (clients.add("one"), clients.add("other"));
        assert_eq!((clients.take(other), clients.take(one)), (Some("other"), Some("one")));
        assert_eq!(clients.take(one), None);
        assert_ne!(clients.add("third"), other);
    }
}
