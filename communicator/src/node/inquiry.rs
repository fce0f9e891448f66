//! Requests to a node from within its own process, as clients send them from outside.

use protocol::wire::control::{Reply, Request};

use super::routes::RouteTargets;
use crate::control::Routes;

/// Handle for requests to the node of this process.
#[derive(Clone)]
pub struct Inquiry(pub(super) RouteTargets);

impl Inquiry {
    /// Sends a request and returns the node's reply; `None` if the node stops.
    pub async fn ask(&self, request: Request) -> Option<Reply> {
        let (reply, answer) = ractor::concurrency::oneshot();
        self.0.request(request, reply.into());
        answer.await.ok()?.0.ok()
    }
}
