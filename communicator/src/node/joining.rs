//! Joining a cluster that is already there.

use std::net::SocketAddr;
use std::time::Instant;

use super::membership::Joined;
use super::{Node, NodeError};
use crate::transport::{DialError, Plane, dial};

impl Node {
    /// Joins the cluster that one of these addresses belongs to; tells each time that nobody answered. One that belongs to
    /// another cluster does not keep this node from the next; if all do, there is nothing to wait for.
    pub async fn join(&mut self, seeds: &[SocketAddr], mut waiting: impl FnMut(&str)) -> Result<(), NodeError> {
        let (started, times) = (Instant::now(), self.times);
        let mut last = String::from("there was none");
        let others = || seeds.iter().filter(|&&seed| seed != self.info.address);
        while started.elapsed() < times.limit {
            let mut refusals = 0;
            for &seed in others() {
                match dial(seed, Plane::Control, &self.security, times.dial).await {
                    Ok(stream) => {
                        if let Err(error) = self.sessions.open(stream, seed, None).await {
                            last = format!("{seed} let this node in, but {error}");
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
                let answered = self.joined.wait_for(|joined| *joined != Joined::Alone);
                match tokio::time::timeout(times.dial, answered).await {
                    Ok(Ok(joined)) => {
                        return match &*joined {
                            Joined::Refused(reason) => Err(NodeError::Unwelcome(reason.clone())),
                            _ => Ok(()),
                        };
                    }
                    Ok(Err(_)) => return Err(NodeError::Failed("the membership is gone".into())),
                    Err(_) => last = format!("{seed} let this node in but says nothing"),
                }
            }
            tokio::time::sleep(times.pause).await;
        }
        Err(NodeError::NoSeed {
            limit: times.limit,
            answer: last,
        })
    }
}
