//! `tau nodes`: lists the nodes of a cluster.

use std::fmt::Write as _;

use protocol::stats::{EventLine, NodeReport};
use protocol::wire::control::{Reply, Request, SILENT};

use super::access;
use crate::args::Ask;
use crate::contact::unexpected;
use crate::failure::Failure;
use crate::{clock, output, runtime};

pub(crate) fn run(arguments: &Ask) -> Result<(), Failure> {
    runtime::run_async(async {
        let contact = access::contact(&arguments.cluster).await?;
        match contact.ask(Request::Nodes).await? {
            Reply::Nodes(nodes) => {
                show(&nodes, arguments.json);
                Ok(())
            }
            other => Err(unexpected(other)),
        }
    })
}

fn show(nodes: &[NodeReport], json: bool) {
    if json {
        for record in nodes {
            output::line(&EventLine { event: "node", record });
        }
        return;
    }
    let now = clock::now();
    let mut table = format!(
        "{:<24} {:<22} {:<10} {:<8} {:>7} {:>10} {:>8}\n",
        "node", "address", "state", "device", "workers", "up", "rtt ms"
    );
    for node in nodes {
        // The uptime of a silent node is unknown.
        let up = match now - node.since.max(0.0) {
            up if up >= 0.0 && node.state != SILENT => format!("{}s", up as u64),
            _ => "–".into(),
        };
        let rtt = node.rtt_ms.map_or("–".into(), |rtt| format!("{rtt:.1}"));
        let _ = writeln!(
            table,
            "{:<24} {:<22} {:<10} {:<8} {:>7} {:>10} {:>8}",
            node.node, node.address, node.state, node.device, node.workers, up, rtt
        );
    }
    output::text(&table);
}
