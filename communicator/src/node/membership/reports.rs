//! The cluster as this node sees it, for people. Pure.

use std::time::Duration;

use protocol::stats::NodeReport;
use protocol::wire::control::{NodeInfo, SILENT};

use crate::node::roster::Roster;

/// Returns the reports about members that clients are shown: about this node, which is in this state, and about all
/// nodes that it knows, sorted by name. A name occurs once: a node that is silent or was only heard of is not listed
/// beside a living node of the same name.
pub(super) fn reports(me: &NodeInfo, state: &str, roster: &Roster) -> Vec<NodeReport> {
    let mut reports = vec![report(me, state, None)];
    let (alive, silent): (Vec<_>, Vec<_>) = roster.members().partition(|member| member.alive);
    let alive = alive
        .iter()
        .map(|member| report(member.info, member.phase.text(), member.rtt));
    reports.extend(alive);
    for member in silent {
        if reports.iter().all(|other| other.node != member.info.name) {
            reports.push(report(member.info, SILENT, member.rtt));
        }
    }
    reports.sort_by(|a, b| a.node.cmp(&b.node));
    reports
}

fn report(info: &NodeInfo, state: &str, rtt: Option<Duration>) -> NodeReport {
    NodeReport {
        node: info.name.clone(),
        address: info.address.to_string(),
        state: state.into(),
        device: info.device.to_string(),
        workers: info.workers,
        since: info.since as f64 / 1e3,
        rtt_ms: rtt.map(|rtt| rtt.as_secs_f64() * 1e3),
    }
}

#[cfg(test)]
mod tests {
    use protocol::ids::NodeId;
    use protocol::wire::control::Phase;

    use super::*;
    use crate::small_plan::small_node;
    use crate::timing::Timing;

    fn info(id: u64) -> NodeInfo {
        NodeInfo {
            workers: 2,
            since: 1500,
            ..small_node(id)
        }
    }

    #[test]
    fn this_node_stands_among_the_others_who_do_something_or_are_silent() {
        let second = Duration::from_secs(1);
        let mut roster = Roster::new(NodeId(5), Timing::DEFAULT.membership);
        roster.beat(info(3), second);
        roster.beat(info(7), 100 * second);
        roster.answered(NodeId(7), second / 4);
        roster.does(NodeId(7), Phase::Settling);
        // Rumours of an earlier or a later process of a living node.
        roster.heard_of(
            NodeInfo {
                name: "n7".into(),
                ..info(8)
            },
            100 * second,
        );
        roster.tick(100 * second);
        let reports = reports(&info(5), "training", &roster);
        let seen: Vec<_> = reports
            .iter()
            .map(|one| (&*one.node, &*one.state, one.rtt_ms))
            .collect();
        assert_eq!(
            seen,
            [
                ("n3", "silent", None),
                ("n5", "training", None),
                ("n7", "settling", Some(250.0))
            ]
        );
        assert_eq!((reports[0].workers, reports[0].since), (2, 1.5));
    }
}
