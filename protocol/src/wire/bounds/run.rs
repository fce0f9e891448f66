//! Limits of messages between nodes about a run.

use super::{MEMBERS_MAX, OutOfBounds, TIME_MAX, WORKERS_MAX, counts, time, within};
use crate::bounded::COUNT_MAX;
use crate::stats::measured::Scores;
use crate::stats::{Reading, WorkerStats};
use crate::wire::run_beat::{Ballot, ParticipantState, RunBeat, Settled};
use crate::wire::run_plan::RunPlan;

impl RunBeat {
    /// Checks a run's plan and its participants' states, received from another node, against the limits of honest
    /// nodes.
    pub fn check(&self) -> Result<(), OutOfBounds> {
        let Self {
            run: _,
            plan,
            stop: _,
            diverged: _,
            states,
        } = self;
        plan.as_ref().map_or(Ok(()), RunPlan::check)?;
        within(states.len() <= MEMBERS_MAX, "the number of participants")?;
        states.iter().try_for_each(|(_, state)| state.check())
    }
}

impl ParticipantState {
    /// Checks a participant's state in a run, received from another node, against the limits that honest nodes keep.
    pub fn check(&self) -> Result<(), OutOfBounds> {
        let Self {
            number,
            closed: _,
            stands_by: _,
            unmanned: _,
            starved: _,
            fingerprint: _,
            catching_up: _,
            attempt,
            ballot,
            frozen: _,
            decided: _,
            settled,
            saved: _,
            ended: _,
            withdrawn: _,
            // In a run that diverges this number may be NaN or infinite.
            residual_lost: _,
            given_up,
        } = self;
        counts([*number, *attempt])?;
        within(given_up.len() <= MEMBERS_MAX, "the number of participants")?;
        ballot.as_ref().map_or(Ok(()), Ballot::check)?;
        settled.as_ref().map_or(Ok(()), Settled::check)
    }
}

impl Ballot {
    /// Checks a participant's ballot on the end of a run, received from another node, against the limits of honest
    /// nodes.
    fn check(&self) -> Result<(), OutOfBounds> {
        let Self {
            fingerprint: _,
            members: _,
            attempt,
        } = self;
        counts([*attempt])
    }
}

impl Settled {
    /// Checks the result with which another node ended a run against the limits that honest nodes keep.
    pub fn check(&self) -> Result<(), OutOfBounds> {
        let Self {
            digest: _,
            whole: _,
            workers_agree: _,
            stats,
            samples,
            repeated,
            bytes_sent,
            seconds,
            usage,
            course,
            scores,
        } = self;
        stats.check()?;
        counts([*samples, *repeated, *bytes_sent])?;
        time(*seconds)?;
        usage.check()?;
        course.check()?;
        scores.as_ref().map_or(Ok(()), Scores::check)
    }
}

impl Scores {
    /// Checks that the scores of a model, received from another node, are possible. The loss of a diverged model may be
    /// NaN or infinite.
    pub fn check(&self) -> Result<(), OutOfBounds> {
        let Self {
            accuracy,
            loss: _,
            mae,
            named: _,
        } = self;
        // For predicted numbers this is R², which is negative if guessing their mean is better.
        let least = if mae.is_some() { -1e9 } else { 0.0 };
        let is_possible = accuracy.is_none_or(|accuracy| (least..=1.0).contains(&accuracy));
        within(is_possible, "an accuracy")
    }
}

impl WorkerStats {
    /// Checks the statistics of another node's workers against the limits that honest nodes keep.
    pub fn check(&self) -> Result<(), OutOfBounds> {
        self.readings().try_for_each(|(name, reading)| {
            let is_valid = match reading {
                Reading::Count(count) => count <= COUNT_MAX,
                Reading::Time(time) => time <= TIME_MAX.saturating_mul(WORKERS_MAX as u32),
                Reading::Finite(number) => number.is_finite(),
                Reading::Any => true,
            };
            within(is_valid, name)
        })
    }
}
