//! `tau stats`: what a cluster does, live.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use communicator::control::Connection;
use protocol::control::{Reply, Request};
use protocol::stats::{Line, StatsRecord};

use crate::args::Stats;
use crate::failure::Failure;
use crate::stats_view::StatsView;
use crate::stats_view::screen::Screen;
use crate::{commands, interrupt, output};

/// How often the screen is drawn anew and keys are looked at.
const DRAW_EVERY: Duration = Duration::from_millis(100);

pub(crate) fn run(arguments: &Stats) -> Result<(), Failure> {
    interrupt::watch()?;
    commands::run_async(async {
        let connection = commands::connect(&arguments.cluster).await?;
        if arguments.once {
            once(&connection, arguments.json).await
        } else if arguments.json || !std::io::stderr().is_terminal() {
            tokio::select! {
                lines = lines(&connection, arguments.json) => lines,
                () = interrupt::wait() => Ok(()),
            }
        } else {
            live(&connection).await
        }
    })
}

/// What is new after a record; waits for news.
pub(crate) async fn read(connection: &Connection, after: &mut u64) -> Result<Vec<StatsRecord>, Failure> {
    let request = Request::Stats { after: *after };
    match commands::ask(connection, request).await? {
        Reply::Stats { last, records } => {
            *after = last;
            Ok(records)
        }
        other => Err(commands::unexpected(other)),
    }
}

/// The newest record of every node. Nodes report once a second, so a little more than that is waited for.
async fn once(connection: &Connection, json: bool) -> Result<(), Failure> {
    const ALL_REPORT_WITHIN: Duration = Duration::from_millis(1500);
    let mut newest = BTreeMap::new();
    let mut after = 0;
    let started = Instant::now();
    while started.elapsed() < ALL_REPORT_WITHIN {
        for record in read(connection, &mut after).await? {
            newest.insert(record.node.clone(), record);
        }
    }
    for record in newest.values() {
        print(record, json);
    }
    Ok(())
}

/// Records as they come.
async fn lines(connection: &Connection, json: bool) -> Result<(), Failure> {
    let mut after = 0;
    loop {
        for record in read(connection, &mut after).await? {
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

/// A table and a curve, until the user leaves.
async fn live(connection: &Connection) -> Result<(), Failure> {
    let mut view = StatsView::new();
    let (records, mut news) = tokio::sync::mpsc::channel(16);
    let reading = async {
        let mut after = 0;
        loop {
            let new = read(connection, &mut after).await?;
            if records.send(new).await.is_err() {
                return Ok(());
            }
        }
    };
    let drawing = async {
        let screen = |error: std::io::Error| Failure::Failed(format!("the terminal cannot be drawn on: {error}"));
        let mut shown = Screen::enter().map_err(screen)?;
        let mut run = String::new();
        loop {
            while let Ok(new) = news.try_recv() {
                view.update(&new);
                let mut named = new.iter().rev().map(|record| &record.run);
                if let Some(named) = named.find(|named| !named.is_empty() && **named != run) {
                    run.clone_from(named);
                    expect_samples(connection, &mut view).await?;
                }
            }
            shown.show(&view).map_err(screen)?;
            if shown.wants_to_leave(Duration::ZERO).map_err(screen)? || interrupt::asked() {
                return Ok(());
            }
            tokio::time::sleep(DRAW_EVERY).await;
        }
    };
    tokio::select! {
        read = reading => read,
        drawn = drawing => drawn,
    }
}

async fn expect_samples(connection: &Connection, view: &mut StatsView) -> Result<(), Failure> {
    if let Reply::Status(Some(status)) = commands::ask(connection, Request::Status).await? {
        view.expect_samples(status.train * u64::from(status.job.epochs));
    }
    Ok(())
}
