//! Endpoints of other nodes. A pure core: an endpoint is anything that the caller can send messages to.

use std::collections::BTreeMap;
use std::time::Duration;

use protocol::ids::NodeId;

/// The endpoints through which messages are sent to peers, and the sessions (connections with peers) that they belong
/// to.
#[derive(Debug)]
pub(super) struct Endpoints<G> {
    /// Maximum time from the beginning of a session until the endpoint, through which messages are sent, is known.
    limit: Duration,
    /// Endpoints of each node, through which it is sent messages, with their sessions. Two nodes that dial each other
    /// have two sessions for a moment; the newest is used.
    open: BTreeMap<NodeId, Vec<(u64, G)>>,
    /// Sessions to whose nodes no message can be sent yet, because their endpoints are unknown: the session's number,
    /// its node, and the time since which the endpoint is looked for.
    waiting: Vec<(u64, NodeId, Duration)>,
}

/// Result of looking for the endpoints (through which messages are sent) of peers whose sessions are new.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct EndpointScan {
    /// Nodes whose endpoints were found, so that messages can be sent to them now.
    pub(super) ready: Vec<NodeId>,
    /// Sessions whose endpoints were not found in time; the caller closes these sessions.
    pub(super) late: Vec<u64>,
}

impl<G> Endpoints<G> {
    pub(super) fn new(limit: Duration) -> Self {
        Self {
            limit,
            open: BTreeMap::new(),
            waiting: Vec::new(),
        }
    }

    /// Records that a session with a node is ready, so that its endpoint, through which messages are sent to the node,
    /// is looked for. The endpoint may become known a moment after the session.
    pub(super) fn expect(&mut self, session: u64, node: NodeId, now: Duration) {
        self.waiting.push((session, node, now));
    }

    /// Looks for the endpoints of peers whose sessions are new. Returns the nodes that can be sent messages from now
    /// on, and the sessions whose endpoints were not found in time.
    pub(super) fn find(&mut self, now: Duration, endpoint: impl Fn(u64) -> Option<G>) -> EndpointScan {
        let mut found = EndpointScan::default();
        for (session, node, since) in std::mem::take(&mut self.waiting) {
            if let Some(endpoint) = endpoint(session) {
                self.open.entry(node).or_default().push((session, endpoint));
                found.ready.push(node);
            } else if now.saturating_sub(since) < self.limit {
                self.waiting.push((session, node, since));
            } else {
                found.late.push(session);
            }
        }
        found
    }

    /// Removes a session that is gone. Returns the session's node if that has no other session left.
    pub(super) fn closed(&mut self, session: u64) -> Option<NodeId> {
        self.waiting.retain(|(waiting, ..)| *waiting != session);
        let (&node, endpoints) = self
            .open
            .iter_mut()
            .find(|(_, endpoints)| endpoints.iter().any(|(one, _)| *one == session))?;
        endpoints.retain(|(one, _)| *one != session);
        if !endpoints.is_empty() {
            return None;
        }
        self.open.remove(&node);
        Some(node)
    }

    /// Removes all endpoints of a node, so that no more messages are sent to it. Returns their sessions, if there were
    /// any.
    pub(super) fn take(&mut self, node: NodeId) -> Option<Vec<u64>> {
        let endpoints = self.open.remove(&node)?;
        Some(endpoints.into_iter().map(|(session, _)| session).collect())
    }

    /// Returns the sessions with a node.
    pub(super) fn sessions(&self, node: NodeId) -> impl Iterator<Item = u64> + '_ {
        self.open.get(&node).into_iter().flatten().map(|(session, _)| *session)
    }

    /// Returns the endpoint through which messages are sent to a node: that of the node's newest session.
    pub(super) fn of(&self, node: NodeId) -> Option<&G> {
        self.open.get(&node)?.last().map(|(_, endpoint)| endpoint)
    }

    /// Returns the newest endpoint of each node, for messages to all.
    pub(super) fn all(&self) -> impl Iterator<Item = &G> + '_ {
        self.open
            .values()
            .filter_map(|endpoints| endpoints.last())
            .map(|(_, endpoint)| endpoint)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const NODE: NodeId = NodeId(7);

    #[test]
    fn a_endpoint_may_show_later_but_not_too_late() {
        let mut endpoints = Endpoints::new(5 * SECOND);
        endpoints.expect(1, NODE, SECOND);
        endpoints.expect(2, NodeId(8), SECOND);
        assert_eq!(endpoints.find(SECOND, |_| None::<char>), EndpointScan::default());
        let shown = endpoints.find(2 * SECOND, |session| (session == 1).then_some('a'));
        assert_eq!((shown.ready, endpoints.of(NODE)), (vec![NODE], Some(&'a')));
        assert_eq!(endpoints.find(6 * SECOND, |_| None).late, [2]);
        assert_eq!(
            endpoints.find(9 * SECOND, |_| Some('b')),
            EndpointScan::default(),
            "an endpoint that did not show in time is no longer looked for"
        );
    }

    #[test]
    fn of_two_sessions_the_newest_is_used_and_the_last_one_counts() {
        let mut endpoints = Endpoints::new(SECOND);
        for session in [1, 2] {
            endpoints.expect(session, NODE, SECOND);
        }
        endpoints.find(SECOND, Some);
        assert_eq!(endpoints.of(NODE), Some(&2));
        assert_eq!(
            endpoints.all().collect::<Vec<_>>(),
            [&2],
            "a node with two sessions gets each message once"
        );
        assert_eq!(endpoints.closed(2), None, "another session with the node is still open");
        assert_eq!(endpoints.of(NODE), Some(&1));
        assert_eq!(endpoints.closed(1), Some(NODE));
        assert!(endpoints.is_empty() && endpoints.closed(1).is_none());
    }

    #[test]
    fn a_session_that_ends_before_its_endpoint_shows_is_not_looked_for() {
        let mut endpoints = Endpoints::new(SECOND);
        endpoints.expect(1, NODE, SECOND);
        assert_eq!(endpoints.closed(1), None);
        assert_eq!(endpoints.find(SECOND, |_| Some('a')), EndpointScan::default());
        assert_eq!(endpoints.take(NODE), None);
    }
}
