//! Decides when a link is dialled, by which node, and which of two connections stays. A pure core: times count from a
//! moment that the caller chose.
//!
//! The node with the lower id dials first. If that fails for a while, perhaps because the peer cannot be dialled, the
//! peer dials, too.

use std::time::Duration;

use crate::timing::LinkTimes;

/// Next step of a node towards the connection of a link to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// No step is needed: the link is up.
    Nothing,
    /// The link is missing, and the other side is to dial: decide on the next step after this time.
    Wait(Duration),
    /// The link is missing: dial now. If that fails, decide on the next step after this time.
    Dial(Duration),
}

/// This node's end of a link to a peer: decides when to dial, which connection stays, and when to log that the link is
/// missing.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "the flags are independent of each other")]
pub(super) struct Dialling {
    times: LinkTimes,
    /// True if this node has the lower id of the two nodes that the link connects.
    is_lower: bool,
    present: Option<Present>,
    /// Pause after the next attempt to dial the peer, if that fails.
    pause: Duration,
    missing_since: Duration,
    /// True if the peer is silent or gone: the log then does not warn that the link is missing.
    absent: bool,
    /// Time at which the peer was last heard again after it had been silent or gone.
    back_since: Duration,
    /// True if the log has said that the link to the peer is missing.
    said: bool,
    /// True if there has ever been a connection to the peer.
    reached: bool,
}

#[derive(Debug)]
struct Present {
    since: Duration,
    /// True if the node with the lower id has dialled the connection. While such a connection is new, one that the
    /// other node has dialled does not replace it.
    by_lower: bool,
}

impl Dialling {
    /// Creates this node's end of a link that has no connection yet.
    pub(super) fn new(is_lower: bool, times: LinkTimes, now: Duration) -> Self {
        Self {
            times,
            is_lower,
            present: None,
            pause: times.pause,
            missing_since: now,
            absent: false,
            back_since: now,
            said: false,
            reached: false,
        }
    }

    /// Returns true if there has ever been a connection to the peer, so that its address is known to be right.
    pub(super) fn is_reached(&self) -> bool {
        self.reached
    }

    /// Decides if this node dials the peer now: not while there is a connection; at once if this node's id is the
    /// lower; else only after the peer has had time to dial. Each dial doubles the pause up to a limit.
    pub(super) fn next(&mut self, now: Duration) -> Step {
        if self.present.is_some() {
            return Step::Nothing;
        }
        let missing = now.saturating_sub(self.missing_since);
        if !self.is_lower && missing < self.times.patience {
            return Step::Wait(self.times.patience.saturating_sub(missing));
        }
        let pause = self.pause;
        self.pause = (pause * 2).min(self.times.pause_max);
        Step::Dial(pause)
    }

    /// Returns true if the link has been missing for so long that the log should say so; true once for each loss.
    pub(super) fn take_due_notice(&mut self, now: Duration) -> bool {
        let missing = self.present.is_none() && !self.absent;
        let since = self.missing_since.max(self.back_since);
        let long = missing && now.saturating_sub(since) > self.times.say_after;
        long && !std::mem::replace(&mut self.said, true)
    }

    /// Records that the peer has fallen silent or left, or is heard again.
    pub(super) fn note_absent(&mut self, absent: bool, now: Duration) {
        if !absent {
            self.back_since = now;
        }
        self.absent = absent;
    }

    /// Decides if a new connection, dialled by this side or by the other, becomes the link's; returns true if so. It
    /// then replaces the present one: the peer would not make a new one if that still worked.
    pub(super) fn take_connection(&mut self, dialled: bool, now: Duration) -> bool {
        let by_lower = dialled == self.is_lower;
        let young = |present: &Present| present.by_lower && now.saturating_sub(present.since) < self.times.young;
        if !by_lower && self.present.as_ref().is_some_and(young) {
            return false;
        }
        self.present = Some(Present { since: now, by_lower });
        self.pause = self.times.pause;
        self.reached = true;
        true
    }

