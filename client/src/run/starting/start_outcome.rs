//! Whether a run was started, judged by what nodes say after the answer was lost.
//!
//! A start that is asked twice may start two runs. So it is asked again only when it is certain that the first one came to
//! nothing, and nothing can come of it any more.

use protocol::reasons::RunFailure;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use protocol::ids::RunId;
use protocol::job::Job;
use protocol::wire::control::{Phase, RunStatus};

use crate::contact::{Answer, Unanswered};

/// What is known of a start whose answer was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StartOutcome {
    /// The run has begun, as the node at this address knows.
    Begun(RunId, SocketAddr),
    /// The node that was asked called it off, for this reason.
    CalledOff(RunFailure),
    /// It may be starting, or may start yet.
    Open,
    /// It came to nothing.
    Nothing,
}

/// The runs that were there before.
#[derive(Debug, Default)]
pub(super) struct Before {
    runs: BTreeSet<RunId>,
    /// Nodes that have told.
    told: BTreeSet<SocketAddr>,
}

impl Before {
    pub(super) fn new(answers: &[Answer]) -> Self {
        let told = answers.iter().filter(|answer| answer.reply.is_ok());
        Self {
            runs: answers
                .iter()
                .filter_map(Answer::status)
                .map(|status| status.run)
                .collect(),
            told: told.map(|answer| answer.address).collect(),
        }
    }

    /// Whether a run was not there before. A node that had not told of its last run may tell of it now; one that is over
    /// proves nothing then.
    fn is_new(&self, status: &RunStatus, at: SocketAddr) -> bool {
        !self.runs.contains(&status.run) && (self.told.contains(&at) || status.outcome.is_none())
    }
}

/// Judges by what all nodes say. `job`: what was to be trained; unknown if an earlier run was to be gone on with.
pub(super) fn infer_outcome(asked: SocketAddr, job: Option<&Job>, before: &Before, answers: &[Answer]) -> StartOutcome {
    let known: BTreeMap<SocketAddr, StartOutcome> = answers
        .iter()
        .filter_map(|answer| Some((answer.address, known_by(answer, job, before)?)))
        .collect();
    let begun = known.values().find(|known| matches!(known, StartOutcome::Begun(..)));
    let open = known.values().find(|known| **known == StartOutcome::Open);
    // A node that is silent may begin the run yet. One that was asked and is there no more, or is there again and knows
    // nothing of the run, will not.
    let outcome = begun.or(open).or_else(|| known.get(&asked));
    outcome.cloned().unwrap_or(StartOutcome::Open)
}

/// What one node knows of the run; none if it is silent.
fn known_by(answer: &Answer, job: Option<&Job>, before: &Before) -> Option<StartOutcome> {
    match answer.reply {
        Err(Unanswered::Gone) => return Some(StartOutcome::Nothing),
        Err(Unanswered::Silent) => return None,
        Ok(_) => {}
    }
    let ours = |status: &&RunStatus| {
        before.is_new(status, answer.address) && job.is_none_or(|job| job.may_become(&status.job))
    };
    let Some(status) = answer.status().filter(ours) else {
        return Some(StartOutcome::Nothing);
    };
    Some(match &status.outcome {
        // Samples are counted when it begins.
        Some(Err(reason)) if status.train == 0 => StartOutcome::CalledOff(reason.clone()),
        None if status.phase == Phase::Preparing => StartOutcome::Open,
        _ => StartOutcome::Begun(status.run, answer.address),
    })
}

#[cfg(test)]
mod tests {
    use protocol::bounded::BoundedVec;
    use protocol::job::JobDraft;
    use protocol::wire::control::Reply;

    use super::*;

    const A: u16 = 1;
    const B: u16 = 2;

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn job(epochs: u32) -> Job {
        let text = format!("epochs = {epochs}");
        JobDraft::from_toml(&text).unwrap().resolve().unwrap()
    }

    fn status(run: u64, phase: Phase, outcome: Option<RunFailure>) -> RunStatus {
        RunStatus {
            run: RunId(run),
            phase,
            job: Box::new(job(3)),
            train: u64::from(phase > Phase::Preparing && outcome.is_none()),
            workers: 3,
            chosen: BoundedVec::default(),
            succeeds: None,
            successor: None,
            outcome: outcome.map(Err),
            waiting: BoundedVec::default(),
        }
    }

