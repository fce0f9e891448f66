//! The result of a run, made from the final reports of all members with which a node ends it. Pure.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use protocol::ids::NodeId;
use protocol::stats::WorkerStats;
use protocol::stats::base_rate::BaseRate;
use protocol::stats::measured::{Course, NodeUsage};
use protocol::weights::digest::Digest;
use protocol::wire::control::RunResult;
use protocol::wire::run_beat::{Settled, StopReason};
use protocol::wire::run_plan::{Participant, RunPlan};

use crate::planted::{Bug, planted};

/// Returns the run's result as this node sees it; `None` if no node has measured the model or this node has reported
/// nothing. `left` returns the norm of the unsent residual of a node that has withdrawn. Guests that took no part after
/// all are not listed as missing.
pub(super) fn result(
    me: NodeId,
    plan: &RunPlan,
    settled: &BTreeMap<NodeId, Settled>,
    left: impl Fn(NodeId) -> Option<f64>,
    weights: u64,
    stop: Option<StopReason>,
) -> Option<RunResult> {
    let own = settled.get(&me)?;
    let is_told = |one: &&Participant| settled.contains_key(&one.node);
    let told: Vec<String> = plan
        .participants
        .iter()
        .filter(is_told)
        .map(|one| one.name.clone())
        .collect();
    // A node that was started again is missing only if none of its processes ended the run, and is then named once.
    let mut missing: Vec<String> = Vec::new();
    for one in plan
        .participants
        .iter()
        .filter(|one| !(is_told(one) || one.guest && left(one.node).is_some()))
    {
        let is_new = !told.contains(&one.name) && !missing.contains(&one.name);
        if is_new || planted(Bug::FormerLifeMissing) {
            missing.push(one.name.clone());
        }
    }
    // Digests are recomputed from the weights. Nodes that hold the same layers must have the same digest.
    let alike = |node: NodeId| {
        let first = || {
            settled
                .iter()
                .find(|(other, _)| plan.topology().same_slice(node, **other))
        };
        if plan.topology().same_slice(me, node) {
            settled.get_key_value(&me)
        } else {
            first()
        }
    };
    let equal = |(node, one): (&NodeId, &Settled)| {
        let same = |other: &Settled| (other.digest, other.whole) == (one.digest, one.whole);
        one.workers_agree && alike(*node).is_some_and(|(_, other)| same(other))
    };
    // Of the nodes with the same layers, the first contributes its digest to the digest of the whole model.
    let first = |(node, one): (&NodeId, &Settled)| {
        alike(*node)
            .is_some_and(|(other, _)| other == node)
            .then_some(one.whole)
    };
    let digest = settled
        .iter()
        .filter_map(first)
        .fold(Digest::default(), |sum, part| sum + part);
    let counts = |node: NodeId| plan.topology().counts_samples_for(me, node);
    let counted = settled
        .iter()
        .find(|(node, _)| counts(**node))
        .map_or(own, |(_, one)| one);
    let mut stats = WorkerStats::combined(settled.values().map(|one| &one.stats));
    let others = plan.participants.iter().filter(|one| one.node != me);
    for lost in others.filter_map(|one| left(one.node)) {
        stats.residual_lost = stats.residual_lost.hypot(lost);
    }
    Some(RunResult {
        participants: told,
        missing,
        left_out: plan.left_out.clone(),
        agree: settled.iter().all(equal),
        digest,
        // Equal weights have equal scores, so any node's scores will do.
        scores: std::iter::once(own)
            .chain(settled.values())
            .find_map(|one| one.scores.clone())?,
        base_rate: BaseRate::of(plan.data.test, plan.data.most_frequent),
        stats,
        samples: counted.samples,
        samples_before: plan.resumed.first().map_or(0, |resumed| resumed.samples),
        repeated: counted.repeated,
        weights,
        seconds: settled.values().map(|one| one.seconds).fold(0.0, f64::max),
        bytes_sent: settled.values().map(|one| one.bytes_sent).sum(),
        usage: usage(plan, settled),
        course: Course::of_all(settled.values().map(|one| &one.course)),
        stop,
        // The node's actor fills this in: only it knows where files are.
        model: PathBuf::new(),
    })
}

