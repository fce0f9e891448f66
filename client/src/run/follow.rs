//! Follows a run from a client: prints its progress, then fetches its model and reports its result.

use std::sync::Arc;
use std::time::{Duration, Instant};

use protocol::ids::RunId;
use protocol::stats::{EventLine, Finished, StatsRecord};
use protocol::wire::control::{Phase, Reply, Request, RunOrder, RunResult, RunStatus};
use tokio::sync::mpsc;

use super::journal::Journal;
use super::out_folder::OutFolder;
use super::{fetch, interrupt};
use crate::clock;
use crate::contact::stats_reader::StatsReader;
use crate::contact::{Answer, Contact, Unanswered, unexpected};
use crate::failure::Failure;
use crate::output::{self, Audience, notice, quantity};
use crate::progress::View;
use crate::progress::waiting::Waiting;
use crate::settings::chosen;
use crate::timeline::{End, Facts, Timeline, TimelineEntry};

/// Interval at which a client asks for the state of the run that it follows.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Time to wait for the nodes' last records after a run has ended. Nodes out of reach deliver none.
const LAST_RECORDS_LIMIT: Duration = Duration::from_secs(1);
/// Time for which the followed node, and then all nodes, are asked for checkpoints after SIGTERM, before the run is
/// stopped.
const CHECKPOINT_LIMIT: Duration = Duration::from_secs(1);
/// Time for which a client searches for a node that knows the run, as long as some nodes have not answered.
const SEARCH_LIMIT: Duration = Duration::from_mins(1);

/// Follows a run to its end, fetches its model and returns its result.
pub(crate) async fn follow(
    contact: &Arc<Contact>,
    run: RunId,
    out: &OutFolder,
    audience: Audience,
) -> Result<Finished, Failure> {
    let first = status(contact, run).await?;
    let folder = out.of_run(run)?;
    if let Some(other) = folder.not_latest() {
        notice::say(&format!(
            "warning: {} is not a symbolic link and was not changed to point at this run, which is saved in {}",
            other.display(),
            folder.path().display()
        ));
    }
    // The job is written again with the result, and only then is a failure an error: a full disk must not prevent
    // following.
    let _ = folder.keep_job(&first.job);
    let facts = Facts::of(&first);
    if audience == Audience::People {
        let epochs = quantity::of(facts.epochs as usize, "epoch");
        notice::say(&format!("run {run}: {} · {epochs}", facts.job()));
    }
    if let Some(chosen) = chosen::line(&first).filter(|_| audience == Audience::People) {
        notice::say(&chosen);
    }
    if let Some(warning) = whole_data_in_a_step(&first) {
        notice::say(&format!("warning: {warning}"));
    }
    let view = View::new(facts.total(), audience);
    let mut account = RunRecorder {
        run: run.to_string(),
        timeline: Timeline::default(),
        journal: Journal::open(&folder),
        audience,
        successor: None,
    };
    account.note(TimelineEntry::Followed { run: run.to_string() });
    let ended = watch(contact, run, (&view, &mut account), audience).await;
    view.clear();
    if let (Err(failure), Some(successor)) = (&ended, account.successor) {
        notice::say(&format!("warning: run {run}: {}", failure.reasons().join("; ")));
        view.busy("waiting for the new run at half the learning rate");
        until_known(contact, successor).await?;
        view.clear();
        return Box::pin(follow(contact, successor, out, audience)).await;
    }
    let saved = match ended {
        Ok((status, result)) => fetch::save(contact, run, &status, &result, &folder).await,
        Err(failure) => Err(failure),
    };
    match &saved {
        Ok(finished) => {
            if let Some(last) = finished.evaluations.last() {
                account.journal.add_evaluation(clock::now(), last);
            }
        }
        Err(failure) if !account.has_failed() => {
            let reason = failure.reasons().join("; ");
            account.note(TimelineEntry::Failed { reason });
        }
        Err(_) => {}
    }
    saved
}

