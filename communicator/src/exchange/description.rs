//! How an exchange stands, for whoever looks into a simulation's failure.

use std::fmt::Write as _;

use super::Exchange;

impl Exchange {
    pub(crate) fn describe(&self) -> String {
        let kept: Vec<_> = self.log.kept().collect();
        let frontier = self.ledger().frontier();
        let mut text = format!("{frontier:?}, keeps {kept:?}, wants {:?}\n", self.wanted);
        for (id, peer) in &self.peers {
            let _ = writeln!(text, "  {id}: {peer:?}");
        }
        text
    }
}