/// Returns the nodes of other pipeline stages whose results count; `ended_with` returns the fingerprint of the batches
/// with which a node has ended. If the nodes of a stage have ended with different batches, those count that agree with
/// a living node, preferably the one in this node's own pipeline: files of nodes that are gone cannot be fetched.
/// Living nodes that have not ended are waited for.
pub(super) fn other_stages(
    me: NodeId,
    plan: &RunPlan,
    living: &BTreeSet<NodeId>,
    ended_with: impl Fn(NodeId) -> Option<u64>,
) -> BTreeSet<NodeId> {
    let topology = plan.topology();
    let others = plan.participants.iter().map(|one| one.node);
    let others: Vec<NodeId> = others.filter(|&node| !topology.same_slice(me, node)).collect();
    let agreed = |node: NodeId| {
        let of_stage = others.iter().filter(|&&other| topology.same_slice(node, other));
        let ended = of_stage.filter_map(|&other| Some((other, ended_with(other)?)));
        let rank = |other: NodeId| (living.contains(&other), topology.are_in_one_pipeline(me, other));
        ended
            .max_by_key(|&(other, _)| (rank(other), Reverse(other)))
            .map(|(_, fingerprint)| fingerprint)
    };
    let counts = |&node: &NodeId| match ended_with(node) {
        Some(fingerprint) => agreed(node) == Some(fingerprint),
        None => living.contains(&node),
    };
    others.iter().copied().filter(counts).collect()
}

/// Returns the traffic, memory and processor time that each node has used, with the node's name in the plan.
fn usage(plan: &RunPlan, settled: &BTreeMap<NodeId, Settled>) -> Vec<NodeUsage> {
    let told = plan.participants.iter();
    told.filter_map(|participant| {
        let usage = settled.get(&participant.node)?.usage.clone();
        let node = participant.name.clone();
        Some(NodeUsage { node, ..usage })
    })
    .collect()
}

#[cfg(test)]
pub(super) mod tests {
    use protocol::stats::measured::Scores;
    use protocol::stats::named::NamedNumbers;

    use super::*;
    use crate::small_plan::small_plan;

    /// A node's final report of a run that took this many seconds.
    pub(in crate::run) fn settled(seconds: f64) -> Settled {
        Settled {
            digest: Digest::default(),
            whole: Digest::default(),
            workers_agree: true,
            stats: WorkerStats {
                samples: 10,
                ..WorkerStats::default()
            },
            samples: 30,
            repeated: 0,
            bytes_sent: 100,
            seconds,
            usage: NodeUsage::default(),
            course: Course::default(),
            scores: Some(Scores {
                accuracy: Some(0.5),
                loss: 1.0,
                mae: None,
                named: NamedNumbers::default(),
            }),
        }
    }

    fn result_of(all: &[(u64, Settled)]) -> RunResult {
        let settled = all.iter().map(|(node, settled)| (NodeId(*node), settled.clone()));
        result(NodeId(1), &small_plan(3), &settled.collect(), |_| None, 7, None).unwrap()
    }

    #[test]
    fn equal_replicas_agree_and_sums_are_over_all() {
        let found = result_of(&[(1, settled(4.0)), (2, settled(4.0)), (3, settled(4.0))]);
        assert!(found.agree && found.missing.is_empty());
        assert_eq!((found.stats.samples, found.bytes_sent, found.seconds), (30, 300, 4.0));
    }

    #[test]
    fn any_difference_is_a_disagreement() {
        let wrong_worker = Settled {
            workers_agree: false,
            ..settled(4.0)
        };
        let wrong_ledger = Settled {
            digest: Digest(1),
            ..settled(4.0)
        };
        for other in [wrong_ledger, wrong_worker] {
            assert!(!result_of(&[(1, settled(4.0)), (2, settled(4.0)), (3, other)]).agree);
        }
    }

    #[test]
    fn who_is_missing_is_named() {
        let found = result_of(&[(1, settled(4.0)), (3, settled(4.0))]);
        assert!(found.agree);
        assert_eq!(
            (found.participants, found.missing),
            (vec!["n1".into(), "n3".into()], vec!["n2".into()])
        );
    }

