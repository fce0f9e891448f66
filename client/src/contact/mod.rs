//! A client's contact with a cluster: one node at a time, and another one if that node is silent or gone.
//!
//! Only requests that may be repeated go through [`Contact::ask`]. Any node may answer them.

mod directory;
pub(crate) mod stats_reader;
mod survey;
mod troubles;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use communicator::Timing;
use communicator::control::{CallError, Caller, Connection, ConnectionError};
use communicator::transport::Security;
use protocol::ids::RunId;
use protocol::reasons::texts;
use protocol::sentence::sentence;
use protocol::stats::NodeReport;
use protocol::wire::control::{Reply, Request};
use tokio::sync::Mutex;

use crate::failure::Failure;
use crate::output::notice;
use crate::sync::lock;
use directory::Directory;
pub(crate) use survey::{Answer, Unanswered};
use troubles::Troubles;

/// Time that a node may take to answer a simple request. After that the request is repeated.
pub(crate) const ANSWER_LIMIT: Duration = Timing::DEFAULT.answer_limit();
/// Interval at which a node is asked for the members of the cluster.
const LEARN_EVERY: Duration = Duration::from_secs(5);
/// Pause after a failed request to a node before the next attempt, needed because some attempts fail at once.
const PAUSE: Duration = Duration::from_millis(200);

/// A client's access to a cluster: sends each request to one node, and to others while that one does not answer.
pub(crate) struct Contact {
    caller: Arc<Caller>,
    /// Known nodes, and the connection to one of them. Never locked while a node's answer is awaited, because
    /// concurrent requests need the lock too.
    state: std::sync::Mutex<State>,
    /// Locked while a connection to a node is made, so that there is only one attempt at a time.
    attempt: Mutex<()>,
}

struct State {
    directory: Directory,
    line: Option<Arc<NodeConnection>>,
    lines: u64,
    learned: Option<Instant>,
    /// Addresses at which nodes list themselves, mapped to those at which this client reached the same nodes, where the
    /// two differ: requests to all nodes then reach such a node only once.
    aliases: BTreeMap<SocketAddr, SocketAddr>,
    /// Failed requests of any kind to nodes since the last answer.
    troubles: Troubles,
}

/// A connection to one node, used until it breaks.
pub(crate) struct NodeConnection {
    /// Number of the connection, unique among a client's connections, even of those to the same node.
    pub(crate) number: u64,
    pub(crate) connection: Connection,
}

