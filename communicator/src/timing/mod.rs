//! All times of a node in one table, which is checked before a node starts and handed to its actors.
//!
//! Some times make sense only together with others: a link must not outlive the belief that its peer is alive, and a
//! client must wait longer for an answer than nodes wait for each other. [`Timing::validate`] checks these ties. Times
//! for which clients wait are derived here from the times of nodes, so that no number is written down twice.

mod tables;

use std::time::Duration;

use thiserror::Error;

use crate::exchange::Limits;
pub(crate) use tables::{
    CallTimes, ClockTimes, ControlTimes, JoinTimes, LinkTimes, MembershipTimes, RunLimits, WorkerTimes,
};

/// All intervals and time limits of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    pub(crate) clocks: ClockTimes,
    pub(crate) join: JoinTimes,
    pub(crate) membership: MembershipTimes,
    pub(crate) run: RunLimits,
    pub(crate) link: LinkTimes,
    pub(crate) workers: WorkerTimes,
    pub(crate) calls: CallTimes,
    pub(crate) control: ControlTimes,
}

/// Error of times that contradict each other, with a sentence for each contradiction.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("the node's time limits contradict each other: {}", .0.join("; "))]
pub struct TimingError(Vec<&'static str>);

impl Default for Timing {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Timing {
    /// Times of every node that is started from the command line.
    pub const DEFAULT: Self = Self {
        clocks: ClockTimes::DEFAULT,
        join: JoinTimes::DEFAULT,
        membership: MembershipTimes::DEFAULT,
        run: RunLimits::DEFAULT,
        link: LinkTimes::DEFAULT,
        workers: WorkerTimes::DEFAULT,
        calls: CallTimes::DEFAULT,
        control: ControlTimes::DEFAULT,
    };

    /// Returns the time for which a client waits for a run to begin: longer than the nodes, so that it hears their
    /// decision.
    #[must_use]
    pub const fn start_limit(&self) -> Duration {
        self.run.begin.saturating_add(Duration::from_mins(1))
    }

    /// Returns the time for which a client waits until a stopped run has ended and saved its model: as long as nodes
    /// wait for each other, and some seconds.
    #[must_use]
    pub const fn settle_limit(&self) -> Duration {
        self.run.settle.saturating_add(Duration::from_secs(15))
    }

    /// Returns the time that a node may take to stop: it reports what it has not sent, says good-bye and ends its
    /// workers.
    #[must_use]
    pub const fn stop_limit(&self) -> Duration {
        let JoinTimes {
            goodbye, unfinished, ..
        } = self.join;
        let told = goodbye.saturating_add(unfinished);
        told.saturating_add(self.workers.end)
            .saturating_add(Duration::from_secs(2))
    }

    /// Returns the time within which every node of a run has sent a record of its statistics.
    #[must_use]
    pub const fn record_limit(&self) -> Duration {
        self.clocks.record.saturating_add(Duration::from_millis(500))
    }

    /// Returns the time for which a client waits for the reply to a simple request. It is longer than a node that has
    /// no new records holds back its reply to a client that asks for some.
    #[must_use]
    pub const fn answer_limit(&self) -> Duration {
        self.calls.news.saturating_add(Duration::from_secs(3))
    }

    /// Checks that the times fit together; the error names every contradiction.
    pub fn validate(&self) -> Result<(), TimingError> {
        let broken: Vec<&'static str> = self
            .ties()
            .into_iter()
            .filter(|(holds, _)| !holds)
            .map(|(_, tie)| tie)
            .collect();
        if broken.is_empty() {
            Ok(())
        } else {
            Err(TimingError(broken))
        }
    }

    /// Returns every condition that a node's times must meet, as a sentence, with true if they meet it.
    fn ties(&self) -> Vec<(bool, &'static str)> {
        let Self {
            clocks,
            join,
            membership,
            run,
            link,
            workers,
            calls,
            control,
        } = self;
        let reset_ticks = Limits::for_weights(0).reset_ticks;
        vec![
            (self.are_positive(), "no time limit may be zero"),
            (
                clocks.membership_tick < membership.beat_every,
                "the membership must tick more often than it sends beats",
            ),
            (
                3 * membership.beat_every <= membership.away_after,
                "a node must count as silent only after it has missed three beats or more",
            ),
            (
                clocks.exchange_tick * reset_ticks == membership.away_after,
                "a link must count as dead after the same silence as the node at its other end",
            ),
            (
                membership.broken_after < membership.away_after,
                "a broken session must be noticed sooner than mere silence",
            ),
            (
                membership.away_after < control.node_silence,
                "the membership must know that a node is silent before the node's connection is closed for silence",
            ),
            (
                membership.away_after < membership.forget_after
                    && membership.forget_rumour_after <= membership.forget_after
                    && membership.forget_after <= membership.forget_participant_after,
                "a node must count as silent before it is forgotten; rumours must be forgotten first and participants last",
            ),
            (
                run.give_up_after < membership.forget_participant_after,
                "a run must give a participant up before the membership forgets the participant",
            ),
            (
                3 * run.beat_every <= run.silent_after && run.silent_after < run.give_up_after,
                "a participant must count as silent after three missed beats or more, and be given up later than that",
            ),
            (
                run.direct_is_fresh < run.silent_after,
                "other nodes must be able to relay a participant's state before the participant counts as silent",
            ),
            (
                2 * clocks.run_tick <= run.stood_still_after && run.stood_still_after < run.silent_after,
                "a node must notice that it stood still before it takes other nodes for silent, but not at every tick",
            ),
            (
                membership.away_after < run.orphaned && run.orphaned < run.begin,
                "a coordinator must count as silent before its run counts as orphaned, and the run must count as orphaned before \
                 it is cancelled",
            ),
            (
                run.workers_attach < run.begin && run.ask_again < run.begin,
                "nodes must have time to answer a request to prepare before the run is cancelled",
            ),
            (
                link.patience < run.links,
                "both ends of a link must have had time to dial before training begins without it",
            ),
            (
                link.answer <= link.young,
                "a link must count as young for at least as long as dialling a second link may take",
            ),
            (
                run.give_up_after <= run.remember,
                "a node that was not given up must still be told how the run ended",
            ),
            (
                clocks.report <= clocks.record,
                "the exchange must report at least as often as records are made",
            ),
            (
                link.pause <= link.pause_max
                    && membership.dial_pause <= membership.dial_pause_max
                    && workers.restart_pause <= workers.restart_pause_max,
                "no first retry pause may be longer than the longest retry pause",
            ),
            (
                workers.restart_pause_max < workers.steady,
                "a worker must run longer than the longest restart pause before it counts as steady",
            ),
            (
                join.pause < join.limit && join.dial < join.limit,
                "the time limit for joining must allow more than one attempt at each seed node",
            ),
            (
                calls.news < control.client_silence,
                "a node must answer a client that waits for news before the client counts as silent",
            ),
        ]
    }

    fn are_positive(&self) -> bool {
        self.clocks.are_positive()
            && self.join.are_positive()
            && self.membership.are_positive()
            && self.run.are_positive()
            && self.link.are_positive()
            && self.workers.are_positive()
            && self.calls.are_positive()
            && self.control.are_positive()
    }

    /// Returns all intervals and limits divided by `by`, for tests that wait for real.
    #[cfg(test)]
    pub(crate) fn faster(&self, by: u32) -> Self {
        Self {
            clocks: self.clocks.divided(by),
            join: self.join.divided(by),
            membership: self.membership.divided(by),
            run: self.run.divided(by),
            link: self.link.divided(by),
            workers: self.workers.divided(by),
            calls: self.calls.divided(by),
            control: self.control.divided(by),
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::job::JobDraft;

    use super::*;

    #[test]
    fn the_default_times_fit_together_at_any_pace() {
        Timing::DEFAULT.validate().unwrap();
        for by in [2, 10, 50] {
            Timing::DEFAULT.faster(by).validate().unwrap();
        }
    }

    #[test]
    fn a_change_that_breaks_a_tie_is_named() {
        let broken = |change: fn(&mut Timing)| {
            let mut timing = Timing::DEFAULT;
            change(&mut timing);
            timing.validate().unwrap_err().to_string()
        };
        let slow = broken(|timing| timing.clocks.exchange_tick *= 2);
        assert!(slow.contains("a link must count as dead"), "{slow}");
        let deaf = broken(|timing| timing.membership.away_after = Duration::from_secs(1));
        assert!(
            deaf.contains("missed three beats") && deaf.contains("a link must count as dead"),
            "all are named: {deaf}"
        );
        let hasty = broken(|timing| timing.run.links = timing.link.patience);
        assert!(hasty.contains("time to dial"), "{hasty}");
        let still = broken(|timing| timing.clocks.run_tick = Duration::from_secs(1));
        assert!(still.contains("stood still"), "{still}");
        assert!(broken(|timing| timing.calls.hello = Duration::ZERO).contains("zero"));
    }

    #[test]
    fn a_client_waits_longer_than_the_nodes_that_it_waits_for() {
        let mut timing = Timing::DEFAULT;
        timing.run.begin *= 3;
        timing.run.settle *= 3;
        timing.join.goodbye *= 3;
        timing.clocks.record *= 3;
        timing.calls.news *= 3;
        assert!(timing.start_limit() > timing.run.begin);
        assert!(timing.settle_limit() > timing.run.settle);
        assert!(timing.stop_limit() > timing.join.goodbye + timing.workers.end);
        assert!(timing.record_limit() > timing.clocks.record);
        assert!(timing.answer_limit() > timing.calls.news);
    }

    #[test]
    fn whatever_a_job_may_ask_for_fits_the_other_times() {
        for seconds in [5.0, 3600.0] {
            let draft = JobDraft {
                give_up_after: Some(seconds),
                ..JobDraft::default()
            };
            let timing = Timing {
                run: Timing::DEFAULT.run.of(&draft.resolve().unwrap()),
                ..Timing::DEFAULT
            };
            assert_eq!(timing.run.give_up_after, Duration::from_secs_f64(seconds));
            timing.validate().unwrap();
        }
    }
}
