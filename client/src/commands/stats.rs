//! `tau stats`: shows a cluster's work live.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use communicator::Timing;
use protocol::stats::{EventLine, StatsRecord};

use super::access;
use crate::args::Stats;
use crate::contact::Contact;
use crate::contact::stats_reader::StatsReader;
use crate::failure::Failure;
use crate::output::notice::Redirected;
use crate::output::quality_metric::QualityMetric;
use crate::run::interrupt;
use crate::sync::lock;
use crate::views::terminal::controls::Controls;
use crate::views::terminal::screen::Screen;
use crate::views::watching::{self, Shared, Source};
use crate::{output, runtime};

/// Interval at which the screen is redrawn and keys are read.
const DRAW_EVERY: Duration = Duration::from_millis(100);
/// Time without an answer from any node after which the live view tells the user.
const SILENT_AFTER: Duration = Duration::from_secs(5);

pub(crate) fn run(arguments: &Stats) -> Result<(), Failure> {
    runtime::run_async(async {
        let contact = access::contact(&arguments.cluster).await?;
        if arguments.once {
            return once(&contact, arguments.json).await;
        }
        interrupt::watch()?;
        if arguments.json || !std::io::stderr().is_terminal() {
            tokio::select! {
                lines = lines(&contact, arguments.json) => lines,
                () = interrupt::wait() => Ok(()),
            }
        } else {
            live(contact).await
        }
    })
}

/// Prints the newest record of every node. Nodes report once a second, so this reads for slightly longer than that.
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

/// Prints records of nodes as they come, until one cannot be written, as after the reader of standard output has closed
/// it.
async fn lines(contact: &Contact, json: bool) -> Result<(), Failure> {
    let mut reader = StatsReader::default();
    loop {
        for record in reader.read(contact).await? {
            if !print(&record, json) {
                return Ok(());
            }
        }
    }
}

/// Prints a node's record. Returns false if it could not be written.
fn print(record: &StatsRecord, json: bool) -> bool {
    if json {
        return output::line(&EventLine { event: "stats", record });
    }
    let eval_loss = record.evaluation.as_ref().map(|evaluation| evaluation.loss);
    let (metric, figure) = QualityMetric::of(record.accuracy, record.mae, eval_loss);
    let known = |value: Option<f64>| value.map_or("–".into(), |value| format!("{value:.4}"));
    output::text(&format!(
        "{} {} {:.0} samples/s  loss {}  {} {}  τ {:.2e}  density {:.1e}  staleness {:.2}  lag {}\n",
        record.node,
        record.state,
        record.samples_per_second,
        known(record.loss),
        metric.name(),
        known(figure),
        record.tau,
        record.density,
        record.staleness,
        record.frontier_lag
    ))
}

/// Shows a cluster on the terminal until the user quits: a table of its nodes, and the curves and events of its run.
async fn live(contact: Contact) -> Result<(), Failure> {
    let source = Source::Cluster(Arc::new(contact));
    let timeline = Shared::default();
    let drawing = async {
        let screen = |error: std::io::Error| {
            Failure::Failed(format!(
                "the live view cannot be drawn on this terminal: {error}; \
                                                                      use --once or --json"
            ))
        };
        let mut shown = Screen::enter().map_err(screen)?;
        let said = Said::default();
        let mut controls = Controls::default();
        loop {
            let said = silence(timeline.unanswered()).or_else(|| said.newest());
            shown
                .show(&timeline.lock(), &mut controls, said.as_deref())
                .map_err(screen)?;
            for key in shown.keys().map_err(screen)? {
                if controls.press(key, timeline.lock().nodes()) {
                    return Ok(());
                }
            }
            if interrupt::asked() {
                return Ok(());
            }
            tokio::time::sleep(DRAW_EVERY).await;
        }
    };
    tokio::select! {
        watched = watching::watch(&source, &timeline) => watched.map(|never| match never {}),
        drawn = drawing => drawn,
    }
}

/// Returns a sentence if no node has answered for too long: the figures shown are old but may look current.
fn silence(silence: Duration) -> Option<String> {
    let seconds = silence.as_secs();
    (silence > SILENT_AFTER).then(|| format!("no node has answered for {seconds} s: the figures shown are that old"))
}

/// Captures messages to the user while the live view owns the terminal, so that the view can show the newest one for
/// some seconds.
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
                *lock(&sink) = Some((Instant::now(), text.into()));
            }),
        }
    }
}

impl Said {
    fn newest(&self) -> Option<String> {
        const SHOWN_FOR: Duration = Duration::from_secs(15);
        let newest = lock(&self.newest);
        let fresh = newest.as_ref().filter(|(said, _)| said.elapsed() < SHOWN_FOR);
        fresh.map(|(_, text)| text.clone())
    }
}
