//! Evidence that a member's process has ended, gathered by this node itself. A pure core.
//!
//! A refused connection alone proves nothing: a node behind a firewall, or with a wrong `--advertise`, is refused and
//! alive. So a process counts as ended only at an address where its key has answered this node before, after the other
//! machine has closed or reset the last session with it, and then only if two dials some time apart are refused, or if
//! another key answers there.

use std::time::Duration;

use crate::planted::{Bug, planted};

/// The outcome of dialling a member's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DialOutcome {
    /// The member was reached: the node that answered has the member's key.
    Reached,
    /// The machine refused the connection: no process listens there, or a firewall rejects it.
    Refused,
    /// A node with another key than the member's answered.
    AnotherKey,
    /// Dialling has failed in another way, such as a timeout, which is no evidence of anything.
    Failed,
}

/// Observations of this node from which it concludes whether a member's process is still alive.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Evidence {
    /// True if the member has ever answered, with its own key, when this node dialled its address. If not, a refused
    /// dial proves nothing about the member's process.
    reached: bool,
    /// True if the member's machine has closed or reset the last session; without that, refused dials prove nothing
    /// about the member's process.
    broken: bool,
    /// Time of the first refused dial since the member was last heard; a refused dial some time after it proves that
    /// the member's process has ended.
    refused: Option<Duration>,
    /// True if this node's observations prove that the member's process has ended.
    pub(super) dead: bool,
}

impl Evidence {
    /// Records that the member has spoken, so that earlier refused dials no longer count as evidence that its process
    /// has ended. The end of the last session still counts, because a message that came over a session may be handled
    /// after the session's end.
    pub(super) fn heard(&mut self) {
        self.refused = None;
        self.dead = false;
    }

    /// Records that a session with the member is ready, so that the end of the session before is no evidence that the
    /// member's process has ended.
    pub(super) fn linked(&mut self) {
        self.heard();
        self.broken = false;
    }

    /// Returns true if this node has never reached the member by dialling. It then dials the member even if a session
    /// exists, because only for a member that it has reached does a refused dial prove anything later.
    pub(super) fn lacks_reach(&self) -> bool {
        !self.reached
    }

    /// Records that the last session with the member is gone. Returns true if dialling the member now can tell if its
    /// process has ended.
    pub(super) fn unlinked(&mut self, by_peer: bool) -> bool {
        self.broken |= by_peer;
        self.broken && self.reached
    }

    fn was_reached(&self) -> bool {
        self.reached || planted(Bug::UnreachedIsDead)
    }

    /// Records the outcome of dialling the member's address. Returns true if one more refusal, a while later, is needed
    /// to prove that the process has ended.
    pub(super) fn dialled(&mut self, outcome: DialOutcome, now: Duration, apart: Duration) -> bool {
        match outcome {
            DialOutcome::Reached => {
                self.linked();
                self.reached = true;
            }
            DialOutcome::Failed => self.refused = None,
            DialOutcome::Refused | DialOutcome::AnotherKey if !(self.was_reached() && self.broken) => {}
            DialOutcome::AnotherKey => self.dead = true,
            DialOutcome::Refused => {
                let first = *self.refused.get_or_insert(now);
                self.dead |= now.saturating_sub(first) >= apart;
                return !self.dead;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Returns true if a process is taken for dead after these dials, one every second. `reached` is true if a dial has
    /// reached it before, `by_peer` if its machine ended the last session.
    fn dies(reached: bool, by_peer: bool, dials: &[DialOutcome]) -> bool {
        let mut evidence = Evidence::default();
        if reached {
            evidence.dialled(DialOutcome::Reached, SECOND, SECOND);
        }
        evidence.unlinked(by_peer);
        for (second, &outcome) in (2u32..).zip(dials) {
            evidence.dialled(outcome, second * SECOND, SECOND);
        }
        evidence.dead
    }

    #[test]
    fn two_refusals_after_a_broken_session_prove_the_end_of_a_process_that_could_be_dialled() {
        use DialOutcome::{AnotherKey, Failed, Reached, Refused};
        assert!(dies(true, true, &[Refused, Refused]));
        assert!(dies(true, true, &[AnotherKey]));
        assert!(!dies(true, true, &[Refused]));
        assert!(
            !dies(false, true, &[Refused, Refused, AnotherKey]),
            "a firewall may refuse dials to a node that could never be dialled"
        );
        assert!(
            !dies(true, false, &[Refused, Refused, AnotherKey]),
            "this node, not the peer, ended the session"
        );
        assert!(!dies(true, true, &[Refused, Failed, Refused]));
        assert!(!dies(true, true, &[Refused, Reached, Refused]));
    }

    #[test]
    fn refusals_at_the_same_moment_count_once_and_a_word_voids_them() {
        let mut evidence = Evidence::default();
        evidence.dialled(DialOutcome::Reached, SECOND, SECOND);
        assert!(evidence.unlinked(true));
        assert!(
            evidence.dialled(DialOutcome::Refused, 2 * SECOND, SECOND),
            "a second dial is due"
        );
        assert!(evidence.dialled(DialOutcome::Refused, 2 * SECOND + SECOND / 2, SECOND));
        assert!(!evidence.dead);
        evidence.heard();
        evidence.dialled(DialOutcome::Refused, 4 * SECOND, SECOND);
        assert!(!evidence.dead, "the node was heard after the first refusal");
        evidence.dialled(DialOutcome::Refused, 5 * SECOND, SECOND);
        assert!(
            evidence.dead,
            "two refusals after the last message prove that the process has ended"
        );
        evidence.linked();
        evidence.dialled(DialOutcome::Refused, 7 * SECOND, SECOND);
        evidence.dialled(DialOutcome::Refused, 9 * SECOND, SECOND);
        assert!(!evidence.dead, "the node has a session again");
    }
}
