//! Asking a node from within its own process, as clients ask it from outside.

use protocol::wire::control::{Reply, Request};

use super::routes::RouteTargets;
use crate::control::Routes;

/// Whom to ask.
#[derive(Clone)]
pub struct Inquiry(pub(super) RouteTargets);

impl Inquiry {
    /// The node's answer; none when it stops.
    pub async fn ask(&self, request: Request) -> Option<Reply> {
        let (reply, answer) = ractor::concurrency::oneshot();
        self.0.request(request, reply.into());
        answer.await.ok()?.0.ok()
    }
}
