//! Reports of the exchange to the run: its figures so far, and its final figures.

use std::sync::atomic::Ordering;

use protocol::ids::NodeId;
use protocol::stats::{ExchangeFigures, PeerRecord};

use super::{ExchangeNotice, ExchangeState, PeerConnection, Report};
use crate::run::{RunEvent, Settlement};

impl ExchangeState {
    /// Sends the run's actor the exchange's figures, from which the node's records of statistics are made.
    pub(super) fn tell_report(&self) {
        let report = ExchangeNotice::Report(self.run, Box::new(self.report()));
        let _ = self.parent.send_message(report);
    }

    /// Returns the figures of the run's exchange so far.
    fn report(&self) -> Report {
        let (exchange, now) = (self.core.exchange(), self.now());
        let record = |(&node, peer): (&NodeId, &PeerConnection)| {
            let queue = peer
                .outbox
                .as_ref()
                .map_or(0, |(_, outbox)| outbox.max_capacity() - outbox.capacity());
            PeerRecord {
                node: peer.name.clone(),
                bytes_in: peer.traffic.bytes_in.load(Ordering::Relaxed),
                bytes_out: peer.traffic.bytes_out.load(Ordering::Relaxed),
                lag: exchange.lag_of(node),
                queue: queue as u64,
            }
        };
        let is_former = |node: &NodeId| self.core.plan().is_succeeded(*node);
        let (former, present): (Vec<_>, Vec<_>) = self.peers.iter().partition(|(node, _)| is_former(node));
        let peers = with_former(
            present.into_iter().map(record).collect(),
            former.into_iter().map(record),
        );
        let (bundled, given_up) = exchange.bundles();
        Report {
            digest: exchange.ledger().digest(),
            figures: ExchangeFigures {
                frontier_lag: exchange.frontier_lag(),
                round: exchange.rounds().map_or(0, |(newest, _)| newest),
                late: exchange.waited_in_vain(),
                bundled,
                given_up,
                adding_seconds: self.adding.as_secs_f64(),
                repeated_samples: exchange.ledger().repeated(),
            },
            peers,
            weights: exchange.ledger().weight_count() as u64,
            bytes_encoded: self.core.bytes_encoded(),
            moment: self.core.moment(now),
            paused: self.core.paused(now),
        }
    }

    /// Sends the run's actor the final figures of this node's exchange, with the number of bytes that it sent.
    pub(super) fn settle(&self, mut settlement: Box<Settlement>) {
        if !self.peers.is_empty() {
            let peers = self.peers.values();
            let sent = peers.map(|peer| peer.traffic.bytes_out.load(Ordering::Relaxed));
            settlement.bytes_sent = sent.sum();
        }
        self.tell_run(RunEvent::Settlement(self.run, settlement));
    }
}

/// Returns the traffic with each peer: that of the present peers, with the bytes of their former processes added,
/// because a node that was started again is one peer.
fn with_former(mut present: Vec<PeerRecord>, former: impl Iterator<Item = PeerRecord>) -> Vec<PeerRecord> {
    for before in former {
        if let Some(peer) = present.iter_mut().find(|peer| peer.node == before.node) {
            peer.bytes_in += before.bytes_in;
            peer.bytes_out += before.bytes_out;
        } else {
            present.push(before);
        }
    }
    present
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_was_started_again_is_one_peer() {
        let record = |node: &str, bytes, lag| PeerRecord {
            node: node.into(),
            bytes_in: bytes,
            bytes_out: 2 * bytes,
            lag,
            queue: 0,
        };
        let former = [record("desk", 5, 99), record("desk", 1, 98), record("shed", 3, 7)];
        let all = with_former(vec![record("lab", 10, 0), record("desk", 100, 4)], former.into_iter());
        assert_eq!(
            all,
            [record("lab", 10, 0), record("desk", 106, 4), record("shed", 3, 7)]
        );
    }
}
