//! One question to every node of a cluster.

use std::net::SocketAddr;
use std::sync::Arc;

use communicator::control::Caller;
use protocol::ids::RunId;
use protocol::wire::control::{Reply, Request, RunStatus};
use tokio::task::JoinSet;

use super::{ANSWER_LIMIT, Contact};

/// Why a node has not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// Nobody listens there: the process is gone.
    Gone,
    /// It may be slow, stuck or cut off.
    Silent,
}

/// A node's answer, or none.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) address: SocketAddr,
    pub(crate) reply: Result<Reply, Unanswered>,
}

impl Answer {
    /// What the node knows of a run.
    pub(crate) fn status_of(&self, run: RunId) -> Option<&RunStatus> {
        self.status().filter(|status| status.run == run)
    }

    /// What the node knows of its newest run.
    pub(crate) fn status(&self) -> Option<&RunStatus> {
        match &self.reply {
            Ok(Reply::Status(status)) => status.as_deref(),
            _ => None,
        }
    }
}

impl Contact {
    /// Asks every node that is known, once and all at the same time.
    pub(crate) async fn ask_each(&self, request: Request) -> Vec<Answer> {
        let mut answers = Vec::new();
        self.ask_each_with(request, |answer| answers.push(answer)).await;
        answers.sort_by_key(|answer| answer.address);
        answers
    }

    /// Asks every node that is known, once and all at the same time, and hands each answer over as it comes.
    pub(crate) async fn ask_each_with(&self, request: Request, mut hear: impl FnMut(Answer)) {
        let (line, addresses) = {
            let state = self.state();
            let mut addresses = state.directory.known();
            // Two sessions with one node are taken for one: nobody is called by two names.
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
