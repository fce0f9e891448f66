//! Keeps the timeline of a cluster up to date, for a client or within one of the cluster's nodes.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use communicator::node::Inquiry;
use protocol::stats::StatsRecord;
use protocol::wire::control::{Reply, Request};
use tokio::task::JoinHandle;

use crate::clock;
use crate::contact::stats_reader::StatsReader;
use crate::contact::{Contact, unexpected};
use crate::failure::Failure;
use crate::sync::lock;
use crate::timeline::{Facts, Timeline};

/// Interval between requests for the run's state and the cluster's members.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Source of a watch's records: any node of a cluster, or the node of this process.
#[derive(Clone)]
pub(crate) enum Source {
    /// Records of statistics are read from any node of a cluster, over the network, as a client does.
    Cluster(Arc<Contact>),
    /// Records of statistics are read from the node of this process, which is asked without a connection.
    Oneself(Inquiry),
}

impl Source {
    pub(crate) async fn ask(&self, request: Request) -> Result<Reply, Failure> {
        match self {
            Self::Cluster(contact) => contact.ask(request).await,
            Self::Oneself(node) => node.ask(request).await.ok_or_else(stopping),
        }
    }

    async fn news(&self, reader: &mut Reader) -> Result<Vec<StatsRecord>, Failure> {
        match self {
            Self::Cluster(contact) => reader.of_cluster.read(contact).await,
            Self::Oneself(node) => {
                let after = reader.after;
                match node.ask(Request::Stats { after }).await.ok_or_else(stopping)? {
                    Reply::Stats { last, records } => {
                        reader.after = last;
                        Ok(records)
                    }
                    other => Err(unexpected(other)),
                }
            }
        }
    }
}

fn stopping() -> Failure {
    Failure::Failed("this node is shutting down".into())
}

/// Position up to which records of statistics were read: one for the nodes of a cluster, and one for the node of this
/// process.
#[derive(Default)]
struct Reader {
    of_cluster: StatsReader,
    after: u64,
}

/// A timeline of a cluster and its run that several views share.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    timeline: Arc<Mutex<Timeline>>,
    /// Time of the last answer of any watched node; before the first answer, the start of the watch.
    answered: Arc<Mutex<Instant>>,
    /// Reason for which no new records come from the watched nodes.
    trouble: Arc<Mutex<Option<String>>>,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            timeline: Arc::default(),
            answered: Arc::new(Mutex::new(Instant::now())),
            trouble: Arc::default(),
        }
    }
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Timeline> {
        lock(&self.timeline)
    }

    /// Returns the time since the last answer of any node.
    pub(crate) fn unanswered(&self) -> Duration {
        lock(&self.answered).elapsed()
    }

    /// Returns the reason for which no new records come from the watched nodes, if there is one.
    pub(crate) fn trouble(&self) -> Option<String> {
        lock(&self.trouble).clone()
    }
}

/// Pause before the next attempt to reach a watched cluster that has not answered.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// A cluster that is watched, its timeline kept up to date, until this value is dropped.
pub(crate) struct Watch {
    pub(crate) source: Source,
    pub(crate) timeline: Shared,
    watching: JoinHandle<()>,
}

impl Watch {
    /// Starts to watch a cluster in a task, which keeps a timeline up to date. After a failure the task tries again.
    pub(crate) fn start(source: Source) -> Arc<Self> {
        let timeline = Shared::default();
        let (asked, kept) = (source.clone(), timeline.clone());
        let watching = tokio::spawn(async move {
            let mut reader = Reader::default();
            loop {
                let Err(failure) = keep(&asked, &kept, &mut reader).await;
                *lock(&kept.trouble) = Some(failure.reasons().join("; "));
                tokio::time::sleep(TRY_AGAIN).await;
            }
        });
        Arc::new(Self {
            source,
            timeline,
            watching,
        })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

/// Keeps a timeline up to date with the records of a cluster's nodes, until no node answers.
pub(crate) async fn watch(source: &Source, timeline: &Shared) -> Result<Infallible, Failure> {
    keep(source, timeline, &mut Reader::default()).await
}

/// Keeps a timeline up to date with the records of a cluster's nodes that follow the reader's position. Clears the
/// timeline's `trouble` (the reason for which no records come) once a node answers.
async fn keep(source: &Source, timeline: &Shared, reader: &mut Reader) -> Result<Infallible, Failure> {
    let reading = async {
        loop {
            let news = source.news(reader).await?;
            *lock(&timeline.trouble) = None;
            timeline.lock().take(&news);
        }
    };
    let looking = async {
        loop {
            if let Reply::Status(Some(status)) = source.ask(Request::Status).await? {
                timeline.lock().take_facts(Facts::of(&status), clock::now());
            }
            if let Reply::Nodes(members) = source.ask(Request::Nodes).await? {
                timeline.lock().take_members(&members);
            }
            *lock(&timeline.answered) = Instant::now();
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    };
    tokio::select! {
        ended = reading => ended,
        ended = looking => ended,
    }
}
