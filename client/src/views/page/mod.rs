//! The live page: a cluster and its run in a browser, served by a node or by a client that follows a run.
//!
//! The page is one file without external resources. It requests news every second and gets only what it lacks, so slow
//! or closed pages cost the server nothing. The report of a run is the same page with all news in it.

mod documents;
mod news;
mod replay;
pub(crate) mod report;
mod text;

use protocol::reasons::texts;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use hyper::StatusCode;
use protocol::stats::Finished;
use protocol::wire::control::{Reply, Request, RunOrder};
use serde::Serialize;

use super::watching::{Source, Watch};
use crate::contact::Contact;
use crate::failure::Failure;
use crate::http::{self, Answer, Question, Secret, Server};
use crate::output::{self, Audience, notice};
use crate::run::interrupt;
use crate::sync::lock;
use crate::timeline::End;
use news::{News, PageKnows};
pub(crate) use replay::Replay;
use text::Text;

/// Time after a page's last request in which it counts as open: the process waits at most this long before it exits, so
/// that open pages learn how the run ended.
const LAST_LOOK: Duration = Duration::from_secs(5);
/// Interval at which an open web page asks the server for news.
const ASKS_EVERY: Duration = Duration::from_secs(1);

/// Content of a served page: a live cluster or an ended run.
#[derive(Clone)]
enum Shows {
    /// A served page shows the present state of a cluster and its run.
    Live(Live),
    /// A served page shows a run that has ended.
    Past(Arc<Mutex<Replay>>),
}

#[derive(Clone)]
struct Live {
    /// Random id of this process, by which a page recognises that its server was restarted.
    source: String,
    watch: Arc<Watch>,
    /// True if users with the page's token may stop runs.
    may_stop: bool,
    model: Model,
}

/// Source of the path of the model's file that a page shows when a run has ended: the node or the client that serves
/// the page.
#[derive(Clone, Debug)]
pub(crate) enum Model {
    /// A node serves the page, which shows the path at which the node has saved the model.
    OfNode,
    /// A client serves the page, which shows the path at which the client has saved the model; empty until then.
    OfClient(Arc<OnceLock<String>>),
}

impl Model {
    /// Returns the path at which the client has saved the model, empty before that, or `None` if a node serves the
    /// page.
    fn saved(&self) -> Option<String> {
        match self {
            Self::OfNode => None,
            Self::OfClient(saved) => Some(saved.get().cloned().unwrap_or_default()),
        }
    }

    /// Returns true if a page can already show everything about the end of a run: the run failed, or the path of its
    /// model is known.
    fn is_known(&self, end: &End) -> bool {
        matches!(end, End::Failed { .. }) || self.saved().is_none_or(|saved| !saved.is_empty())
    }
}

/// A web page of a cluster or an ended run, which is served until this value is dropped.
pub(crate) struct Page {
    /// Address of the page, with its access token.
    pub(crate) url: String,
    _server: Server,
    looks: Arc<Looks>,
    model: Model,
}

/// Requests of open pages, by which the process decides when it may exit.
#[derive(Default)]
struct Looks {
    /// Time of the last request of any open page.
    last: Mutex<Option<Instant>>,
    /// Time at which a page was first told how the run ended; a second later every open page has been told.
    told_end: OnceLock<Instant>,
}

impl Looks {
    fn note(&self, tells_end: bool) {
        *lock(&self.last) = Some(Instant::now());
        if tells_end {
            self.told_end.get_or_init(Instant::now);
        }
    }

    /// Returns true if an open page may not know yet how the run ended, so that the process must not exit yet. Every
    /// open page asks once a second, so all know it a second after the first.
    fn are_wanted(&self) -> bool {
        let is_open = lock(&self.last).is_some_and(|at| at.elapsed() < LAST_LOOK);
        is_open && self.told_end.get().is_none_or(|at| at.elapsed() < ASKS_EVERY)
    }
}

impl Page {
    /// Serves the live page of a cluster to browsers.
    pub(crate) async fn live(flags: Flags, watch: Arc<Watch>) -> Result<Self, Failure> {
        let may_stop = flags.may_stop;
        let live = Live {
            source: format!("{:016x}", communicator::entropy::number()),
            watch,
            may_stop,
            model: flags.model.clone(),
        };
        Self::serve(flags, Shows::Live(live)).await
    }

    /// Serves the page of an ended run to browsers.
    pub(crate) async fn past(flags: Flags, replay: Replay) -> Result<Self, Failure> {
        Self::serve(flags, Shows::Past(Arc::new(Mutex::new(replay)))).await
    }

    async fn serve(flags: Flags, shows: Shows) -> Result<Self, Failure> {
        let letters = flags.secret.letters().to_owned();
        let text = Arc::new(Text::new());
        let looks = Arc::new(Looks::default());
        let looked = Arc::clone(&looks);
        let server = http::serve("--page", flags.address, flags.secret, move |question| {
            let (shows, text, looked) = (shows.clone(), Arc::clone(&text), Arc::clone(&looked));
            async move { answer(&question, &shows, &text, &looked).await }
        })
        .await?;
        let url = format!("http://{}/?token={letters}", reached(server.address, flags.own));
        Ok(Self {
            url,
            _server: server,
            looks,
            model: flags.model,
        })
    }

