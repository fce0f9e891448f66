//! When a link is dialled, by whom, and which of two connections stays. A pure core: times are since some moment that the
//! caller chose.
//!
//! The node with the lower name dials first. When that comes to nothing, perhaps because its peer cannot be dialled, the
//! other one does, too.

use std::time::Duration;

use crate::timing::LinkTimes;

/// What is to be done about a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The link is there.
    Nothing,
    /// The other side is to dial; this one looks again after so long.
    Wait(Duration),
    /// This side dials; if that is in vain, it looks again after so long.
    Dial(Duration),
}

/// One end of a link.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "the flags are independent of each other")]
pub(super) struct Dialling {
    times: LinkTimes,
    /// Whether this node has the lower name of the two.
    is_lower: bool,
    present: Option<Present>,
    /// The pause after the next attempt.
    pause: Duration,
    missing_since: Duration,
    /// Whether the peer is silent or gone. A missing link is then no fault of its address.
    absent: bool,
    /// The time at which the peer was last heard of again.
    back_since: Duration,
    /// Whether it was said that the link is missing.
    said: bool,
    /// Whether there has ever been a connection.
    reached: bool,
}

#[derive(Debug)]
struct Present {
    since: Duration,
    /// The node with the lower name has dialled it.
    by_lower: bool,
}

impl Dialling {
    /// The end of a link that is not there yet.
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

    /// Whether there has ever been a connection: then the peer's address is right.
    pub(super) fn is_reached(&self) -> bool {
        self.reached
    }

    /// What is to be done now.
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

    /// Returns whether the link has been missing for so long that it is to be said: once.
    pub(super) fn take_due_notice(&mut self, now: Duration) -> bool {
        let missing = self.present.is_none() && !self.absent;
        let since = self.missing_since.max(self.back_since);
        let long = missing && now.saturating_sub(since) > self.times.say_after;
        long && !std::mem::replace(&mut self.said, true)
    }

    /// The peer has fallen silent or left, or is heard of again.
    pub(super) fn note_absent(&mut self, absent: bool, now: Duration) {
        if !absent {
            self.back_since = now;
        }
        self.absent = absent;
    }

    /// A connection was made, dialled by this side or by the other; whether it is taken. If so, it takes the place of the
    /// present one: the peer would not make a new one if that still worked.
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

    /// The present connection is gone, or is to go; whether there was one.
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
        // Each connection is dialled by one side and taken by the other, and they come in another order on either side.
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
