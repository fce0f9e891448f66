//! Infers whether a run was started from the nodes' status, after the answer to the request was lost.
//!
//! A repeated request may start a second run. The request is therefore repeated only if it is certain that the first
//! one has started no run and cannot start one any more.

use protocol::reasons::RunFailure;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use protocol::ids::RunId;
use protocol::job::Job;
use protocol::wire::control::{Phase, RunStatus};

use crate::contact::{Answer, Unanswered};

/// Outcome of a request to start a run whose answer was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StartOutcome {
    /// The requested run has begun, as reported by the node at this address.
    Begun(RunId, SocketAddr),
    /// The node that was asked to start a run has called it off for this reason.
    CalledOff(RunFailure),
    /// The outcome of the request is not known yet: the requested run is being prepared, or may still begin.
    Open,
    /// The request to start a run has started none and will not start one.
    Nothing,
}

/// Runs that the nodes reported before the request to start one, by which a run that the request started is told from
/// older ones.
#[derive(Debug, Default)]
pub(super) struct Before {
    runs: BTreeSet<RunId>,
    /// Addresses of the nodes that reported their runs before the request to start one.
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

    /// Returns true if a run did not exist before the request. A node that had not answered then may report an old run
    /// now, so an ended run of such a node does not count as new.
    fn is_new(&self, status: &RunStatus, at: SocketAddr) -> bool {
        !self.runs.contains(&status.run) && (self.told.contains(&at) || status.outcome.is_none())
    }
}

/// Infers from the answers of all nodes what became of a request to start a run. `job` is the requested job, or `None`
/// if an earlier run was to be resumed.
pub(super) fn infer_outcome(asked: SocketAddr, job: Option<&Job>, before: &Before, answers: &[Answer]) -> StartOutcome {
    let known: BTreeMap<SocketAddr, StartOutcome> = answers
        .iter()
        .filter_map(|answer| Some((answer.address, known_by(answer, job, before)?)))
        .collect();
    let begun = known.values().find(|known| matches!(known, StartOutcome::Begun(..)));
    let open = known.values().find(|known| **known == StartOutcome::Open);
    // A silent node may still begin the run. The asked node will not if its process is gone, or answers without knowing
    // the run.
    let outcome = begun.or(open).or_else(|| known.get(&asked));
    outcome.cloned().unwrap_or(StartOutcome::Open)
}

/// Returns the outcome of the request to start a run as one node knows it, or `None` if the node is silent.
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
        // The number of training samples is set when a run begins, so 0 means that it failed before.
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

    /// Infers from these answers what became of a request to node A to start a run. Nodes A and B both knew run 1
    /// before the request.
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
        // The run was short, or failed after it had begun.
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
        // The last case has no answer from A.
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
        // B had not answered before: its ended run may be old, its running run is not.
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
        // The job of a resumed run is not known.
        let any = infer_outcome(at(A), None, &before, &[says(A, None), says(B, Some(other))]);
        assert_eq!(any, StartOutcome::Begun(RunId(7), at(B)));
    }
}
