//! Checks of a running cluster for `tau doctor`: that its nodes answer and have workers, hear each other, and have
//! correct clocks.

use std::net::SocketAddr;

use protocol::stats::NodeReport;
use protocol::wire::control::{Reply, Request, SILENT};

use super::{Finding, ok, problem, warning};
use crate::clock;
use crate::contact::{Answer, Contact, Unanswered};
use crate::output::quantity;

/// Seconds by which a node's clock may differ from this machine's before `tau doctor` warns.
const CLOCK_SLACK: f64 = 5.0;

pub(super) async fn cluster(contact: &Contact) -> Vec<Finding> {
    let listed = match contact.ask(Request::Nodes).await {
        Ok(Reply::Nodes(nodes)) => nodes,
        Ok(_) => Vec::new(),
        Err(failure) => {
            let advice = "check that a node runs at this address, that its port is open, and that the credentials \
                          are the cluster's";
            return vec![problem(failure.reasons().join("; "), advice)];
        }
    };
    let answers = contact.ask_each(Request::Nodes).await;
    let mut findings = findings(&listed, &answers);
    let asked = clock::now();
    let looks = contact.ask_each(Request::InspectData(None)).await;
    findings.extend(clocks(&listed, &looks, asked, clock::now()));
    findings
}

/// Compares the list of nodes that one node gave with the lists of all nodes, and returns the findings for the user:
/// nodes that do not answer, and nodes that do not hear each other.
fn findings(listed: &[NodeReport], answers: &[Answer]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut views: Vec<(&NodeReport, &[NodeReport])> = Vec::new();
    for Answer { address, reply } in answers {
        match reply {
            Ok(Reply::Nodes(nodes)) => match own(*address, nodes) {
                Some(own) => {
                    views.push((own, nodes));
                    findings.push(answered(own, *address));
                }
                None => findings.push(warning(
                    format!("the node at {address} answers, but its list of nodes does not show which one it is"),
                    "run 'tau doctor' again in a few seconds",
                )),
            },
            Ok(_) => findings.push(problem(
                format!("the node at {address} sent a reply of the wrong kind"),
                "update the node to the same release of Tau as this program",
            )),
            Err(why) => findings.push(unanswered(*address, *why, listed)),
        }
    }
    let heard = findings.len();
    for (one, list) in &views {
        for (other, _) in views.iter().filter(|(other, _)| other.node != one.node) {
            let seen = list.iter().find(|seen| seen.node == other.node);
            if seen.is_none_or(|seen| seen.state == SILENT) {
                findings.push(problem(
                    format!(
                        "node {} hears nothing from node {}, though both answer this machine",
                        one.node, other.node
                    ),
                    format!(
                        "check that the nodes at {} and {} can connect to each other in both directions; \
                         --advertise sets the address that other nodes use",
                        one.address, other.address
                    ),
                ));
            }
        }
    }
    if findings.len() == heard && views.len() > 1 {
        findings.push(ok(format!("all {} nodes hear each other", views.len())));
    }
    findings
}

/// Returns the entry of the node that sent this list of the cluster's nodes: the node at the address that was asked,
/// else the only node in it that is not silent and has no round-trip time, because a node measures none to itself.
fn own(asked: SocketAddr, nodes: &[NodeReport]) -> Option<&NodeReport> {
    let by_address = nodes.iter().find(|node| node.address == asked.to_string());
    let mut near = nodes
        .iter()
        .filter(|node| node.rtt_ms.is_none() && node.state != SILENT);
    by_address.or_else(|| near.next().filter(|_| near.next().is_none()))
}

fn answered(node: &NodeReport, asked: SocketAddr) -> Finding {
    let name = &node.node;
    if node.workers == 0 {
        let advice = "see the node's log for the reason; start the node with TAU_LOG=info for more detail";
        return problem(format!("{name} has no worker"), advice);
    }
    ok(format!(
        "{name} answers at {asked}: {}, {} on {}",
        node.state,
        quantity::of(node.workers, "worker"),
        node.device
    ))
}

fn unanswered(address: SocketAddr, why: Unanswered, listed: &[NodeReport]) -> Finding {
    let known = listed.iter().find(|node| node.address == address.to_string());
    let name = known.map_or_else(|| address.to_string(), |node| format!("{} at {address}", node.node));
    match (why, known) {
        (_, Some(node)) if node.state != SILENT => problem(
            format!("{name} is connected to other nodes, but this machine cannot reach it"),
            "open the node's port for this machine, or run clients on another machine; a client can use any node \
             that it reaches",
        ),
        (Unanswered::Gone, _) => problem(
            format!("{name} refuses connections: no process listens there"),
            "start the node again with 'tau join', under the same --name if it had one",
        ),
        (Unanswered::Silent, _) => problem(
            format!("{name} does not answer"),
            "check that the machine is running, that its port is open, and that the node is of the same release of \
             Tau",
        ),
    }
}

