//! Checks for `tau doctor` that nodes can open the data of a run, and that all of them hold the same data.

use std::collections::BTreeMap;
use std::time::Duration;

use protocol::job::data::{DataInfo, DataSpec};
use protocol::wire::control::{Reply, Request, SILENT};

use super::cluster::called;
use super::{Finding, ok, problem, warning};
use crate::commands::node::read_data;
use crate::contact::{Answer, Contact};
use crate::failure::Failure;
use crate::output::notice;

/// Pause before `tau doctor` asks nodes that are still reading the data again. A node also delays its answer while it
/// reads, so rounds take longer than this.
const PAUSE: Duration = Duration::from_millis(300);

/// Number of rounds in which `tau doctor` asks the nodes about the data. A node that other nodes have contact with, but
/// that has not answered by then, is reported.
const ASKED_MAX: u32 = 3;

/// Description of the data on each node, by the node's name, or the reason why the node cannot read it.
type DataByNode = BTreeMap<String, Result<DataInfo, String>>;

/// Checks that the data can be read on this machine.
pub(super) async fn here(data: DataSpec) -> Finding {
    let read = tokio::task::spawn_blocking(move || (read_data(&data, None), data)).await;
    match read {
        Ok((Ok(info), data)) => ok(format!("{data} can be trained on: {}", size(&info))),
        Ok((Err(why), _)) => problem(why, "give another --data"),
        Err(failed) => problem(failed.to_string(), "this is a bug: please report it"),
    }
}

/// Makes every node read the data, waits as long as that takes, and compares the results.
pub(super) async fn on_nodes(contact: &Contact, data: &DataSpec) -> Result<Vec<Finding>, Failure> {
    let listed = match contact.ask(Request::Nodes).await? {
        Reply::Nodes(nodes) => nodes,
        _ => Vec::new(),
    };
    let is_heard = |name: &String| listed.iter().any(|one| one.node == *name && one.state != SILENT);
    let mut held = DataByNode::new();
    let mut said = String::new();
    let mut asked = 0;
    loop {
        asked += 1;
        let (mut reading, mut mute) = (Vec::new(), Vec::new());
        for Answer { address, reply } in contact.ask_each(Request::InspectData(Some(data.clone()))).await {
            let name = called(address, &listed);
            let Ok(Reply::DataInspected(inspection)) = reply else {
                // A node that the other nodes do not hear has been reported already.
                if is_heard(&name) && !held.contains_key(&name) {
                    mute.push(name);
                }
                continue;
            };
            match inspection.data {
                Some(found) => drop(held.entry(name).or_insert(found)),
                None if held.contains_key(&name) => {}
                None => reading.push(name),
            }
        }
        if reading.is_empty() && (mute.is_empty() || asked >= ASKED_MAX) {
            let mut findings = compare(data, &held);
            let unknown = |name: &String| format!("{name} did not answer whether it holds {data}");
            findings.extend(
                mute.iter()
                    .map(|name| warning(unknown(name), "run 'tau doctor' again in a few seconds")),
            );
            return Ok(findings);
        }
        let waiting = format!("{data} is being read by {}", reading.join(", "));
        if waiting != said && !reading.is_empty() {
            notice::say(&waiting);
            said = waiting;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Returns the findings about the data of all nodes: read errors, and contents that differ from those on most nodes.
fn compare(data: &DataSpec, held: &DataByNode) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut kinds: Vec<(&DataInfo, Vec<&str>)> = Vec::new();
    for (node, found) in held {
        match found {
            Ok(info) => match kinds.iter_mut().find(|(kind, _)| *kind == info) {
                Some((_, nodes)) => nodes.push(node),
                None => kinds.push((info, vec![node])),
            },
            Err(why) => findings.push(problem(
                format!("{node} cannot read {data}: {why}"),
                "relative paths start at the node's --data-root, or at the folder that the node was started in",
            )),
        }
    }
    // The contents on most nodes are taken for the intended ones.
    kinds.sort_by_key(|(_, nodes)| std::cmp::Reverse(nodes.len()));
    let mut kinds = kinds.into_iter();
    let Some((most, nodes)) = kinds.next() else {
        return findings;
    };
    let others: Vec<_> = kinds.collect();
    if others.is_empty() && findings.is_empty() && nodes.len() > 1 {
        findings.push(ok(format!(
            "all {} nodes hold the same {data}: {}",
            nodes.len(),
            size(most)
        )));
    } else {
        findings.push(ok(format!("{data} is on {}: {}", nodes.join(", "), size(most))));
    }
    findings.extend(others.iter().map(|(info, others)| {
        let (others, nodes) = (others.join(", "), nodes.join(", "));
        problem(
            format!("{others} has other contents of {data} than {nodes}: {}", size(info)),
            "copy the same files to all nodes",
        )
    }));
    findings
}

fn size(info: &DataInfo) -> String {
    let [a, b, c, d, ..] = info.hash;
    format!(
        "{} training samples, {} test samples, {}, hash {:08x}…",
        info.train,
        info.test,
        info.target,
        u32::from_be_bytes([a, b, c, d])
    )
}

#[cfg(test)]
mod tests {
    use protocol::job::model::Shape;
    use protocol::job::target::TargetInfo;

    use super::*;
    use crate::commands::doctor::Level;

    fn info(train: u64) -> DataInfo {
        DataInfo {
            hash: [train as u8; 32],
            input: Shape::Flat(4),
            target: TargetInfo::Classes(3),
            train,
            test: 10,
            validation: 0,
            most_frequent: 1,
            code: None,
        }
    }

    fn found(held: [Result<DataInfo, String>; 3]) -> Vec<(Level, String)> {
        let names = ["n1", "n2", "n3"].map(str::to_owned);
        let held = names.into_iter().zip(held).collect();
        let findings = compare(&"idx:a".parse().unwrap(), &held);
        findings.into_iter().map(|one| (one.level, one.found)).collect()
    }

    #[test]
    fn what_differs_from_most_is_named() {
        let same = found([Ok(info(90)), Ok(info(90)), Ok(info(90))]);
        assert_eq!(same.len(), 1);
        assert_eq!(same[0].0, Level::Ok);
        assert!(
            same[0]
                .1
                .starts_with("all 3 nodes hold the same idx:a: 90 training samples"),
            "{same:?}"
        );
        let other = found([Ok(info(80)), Ok(info(90)), Ok(info(90))]);
        assert_eq!(other[1].0, Level::Problem);
        assert!(
            other[1].1.starts_with("n1 has other contents of idx:a than n2, n3: 80"),
            "{other:?}"
        );
        let missing = found([Ok(info(90)), Err("it is not there".into()), Ok(info(90))]);
        assert_eq!(
            missing[0],
            (Level::Problem, "n2 cannot read idx:a: it is not there".into())
        );
        assert!(missing[1].1.starts_with("idx:a is on n1, n3"), "{missing:?}");
    }
}
