//! Following a run from outside: its numbers while it goes on, its model when it is over.

use std::collections::BTreeMap;
use std::io::Seek;
use std::sync::Arc;
use std::time::Duration;

use communicator::control::{Connection, ConnectionError};
use protocol::control::{Phase, Reply, Request, RunResult, RunStatus};
use protocol::ids::RunId;
use protocol::stats::{Finished, Line, StatsRecord, ratio};
use tempfile::NamedTempFile;
use tokio::sync::mpsc;
use worker::model_file;

use crate::commands::{ask, stats, unexpected};
use crate::failure::Failure;
use crate::out_folder::OutFolder;
use crate::view::{Numbers, View};
use crate::{interrupt, output};

/// How often the run's state is asked for.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Follows a run to its end, fetches its model and says what came out.
pub(crate) async fn follow(
    connection: Arc<Connection>,
    run: RunId,
    out: &OutFolder,
    json: bool,
) -> Result<Finished, Failure> {
    let first = status(&connection, run).await?;
    let view = View::new(first.train * u64::from(first.job.epochs), json);
    let result = watch(&connection, run, &view, json).await;
    view.clear();
    let (status, result) = result?;
    save(&connection, run, &status, &result, out).await
}

/// The state of this run, on a node that may have gone on to another.
async fn status(connection: &Connection, run: RunId) -> Result<Box<RunStatus>, Failure> {
    match ask(connection, Request::Status).await? {
        Reply::Status(Some(status)) if status.run == run => Ok(status),
        Reply::Status(_) => Err(Failure::Failed(format!("the node knows nothing of run {run} any more"))),
        other => Err(unexpected(other)),
    }
}