/// Returns a warning if one minibatch is larger than the whole training data.
fn whole_data_in_a_step(status: &RunStatus) -> Option<String> {
    let (step, train) = (status.job.step_samples(), status.train);
    (train > 0 && u64::from(step) > train).then(|| {
        format!(
            "a minibatch of {step} is larger than the training data, so that every epoch is one step of {}: lower \
             --minibatch",
            quantity::of(train as usize, "sample")
        )
    })
}

/// Collects the records and the state of a followed run, and writes them to its journal.
struct RunRecorder {
    run: String,
    timeline: Timeline,
    journal: Journal,
    audience: Audience,
    /// The run that repeats this one at half the learning rate, because this one has diverged.
    successor: Option<RunId>,
}

impl RunRecorder {
    /// Takes records of nodes: those of the followed run go to the journal, the timeline and, for scripts, to standard
    /// output.
    fn take(&mut self, records: &[StatsRecord]) {
        for record in records.iter().filter(|record| record.run == self.run) {
            if self.audience == Audience::Scripts {
                output::line(&EventLine { event: "stats", record });
            }
            let record = std::slice::from_ref(record);
            self.journal.take(record);
            for happened in self.timeline.take(record) {
                self.journal.note(&happened);
            }
        }
    }

    /// Takes a newer state of the followed run, and writes the events that follow from it to the journal.
    fn look(&mut self, status: &RunStatus) {
        for happened in self.timeline.take_facts(Facts::of(status), clock::now()) {
            self.journal.note(&happened);
        }
    }

    /// Returns true if the nodes have reported that the run failed.
    fn has_failed(&self) -> bool {
        let end = self.timeline.facts().and_then(|facts| facts.end.as_ref());
        matches!(end, Some(End::Failed { .. }))
    }

    /// Returns true if each of these nodes has sent a record from the end of the run, so that no more records need to
    /// be awaited.
    fn has_ended(&self, nodes: &[String]) -> bool {
        let ends = [Phase::Finishing, Phase::Ended].map(Phase::text);
        let records = || self.timeline.nodes().iter().map(|node| &node.record);
        let told = |record: &StatsRecord| record.run == self.run && ends.contains(&&*record.state);
        nodes
            .iter()
            .all(|name| records().any(|record| record.node == *name && told(record)))
    }

    fn note(&mut self, what: TimelineEntry) {
        let happened = self.timeline.note(clock::now(), what);
        self.journal.note(&happened);
    }
}