impl Contact {
    /// Creates a client's access to a cluster, which sends requests to the nodes at these addresses and to nodes that
    /// they name.
    pub(crate) async fn new(addresses: Vec<SocketAddr>, security: Security) -> Result<Self, Failure> {
        let directory =
            Directory::new(addresses).ok_or_else(|| Failure::input("give the address of a node with --cluster"))?;
        let caller = Caller::start(security).await.map_err(Failure::work)?;
        Ok(Self {
            caller: Arc::new(caller),
            state: std::sync::Mutex::new(State {
                directory,
                line: None,
                lines: 0,
                learned: None,
                aliases: BTreeMap::new(),
                troubles: Troubles::default(),
            }),
            attempt: Mutex::new(()),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Sends a request that may be repeated to one node after another, until any node answers.
    pub(crate) async fn ask(&self, request: Request) -> Result<Reply, Failure> {
        self.ask_on(|_| request.clone()).await.map(|(reply, _)| reply)
    }

    /// Sends a request until a node answers, as `ask` does. `request` builds it for the connection on which it is sent,
    /// because the content may depend on the connection. Also returns the connection on which the answer came.
    pub(crate) async fn ask_on(
        &self,
        request: impl Fn(&NodeConnection) -> Request,
    ) -> Result<(Reply, Arc<NodeConnection>), Failure> {
        let since = Instant::now();
        loop {
            let line = self.line_since(since).await?;
            match line.connection.ask(request(&line), ANSWER_LIMIT).await {
                Ok(reply) => {
                    self.state().answered(&reply, &line);
                    return Ok((reply, line));
                }
                // Asking again would bring the same answer.
                Err(error @ CallError::Unreadable(_)) => return Err(Failure::work(error)),
                Err(error) => {
                    let trouble = AskFailure::on_line(&line, &error);
                    self.bear(trouble, Some(&line), since).await?;
                }
            }
        }
    }

    /// Returns a connection to a node of the cluster that answers, trying one node after another.
    pub(crate) async fn line(&self) -> Result<Arc<NodeConnection>, Failure> {
        self.line_since(Instant::now()).await
    }

    async fn line_since(&self, since: Instant) -> Result<Arc<NodeConnection>, Failure> {
        loop {
            match self.current_line().await {
                Ok(line) => return Ok(line),
                Err(trouble) => self.bear(trouble, None, since).await?,
            }
        }
    }

    /// Returns the connection to the node that requests are sent to at present, or makes one if there is none.
    /// Concurrent callers wait for the same attempt.
    async fn current_line(&self) -> Result<Arc<NodeConnection>, AskFailure> {
        let _attempt = self.attempt.lock().await;
        let (line, address) = {
            let state = self.state();
            (state.line.clone(), state.directory.current())
        };
        let line = if let Some(line) = line {
            line
        } else {
            let called = self.caller.call(address).await;
            let connection = called.map_err(|error| AskFailure::calling(address, &error))?;
            self.state().connected(connection)
        };
        let is_due = self.state().is_due_to_learn();
        if is_due {
            let asked = line.connection.ask(Request::Nodes, ANSWER_LIMIT).await;
            if let Reply::Nodes(nodes) = asked.map_err(|error| AskFailure::on_line(&line, &error))? {
                self.state().learn(&nodes, line.connection.address());
            }
        }
        Ok(line)
    }

    /// Records a failed attempt of a request and pauses before the next attempt. Fails if the request, first sent at
    /// `since`, is to be given up.
    async fn bear(&self, trouble: AskFailure, on: Option<&NodeConnection>, since: Instant) -> Result<(), Failure> {
        let (turned, given_up, progress) = {
            let mut state = self.state();
            let turned = state.fail(trouble, on);
            let known = state.directory.known();
            let given_up = state.troubles.end(since.elapsed(), &known);
            let progress = match given_up {
                Some(_) => None,
                None => state.troubles.progress(since.elapsed()),
            };
            (turned, given_up, progress)
        };
        for sentence in turned.iter().chain(&progress) {
            notice::say(sentence);
        }
        if let Some(reason) = given_up {
            return Err(Failure::Failed(reason));
        }
        tokio::time::sleep(PAUSE).await;
        Ok(())
    }

    /// Drops the current connection if it is the given one, on which something went wrong.
    pub(crate) fn hang_up(&self, line: &NodeConnection) {
        let mut state = self.state();
        state.line.take_if(|current| current.number == line.number);
    }

    /// Makes the node at this address the one that requests are sent to.
    pub(crate) fn prefer(&self, address: SocketAddr) {
        let mut state = self.state();
        state.line = None;
        state.directory.prefer(address);
    }

    /// Returns the addresses of all known nodes, beginning with the one that requests are sent to at present.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        let state = self.state();
        let current = state.directory.current();
        let others = state.directory.known().into_iter().filter(|other| *other != current);
        std::iter::once(current).chain(others).collect()
    }

    /// Fetches the file of a run's model from one node.
    pub(crate) async fn fetch_model(
        &self,
        address: SocketAddr,
        run: RunId,
        file: &mut impl std::io::Write,
    ) -> Result<(), ConnectionError> {
        self.caller.fetch_model(address, run, file).await
    }
}

/// A failed request to a node, with its reason.
struct AskFailure {
    address: SocketAddr,
    reason: String,
    /// True if the request failed because its connection to the node cannot be used any more.
    broken: bool,
    /// True if sending the failed request to the same node again is useless.
    gone: bool,
    /// True if the cause of the failed request will not go away within a minute, so that waiting for this node is
    /// useless.
    lasting: bool,
}

impl AskFailure {
    fn on_line(line: &NodeConnection, error: &CallError) -> Self {
        let address = line.connection.address();
        let reason = match error {
            CallError::Gone => format!("the connection to {address} broke"),
            CallError::TimedOut(limit) => format!("{address} did not answer within {limit:?}"),
            CallError::TooLong(_) => error.to_string(),
            CallError::Unreadable(error) => format!("{address}: {error}"),
        };
        Self {
            address,
            reason,
            broken: *error == CallError::Gone,
            gone: false,
            lasting: matches!(error, CallError::TooLong(_)),
        }
    }

    fn calling(address: SocketAddr, error: &ConnectionError) -> Self {
        Self {
            address,
            reason: sentence(error),
            broken: true,
            gone: error.nobody_there() || error.is_lasting(),
            lasting: error.is_lasting(),
        }
    }
}

impl State {
    /// Gives a new connection its number, and makes it the current one unless another node has become the current one
    /// meanwhile: then only the caller uses this connection.
    fn connected(&mut self, connection: Connection) -> Arc<NodeConnection> {
        self.lines += 1;
        let is_current = connection.address() == self.directory.current();
        let number = self.lines;
        let line = Arc::new(NodeConnection { number, connection });
        if is_current {
            self.learned = None;
            self.line = Some(Arc::clone(&line));
        }
        line
    }

    /// Returns true if the list of the cluster's members has not been requested yet, or so long ago that it is
    /// requested again.
    fn is_due_to_learn(&self) -> bool {
        self.learned.is_none_or(|learned| learned.elapsed() >= LEARN_EVERY)
    }

    /// Updates the addresses of the cluster's nodes from a list of its members, sent by the node that was called at
    /// this address.
    fn learn(&mut self, nodes: &[NodeReport], called: SocketAddr) {
        let address = |node: &NodeReport| node.address.parse().ok();
        self.directory.learn(nodes.iter().filter_map(address).collect());
        self.learned = Some(Instant::now());
        // A node knows the round-trip times to all others, or soon will: the only entry without one is its own.
        let mut own = nodes.iter().filter(|node| node.rtt_ms.is_none());
        if let (Some(own), None) = (own.next().and_then(address), own.next())
            && own != called
        {
            self.aliases.insert(own, called);
        }
    }

    fn answered(&mut self, reply: &Reply, line: &NodeConnection) {
        self.directory.answered();
        self.troubles.forget();
        if let Reply::Nodes(nodes) = reply {
            self.learn(nodes, line.connection.address());
        }
    }

    /// Records a failed request to a node (on this connection, if there was one), and moves on to the next node if this
    /// one cannot be reached or has failed too often. Returns a sentence for the user if requests leave this node for a
    /// reason that has not been reported yet.
    fn fail(&mut self, trouble: AskFailure, on: Option<&NodeConnection>) -> Option<String> {
        let current = self.line.as_ref().map(|line| line.number);
        // A concurrent request may have noticed earlier and moved on.
        let noticed = match on {
            Some(line) => current != Some(line.number),
            None => self.directory.current() != trouble.address,
        };
        let mut leaves = false;
        if !noticed {
            leaves = trouble.gone || self.directory.failed(trouble.address);
            if trouble.gone {
                self.directory.next();
            }
            if leaves || trouble.broken {
                self.line = None;
            }
        }
        let address = trouble.address;
        self.troubles.add(address, trouble.reason, trouble.lasting);
        if !leaves {
            return None;
        }
        let next = self.directory.current();
        let next = if next == address {
            "again".into()
        } else {
            next.to_string()
        };
        let reason = self.troubles.news(address)?;
        Some(format!("{reason}; asking {next}"))
    }
}
/// Converts an unexpected reply to a failure: a refusal with its reasons, or a reply of the wrong kind.
pub(crate) fn unexpected(reply: Reply) -> Failure {
    match reply {
        Reply::Refused(reasons) => Failure::Refused(texts(&reasons)),
        Reply::Failed(reason) => Failure::Refused(vec![reason.to_string()]),
        _ => Failure::Failed(
            "the node sent a reply of the wrong kind: update the node to the same release of Tau \
                              as this program"
                .into(),
        ),
    }
}