/// Shows what happens until the run is over.
async fn watch(
    connection: &Arc<Connection>,
    run: RunId,
    view: &View,
    json: bool,
) -> Result<(Box<RunStatus>, Box<RunResult>), Failure> {
    let (sender, mut records) = mpsc::channel(16);
    let reading = tokio::spawn(read(Arc::clone(connection), sender));
    let mut board = Board::default();
    let mut stopping = false;
    let mut phase = Phase::Preparing;
    let outcome = loop {
        let mut status = status(connection, run).await?;
        while let Ok(new) = records.try_recv() {
            board.take(run, &new, json);
        }
        if phase != status.phase && matches!(status.phase, Phase::Settling | Phase::Finishing) {
            view.busy("settling, evaluating and saving");
        } else if status.phase == Phase::Training && !stopping {
            view.show(board.samples(), board.numbers());
        }
        phase = status.phase;
        if let Some(outcome) = status.outcome.take() {
            break outcome.map(|result| (status, result));
        }
        if interrupt::asked() && !stopping {
            stopping = true;
            view.busy("ending the run");
            ask(connection, Request::Stop).await?;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    };
    reading.abort();
    outcome.map_err(Failure::Failed)
}

async fn read(connection: Arc<Connection>, sender: mpsc::Sender<Vec<StatsRecord>>) {
    let mut after = 0;
    // Whoever asks for the state notices that the node is gone, and says so.
    while let Ok(records) = stats::read(&connection, &mut after).await {
        if sender.send(records).await.is_err() {
            return;
        }
    }
}

/// The newest record of every node.
#[derive(Default)]
struct Board {
    newest: BTreeMap<String, StatsRecord>,
}

impl Board {
    fn take(&mut self, run: RunId, records: &[StatsRecord], json: bool) {
        let run = run.to_string();
        for record in records.iter().filter(|record| record.run == run) {
            if json {
                output::line(&Line { event: "stats", record });
            }
            self.newest.insert(record.node.clone(), record.clone());
        }
    }

    fn samples(&self) -> u64 {
        self.newest.values().map(|record| record.samples).sum()
    }

    fn numbers(&self) -> Numbers {
        let mean = |of: fn(&StatsRecord) -> Option<f64>| {
            let found: Vec<f64> = self.newest.values().filter_map(of).collect();
            (!found.is_empty()).then(|| found.iter().sum::<f64>() / found.len() as f64)
        };
        Numbers {
            loss: mean(|record| record.loss),
            accuracy: mean(|record| record.accuracy),
            samples_per_second: self.newest.values().map(|record| record.samples_per_second).sum(),
            tau: mean(|record| Some(record.tau)).unwrap_or_default(),
            density: mean(|record| Some(record.density)).unwrap_or_default(),
        }
    }
}

/// Fetches the model, checks that it is the one, and puts it in its place at once.
async fn save(
    connection: &Connection,
    run: RunId,
    status: &RunStatus,
    result: &RunResult,
    out: &OutFolder,
) -> Result<Finished, Failure> {
    let path = out.make()?;
    let io = |error: std::io::Error| {
        let path = path.display();
        Failure::Failed(format!(
            "{path} could not be written: make room for it, or give another folder with --out ({error})"
        ))
    };
    let mut file = model_file::part_beside(&path).map_err(io)?;
    fetch(connection, run, &mut file).await.map_err(|error| match error {
        ConnectionError::Write(error) => io(error),
        error => Failure::work(error),
    })?;
    file.as_file().sync_all().map_err(io)?;
    let model = model_file::load(file.path()).map_err(Failure::work)?;
    if model.metadata.digest != result.digest.to_string() {
        return Err(Failure::Failed(
            "the model that was fetched is not the run's; try again".into(),
        ));
    }
    file.persist(&path).map_err(|error| io(error.error))?;
    Ok(finished(status, result, path.display().to_string()))
}

/// Fetches the model from the node that is followed or, where that one could not save it, from any other.
async fn fetch(connection: &Connection, run: RunId, file: &mut NamedTempFile) -> Result<(), ConnectionError> {
    let fetched = connection.fetch_model(connection.address(), run, file).await;
    if !matches!(fetched, Err(ConnectionError::NoModel(..))) {
        return fetched;
    }
    let nodes = match ask(connection, Request::Nodes).await {
        Ok(Reply::Nodes(nodes)) => nodes,
        _ => Vec::new(),
    };
    for address in nodes.iter().filter_map(|node| node.address.parse().ok()) {
        // What another one has broken off is no part of it.
        let emptied = file.as_file().set_len(0).and_then(|()| file.rewind());
        emptied.map_err(ConnectionError::Write)?;
        if connection.fetch_model(address, run, file).await.is_ok() {
            return Ok(());
        }
    }
    fetched
}

/// The last line of a run.
fn finished(status: &RunStatus, result: &RunResult, model: String) -> Finished {
    let stats = &result.stats;
    let nodes = result.participants.len() + result.missing.len();
    // A single node counts as having one peer, to which its batches would have gone.
    let peers = nodes.saturating_sub(1).max(1) as u64;
    let steps = stats.batches + stats.held_back;
    let bytes_dense = steps * result.weights * size_of::<f32>() as u64 * peers;
    Finished {
        event: "finished",
        accuracy: result.scores.accuracy,
        loss: result.scores.loss,
        epochs: ratio(result.samples as f64, status.train as f64),
        samples: result.samples,
        repeated_samples: result.repeated,
        residual_lost: stats.residual_lost,
        seconds: result.seconds,
        samples_per_second: ratio(result.samples as f64, result.seconds),
        nodes: result.participants.len(),
        participants: result.participants.clone(),
        missing: result.missing.clone(),
        replicas_agree: result.agree,
        digest: result.digest.to_string(),
        bytes_sent: result.bytes_sent,
        bytes_dense,
        compression: ratio(bytes_dense as f64, result.bytes_sent as f64),
        density: stats.density(result.weights),
        exchange_share: stats.exchange_share(),
        model,
    }
}

/// Says how a run ended, to people or to scripts.
pub(crate) fn report(finished: &Finished, json: bool) -> Result<(), Failure> {
    if json {
        output::line(finished);
    } else {
        eprintln!(
            "accuracy {:.4}, loss {:.4} on held-out samples; {} samples in {:.1} s ({:.0} samples/s) by {} nodes",
            finished.accuracy,
            finished.loss,
            finished.samples,
            finished.seconds,
            finished.samples_per_second,
            finished.nodes
        );
        eprintln!(
            "{} bytes of changes instead of {} ({:.0} times less); density {:.1e}; exchange share {:.3}",
            finished.bytes_sent, finished.bytes_dense, finished.compression, finished.density, finished.exchange_share
        );
        if !finished.missing.is_empty() {
            eprintln!("missing: {}", finished.missing.join(", "));
        }
        let agree = if finished.replicas_agree {
            "replicas agree"
        } else {
            "REPLICAS DISAGREE"
        };
        eprintln!("{agree}, digest {}; model saved as {}", finished.digest, finished.model);
    }
    if finished.replicas_agree {
        Ok(())
    } else {
        Err(Failure::Disagreed)
    }
}