/// Returns the state of this run from a node that knows it. A node may not know the run, because it joined later or
/// takes part in another run by now, and one node may report a failure while the others go on: then the other nodes are
/// asked too.
async fn status(contact: &Contact, run: RunId) -> Result<Box<RunStatus>, Failure> {
    let since = Instant::now();
    loop {
        match contact.ask(Request::Status).await? {
            Reply::Status(Some(status)) if status.run == run && worth(&status) > ReportRank::Failed => {
                return Ok(status);
            }
            Reply::Status(_) => {}
            other => return Err(unexpected(other)),
        }
        let answers = contact.ask_each(Request::Status).await;
        if let Some((answer, status)) = best(run, &answers) {
            if worth(status) > ReportRank::Failed {
                contact.prefer(answer.address);
            }
            return Ok(Box::new(status.clone()));
        }
        let silent = |answer: &Answer| matches!(answer.reply, Err(Unanswered::Silent));
        if !answers.iter().any(silent) || since.elapsed() > SEARCH_LIMIT {
            return Err(Failure::Failed(format!("no node knows of run {run} any more")));
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Time limit for the nodes to prepare the run that repeats a diverged one.
pub(crate) const SUCCESSOR_LIMIT: Duration = Duration::from_mins(2);

/// Returns true if a run has diverged and no node knows the run that repeats it yet: there is no run to stop now, but
/// there will be.
pub(crate) fn awaits_successor(answers: &[Answer]) -> bool {
    let known = || answers.iter().filter_map(Answer::status);
    let is_known = |run: RunId| known().any(|status| status.run == run);
    known().any(|status| status.outcome.is_some() && status.successor.is_some_and(|next| !is_known(next)))
}

/// Waits until a node reports that this run, which repeats a diverged run, has begun. If the user asks for the end
/// meanwhile, the run is stopped.
async fn until_known(contact: &Contact, run: RunId) -> Result<(), Failure> {
    let since = Instant::now();
    while since.elapsed() < SUCCESSOR_LIMIT {
        let answers = contact.ask_each(Request::Status).await;
        let begun = |(_, status): &(&Answer, &RunStatus)| status.phase != Phase::Preparing;
        if best(run, &answers).is_some_and(|found| begun(&found)) {
            return Ok(());
        }
        if interrupt::asked() {
            match contact.ask(Request::Order(RunOrder::Stop)).await? {
                Reply::Ordered(_) => {
                    interrupt::stop_sent();
                    return Ok(());
                }
                Reply::CalledOff(_) => {
                    return Err(Failure::Failed(format!("run {run} was stopped before it began")));
                }
                // No node has a run to stop before the nodes know this run.
                _ => {}
            }
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    let seconds = SUCCESSOR_LIMIT.as_secs();
    Err(Failure::Failed(format!(
        "run {run}, which repeats the diverged run at half the learning rate, did not begin within {seconds} \
         seconds: see the nodes' logs"
    )))
}

/// Rank of a node's report on the followed run: if the reports of several nodes differ, the one with the highest rank
/// counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ReportRank {
    Failed,
    UnderWay,
    Finished,
}

fn worth(status: &RunStatus) -> ReportRank {
    match &status.outcome {
        Some(Err(_)) => ReportRank::Failed,
        None => ReportRank::UnderWay,
        Some(Ok(_)) => ReportRank::Finished,
    }
}

/// Returns the report of the highest rank on a run (finished before under way before failed), with the answer that
/// carries it.
pub(crate) fn best(run: RunId, answers: &[Answer]) -> Option<(&Answer, &RunStatus)> {
    let known = answers
        .iter()
        .filter_map(|answer| Some((answer, answer.status_of(run)?)));
    known.max_by_key(|(_, status)| worth(status))
}

/// Shows the progress of a run until it has ended, and returns its final state and result.
async fn watch(
    contact: &Arc<Contact>,
    run: RunId,
    (view, account): (&View, &mut RunRecorder),
    audience: Audience,
) -> Result<(Box<RunStatus>, Box<RunResult>), Failure> {
    let (sender, mut records) = mpsc::channel(16);
    let reading = ScopedTask(tokio::spawn(read(Arc::clone(contact), sender)));
    let _stopping = ScopedTask(tokio::spawn(stop_when_terminated(Arc::clone(contact))));
    let mut waiting = Waiting::default();
    let mut stopping = false;
    let mut phase = Phase::Preparing;
    let outcome = loop {
        let mut status = status(contact, run).await?;
        while let Ok(new) = records.try_recv() {
            account.take(&new);
        }
        account.look(&status);
        if phase != status.phase && matches!(status.phase, Phase::Settling | Phase::Finishing) {
            view.busy("settling, evaluating and saving");
        } else if status.phase == Phase::Training && !stopping {
            view.show(&account.timeline.summary());
        }
        phase = status.phase;
        if let Some(outcome) = status.outcome.take() {
            account.successor = status.successor;
            break outcome.map(|result| (status, result));
        }
        waiting.take(run, &status.waiting, view, audience);
        if interrupt::asked() && !stopping {
            stopping = true;
            account.note(TimelineEntry::StopAsked);
            view.busy("ending the run");
            // After SIGTERM, `stop_when_terminated` stops the run.
            if !interrupt::is_terminated() {
                contact.ask(Request::Order(RunOrder::Stop)).await?;
                interrupt::stop_sent();
            }
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    };
    // Every node sends its last record before it reports that it has settled: the last records are here or on their
    // way.
    let deadline = tokio::time::Instant::now() + LAST_RECORDS_LIMIT;
    let participants = outcome.as_ref().map_or(&[][..], |(_, result)| &result.participants);
    while !account.has_ended(participants)
        && let Ok(Some(last)) = tokio::time::timeout_at(deadline, records.recv()).await
    {
        account.take(&last);
    }
    drop(reading);
    while let Ok(last) = records.try_recv() {
        account.take(&last);
    }
    outcome.map_err(|reason| Failure::Failed(reason.to_string()))
}

/// Task that is aborted when this guard is dropped.
struct ScopedTask(tokio::task::JoinHandle<()>);

impl Drop for ScopedTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Stops the run after SIGTERM, in a task of its own: little time is left, and the node that this client follows may no
/// longer answer.
async fn stop_when_terminated(contact: Arc<Contact>) {
    const CHECKPOINT: Request = Request::Order(RunOrder::Checkpoint);
    interrupt::termination().await;
    // A run that is not saved in the remaining time can continue from a checkpoint.
    let asked = tokio::time::timeout(CHECKPOINT_LIMIT, contact.ask(CHECKPOINT)).await;
    if asked.is_err() {
        let _ = tokio::time::timeout(CHECKPOINT_LIMIT, contact.ask_each(CHECKPOINT)).await;
    }
    let mut is_heard = false;
    while !is_heard {
        let hear = |answer: Answer| {
            if let Ok(Reply::Ordered(_)) = answer.reply {
                is_heard = true;
                interrupt::stop_sent();
            }
        };
        contact.ask_each_with(Request::Order(RunOrder::Stop), hear).await;
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

async fn read(contact: Arc<Contact>, sender: mpsc::Sender<Vec<StatsRecord>>) {
    let mut reader = StatsReader::default();
    // An error ends only this task: requests for the run's state fail too, and their caller reports that no node
    // answers.
    while let Ok(records) = reader.read(&contact).await {
        if sender.send(records).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use protocol::bounded::BoundedVec;
    use protocol::job::JobDraft;
    use protocol::reasons::RunFailure;

    use super::*;

    fn says(port: u16, run: u64, outcome: Option<RunFailure>) -> Answer {
        Answer {
            address: SocketAddr::from(([127, 0, 0, 1], port)),
            reply: Ok(Reply::Status(Some(Box::new(RunStatus {
                run: RunId(run),
                phase: Phase::Training,
                job: Box::new(JobDraft::default().resolve().unwrap()),
                train: 10,
                workers: 3,
                chosen: BoundedVec::default(),
                succeeds: None,
                successor: None,
                outcome: outcome.map(Err),
                waiting: BoundedVec::default(),
            })))),
        }
    }

    #[test]
    fn a_run_that_has_diverged_awaits_its_successor_until_a_node_knows_of_it() {
        let mut diverged = says(1, 7, Some(RunFailure::NotMeasured));
        assert!(!awaits_successor(std::slice::from_ref(&diverged)));
        if let Ok(Reply::Status(Some(status))) = &mut diverged.reply {
            status.successor = Some(RunId(8));
        }
        assert!(awaits_successor(&[diverged.clone(), says(2, 6, None)]));
        assert!(!awaits_successor(&[diverged, says(2, 8, None)]));
    }

    #[test]
    fn one_nodes_failure_is_not_the_runs_while_others_go_on() {
        let found = |answers: &[Answer]| best(RunId(7), answers).map(|(answer, _)| answer.address.port());
        assert_eq!(
            found(&[
                says(1, 7, Some(RunFailure::NotMeasured)),
                says(2, 7, None),
                says(3, 8, None)
            ]),
            Some(2)
        );
        assert_eq!(
            found(&[says(1, 7, Some(RunFailure::NotMeasured)), says(3, 8, None)]),
            Some(1)
        );
        assert_eq!(found(&[says(3, 8, None)]), None);
    }
}