    /// Shows the path of the saved model on open pages, and waits up to five seconds until they have been told how the
    /// run ended.
    pub(crate) async fn last_look(&self, ended: &Result<Finished, Failure>) {
        if let (Ok(finished), Model::OfClient(saved)) = (ended, &self.model) {
            saved.get_or_init(|| finished.model.clone());
        }
        let start = Instant::now();
        // After SIGTERM there is no time to wait.
        while start.elapsed() < LAST_LOOK && self.looks.are_wanted() && !interrupt::is_terminated() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Output line that tells scripts the address of a served page.
#[derive(Serialize)]
struct PageEvent<'a> {
    event: &'static str,
    url: &'a str,
}

/// Serves the page of a run that this client follows, if the user has asked for one.
pub(crate) async fn of_run(
    address: Option<&str>,
    contact: &Arc<Contact>,
    audience: Audience,
) -> Result<Option<Page>, Failure> {
    let Some(text) = address else {
        return Ok(None);
    };
    let flags = Flags {
        address: http::own_address("--page", text).await?,
        own: None,
        secret: Secret::draw()?,
        // A user who may start runs may stop them.
        may_stop: true,
        model: Model::OfClient(Arc::default()),
    };
    let page = Page::live(flags, Watch::start(Source::Cluster(Arc::clone(contact)))).await?;
    announce(&page, audience == Audience::Scripts);
    Ok(Some(page))
}

/// Prints the address of a served page.
pub(crate) fn announce(page: &Page, json: bool) {
    if json {
        output::line(&PageEvent {
            event: "page",
            url: &page.url,
        });
    } else {
        notice::say(&format!("the page is at {}", page.url));
    }
}

/// Settings with which a page is served, such as its address, its access token and the users' rights.
pub(crate) struct Flags {
    pub(crate) address: SocketAddr,
    /// Address at which other machines reach this one, for a page that is served on all interfaces.
    pub(crate) own: Option<IpAddr>,
    pub(crate) secret: Secret,
    pub(crate) may_stop: bool,
    pub(crate) model: Model,
}

/// Returns the address of the page that users open: `own` in place of an address that stands for all interfaces.
fn reached(bound: SocketAddr, own: Option<IpAddr>) -> SocketAddr {
    match own {
        Some(own) if bound.ip().is_unspecified() => SocketAddr::new(own, bound.port()),
        _ => bound,
    }
}

async fn answer(question: &Question, shows: &Shows, text: &Text, looks: &Looks) -> Answer {
    match (&*question.path, question.acts, shows) {
        ("/", false, _) => {
            looks.note(false);
            text.answer()
        }
        ("/news", false, shows) => news(question, shows, looks),
        ("/stop", true, Shows::Live(live)) if live.may_stop => stop(live).await,
        ("/stop", true, _) => Answer::sentence(
            StatusCode::FORBIDDEN,
            "this page may not stop the run: serve the page with --page-stop, or use 'tau stop'",
        ),
        _ => Answer::nothing(),
    }
}

fn news(question: &Question, shows: &Shows, looks: &Looks) -> Answer {
    let count = |name| question.number(name).map_or(0, |number| number.max(0.0) as u64);
    let said = PageKnows {
        generation: count("generation") as u32,
        points: count("points") as usize,
        evaluated: question.number("evaluated"),
        events: count("events"),
    };
    let text = match shows {
        Shows::Live(live) => {
            let trouble = live.watch.timeline.trouble();
            let timeline = live.watch.timeline.lock();
            let end = timeline.facts().and_then(|facts| facts.end.as_ref());
            looks.note(end.is_some_and(|end| live.model.is_known(end)));
            let same_run = question.text("run").unwrap_or_default() == timeline.run();
            // Data of another run, or of an earlier process at the same address, is sent anew. Events continue over
            // runs.
            let known = match question.text("source") == Some(&*live.source) {
                true if same_run => said,
                true => PageKnows {
                    events: said.events,
                    ..PageKnows::default()
                },
                false => PageKnows::default(),
            };
            let model = live.model.saved();
            News::live(&live.source, &timeline, known, live.may_stop, (trouble, model)).text()
        }
        Shows::Past(replay) => {
            let mut replay = lock(replay);
            let at = question.number("at").unwrap_or(f64::INFINITY);
            let (_, length) = replay.span();
            let outcome = replay.documents().shown();
            News::past(replay.at(at), outcome, length, at).text()
        }
    };
    Answer::of("application/json", text)
}

async fn stop(live: &Live) -> Answer {
    match live.watch.source.ask(Request::Order(RunOrder::Stop)).await {
        Ok(Reply::Ordered(run) | Reply::CalledOff(run)) => {
            Answer::sentence(StatusCode::OK, format!("run {run} is going to end"))
        }
        Ok(Reply::Refused(reasons)) => Answer::sentence(StatusCode::CONFLICT, texts(&reasons).join("; ")),
        Ok(_) => Answer::sentence(
            StatusCode::BAD_GATEWAY,
            "the node sent an unexpected reply to the stop request",
        ),
        Err(failure) => Answer::sentence(StatusCode::BAD_GATEWAY, failure.reasons().join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_listens_everywhere_is_reached_at_its_own_address() {
        let own = Some("192.0.2.1".parse().unwrap());
        let text = |bound: &str, own| reached(bound.parse().unwrap(), own).to_string();
        assert_eq!(text("0.0.0.0:80", own), "192.0.2.1:80");
        assert_eq!(text("127.0.0.1:80", own), "127.0.0.1:80");
        assert_eq!(text("0.0.0.0:80", None), "0.0.0.0:80");
    }
}
