//! Events of a run, such as a node that fell silent, as opposed to figures of every second.

use std::collections::{BTreeSet, VecDeque};

use protocol::reasons::waiting::{WaitingFor, joined};
use protocol::stats::{LogNotice, Severity};
use serde::{Deserialize, Serialize};

/// Number of events of a run that are kept in memory.
const REMEMBERED_MAX: usize = 500;

/// One event of a run, for its journal and its views.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum TimelineEntry {
    /// Event: this client began to follow the run.
    Followed { run: String },
    /// Event: the first record of a node arrived.
    Joined { node: String },
    /// Event: records of a node no longer arrive.
    Silent { node: String },
    /// Event: records of a silent node arrive again.
    Back { node: String },
    /// Event: a node has sent a notice, a sentence of its log.
    Said {
        node: String,
        #[serde(flatten)]
        notice: LogNotice,
    },
    /// Event: the reasons why the run waits have changed; there are none if the run no longer waits.
    Waiting {
        #[serde(rename = "for")]
        reasons: Vec<WaitingFor>,
    },
    /// Event: this client was asked to stop the run.
    StopAsked,
    /// Event: the run has finished.
    Finished { reason: String },
    /// Event: the run has failed, or this client could not fetch its result.
    Failed { reason: String },
}

impl TimelineEntry {
    /// Returns a sentence for people about this event of a run.
    pub(crate) fn sentence(&self) -> String {
        match self {
            Self::Followed { .. } => "this client began to follow the run".into(),
            Self::Joined { node } => format!("node {node} takes part in the run"),
            Self::Silent { node } => format!("node {node} fell silent"),
            Self::Back { node } => format!("node {node} is back"),
            Self::Said { node, notice } => format!("{node}: {}", notice.text),
            Self::Waiting { reasons } if reasons.is_empty() => "the run no longer waits".into(),
            Self::Waiting { reasons } => format!("waiting for {}", joined(reasons)),
            Self::StopAsked => "the run was asked to stop".into(),
            Self::Finished { reason } => format!("the run finished: {reason}"),
            Self::Failed { reason } => format!("the run failed: {reason}"),
        }
    }

    /// Returns the severity of this event of a run.
    pub(crate) fn severity(&self) -> Severity {
        match self {
            Self::Waiting { reasons } if reasons.is_empty() => Severity::News,
            Self::Silent { .. } | Self::Waiting { .. } => Severity::Warning,
            Self::Failed { .. } => Severity::Error,
            Self::Said { notice, .. } => notice.severity,
            _ => Severity::News,
        }
    }

    /// Returns true if a replay recreates this event from the records of the nodes `tellers`, or from the run's end, so
    /// that the event stored in the run's folder is not shown again.
    pub(crate) fn is_told_by(&self, tellers: &BTreeSet<String>) -> bool {
        match self {
            Self::Joined { node } | Self::Silent { node } | Self::Back { node } | Self::Said { node, .. } => {
                tellers.contains(node)
            }
            Self::Finished { .. } | Self::Failed { .. } => true,
            Self::Followed { .. } | Self::Waiting { .. } | Self::StopAsked => false,
        }
    }
}

/// An event of a run with its number and time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Happened {
    /// Number of the run's event, from 1.
    pub(crate) number: u64,
    /// Time of the run's event, in seconds since 1970.
    pub(crate) time: f64,
    #[serde(flatten)]
    pub(crate) what: TimelineEntry,
}

/// The newest events of a run, and the number of the last one.
#[derive(Clone, Debug, Default)]
pub(super) struct TimelineEntries {
    newest: VecDeque<Happened>,
    last: u64,
}

impl TimelineEntries {
    pub(super) fn add(&mut self, time: f64, what: TimelineEntry) -> Happened {
        self.last += 1;
        let happened = Happened {
            number: self.last,
            time,
            what,
        };
        if self.newest.len() == REMEMBERED_MAX {
            self.newest.pop_front();
        }
        self.newest.push_back(happened.clone());
        happened
    }

    pub(super) fn after(&self, number: u64) -> impl DoubleEndedIterator<Item = &Happened> {
        self.newest.iter().filter(move |happened| happened.number > number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_to_wait_for_is_no_warning() {
        let waiting = |reasons: &[&str]| {
            let reasons = reasons.iter().map(|&text| WaitingFor::Told(text.into())).collect();
            TimelineEntry::Waiting { reasons }.severity()
        };
        assert_eq!((waiting(&[]), waiting(&["a"])), (Severity::News, Severity::Warning));
    }

    #[test]
    fn the_newest_are_remembered_and_numbers_go_on() {
        let mut all = TimelineEntries::default();
        for second in 0..REMEMBERED_MAX + 10 {
            all.add(second as f64, TimelineEntry::StopAsked);
        }
        let numbers: Vec<u64> = all.after(0).map(|happened| happened.number).collect();
        assert_eq!((numbers.len(), numbers[0]), (REMEMBERED_MAX, 11));
        assert_eq!(all.after(REMEMBERED_MAX as u64 + 8).count(), 2);
    }
}