    /// Records that the link's connection is gone, or is to go. Returns true if there was one.
    pub(super) fn lost(&mut self, now: Duration) -> bool {
        let was_there = self.present.take().is_some();
        if was_there {
            self.missing_since = now;
            self.said = false;
        }
        was_there
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timing::Timing;

    const SECOND: Duration = Duration::from_secs(1);
    const TIMES: LinkTimes = Timing::DEFAULT.link;

    fn end(is_lower: bool) -> Dialling {
        Dialling::new(is_lower, TIMES, SECOND)
    }

    #[test]
    fn the_lower_name_dials_at_once_with_growing_pauses() {
        let mut lower = end(true);
        let pauses: Vec<Step> = (0..9).map(|_| lower.next(SECOND)).collect();
        assert_eq!(pauses[..2], [Step::Dial(TIMES.pause), Step::Dial(2 * TIMES.pause)]);
        assert_eq!(pauses[8], Step::Dial(TIMES.pause_max));
        assert!(lower.take_connection(true, SECOND));
        assert_eq!(lower.next(SECOND), Step::Nothing);
        assert!(lower.lost(2 * SECOND));
        assert_eq!(
            lower.next(2 * SECOND),
            Step::Dial(TIMES.pause),
            "after a lost link the pauses start over"
        );
    }

    #[test]
    fn the_higher_name_dials_when_the_other_has_had_its_time() {
        let mut higher = end(false);
        assert_eq!(higher.next(SECOND), Step::Wait(TIMES.patience));
        let late = SECOND + TIMES.patience;
        assert_eq!(
            higher.next(SECOND + TIMES.patience * 3 / 4),
            Step::Wait(TIMES.patience / 4)
        );
        assert_eq!(higher.next(late), Step::Dial(TIMES.pause));
        assert!(higher.take_connection(true, late) && higher.lost(late + SECOND));
        assert_eq!(
            higher.next(late + SECOND),
            Step::Wait(TIMES.patience),
            "the node with the lower id redials a broken link first"
        );
    }

    #[test]
    fn two_that_dial_at_the_same_time_keep_the_same_connection() {
        let (mut lower, mut higher) = (end(true), end(false));
        // Each connection is dialled by one side and taken by the other, and the two come in a different order on
        // either side.
        assert!(lower.take_connection(true, SECOND) && !lower.take_connection(false, SECOND));
        assert!(higher.take_connection(true, SECOND) && higher.take_connection(false, SECOND));
        assert!(
            !higher.take_connection(true, SECOND),
            "the connection that the lower id dialled is still young and stays"
        );
        let later = SECOND + TIMES.young;
        assert!(
            lower.take_connection(false, later),
            "the peer dials only if the old connection no longer works"
        );
    }

    #[test]
    fn a_link_that_is_long_missing_is_told_of_once() {
        let mut lower = end(true);
        assert!(!lower.take_due_notice(SECOND + TIMES.say_after));
        let late = 2 * SECOND + TIMES.say_after;
        assert!(lower.take_due_notice(late) && !lower.take_due_notice(late));
        assert!(
            !lower.is_reached(),
            "a peer that was never reached may have a wrong address"
        );
        assert!(lower.take_connection(true, late) && !lower.take_due_notice(3 * late));
        assert!(lower.lost(3 * late) && !lower.lost(3 * late));
        assert!(!lower.take_due_notice(3 * late) && lower.take_due_notice(5 * late));
        assert!(lower.is_reached(), "the address of a peer that was reached is right");
    }

    #[test]
    fn a_link_to_a_silent_peer_is_not_told_of_until_the_peer_is_back() {
        let mut lower = end(true);
        lower.note_absent(true, 2 * SECOND);
        let late = 60 * SECOND;
        assert!(!lower.take_due_notice(late));
        lower.note_absent(false, late);
        assert!(!lower.take_due_notice(late + TIMES.say_after));
        assert!(lower.take_due_notice(late + TIMES.say_after + SECOND));
    }
}
