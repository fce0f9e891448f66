//! Half-open connections, which have proven nothing yet, and the choice of the one that goes when there is no room for
//! one more.
//!
//! Silent connections cost strangers nothing, so they go first: a connection whose hello (its first message) has come
//! whole stays while there is one whose hello has not. Among these the address that has most loses its oldest, so a
//! flood from one place displaces itself, however slow the network of the others is.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Flag that is set once the first message on a half-open connection (not yet proven or heard) has come.
pub(crate) type HelloReceived = Arc<AtomicBool>;

/// A limited number of half-open connections (accepted, and not yet proven or heard), oldest first, each with the
/// handle that ends it.
#[derive(Debug)]
pub(crate) struct HalfOpen<T> {
    max: usize,
    open: Vec<HalfOpenEntry<T>>,
}

#[derive(Debug)]
struct HalfOpenEntry<T> {
    place: IpAddr,
    hello_received: HelloReceived,
    handle: T,
}

impl<T> HalfOpen<T> {
    /// Creates an empty table with room for `max` half-open connections (not yet proven or heard).
    pub(crate) fn new(max: usize) -> Self {
        Self { max, open: Vec::new() }
    }

    /// Adds a half-open connection (not yet proven or heard). If there are now too many, takes one out of the table and
    /// returns its handle, so that the caller ends it.
    pub(crate) fn add(&mut self, address: IpAddr, hello_received: HelloReceived, handle: T) -> Option<T> {
        self.open.push(HalfOpenEntry {
            place: place(address),
            hello_received,
            handle,
        });
        if self.open.len() > self.max {
            self.displace()
        } else {
            None
        }
    }

    /// Removes a half-open connection (not yet proven or heard) to make room, and returns its handle: the oldest one of
    /// the address (or IPv6 network) that has most such connections. Those that have sent a first message are spared as
    /// long as there are others.
    pub(crate) fn displace(&mut self) -> Option<T> {
        let silent = |open: &HalfOpenEntry<T>| !open.hello_received.load(Ordering::Relaxed);
        let any_silent = self.open.iter().any(silent);
        let may_go = |open: &&HalfOpenEntry<T>| !any_silent || silent(open);
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for open in self.open.iter().filter(may_go) {
            *counts.entry(open.place).or_default() += 1;
        }
        let most = *counts.values().max()?;
        let first = self
            .open
            .iter()
            .position(|open| may_go(&open) && counts[&open.place] == most)?;
        Some(self.open.remove(first).handle)
    }

    /// Keeps the connections for whose handles `keep` returns true, and drops the others from the table.
    pub(crate) fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        self.open.retain(|open| keep(&open.handle));
    }
}

/// Returns the place by which an address's connections are counted: the address itself or, for IPv6, its /64 network,
/// because one customer has billions of addresses in that.
fn place(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            const HOST: u128 = (1 << 64) - 1;
            Ipv6Addr::from_bits(address.to_bits() & !HOST).into()
        }
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn silent() -> HelloReceived {
        HelloReceived::default()
    }

    fn hello_received() -> HelloReceived {
        Arc::new(AtomicBool::new(true))
    }

    #[test]
    fn a_flood_from_one_place_displaces_itself() {
        let mut table = HalfOpen::new(4);
        assert_eq!(table.add(address(1), silent(), 0), None);
        for stranger in 1..4 {
            assert_eq!(table.add(address(2), silent(), stranger), None);
        }
        let gone: Vec<_> = (4..100).filter_map(|n| table.add(address(2), silent(), n)).collect();
        assert_eq!(
            gone,
            (1..97).collect::<Vec<_>>(),
            "the oldest connection of the flood is displaced, not that of the other address"
        );
    }

    #[test]
    fn a_connection_whose_hello_came_stays_while_there_is_one_whose_hello_did_not() {
        let mut table = HalfOpen::new(3);
        let member = silent();
        table.add(address(1), Arc::clone(&member), 0);
        table.add(address(1), hello_received(), 1);
        member.store(true, Ordering::Relaxed);
        assert_eq!(table.add(address(1), silent(), 2), None);
        for stranger in 3..50 {
            assert_eq!(table.add(address(1), silent(), stranger), Some(stranger - 1));
        }
        // When the hellos of all have come, the oldest connection of the place with most goes.
        assert_eq!(table.add(address(2), hello_received(), 50), Some(49));
        assert_eq!(table.add(address(2), hello_received(), 51), Some(0));
    }

    #[test]
    fn a_network_of_addresses_is_one_place() {
        let mut table = HalfOpen::new(3);
        let of = |text: &str| text.parse::<IpAddr>().unwrap();
        table.add(of("2001:db8:1::7"), silent(), 0);
        table.add(of("2001:db8:2::1"), silent(), 1);
        table.add(of("2001:db8:2::2"), silent(), 2);
        assert_eq!(table.add(of("2001:db8:2:0:ffff::3"), silent(), 3), Some(1));
        let mut table = HalfOpen::new(2);
        table.add(of("::ffff:192.0.2.1"), silent(), 0);
        table.add(of("192.0.2.2"), silent(), 1);
        assert_eq!(table.add(of("192.0.2.1"), silent(), 2), Some(0));
    }

    #[test]
    fn what_is_done_makes_room() {
        let mut table = HalfOpen::new(2);
        table.add(address(1), silent(), 0);
        table.add(address(2), silent(), 1);
        table.retain(|&one| one != 0);
        assert_eq!(table.add(address(2), silent(), 2), None);
        assert_eq!(table.displace(), Some(1));
        assert_eq!((table.displace(), table.displace()), (Some(2), None));
    }
}
