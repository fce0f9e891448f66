//! `tau stats`: what a cluster does, live.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use communicator::Timing;
use protocol::stats::{Line, StatsRecord};
use protocol::wire::control::{Reply, Request};

use crate::args::Stats;
use crate::contact::Contact;
use crate::failure::Failure;
use crate::notice::Redirected;
use crate::stats_reader::StatsReader;
use crate::stats_view::StatsView;
use crate::stats_view::screen::Screen;
use crate::{commands, interrupt, output};

/// How often the screen is drawn anew and keys are looked at.
const DRAW_EVERY: Duration = Duration::from_millis(100);

pub(crate) fn run(arguments: &Stats) -> Result<(), Failure> {
    interrupt::watch()?;
    commands::run_async(async {
        let contact = commands::contact(&arguments.cluster).await?;
        if arguments.once {
            once(&contact, arguments.json).await
        } else if arguments.json || !std::io::stderr().is_terminal() {
            tokio::select! {
                lines = lines(&contact, arguments.json) => lines,
                () = interrupt::wait() => Ok(()),
            }
        } else {
            live(&contact).await
        }
    })
}

/// The newest record of every node. Nodes report once a second, so a little more than that is waited for.
async fn once(contact: &Contact, json: bool) -> Result<(), Failure> {
    let mut newest = BTreeMap::new();
    let mut reader = StatsReader::default();
    let started = Instant::now();
    while started.elapsed() < Timing::DEFAULT.record_limit() {
        for record in reader.read(contact).await? {
            newest.insert(record.node.clone(), record);
        }
    }
    for record in newest.values() {
        print(record, json);
    }
    Ok(())
}

/// Records as they come.
async fn lines(contact: &Contact, json: bool) -> Result<(), Failure> {
    let mut reader = StatsReader::default();
    loop {
        for record in reader.read(contact).await? {
            print(&record, json);
        }
    }
}

fn print(record: &StatsRecord, json: bool) {
    if json {
        output::line(&Line { event: "stats", record });
        return;
    }
    let known = |value: Option<f64>| value.map_or("–".into(), |value| format!("{value:.4}"));
    println!(
        "{} {} {:.0} samples/s  loss {}  accuracy {}  τ {:.2e}  density {:.1e}  staleness {:.2}  lag {}",
        record.node,
        record.state,
        record.samples_per_second,
        known(record.loss),
        known(record.accuracy),
        record.tau,
        record.density,
        record.staleness,
        record.frontier_lag
    );
}

/// How often the run is asked how far it is.
const STATUS_EVERY: Duration = Duration::from_secs(1);

/// A table and a curve, until the user leaves.
async fn live(contact: &Contact) -> Result<(), Failure> {
    let (records, mut news) = tokio::sync::mpsc::channel(16);
    let reading = async {
        let mut reader = StatsReader::default();
        loop {
            let new = reader.read(contact).await?;
            if records.send(new).await.is_err() {
                return Ok(());
            }
        }
    };
    let status = Mutex::new(None);
    let asking = async {
        loop {
            if let Reply::Status(found) = contact.ask(Request::Status).await? {
                *status.lock().unwrap_or_else(PoisonError::into_inner) = found;
            }
            tokio::time::sleep(STATUS_EVERY).await;
        }
    };
    let drawing = async {
        let screen = |error: std::io::Error| Failure::Failed(format!("the terminal cannot be drawn on: {error}"));
        let mut shown = Screen::enter().map_err(screen)?;
        let said = Said::default();
        let mut view = StatsView::new();
        loop {
            while let Ok(new) = news.try_recv() {
                view.update(&new);
            }
            if let Some(status) = &*status.lock().unwrap_or_else(PoisonError::into_inner) {
                view.expect_samples(status.train * u64::from(status.job.epochs));
                view.waits_for(&status.waiting);
            }
            view.says(said.newest());
            shown.show(&view).map_err(screen)?;
            if shown.wants_to_leave(Duration::ZERO).map_err(screen)? || interrupt::asked() {
                return Ok(());
            }
            tokio::time::sleep(DRAW_EVERY).await;
        }
    };
    tokio::select! {
        read = reading => read,
        asked = asking => asked,
        drawn = drawing => drawn,
    }
}

/// What is said while the view has the terminal: its newest sentence, for some seconds.
struct Said {
    newest: Arc<Mutex<Option<(Instant, String)>>>,
    _redirected: Redirected,
}

impl Default for Said {
    fn default() -> Self {
        let newest = Arc::new(Mutex::new(None));
        let sink = Arc::clone(&newest);
        Self {
            newest,
            _redirected: Redirected::to(move |text| {
                *sink.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), text.into()));
            }),
        }
    }
}

impl Said {
    fn newest(&self) -> Option<String> {
        const SHOWN_FOR: Duration = Duration::from_secs(15);
        let newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = newest.as_ref().filter(|(said, _)| said.elapsed() < SHOWN_FOR);
        fresh.map(|(_, text)| text.clone())
    }
}
