//! `tau nodes`: who is in the cluster.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use protocol::stats::{Line, NodeReport};
use protocol::wire::control::{Reply, Request};

use crate::args::Ask;
use crate::failure::Failure;
use crate::{commands, output};

pub(crate) fn run(arguments: &Ask) -> Result<(), Failure> {
    commands::run_async(async {
        let contact = commands::contact(&arguments.cluster).await?;
        match contact.ask(Request::Nodes).await? {
            Reply::Nodes(nodes) => {
                show(&nodes, arguments.json);
                Ok(())
            }
            other => Err(commands::unexpected(other)),
        }
    })
}

fn show(nodes: &[NodeReport], json: bool) {
    if json {
        for record in nodes {
            output::line(&Line { event: "node", record });
        }
        return;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    println!(
        "{:<24} {:<22} {:<10} {:<8} {:>7} {:>10} {:>8}",
        "node", "address", "state", "device", "workers", "up", "rtt ms"
    );
    for node in nodes {
        let up = now.saturating_sub(Duration::from_secs_f64(node.since.max(0.0)));
        let rtt = node.rtt_ms.map_or("–".into(), |rtt| format!("{rtt:.1}"));
        println!(
            "{:<24} {:<22} {:<10} {:<8} {:>7} {:>9}s {:>8}",
            node.node,
            node.address,
            node.state,
            node.device,
            node.workers,
            up.as_secs(),
            rtt
        );
    }
}
