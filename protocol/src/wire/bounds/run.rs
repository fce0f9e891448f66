//! The bounds of what nodes tell each other about a run.

use super::{MEMBERS_MAX, OutOfBounds, TIME_MAX, WORKERS_MAX, counts, time, within};
use crate::bounded::COUNT_MAX;
use crate::stats::measured::Scores;
use crate::stats::{Reading, WorkerStats};
use crate::wire::run_beat::{Ballot, ParticipantState, RunBeat, Settled};
use crate::wire::run_plan::RunPlan;

impl RunBeat {
    /// Whether a run can be so far.
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
    /// Whether a participant can be so far.
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
            // In a run that diverges it is no number.
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
    /// Whether a node can vote so.
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
    /// Whether a node can have ended so.
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
    /// Whether a model can be so good. The loss of one that has diverged is no number.
    pub fn check(&self) -> Result<(), OutOfBounds> {
        let Self { accuracy, loss: _, mae } = self;
        // Of numbers it is R², which is below zero where guessing their mean is better.
        let least = if mae.is_some() { -1e9 } else { 0.0 };
        within((least..=1.0).contains(accuracy), "an accuracy")
    }
}

impl WorkerStats {
    /// Whether workers can have done so much.
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
