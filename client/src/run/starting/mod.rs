//! Starts a run exactly once, even if the answer to the request is lost on the way.

mod start_outcome;

use protocol::reasons::waiting::WaitingFor;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use communicator::Timing;
use communicator::control::CallError;
use protocol::ids::RunId;
use protocol::job::{Job, JobDraft};
use protocol::wire::control::{Reply, Request, RunOrder};
use tokio::time::sleep;

use crate::contact::{ANSWER_LIMIT, Answer, Contact, NodeConnection, unexpected};
use crate::failure::Failure;
use crate::output::{Audience, notice};
use crate::progress::View;
use crate::run::interrupt;
use start_outcome::{Before, StartOutcome, infer_outcome};

/// Time limit for a cluster to prepare a run: nodes read and hash large files.
const PREPARE_LIMIT: Duration = Timing::DEFAULT.start_limit();
/// Interval between requests that check whether the node that prepares the run still answers.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Time for which the node that was asked to start a run may be silent before the command fails, unless another node
/// reports the run.
const SILENCE_LIMIT: Duration = Duration::from_mins(1);
/// Number of consecutive surveys in which nodes must report no new run before the request to start one is sent again: a
/// node may read the request late.
const CERTAIN: u32 = 2;

/// Asks a cluster to start a run, and returns the run's id when the nodes have begun it. Until then calls `waits` with
/// the reasons for which the nodes wait.
pub(crate) async fn start(
    contact: &Contact,
    request: &Request,
    waits: impl Fn(&[WaitingFor]),
) -> Result<RunId, Failure> {
    loop {
        let line = contact.line().await?;
        let before = Before::new(&contact.ask_each(Request::Status).await);
        let attempt = Attempt {
            contact,
            request,
            before,
            asked: line.connection.address(),
        };
        if let Some(run) = attempt.make(&line, &waits).await? {
            return Ok(run);
        }
        notice::say(&format!(
            "the node at {} has not started the run; asking again",
            attempt.asked
        ));
    }
}

/// One attempt to start a run through one node.
struct Attempt<'a> {
    contact: &'a Contact,
    request: &'a Request,
    before: Before,
    asked: SocketAddr,
}

impl Attempt<'_> {
    /// Sends the request to start a run and returns the run, or `None` if it is certain that the request will not start
    /// one.
    async fn make(&self, line: &NodeConnection, waits: &impl Fn(&[WaitingFor])) -> Result<Option<RunId>, Failure> {
        let mut answer = std::pin::pin!(line.connection.ask(self.request.clone(), PREPARE_LIMIT));
        let mut heard = Instant::now();
        loop {
            tokio::select! {
                reply = &mut answer => match reply {
                    Ok(Reply::Started(run)) => return Ok(Some(run)),
                    Ok(other) => return Err(unexpected(other)),
                    Err(error @ CallError::Unreadable(_)) => return Err(Failure::work(error)),
                    Err(_) => break,
                },
                () = sleep(LOOK_AGAIN) => {
                    if let Ok(reply) = line.connection.ask(Request::Status, ANSWER_LIMIT).await {
                        heard = Instant::now();
                        if let Reply::Status(Some(status)) = &reply {
                            waits(&status.waiting);
                        }
                        if interrupt::asked() && self.is_prepared(reply) {
                            // The reply to the request to start will say that the run is called off.
                            let _ = line.connection.ask(Request::Order(RunOrder::Stop), ANSWER_LIMIT).await;
                        }
                    } else if let StartOutcome::Begun(run, at) = self.look().await {
                        return Ok(Some(self.found(run, at)));
                    } else if heard.elapsed() > SILENCE_LIMIT {
                        return Err(self.open());
                    }
                }
            }
        }
        self.contact.hang_up(line);
        self.search().await
    }

    /// Searches all nodes for the run after the answer to the request was lost.
    async fn search(&self) -> Result<Option<RunId>, Failure> {
        let (since, mut heard, mut nothing) = (Instant::now(), Instant::now(), 0);
        while nothing < CERTAIN {
            let answers = self.contact.ask_each(Request::Status).await;
            let mut of_asked = answers.iter().filter(|answer| answer.address == self.asked);
            if of_asked.any(|answer| answer.reply.is_ok()) {
                heard = Instant::now();
            }
            match infer_outcome(self.asked, self.job(), &self.before, &answers) {
                StartOutcome::Begun(run, at) => return Ok(Some(self.found(run, at))),
                StartOutcome::CalledOff(reason) => return Err(Failure::Refused(vec![reason.to_string()])),
                StartOutcome::Nothing => nothing += 1,
                StartOutcome::Open if heard.elapsed() > SILENCE_LIMIT || since.elapsed() > PREPARE_LIMIT => {
                    return Err(self.open());
                }
                StartOutcome::Open => nothing = 0,
            }
            sleep(LOOK_AGAIN).await;
        }
        Ok(None)
    }

    /// Returns true if the asked node is preparing the requested run, judged by its reply to a status request. Always
    /// false for a run that is resumed: a node that still searches for its checkpoints may be preparing another
    /// client's run.
    fn is_prepared(&self, reply: Reply) -> bool {
        let answer = Answer {
            address: self.asked,
            reply: Ok(reply),
        };
        let job = self.job();
        job.is_some() && infer_outcome(self.asked, job, &self.before, &[answer]) == StartOutcome::Open
    }

    async fn look(&self) -> StartOutcome {
        let answers = self.contact.ask_each(Request::Status).await;
        infer_outcome(self.asked, self.job(), &self.before, &answers)
    }

    fn job(&self) -> Option<&Job> {
        match self.request {
            Request::StartTraining { job, .. } => Some(job),
            _ => None,
        }
    }

    /// Tells the user that the asked node does not answer but the node at `at` reports the run, and sends further
    /// requests to that node.
    fn found(&self, run: RunId, at: SocketAddr) -> RunId {
        notice::say(&format!(
            "the node at {} does not answer, but run {run} has begun: following it through the node at {at}",
            self.asked
        ));
        self.contact.prefer(at);
        run
    }

    /// Returns the failure that is reported if the node that was asked to start a run falls silent, and no other node
    /// knows whether the run will begin.
    fn open(&self) -> Failure {
        let seconds = SILENCE_LIMIT.as_secs();
        Failure::Failed(format!(
            "the node at {} was asked to start the run and has not answered for {seconds} seconds: no other node \
             knows of the run, which may still begin when that node resumes; 'tau start --attach' then follows the \
             run",
            self.asked
        ))
    }
}
/// Starting point of a run: a new job or an earlier run's checkpoint.
pub(crate) enum What {
    /// Starting point of a run: the initial weights of a new job.
    Job(Box<Job>),
    /// Starting point of a run: the furthest checkpoint of an earlier run. The draft holds the settings that replace
    /// those of the earlier job.
    Resume(RunId, Box<JobDraft>),
}

/// Starts a run, with a progress display, and returns its id when the nodes have begun it.
pub(crate) async fn begin(
    contact: &Contact,
    what: What,
    allow_partial: bool,
    audience: Audience,
) -> Result<RunId, Failure> {
    let view = View::new(0, audience);
    view.busy("preparing: nodes open the data");
    let request = match what {
        What::Job(job) => Request::StartTraining { job, allow_partial },
        What::Resume(run, changes) => Request::Resume {
            run,
            changes,
            allow_partial,
        },
    };
    let run = start(contact, &request, |waiting| view.waits(waiting)).await;
    view.clear();
    run
}
