//! What the exchange tells the run: how far it is, what it has done, and what it ends with.

use std::sync::atomic::Ordering;
use std::time::Instant;

use protocol::ids::NodeId;
use protocol::stats::measured::{Moment, NodeUsage};
use protocol::stats::{ExchangeFigures, PeerRecord};

use super::peer::PeerConnection;
use super::{ExchangeNotice, ExchangeState, Report};
use crate::exchange::Event;
use crate::run::{RunEvent, Settlement, progress};

impl ExchangeState {
    /// Tells how far the exchange is, when that has changed.
    pub(super) fn tell_progress(&mut self) {
        let is_linked = |node| self.peers.get(&node).is_some_and(|peer| peer.outbox.is_some());
        let liveness = self.pipeline.liveness();
        let progress = progress(&self.core, &self.plan, self.me, liveness, self.freeze, is_linked);
        if self.told != Some(progress) {
            self.told = Some(progress);
            let event = RunEvent::Progress(self.run, progress);
            self.tell_run(event);
        }
    }

    /// Tells what records are made of.
    pub(super) fn tell_report(&mut self) {
        self.reported = Instant::now();
        let report = ExchangeNotice::Report(self.run, Box::new(self.report()));
        let _ = self.parent.send_message(report);
    }

    /// What has been done so far.
    fn report(&self) -> Report {
        let record = |(&node, peer): (&NodeId, &PeerConnection)| {
            let queue = peer
                .outbox
                .as_ref()
                .map_or(0, |(_, outbox)| outbox.max_capacity() - outbox.capacity());
            PeerRecord {
                node: peer.name.clone(),
                bytes_in: peer.traffic.bytes_in.load(Ordering::Relaxed),
                bytes_out: peer.traffic.bytes_out.load(Ordering::Relaxed),
                lag: self.core.lag_of(node),
                queue: queue as u64,
            }
        };
        let is_former = |node: &NodeId| self.plan.is_succeeded(*node);
        let (former, present): (Vec<_>, Vec<_>) = self.peers.iter().partition(|(node, _)| is_former(node));
        let peers = with_former(
            present.into_iter().map(record).collect(),
            former.into_iter().map(record),
        );
        let (bundled, given_up) = self.core.bundles();
        Report {
            digest: self.core.ledger().digest(),
            figures: ExchangeFigures {
                frontier_lag: self.core.frontier_lag(),
                round: self.core.rounds().map_or(0, |(newest, _)| newest),
                late: self.core.waited_in_vain(),
                bundled,
                given_up,
                adding_seconds: self.adding.as_secs_f64(),
                repeated_samples: self.core.ledger().repeated(),
            },
            peers,
            weights: self.core.ledger().weight_count() as u64,
            bytes_encoded: self.bytes_encoded,
            moment: self.moment(),
            paused: self.pauses.total(Instant::now()),
        }
    }

    /// How far the run is.
    pub(super) fn moment(&self) -> Moment {
        Moment {
            samples: self.core.ledger().samples(),
            seconds: self.first.map_or(0.0, |first| first.elapsed().as_secs_f64()),
        }
    }

    /// Recomputes the ledger's digest and tells what the exchange ends with.
    pub(super) fn settle(&mut self) {
        self.event(Event::Audit);
        // A damaged ledger may be replaced before the next tick: that it was not settled in between must be heard.
        self.tell_progress();
        self.tell_report();
        let ledger = self.core.ledger();
        let seconds = match (self.first, self.last) {
            (Some(first), Some(last)) => last.saturating_duration_since(first).as_secs_f64(),
            _ => 0.0,
        };
        let sent = self
            .peers
            .values()
            .map(|peer| peer.traffic.bytes_out.load(Ordering::Relaxed));
        let stage = self.plan.topology().held_stage(self.me);
        let settlement = Settlement {
            digest: ledger.audit(),
            whole: stage.map(|stage| stage.digest(ledger.counts())),
            samples: ledger.samples(),
            repeated: ledger.repeated(),
            seconds,
            bytes_sent: if self.peers.is_empty() {
                self.bytes_encoded
            } else {
                sent.sum()
            },
            weights: ledger.weight_count() as u64,
            // The run knows the processes.
            usage: NodeUsage::default(),
        };
        if self.keeps_runs && settlement.digest.is_ok() {
            self.keep_last();
        }
        let event = RunEvent::Settlement(self.run, Box::new(settlement));
        self.tell_run(event);
    }
}

/// The records of peers, with the bytes of their former processes: a node that was started again is one peer.
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
