//! What happened in a run that is not of every second.

use std::collections::{BTreeSet, VecDeque};

use protocol::reasons::waiting::{WaitingFor, joined};
use protocol::stats::{LogNotice, Severity};
use serde::{Deserialize, Serialize};

/// How many are remembered.
const REMEMBERED_MAX: usize = 500;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum TimelineEntry {
    /// The run is followed from here on.
    Followed { run: String },
    /// A node is heard of for the first time.
    Joined { node: String },
    /// A node is not heard of any more.
    Silent { node: String },
    /// One that was silent is heard of again.
    Back { node: String },
    /// A node has said something to whoever started it.
    Said {
        node: String,
        #[serde(flatten)]
        notice: LogNotice,
    },
    /// What the run waits for has changed.
    Waiting {
        #[serde(rename = "for")]
        reasons: Vec<WaitingFor>,
    },
    /// This client was asked to end the run.
    StopAsked,
    /// It is over.
    Finished { reason: String },
    /// It is over, and nothing came of it here.
    Failed { reason: String },
}

impl TimelineEntry {
    /// What people are told of it.
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

    /// How grave it is.
    pub(crate) fn severity(&self) -> Severity {
        match self {
            Self::Waiting { reasons } if reasons.is_empty() => Severity::News,
            Self::Silent { .. } | Self::Waiting { .. } => Severity::Warning,
            Self::Failed { .. } => Severity::Error,
            Self::Said { notice, .. } => notice.severity,
            _ => Severity::News,
        }
    }

    /// Whether records of these nodes tell it, or how the run ended: who has these needs no note of it.
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

/// Something that happened, and when.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Happened {
    /// Counts from 1.
    pub(crate) number: u64,
    /// Seconds since 1970.
    pub(crate) time: f64,
    #[serde(flatten)]
    pub(crate) what: TimelineEntry,
}

/// The newest.
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