    fn says(port: u16, status: Option<RunStatus>) -> Answer {
        Answer {
            address: at(port),
            reply: Ok(Reply::Status(status.map(Box::new))),
        }
    }

    fn says_not(port: u16, why: Unanswered) -> Answer {
        Answer {
            address: at(port),
            reply: Err(why),
        }
    }

    /// What becomes of a start that A was asked for, when both had run 1 before.
    fn verdict(answers: &[Answer]) -> StartOutcome {
        let old = || Some(status(1, Phase::Ended, Some(RunFailure::NotMeasured)));
        let before = Before::new(&[says(A, old()), says(B, old())]);
        infer_outcome(at(A), Some(&job(3)), &before, answers)
    }

    #[test]
    fn a_run_that_began_is_found_wherever_it_is() {
        let begun = || Some(status(7, Phase::Training, None));
        let found = StartOutcome::Begun(RunId(7), at(B));
        assert_eq!(verdict(&[says(A, None), says(B, begun())]), found);
        for why in [Unanswered::Gone, Unanswered::Silent] {
            assert_eq!(verdict(&[says_not(A, why), says(B, begun())]), found);
        }
        // It was short, or failed when it had begun.
        let over = RunStatus {
            train: 10,
            ..status(7, Phase::Ended, Some(RunFailure::NotMeasured))
        };
        assert_eq!(verdict(&[says_not(A, Unanswered::Gone), says(B, Some(over))]), found);
    }

    #[test]
    fn what_is_being_prepared_is_waited_for() {
        let preparing = || Some(status(7, Phase::Preparing, None));
        for a in [says(A, preparing()), says(A, None), says_not(A, Unanswered::Gone)] {
            assert_eq!(verdict(&[a, says(B, preparing())]), StartOutcome::Open);
        }
    }

    #[test]
    fn who_is_silent_may_begin_yet() {
        let off = || Some(status(7, Phase::Ended, Some(RunFailure::CoordinatorLost)));
        let silent = || says_not(A, Unanswered::Silent);
        // Nothing is known of A in the last one.
        for answers in [
            vec![silent(), says(B, None)],
            vec![silent(), says(B, off())],
            vec![says(B, None)],
        ] {
            assert_eq!(verdict(&answers), StartOutcome::Open, "{answers:?}");
        }
    }

    #[test]
    fn only_who_is_gone_or_knows_nothing_of_it_is_asked_again() {
        let off = || Some(status(7, Phase::Ended, Some(RunFailure::Stopped)));
        let old = || Some(status(1, Phase::Ended, Some(RunFailure::NotMeasured)));
        let gone = || says_not(A, Unanswered::Gone);
        for (a, b, outcome) in [
            (gone(), off(), StartOutcome::Nothing),
            (gone(), old(), StartOutcome::Nothing),
            (says(A, old()), old(), StartOutcome::Nothing),
            (says(A, off()), off(), StartOutcome::CalledOff(RunFailure::Stopped)),
        ] {
            assert_eq!(verdict(&[a, says(B, b)]), outcome);
        }
    }

    #[test]
    fn other_jobs_and_old_runs_are_not_it() {
        let other = RunStatus {
            job: Box::new(job(4)),
            ..status(7, Phase::Training, None)
        };
        assert_eq!(
            verdict(&[says(A, None), says(B, Some(other.clone()))]),
            StartOutcome::Nothing
        );
        // Nothing was known of B before: what is over there may be old, what is under way is not.
        let before = Before::new(&[says(A, None), says_not(B, Unanswered::Silent)]);
        let of = |status| infer_outcome(at(A), Some(&job(3)), &before, &[says(A, None), says(B, Some(status))]);
        let over = RunStatus {
            train: 10,
            ..status(5, Phase::Ended, Some(RunFailure::NotMeasured))
        };
        assert_eq!(of(over), StartOutcome::Nothing);
        assert_eq!(
            of(status(5, Phase::Training, None)),
            StartOutcome::Begun(RunId(5), at(B))
        );
        // Of a run that was gone on with the job is not known.
        let any = infer_outcome(at(A), None, &before, &[says(A, None), says(B, Some(other))]);
        assert_eq!(any, StartOutcome::Begun(RunId(7), at(B)));
    }
}
