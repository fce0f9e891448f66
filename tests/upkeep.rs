//! What a node keeps in order around itself: others hear when it goes, and its socket is there whatever happens to its folder.

use crate::harness::cluster::{Cluster, kill};

#[test]
fn a_node_that_is_told_to_end_in_a_run_has_left_and_is_not_away() {
    let mut cluster = Cluster::training(3);
    let leaver = cluster.nodes.pop().unwrap();
    kill("-TERM", leaver.process.pid());
    let output = leaver.process.finish();
    assert_eq!(output.code, 0, "{}", output.stderr);
    // It ended when all had heard it, so nobody needs time to find out.
    assert_eq!(cluster.listed().len(), 2);
    for node in &cluster.nodes {
        Cluster::wait_until("nobody hears that it leaves", || {
            node.process.log().contains("a node has left")
        });
        let log = node.process.log();
        assert!(!log.contains("a node is silent"), "{log}");
    }
}

#[test]
fn workers_attach_again_when_the_nodes_folder_was_removed() {
    let cluster = Cluster::training(1);
    let node = &cluster.nodes[0];
    std::fs::remove_dir_all(&node.dir).unwrap();
    let dead = node.worker();
    kill("-KILL", dead);
    // One that finds no socket ends, and is started again.
    let trained = || {
        let stats = cluster.ask("stats", &["--once"]);
        stats.objects().first().and_then(|record| record["samples"].as_u64())
    };
    let before = trained();
    Cluster::wait_until("no worker attaches any more", || {
        trained() > before && matches!(node.workers()[..], [worker] if worker != dead)
    });
    let stopped = cluster.ask("stop", &[]);
    assert_eq!(stopped.code, 0, "{}", stopped.stderr);
    let last = cluster.ask("start", &["--attach"]).last();
    assert_eq!(last["replicas_agree"], true, "{last}");
}
