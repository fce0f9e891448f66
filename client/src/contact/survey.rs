//! Sends one request to every node of a cluster at the same time.

use std::net::SocketAddr;
use std::sync::Arc;

use communicator::control::Caller;
use protocol::ids::RunId;
use protocol::wire::control::{Reply, Request, RunStatus};
use tokio::task::JoinSet;

use super::{ANSWER_LIMIT, Contact};

/// Reason why a node did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// Reason why a node did not answer: no process listens at its address, so the node has ended.
    Gone,
    /// Reason why a node did not answer: not known, the node may be slow, stuck or cut off.
    Silent,
}

/// A node's answer to a request, or the reason why there is none.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) address: SocketAddr,
    pub(crate) reply: Result<Reply, Unanswered>,
}

impl Answer {
    /// Returns the status of this run from the node's answer; `None` if the node did not answer or reports another run.
    pub(crate) fn status_of(&self, run: RunId) -> Option<&RunStatus> {
        self.status().filter(|status| status.run == run)
    }

    /// Returns the status of the newest run from the node's answer; `None` if the node did not answer or knows no run.
    pub(crate) fn status(&self) -> Option<&RunStatus> {
        match &self.reply {
            Ok(Reply::Status(status)) => status.as_deref(),
            _ => None,
        }
    }
}

impl Contact {
    /// Sends a request to every known node, once and to all at the same time, and returns the answers by address.
    pub(crate) async fn ask_each(&self, request: Request) -> Vec<Answer> {
        let mut answers = Vec::new();
        self.ask_each_with(request, |answer| answers.push(answer)).await;
        answers.sort_by_key(|answer| answer.address);
        answers
    }

    /// Sends a request to every known node, once and to all at the same time, and calls `hear` with each answer as it
    /// comes.
    pub(crate) async fn ask_each_with(&self, request: Request, mut hear: impl FnMut(Answer)) {
        let (line, addresses) = {
            let state = self.state();
            let mut addresses = state.directory.known();
            // A node that lists itself under another address than the one called is asked once: it takes two sessions
            // for one.
            addresses.retain(|address| !state.aliases.contains_key(address));
            (state.line.clone(), addresses)
        };
        let mut asking = JoinSet::new();
        let mut called = None;
        if let Some(line) = line {
            let address = line.connection.address();
            called = Some(address);
            let request = request.clone();
            asking.spawn(async move {
                let reply = line.connection.ask(request, ANSWER_LIMIT).await;
                let reply = reply.map_err(|_| Unanswered::Silent);
                Answer { address, reply }
            });
        }
        for address in addresses.into_iter().filter(|address| Some(*address) != called) {
            asking.spawn(call(Arc::clone(&self.caller), address, request.clone()));
        }
        while let Some(answered) = asking.join_next().await {
            hear(answered.expect("asking a node does not panic"));
        }
    }
}

async fn call(caller: Arc<Caller>, address: SocketAddr, request: Request) -> Answer {
    let asked = async {
        let connection = caller.call(address).await.map_err(|error| {
            if error.nobody_there() {
                Unanswered::Gone
            } else {
                Unanswered::Silent
            }
        })?;
        let reply = connection.ask(request, ANSWER_LIMIT).await;
        reply.map_err(|_| Unanswered::Silent)
    };
    let reply = asked.await;
    Answer { address, reply }
}
