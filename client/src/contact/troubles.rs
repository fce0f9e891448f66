//! The failed requests since the last answer of any node, and the sentences in which a command reports them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

/// Time without an answer from any node after which a client gives up its request.
const LIMIT: Duration = Duration::from_mins(1);
/// Interval between two messages to the user about a request that no node answers.
const SAY_EVERY: Duration = Duration::from_secs(5);
/// Maximum number of nodes that a message about an unanswered request lists.
const LISTED_MAX: usize = 8;

/// The newest failed request to each node since the last answer of any node.
#[derive(Debug, Default)]
pub(super) struct Troubles {
    by_address: BTreeMap<SocketAddr, ReportedFailure>,
    /// Age of the unanswered request when a message about it was last printed.
    said: Duration,
}

#[derive(Debug)]
struct ReportedFailure {
    reason: String,
    /// True if the cause of the failed request will not go away within a minute, so that waiting for this node is
    /// useless.
    lasting: bool,
    /// True if the user has been told of the failed request.
    said: bool,
}

impl Troubles {
    /// Records a failed request to a node. `lasting`: the cause will not go away within a minute.
    pub(super) fn add(&mut self, address: SocketAddr, reason: String, lasting: bool) {
        let said = self.by_address.get(&address).is_some_and(|trouble| trouble.said);
        let trouble = ReportedFailure { reason, lasting, said };
        self.by_address.insert(address, trouble);
    }

    /// Returns the reason of the node's newest failed request if the user has not been told of it, and counts it as
    /// told from then on.
    pub(super) fn news(&mut self, address: SocketAddr) -> Option<&str> {
        let trouble = self.by_address.get_mut(&address).filter(|trouble| !trouble.said)?;
        trouble.said = true;
        Some(&trouble.reason)
    }

    /// Forgets all failures, because a node has answered.
    pub(super) fn forget(&mut self) {
        self.by_address.clear();
        self.said = Duration::ZERO;
    }

    /// Returns a message to the user about a request that no node has answered for `asked_for`: which nodes are waited
    /// for, and when the command gives up. None if the last message is recent.
    pub(super) fn progress(&mut self, asked_for: Duration) -> Option<String> {
        if asked_for < self.said + SAY_EVERY {
            return None;
        }
        self.said = asked_for;
        let asked = self.listed(|address, _| address.to_string(), ", ");
        Some(format!(
            "no answer from {asked} for {} s; this command gives up after {} s",
            asked_for.as_secs(),
            LIMIT.as_secs()
        ))
    }

    /// Joins a text about each node to which a request failed, up to `LISTED_MAX` nodes.
    fn listed(&self, text: impl Fn(&SocketAddr, &ReportedFailure) -> String, between: &str) -> String {
        let more = self.by_address.len().saturating_sub(LISTED_MAX);
        let more = (more > 0).then(|| format!("and {more} more"));
        let texts = self.by_address.iter().map(|(address, trouble)| text(address, trouble));
        texts.take(LISTED_MAX).chain(more).collect::<Vec<_>>().join(between)
    }

    /// Returns the reason for giving up a request that no node has answered for `asked_for`, with the failures of all
    /// nodes. None if the request is to be repeated, because time is left and some known node may still answer.
    pub(super) fn end(&self, asked_for: Duration, known: &[SocketAddr]) -> Option<String> {
        let hopeless = |address| self.by_address.get(address).is_some_and(|trouble| trouble.lasting);
        let late = asked_for >= LIMIT;
        if !late && !known.iter().all(hopeless) {
            return None;
        }
        let text = self.listed(|_, trouble| trouble.reason.clone(), "; ");
        let seconds = asked_for.as_secs();
        Some(if late {
            format!("no node has answered for {seconds} seconds: {text}")
        } else {
            text
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[test]
    fn a_minute_is_waited_and_all_are_named() {
        let mut troubles = Troubles::default();
        troubles.add(at(1), "1 is slow".into(), false);
        troubles.add(at(2), "2 is gone".into(), true);
        troubles.add(at(1), "1 is silent".into(), false);
        let known = [at(1), at(2)];
        assert_eq!(troubles.end(Duration::from_secs(59), &known), None);
        assert_eq!(
            troubles.end(Duration::from_secs(61), &known).unwrap(),
            "no node has answered for 61 seconds: 1 is silent; 2 is gone"
        );
        (3..30).for_each(|port| troubles.add(at(port), "x".into(), false));
        assert!(troubles.end(LIMIT, &known).unwrap().ends_with("x; and 21 more"));
    }

    #[test]
    fn what_is_waited_for_is_said_every_few_seconds_with_an_end() {
        let mut troubles = Troubles::default();
        troubles.add(at(1), "1 refuses connections".into(), false);
        let mut said = |seconds| troubles.progress(Duration::from_secs(seconds));
        assert_eq!(said(4), None);
        assert_eq!(
            said(6).unwrap(),
            "no answer from 127.0.0.1:1 for 6 s; this command gives up after 60 s"
        );
        assert_eq!(said(10), None);
        assert!(said(11).is_some());
        troubles.forget();
        assert!(
            troubles.progress(Duration::from_secs(6)).is_some(),
            "after an answer, a new question must be reported again"
        );
    }

    #[test]
    fn a_failure_is_reported_once_until_a_node_answers() {
        let mut troubles = Troubles::default();
        for _ in 0..2 {
            assert_eq!(troubles.news(at(1)), None);
            troubles.add(at(1), "1 is slow".into(), false);
            troubles.add(at(1), "1 is silent".into(), false);
            assert_eq!(troubles.news(at(1)), Some("1 is silent"));
            troubles.add(at(1), "1 is gone".into(), false);
            assert_eq!(troubles.news(at(1)), None);
            troubles.forget();
        }
    }

    #[test]
    fn what_time_does_not_mend_is_said_at_once() {
        let mut troubles = Troubles::default();
        troubles.add(at(1), "1 has other credentials".into(), true);
        let none = Duration::ZERO;
        assert_eq!(
            troubles.end(none, &[at(1), at(2)]),
            None,
            "node 2 has not been asked yet"
        );
        assert_eq!(troubles.end(none, &[at(1)]).unwrap(), "1 has other credentials");
        troubles.forget();
        assert_eq!(troubles.end(none, &[at(1)]), None);
    }
}
