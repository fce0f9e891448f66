//! Ending a run: who has settled with what, and what that comes to. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use protocol::attach::WorkerStats;
use protocol::control::{Begin, RunResult, Settled, StopReason};
use protocol::ids::NodeId;

/// What participants ended with, as far as it is known.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ending {
    settled: BTreeMap<NodeId, Settled>,
}

impl Ending {
    /// A participant has settled.
    pub(crate) fn settle(&mut self, node: NodeId, settled: Settled) {
        self.settled.insert(node, settled);
    }

    /// What this participant ended with.
    #[must_use]
    pub(crate) fn of(&self, node: NodeId) -> Option<&Settled> {
        self.settled.get(&node)
    }

    /// Whether everybody that is alive has settled, with workers asked and all.
    #[must_use]
    pub(crate) fn is_over(&self, live: &BTreeSet<NodeId>) -> bool {
        let done = |node: &NodeId| {
            let settled = self.settled.get(node);
            settled.is_some_and(|settled| settled.workers_agree.is_some())
        };
        live.iter().all(done)
    }

    /// The result as this node sees it, once it has settled itself.
    #[must_use]
    pub(crate) fn result(
        &self,
        me: NodeId,
        begin: &Begin,
        weights: u64,
        stop: Option<StopReason>,
        model: PathBuf,
    ) -> Option<RunResult> {
        let own = self.settled.get(&me)?;
        let names = |settled: bool| {
            let found = begin
                .participants
                .iter()
                .filter(move |participant| self.settled.contains_key(&participant.node) == settled);
            found.map(|participant| participant.name.clone()).collect()
        };
        // Digests are recomputed from the weights. Frontiers may differ by an origin that came as all ended and has no
        // changes.
        let equal = |one: &Settled| one.digest == own.digest && one.workers_agree == Some(true);
        Some(RunResult {
            participants: names(true),
            missing: names(false),
            agree: self.settled.values().all(equal),
            digest: own.digest,
            // Equal weights have equal scores.
            scores: own
                .scores
                .or_else(|| self.settled.values().find_map(|one| one.scores))?,
            stats: WorkerStats::combined(self.settled.values().map(|one| &one.stats)),
            samples: own.samples,
            repeated: own.repeated,
            weights,
            seconds: self.settled.values().map(|one| one.seconds).fold(0.0, f64::max),
            bytes_sent: self.settled.values().map(|one| one.bytes_sent).sum(),
            stop,
            model,
        })
    }
}

#[cfg(test)]
mod tests {
    use protocol::attach::{DataInfo, Scores};
    use protocol::control::Participant;
    use protocol::digest::Digest;
    use protocol::frontier::Frontier;
    use protocol::ids::OriginId;
    use protocol::job::JobDraft;
    use protocol::model::Shape;

    use super::*;

    fn begin() -> Begin {
        Begin {
            job: Box::new(JobDraft::default().resolve().unwrap()),
            data: DataInfo {
                hash: [0; 32],
                input: Shape::Flat(3),
                classes: 2,
                train: 10,
                test: 2,
            },
            participants: (1..=3)
                .map(|id| Participant {
                    node: NodeId(id),
                    name: format!("n{id}"),
                    address: "127.0.0.1:1".parse().unwrap(),
                    workers: 1,
                    guest: false,
                })
                .collect(),
            resumed: None,
        }
    }

    fn settled(sequence: u64) -> Settled {
        let mut frontier = Frontier::default();
        frontier.raise(OriginId(1), sequence);
        Settled {
            frontier,
            digest: Digest::default(),
            workers_agree: Some(true),
            stats: WorkerStats {
                samples: 10,
                ..WorkerStats::default()
            },
            samples: 30,
            repeated: 0,
            bytes_sent: 100,
            seconds: sequence as f64,
            scores: Some(Scores {
                accuracy: 0.5,
                loss: 1.0,
            }),
        }
    }

    fn result(all: &[(u64, Settled)]) -> RunResult {
        let mut ending = Ending::default();
        for (node, settled) in all {
            ending.settle(NodeId(*node), settled.clone());
        }
        ending.result(NodeId(1), &begin(), 7, None, "model".into()).unwrap()
    }

    #[test]
    fn equal_replicas_agree_and_sums_are_over_all() {
        let found = result(&[(1, settled(4)), (2, settled(4)), (3, settled(4))]);
        assert!(found.agree && found.missing.is_empty());
        assert_eq!((found.stats.samples, found.bytes_sent, found.seconds), (30, 300, 4.0));
    }

    #[test]
    fn any_difference_is_a_disagreement() {
        let wrong_worker = Settled {
            workers_agree: Some(false),
            ..settled(4)
        };
        let wrong_ledger = Settled {
            digest: Digest(1),
            ..settled(4)
        };
        for other in [wrong_ledger, wrong_worker] {
            assert!(!result(&[(1, settled(4)), (2, settled(4)), (3, other)]).agree);
        }
    }

    #[test]
    fn who_is_missing_is_named_and_the_living_are_waited_for() {
        let found = result(&[(1, settled(4)), (3, settled(4))]);
        assert!(found.agree);
        assert_eq!(
            (found.participants, found.missing),
            (vec!["n1".into(), "n3".into()], vec!["n2".into()])
        );
        let mut ending = Ending::default();
        ending.settle(NodeId(1), settled(4));
        let live = |ids: &[u64]| ids.iter().copied().map(NodeId).collect::<BTreeSet<_>>();
        assert!(ending.is_over(&live(&[1])));
        assert!(!ending.is_over(&live(&[1, 2])));
        let asking = Settled {
            workers_agree: None,
            ..settled(4)
        };
        ending.settle(NodeId(2), asking);
        assert!(!ending.is_over(&live(&[1, 2])));
    }
}
