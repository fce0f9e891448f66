//! Starting a run, once, though its answer may be lost on the way.

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

/// How long a cluster may take to get ready: large files are read and hashed.
const PREPARE_LIMIT: Duration = Timing::DEFAULT.start_limit();
/// How often it is looked whether the node that prepares the run is still there.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How long a node may be silent that was asked to start a run.
const SILENCE_LIMIT: Duration = Duration::from_mins(1);
/// How often in a row all must say that there is no run: a question may be read late.
const CERTAIN: u32 = 2;

/// Asks a cluster to start a run; returns when its nodes have begun. Tells meanwhile whom they wait for.
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

/// One attempt to start a run.
struct Attempt<'a> {
    contact: &'a Contact,
    request: &'a Request,
    before: Before,
    asked: SocketAddr,
}

impl Attempt<'_> {
    /// The run, or nothing if it is certain that there will be none.
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
                            // The reply to the request to start says that the run is called off.
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

    /// The answer is lost: looks for the run.
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

    /// Whether the asked node prepares the requested run, by its reply on its status. Not known of a run that is resumed: a
    /// node that still searches for its checkpoints may prepare another client's run.
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

    /// Follows a run that has begun, though the node that was asked for it does not answer, through another node.
    fn found(&self, run: RunId, at: SocketAddr) -> RunId {
        notice::say(&format!(
            "the node at {} does not answer, but run {run} has begun: following it through the node at {at}",
            self.asked
        ));
        self.contact.prefer(at);
        run
    }

    /// Nobody can tell what becomes of it.
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
/// What a run begins with.
pub(crate) enum What {
    /// A job.
    Job(Box<Job>),
    /// The furthest checkpoint of an earlier run, with its job but for what is to be another way.
    Resume(RunId, Box<JobDraft>),
}

/// Starts a run; returns when its nodes have begun.
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
