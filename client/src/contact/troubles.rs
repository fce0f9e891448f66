//! Who was asked in vain since a node has answered, and what is said of it in the end.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

/// A question that no node has answered for so long is given up.
const LIMIT: Duration = Duration::from_mins(1);
/// The time between two sentences on a question that no node answers.
const SAY_EVERY: Duration = Duration::from_secs(5);
/// More are not listed.
const LISTED_MAX: usize = 8;

/// Those who were asked in vain.
#[derive(Debug, Default)]
pub(super) struct Troubles {
    by_address: BTreeMap<SocketAddr, ReportedFailure>,
    /// For how long nobody had answered when that was last said.
    said: Duration,
}

#[derive(Debug)]
struct ReportedFailure {
    reason: String,
    /// It will be no better in a minute.
    lasting: bool,
    /// The user knows of it.
    said: bool,
}

impl Troubles {
    /// Takes down that somebody was asked in vain. `lasting`: it will be no better in a minute.
    pub(super) fn add(&mut self, address: SocketAddr, reason: String, lasting: bool) {
        let said = self.by_address.get(&address).is_some_and(|trouble| trouble.said);
        let trouble = ReportedFailure { reason, lasting, said };
        self.by_address.insert(address, trouble);
    }

    /// Why somebody was asked in vain, if the user does not know it yet.
    pub(super) fn news(&mut self, address: SocketAddr) -> Option<&str> {
        let trouble = self.by_address.get_mut(&address).filter(|trouble| !trouble.said)?;
        trouble.said = true;
        Some(&trouble.reason)
    }

    /// A node has answered.
    pub(super) fn forget(&mut self) {
        self.by_address.clear();
        self.said = Duration::ZERO;
    }

    /// A sentence on a question that was first asked so long ago: what is waited for, and when it is given up. None if the
    /// last sentence is not old enough.
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

    /// Something of each who was asked in vain, up to as many as are listed.
    fn listed(&self, text: impl Fn(&SocketAddr, &ReportedFailure) -> String, between: &str) -> String {
        let more = self.by_address.len().saturating_sub(LISTED_MAX);
        let more = (more > 0).then(|| format!("and {more} more"));
        let texts = self.by_address.iter().map(|(address, trouble)| text(address, trouble));
        texts.take(LISTED_MAX).chain(more).collect::<Vec<_>>().join(between)
    }

    /// Why a question is given up that was first asked so long ago, in one sentence that names who was asked. None if it
    /// is asked on: there is time, and somebody of all who are known may answer.
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
    fn a_trouble_is_said_once_until_somebody_answers() {
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
