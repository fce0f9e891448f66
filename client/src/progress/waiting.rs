//! Reports why a run waits, for example for a silent node, each time the reasons change.

use protocol::ids::RunId;
use protocol::reasons::waiting::{WaitingFor, is_the_same};
use serde::Serialize;

use super::View;
use crate::output::{self, Audience, notice};

/// The reasons why a run waits that were reported last, so that only changes are reported.
#[derive(Default)]
pub(crate) struct Waiting {
    said: Vec<WaitingFor>,
}

#[derive(Serialize)]
struct WaitingEvent<'a> {
    event: &'static str,
    run: String,
    #[serde(rename = "for")]
    reasons: &'a [WaitingFor],
}

impl Waiting {
    /// Takes the reasons why the run waits now, reports them to the audience if they have changed, and returns true if
    /// they have. The progress display `view` always shows the newest reasons, so that the seconds in them advance
    /// there.
    pub(crate) fn take(&mut self, run: RunId, now: &[WaitingFor], view: &View, audience: Audience) -> bool {
        view.waits(now);
        if !self.changes(now) {
            return false;
        }
        match audience {
            Audience::Scripts => {
                output::line(&WaitingEvent {
                    event: "waiting",
                    run: run.to_string(),
                    reasons: now,
                });
            }
            Audience::People if !view.is_shown() => {
                for reason in now {
                    notice::say(&format!("waiting for {reason}"));
                }
            }
            Audience::People | Audience::Nobody => {}
        }
        true
    }

    fn changes(&mut self, now: &[WaitingFor]) -> bool {
        let changed = !is_the_same(&self.said, now);
        if changed {
            self.said = now.to_vec();
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use protocol::reasons::waiting::NodeTask;

    use super::*;

    #[test]
    fn only_changes_are_said() {
        let mut waiting = Waiting::default();
        let reports = |name: &str| WaitingFor::node(name, NodeTask::ReportDigest);
        let silent = |seconds| WaitingFor::Silent {
            node: "a".into(),
            silence: Duration::from_secs(seconds),
            limit: Duration::from_secs(30),
        };
        assert!(!waiting.changes(&[]));
        assert!(waiting.changes(&[reports("a"), reports("b")]));
        assert!(!waiting.changes(&[reports("a"), reports("b")]));
        assert!(waiting.changes(&[reports("b")]));
        assert!(waiting.changes(&[]));
        assert!(waiting.changes(&[silent(3)]));
        assert!(!waiting.changes(&[silent(4)]), "only the seconds have changed");
    }

    #[test]
    fn scripts_read_it_as_they_were_told() {
        let event = WaitingEvent {
            event: "waiting",
            run: RunId(7).to_string(),
            reasons: &[WaitingFor::node("vm-3", NodeTask::ReportDigest)],
        };
        let text = serde_json::to_string(&event).unwrap();
        let rest = r#""for":["vm-3 to report its digest"]}"#;
        assert_eq!(text, format!(r#"{{"event":"waiting","run":"{}",{rest}"#, RunId(7)));
    }
}