/// Returns the name of the node at an address, or the address itself if no listed node has it.
pub(super) fn called(address: SocketAddr, listed: &[NodeReport]) -> String {
    let known = listed.iter().find(|node| node.address == address.to_string());
    known.map_or_else(|| address.to_string(), |node| node.node.clone())
}

/// Finds nodes whose clocks differ from this machine's. Each node read its clock between `asked` and `heard`, two
/// moments of this machine's clock.
fn clocks(listed: &[NodeReport], looks: &[Answer], asked: f64, heard: f64) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut told = 0;
    for Answer { address, reply } in looks {
        let Ok(Reply::DataInspected(inspection)) = reply else {
            continue;
        };
        told += 1;
        let (ahead, behind) = (inspection.clock - heard, asked - inspection.clock);
        if ahead.max(behind) > CLOCK_SLACK {
            let (off, side) = if ahead > behind {
                (ahead, "ahead of")
            } else {
                (behind, "behind")
            };
            findings.push(warning(
                format!(
                    "the clock of {} is {off:.0} s {side} this machine's",
                    called(*address, listed)
                ),
                "synchronise both clocks by NTP: training is not affected, but events get wrong timestamps",
            ));
        }
    }
    if findings.is_empty() && told > 0 {
        findings.push(ok("all clocks agree with this machine's"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use protocol::wire::control::DataInspection;

    use super::*;
    use crate::commands::doctor::Level;

    fn node(number: u16, state: &str) -> NodeReport {
        NodeReport {
            node: format!("n{number}"),
            address: format!("127.0.0.1:{number}"),
            state: state.into(),
            device: "cpu".into(),
            workers: 1,
            since: 100.0,
            rtt_ms: Some(1.0),
        }
    }

    fn answer(number: u16, reply: Result<Vec<NodeReport>, Unanswered>) -> Answer {
        Answer {
            address: SocketAddr::from(([127, 0, 0, 1], number)),
            reply: reply.map(Reply::Nodes),
        }
    }

    fn texts(findings: &[Finding], level: Level) -> Vec<&str> {
        let found = findings.iter().filter(|finding| finding.level == level);
        found.map(|finding| finding.found.as_str()).collect()
    }

    #[test]
    fn nodes_that_hear_each_other_are_well() {
        let all = || vec![node(1, "idle"), node(2, "training")];
        let findings = findings(&all(), &[answer(1, Ok(all())), answer(2, Ok(all()))]);
        assert_eq!(texts(&findings, Level::Ok).len(), 3, "{findings:?}");
        assert_eq!(findings[2].found, "all 2 nodes hear each other");
    }

    #[test]
    fn a_link_that_works_one_way_shows() {
        let (deaf, well) = (
            vec![node(1, "idle"), node(2, SILENT)],
            vec![node(1, "idle"), node(2, "idle")],
        );
        let findings = findings(&well, &[answer(1, Ok(deaf)), answer(2, Ok(well.clone()))]);
        assert_eq!(
            texts(&findings, Level::Problem),
            ["node n1 hears nothing from node n2, though both answer this machine"]
        );
    }

    #[test]
    fn nodes_that_do_not_answer_are_named_with_what_to_do() {
        let listed = [node(1, "idle"), node(2, SILENT), node(3, "idle")];
        let gone = findings(
            &listed,
            &[answer(2, Err(Unanswered::Gone)), answer(3, Err(Unanswered::Silent))],
        );
        assert_eq!(
            texts(&gone, Level::Problem),
            [
                "n2 at 127.0.0.1:2 refuses connections: no process listens there",
                "n3 at 127.0.0.1:3 is connected to other nodes, but this machine cannot reach it"
            ]
        );
        assert!(gone.iter().all(|finding| finding.advice.is_some()));
    }

    #[test]
    fn workers_are_looked_at() {
        let asked = SocketAddr::from(([127, 0, 0, 1], 1));
        let idle = NodeReport {
            workers: 0,
            ..node(1, "idle")
        };
        assert_eq!(answered(&idle, asked).level, Level::Problem);
        assert_eq!(answered(&node(1, "idle"), asked).level, Level::Ok);
    }

    #[test]
    fn a_clock_that_is_wrong_is_named() {
        let told = |number, clock| Answer {
            address: SocketAddr::from(([127, 0, 0, 1], number)),
            reply: Ok(Reply::DataInspected(DataInspection { clock, data: None })),
        };
        let listed = [node(1, "idle"), node(2, "idle"), node(3, "idle")];
        // A slow answer does not make a clock wrong.
        let well = clocks(&listed, &[told(1, 100.0), told(2, 130.0)], 100.0, 130.0);
        assert_eq!(texts(&well, Level::Ok), ["all clocks agree with this machine's"]);
        let wrong = clocks(&listed, &[told(1, 101.0), told(2, 90.0), told(3, 3702.0)], 100.0, 102.0);
        assert_eq!(
            texts(&wrong, Level::Warning),
            [
                "the clock of n2 is 10 s behind this machine's",
                "the clock of n3 is 3600 s ahead of this machine's"
            ]
        );
    }
}