    #[test]
    fn what_a_node_that_left_could_not_send_is_in_the_result() {
        let all = [(1, settled(4.0)), (3, settled(4.0))];
        let all = all.map(|(node, one)| (NodeId(node), one)).into();
        let left = |node| (node == NodeId(2)).then_some(0.25);
        let found = result(NodeId(1), &small_plan(3), &all, left, 7, None).unwrap();
        assert_eq!(found.stats.residual_lost, 0.25);
    }

    #[test]
    fn a_node_that_was_started_again_is_named_once() {
        let mut plan = small_plan(3);
        let again = |id, life| Participant {
            node: NodeId(id),
            guest: true,
            lacks_first_weights: false,
            life,
            ..plan.participants[2].clone()
        };
        for guest in [again(8, 1), again(7, 2)] {
            plan.admit(guest);
        }
        let of = |told: &[u64], withdrew: u64| {
            let left = |node| (node == NodeId(withdrew)).then_some(0.0);
            let all = told.iter().map(|&node| (NodeId(node), settled(4.0))).collect();
            let found = result(NodeId(1), &plan, &all, left, 7, None).unwrap();
            (found.participants, found.missing)
        };
        let names = |ids: &[u64]| ids.iter().map(|id| format!("n{id}")).collect::<Vec<_>>();
        assert_eq!(of(&[1, 2, 7], 0), (names(&[1, 2, 3]), vec![]));
        assert_eq!(of(&[1, 2], 0), (names(&[1, 2]), names(&[3])));
        assert_eq!(
            of(&[1, 2], 7),
            (names(&[1, 2]), names(&[3])),
            "the last process with this name took no part in the run"
        );
    }

    /// A plan of this many nodes, of which each two hold a model together.
    fn in_pairs(nodes: u64) -> RunPlan {
        let mut plan = small_plan(nodes);
        let draft = protocol::job::JobDraft {
            exchange: Some("layers:groups=2".into()),
            ..protocol::job::JobDraft::default()
        };
        *plan.job = draft.resolve().unwrap();
        plan
    }

    #[test]
    fn nodes_of_another_stage_that_have_ended_apart_do_not_count() {
        // Nodes 2, 4 and 6 hold the second stage; node 1 is in one pipeline with node 2.
        let plan = in_pairs(6);
        let counted = |ended: &[(u64, u64)], living: &[u64]| -> Vec<u64> {
            let ended: BTreeMap<u64, u64> = ended.iter().copied().collect();
            let living = living.iter().map(|&node| NodeId(node)).collect();
            let found = other_stages(NodeId(1), &plan, &living, |node| ended.get(&node.0).copied());
            found.into_iter().map(|node| node.0).collect()
        };
        assert_eq!(counted(&[(2, 7), (4, 7), (6, 7)], &[4]), [2, 4, 6]);
        assert_eq!(
            counted(&[(2, 7), (4, 8), (6, 8)], &[2, 4, 6]),
            [2],
            "the own pipeline's node has ended with 7"
        );
        assert_eq!(
            counted(&[(2, 7), (4, 8), (6, 8)], &[4, 6]),
            [4, 6],
            "the own pipeline's node is gone, and its file with it"
        );
        assert_eq!(counted(&[(4, 7), (6, 8)], &[6]), [6], "node 4 was given up");
        assert_eq!(counted(&[(4, 7)], &[2, 4]), [2, 4], "node 2 is waited for");
        assert!(
            counted(&[], &[1, 3, 5]).is_empty(),
            "nodes of this node's own stage are counted elsewhere"
        );
    }

    #[test]
    fn samples_of_pipelines_count_where_they_were_chosen() {
        let plan = in_pairs(4);
        let lost_one = Settled {
            samples: 20,
            ..settled(4.0)
        };
        // Nodes 2 and 4 hold the second group's layers.
        let ends = [(1, settled(4.0)), (2, lost_one.clone()), (4, lost_one)];
        let all: BTreeMap<_, _> = ends.map(|(node, one)| (NodeId(node), one)).into();
        for me in [1, 2, 4] {
            let found = result(NodeId(me), &plan, &all, |_| None, 7, None).unwrap();
            assert_eq!((found.samples, found.agree), (30, true), "node {me}");
        }
    }
}
