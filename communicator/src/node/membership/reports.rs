//! The cluster as this node sees it, for people. Pure.

use std::time::Duration;

use protocol::stats::NodeReport;
use protocol::wire::control::NodeInfo;

use crate::node::roster::Roster;

/// This node, which is in some state, and all that it knows, by name.
pub(super) fn reports(me: &NodeInfo, state: &str, roster: &Roster) -> Vec<NodeReport> {
    let mut reports = vec![report(me, state, None)];
    reports.extend(roster.members().map(|member| {
        let state = if member.alive { "alive" } else { "away" };
        report(member.info, state, member.rtt)
    }));
    reports.sort_by(|a, b| a.node.cmp(&b.node));
    reports
}

fn report(info: &NodeInfo, state: &str, rtt: Option<Duration>) -> NodeReport {
    NodeReport {
        node: info.name.clone(),
        address: info.address.to_string(),
        state: state.into(),
        device: info.device.clone(),
        workers: info.workers,
        since: info.since as f64 / 1e3,
        rtt_ms: rtt.map(|rtt| rtt.as_secs_f64() * 1e3),
    }
}

#[cfg(test)]
mod tests {
    use protocol::ids::NodeId;

    use super::*;
    use crate::timing::Timing;

    fn info(id: u64) -> NodeInfo {
        NodeInfo {
            id: NodeId(id),
            name: format!("n{id}"),
            address: "127.0.0.1:1".parse().unwrap(),
            version: "1".into(),
            device: "cpu".into(),
            workers: 2,
            since: 1500,
        }
    }

    #[test]
    fn this_node_stands_among_the_others_who_are_alive_or_away() {
        let second = Duration::from_secs(1);
        let mut roster = Roster::new(NodeId(5), Timing::DEFAULT.membership);
        roster.beat(info(3), second);
        roster.beat(info(7), 100 * second);
        roster.answered(NodeId(7), second / 4);
        roster.tick(100 * second);
        let reports = reports(&info(5), "training", &roster);
        let seen: Vec<_> = reports
            .iter()
            .map(|one| (&*one.node, &*one.state, one.rtt_ms))
            .collect();
        assert_eq!(
            seen,
            [
                ("n3", "away", None),
                ("n5", "training", None),
                ("n7", "alive", Some(250.0))
            ]
        );
        assert_eq!((reports[0].workers, reports[0].since), (2, 1.5));
    }
}
