//! Looking for the checkpoint that a run goes on from: who was asked, and who has what.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use protocol::control::{Found, Reply, Resumed};
use protocol::ids::{NodeId, RunId};
use ractor::RpcReplyPort;

use crate::checkpoint::{self, Checkpoint};
use crate::control::Payload;

/// How long nodes may take to look.
const LIMIT: Duration = Duration::from_secs(20);

/// A search under way.
pub(super) struct Finding {
    /// The run that is going to be.
    pub(super) run: RunId,
    /// The earlier one.
    pub(super) resumes: RunId,
    pub(super) allow_partial: bool,
    pub(super) reply: RpcReplyPort<Payload<Reply>>,
    asked: BTreeSet<NodeId>,
    found: Vec<Found>,
    since: Instant,
}

impl Finding {
    pub(super) fn new(
        run: RunId,
        resumes: RunId,
        asked: impl Iterator<Item = NodeId>,
        allow_partial: bool,
        reply: RpcReplyPort<Payload<Reply>>,
    ) -> Self {
        Self {
            run,
            resumes,
            allow_partial,
            reply,
            asked: asked.collect(),
            found: Vec::new(),
            since: Instant::now(),
        }
    }

    /// A node has looked, or cannot any more.
    pub(super) fn answer(&mut self, node: NodeId, found: Option<Found>) {
        if self.asked.remove(&node) {
            self.found.extend(found);
        }
    }

    /// Whether nobody is waited for.
    pub(super) fn is_over(&self) -> bool {
        self.asked.is_empty() || self.since.elapsed() > LIMIT
    }

    /// The checkpoint with the most samples in it.
    pub(super) fn furthest(&self) -> Option<&Found> {
        self.found.iter().max_by_key(|found| found.resumed.samples)
    }
}

/// The furthest checkpoint of a run that this node has.
pub(super) async fn newest(dir: &Path, run: RunId) -> Option<Checkpoint> {
    let folder = dir.join(run.to_string());
    // Files are large, and reading them holds nobody up.
    let found = tokio::task::spawn_blocking(move || checkpoint::newest(&folder)).await;
    found.ok().flatten()
}

/// What others have to know of it.
pub(super) async fn look(dir: &Path, run: RunId) -> Option<Found> {
    let Checkpoint { header, snapshot } = newest(dir, run).await?;
    Some(Found {
        resumed: Resumed {
            run,
            digest: protocol::digest::Digest::of_counts(&snapshot.counts),
            samples: snapshot.head.samples,
            slots: header.slots,
        },
        job: header.job,
    })
}
