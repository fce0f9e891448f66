//! Makes the records of this node's work from the reports of its workers and its exchange. Pure.

use std::time::{Duration, Instant};

use protocol::bounded::COUNT_MAX;
use protocol::ids::RunId;
use protocol::stats::measured::Evaluation;
use protocol::stats::{StatsRecord, Work, WorkerStats, record_interval};

use crate::node::exchange::Report;
use crate::run::RunReport;

/// Makes the records of this node's statistics, from the sums at the last record and the newest reports.
#[derive(Debug)]
pub(super) struct Records {
    every: Duration,
    recorded: Instant,
    /// Time at which the run that the newest report is about made its first step.
    begun: Instant,
    /// Newest figures that the exchange has reported, with their run.
    report: Option<(RunId, Report)>,
    /// Newest evaluation that this node's records have carried so far: its run, and its time in the run in seconds. The
    /// next record carries only later ones.
    evaluated: Option<(RunId, f64)>,
    /// Sums at this node's last record: statistics of the workers, and time for which they were throttled.
    before: (WorkerStats, Duration),
}

impl Records {
    /// Creates the maker of this node's records, with one record due every `every` from now on.
    pub(super) fn new(every: Duration, now: Instant) -> Self {
        Self {
            every,
            recorded: now,
            // No run has begun: records come at the usual interval.
            begun: now.checked_sub(2 * every).unwrap_or(now),
            report: None,
            evaluated: None,
            before: (WorkerStats::default(), Duration::ZERO),
        }
    }

    /// Keeps the figures that a run's exchange reports, for the next record.
    pub(super) fn reported(&mut self, run: RunId, report: Report, now: Instant) {
        if self.report.as_ref().is_none_or(|(known, _)| *known != run) {
            self.before = (WorkerStats::default(), Duration::ZERO);
            let age = Duration::try_from_secs_f64(report.moment.seconds).unwrap_or_default();
            self.begun = now.checked_sub(age).unwrap_or(now);
            // The first record of a run is about the time since its first step.
            self.recorded = self.recorded.max(self.begun);
        }
        self.report = Some((run, report));
    }

    /// Returns the time since this node's last record if another one is due, which then counts as made.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<Duration> {
        let elapsed = now.saturating_duration_since(self.recorded);
        let age = now.saturating_duration_since(self.begun);
        (elapsed >= record_interval(age, self.every)).then(|| self.take_now(now))
    }

    /// Returns the time since this node's last record; another one then counts as made.
    pub(super) fn take_now(&mut self, now: Instant) -> Duration {
        let elapsed = now.saturating_duration_since(self.recorded);
        self.recorded = now;
        // Rates must be finite, however short the time is.
        elapsed.max(Duration::from_millis(1))
    }

    /// Makes the record of this node's statistics since the last one. `exchange` is the run whose exchange is running:
    /// reports of another run's exchange are outdated and left out.
    pub(super) fn make(
        &mut self,
        status: Option<RunReport>,
        exchange: Option<RunId>,
        elapsed: Duration,
    ) -> StatsRecord {
        let Some(status) = status else {
            return StatsRecord {
                state: "idle".into(),
                ..StatsRecord::default()
            };
        };
        let told = self.evaluated.filter(|(run, _)| *run == status.run).map(|(_, at)| at);
        let all = status.course.evaluations();
        let is_new = |one: &&Evaluation| told.is_none_or(|told| one.seconds > told);
        let evaluations = all.iter().filter(is_new).cloned().collect();
        self.evaluated = all.last().map(|newest| (status.run, newest.seconds));
        let mut record = StatsRecord {
            run: status.run.to_string(),
            state: status.phase.text().into(),
            accuracy: status.scores.as_ref().and_then(|scores| scores.accuracy),
            mae: status.scores.as_ref().and_then(|scores| scores.mae),
            evaluation: all.last().cloned(),
            evaluations,
            waiting: status.waiting.into(),
            ..StatsRecord::default()
        };
        let current = |(run, _): &&(RunId, Report)| *run == status.run && exchange == Some(*run);
        let Some((_, report)) = self.report.as_ref().filter(current) else {
            return record;
        };
        let total = status.stats;
        let (before, paused_before) = std::mem::replace(&mut self.before, (total, report.paused));
        let seconds = elapsed.as_secs_f64();
        let work = Work {
            recent: &total.since(&before),
            total: &total,
            seconds,
            weights: report.weights,
        };
        record.take(&work, &report.figures);
        record.bytes_in = report.peers.iter().map(|peer| peer.bytes_in).sum();
        record.bytes_out = if report.peers.is_empty() {
            report.bytes_encoded
        } else {
            report.peers.iter().map(|peer| peer.bytes_out).sum()
        };
        record.digest = report.digest.to_string();
        record.queue = report.peers.iter().map(|peer| peer.queue).sum();
        record.paused_share = (report.paused.saturating_sub(paused_before).as_secs_f64() / seconds).min(1.0);
        (record.ledger_samples, record.seconds) = (report.moment.samples, report.moment.seconds);
        // The sum can exceed the limit of a record's number.
        record.bytes_dense = total.bytes_dense(report.weights, report.peers.len() + 1).min(COUNT_MAX);
        record.peers.clone_from(&report.peers);
        record
    }
}

