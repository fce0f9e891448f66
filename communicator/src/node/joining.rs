//! Joining an existing cluster.

use std::net::SocketAddr;
use std::time::Instant;

use super::membership::JoinState;
use super::{Node, NodeError};
use crate::transport::{DialError, Plane, dial};

impl Node {
    /// Joins the cluster of one of these addresses. Calls `waiting` with the reason whenever an attempt fails. An
    /// address of another cluster does not keep this node from the next; if all are, the call fails at once.
    pub async fn join(&mut self, seeds: &[SocketAddr], mut waiting: impl FnMut(&str)) -> Result<(), NodeError> {
        let (started, times) = (Instant::now(), self.times);
        let mut last = String::from("there was no time to dial a seed node");
        let others = || seeds.iter().filter(|&&seed| seed != self.info.address);
        if others().next().is_none() {
            return Err(NodeError::Oneself(self.info.address));
        }
        while started.elapsed() < times.limit {
            let mut refusals = 0;
            for &seed in others() {
                match dial(seed, Plane::Control, &self.security, times.dial).await {
                    Ok(stream) => {
                        if let Err(error) = self.sessions.open(stream, seed, None).await {
                            last = format!(
                                "{seed} accepted the connection but opened no session ({error}): check that a Tau node of the same release runs there"
                            );
                            waiting(&last);
                            continue;
                        }
                    }
                    Err(error) => {
                        refusals += usize::from(matches!(error, DialError::Refused { .. } | DialError::NotLoopback(_)));
                        if refusals == others().count() {
                            return Err(NodeError::Refused(error));
                        }
                        last = error.to_string();
                        waiting(&last);
                        continue;
                    }
                }
                let answered = self.joined.wait_for(|joined| *joined != JoinState::Alone);
                let answered = tokio::time::timeout(times.dial, answered).await;
                match answered.map(|joined| joined.map(drop)) {
                    Ok(Ok(())) => return self.decided(waiting).await,
                    Ok(Err(_)) => return Err(gone()),
                    Err(_) => {
                        last = format!(
                            "{seed} accepted the connection but sends nothing: check that both nodes use the same credentials, or both \
                             --insecure"
                        );
                        waiting(&last);
                    }
                }
            }
            tokio::time::sleep(times.pause).await;
        }
        Err(NodeError::NoSeed {
            limit: times.limit,
            answer: last,
        })
    }

    /// Waits until it is decided if this node is a member of the cluster; that takes some seconds if another node has
    /// its name.
    async fn decided(&mut self, mut waiting: impl FnMut(&str)) -> Result<(), NodeError> {
        loop {
            let joined = self.joined.borrow_and_update().clone();
            match joined {
                JoinState::Member => return Ok(()),
                JoinState::Refused(reason) => return Err(NodeError::Unwelcome(reason)),
                JoinState::Waits(reason) => waiting(&reason),
                JoinState::Alone => {}
            }
            self.joined.changed().await.map_err(|_| gone())?;
        }
    }
}

fn gone() -> NodeError {
    NodeError::Failed("the membership actor has ended".into())
}