#[cfg(test)]
mod tests {
    use protocol::reasons::waiting::WaitingFor;
    use protocol::stats::ExchangeFigures;
    use protocol::stats::measured::{Course, Moment};
    use protocol::wire::control::Phase;

    use super::*;

    const RUN: RunId = RunId(3);
    const SECOND: Duration = Duration::from_secs(1);

    fn status(samples: u64) -> RunReport {
        RunReport {
            run: RUN,
            phase: Phase::Training,
            stats: WorkerStats {
                samples,
                batches: 5,
                throttled: 2,
                ..WorkerStats::default()
            },
            scores: None,
            course: Course::default(),
            waiting: vec![WaitingFor::OtherNodes; 2 * StatsRecord::WAITING_MAX],
        }
    }

    fn report(paused: Duration) -> Report {
        Report {
            digest: protocol::weights::digest::Digest::default(),
            figures: ExchangeFigures {
                round: 8,
                late: 1,
                ..ExchangeFigures::default()
            },
            peers: Vec::new(),
            weights: 10,
            bytes_encoded: 77,
            paused,
            moment: Moment {
                samples: 500,
                seconds: 2.5,
            },
        }
    }

    #[test]
    fn a_record_is_of_the_time_since_the_last_one() {
        let start = Instant::now();
        let mut records = Records::new(SECOND, start);
        records.reported(RUN, report(SECOND), start);
        assert_eq!(
            records
                .make(Some(status(100)), Some(RUN), 2 * SECOND)
                .samples_per_second,
            50.0
        );
        records.reported(RUN, report(SECOND * 3 / 2), start);
        let record = records.make(Some(status(400)), Some(RUN), SECOND);
        assert_eq!((record.samples_per_second, record.samples), (300.0, 400));
        assert_eq!(record.paused_share, 0.5);
        assert_eq!((record.ledger_samples, record.seconds), (500, 2.5));
        assert_eq!(record.bytes_dense, 7 * 10 * 4);
        assert_eq!((record.round, record.late), (8, 1));
        assert_eq!(
            record.bytes_out, 77,
            "without peers, the bytes that would have been sent to one"
        );
        assert_eq!(record.waiting.len(), StatsRecord::WAITING_MAX);
        records.reported(RunId(4), report(Duration::ZERO), start);
        let next = RunReport {
            run: RunId(4),
            ..status(10)
        };
        let record = records.make(Some(next), Some(RunId(4)), SECOND);
        assert_eq!(
            record.samples_per_second, 10.0,
            "the sample rate of another run starts from zero"
        );
    }

    #[test]
    fn without_an_exchange_there_is_nothing_to_tell_of_it() {
        let start = Instant::now();
        let mut records = Records::new(SECOND, start);
        assert_eq!(records.make(None, None, SECOND).state, "idle");
        records.reported(RUN, report(SECOND), start);
        let record = records.make(Some(status(100)), None, SECOND);
        assert_eq!((record.samples, &*record.run), (0, &*RUN.to_string()));
    }

    #[test]
    fn a_record_is_due_now_and_then_and_more_often_when_a_run_begins() {
        // A monotonic clock may be younger than two seconds.
        let start = Instant::now() + 10 * SECOND;
        let mut records = Records::new(SECOND, start);
        assert_eq!(records.take_due(start + SECOND / 2), None);
        assert_eq!(records.take_due(start + SECOND * 5 / 4), Some(SECOND * 5 / 4));
        assert_eq!(records.take_due(start + 2 * SECOND), None);

        let mut report = report(Duration::ZERO);
        report.moment.seconds = 0.05;
        records.take_now(start + 200 * SECOND);
        let begun = start + 201 * SECOND;
        records.reported(RUN, report, begun + SECOND / 20);
        let due: Vec<u32> = (1..=400)
            .filter(|at| records.take_due(begun + SECOND * *at / 100).is_some())
            .collect();
        assert_eq!(
            due,
            [5, 10, 20, 40, 80, 160, 260, 360],
            "records are due at these hundredths of a second"
        );
    }

    #[test]
    fn every_evaluation_is_told_of_once() {
        let mut records = Records::new(SECOND, Instant::now());
        let mut course = Course::default();
        let mut told = |run: RunId, seconds: &[f64]| {
            for &seconds in seconds {
                course.add(Evaluation {
                    seconds,
                    ..Evaluation::default()
                });
            }
            let status = RunReport {
                run,
                course: course.clone(),
                ..status(0)
            };
            let record = records.make(Some(status), None, SECOND);
            let newest = record.evaluation.map(|one| one.seconds);
            (
                record.evaluations.iter().map(|one| one.seconds).collect::<Vec<_>>(),
                newest,
            )
        };
        assert_eq!(told(RUN, &[]), (vec![], None));
        assert_eq!(told(RUN, &[0.0, 0.1]), (vec![0.0, 0.1], Some(0.1)));
        assert_eq!(told(RUN, &[]), (vec![], Some(0.1)));
        assert_eq!(told(RUN, &[0.2]), (vec![0.2], Some(0.2)));
        assert_eq!(
            told(RunId(4), &[]).0,
            [0.0, 0.1, 0.2],
            "evaluations of another run were never told before"
        );
    }
}
