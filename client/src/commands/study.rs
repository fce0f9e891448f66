//! `tau study`: makes the runs of a study, one after the other, and reports them side by side.

use std::io::IsTerminal as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use protocol::stats::{EventLine, Finished};
use protocol::wire::control::{Reply, Request, SILENT};
use toml::Value;

use super::access;
use crate::args::{self, RunPage, Study as Arguments};
use crate::contact::{Answer, Contact, unexpected};
use crate::failure::Failure;
use crate::local::compute;
use crate::local::run::{LocalRun, OnFailure};
use crate::output::{self, Audience, notice, quantity};
use crate::run::out_folder::OutFolder;
use crate::run::starting::{self, What};
use crate::run::{follow, interrupt};
use crate::runtime;
use crate::settings::job_file;
use crate::study::machine::Machine;
use crate::study::plan::{Changes, Planned, Study};
use crate::study::presets;
use crate::study::report::{self, Material};
use crate::study::row::{Measured, Row};
use crate::study::store::Store;

/// Longest wait for the other nodes to end a run after the first node has ended it.
const IDLE_LIMIT: Duration = Duration::from_mins(1);
const LOOK_AGAIN: Duration = Duration::from_millis(200);

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let study = described(arguments)?;
    runtime::run_async(async {
        let cluster = cluster(arguments).await?;
        let study = match &cluster {
            Some((_, nodes)) => study.changed(&Changes {
                nodes: vec![*nodes],
                ..Changes::default()
            }),
            None => Ok(study),
        };
        let study = study.map_err(Failure::input)?;
        let runs = study.runs().map_err(Failure::BadInput)?;
        if cluster.is_none() {
            check(&runs, &arguments.compute)?;
        }
        let mut store = Store::open(&arguments.out, &study)?;
        if arguments.retry {
            store.forget_failures()?;
        }
        interrupt::watch()?;
        let place = if let Some((contact, _)) = cluster {
            StudySite::Cluster(contact, Machine::cluster(&arguments.cluster))
        } else {
            let flags = &arguments.compute;
            let machine = Machine::here(&compute::check_compute(flags)?, flags.threads);
            StudySite::Here(flags.clone(), machine)
        };
        let sitting = Sitting {
            study,
            runs,
            store,
            place,
            json: arguments.json,
        };
        sitting.hold(&arguments.out).await
    })
}

/// Builds the study that the flags, and a file or preset, describe.
fn described(arguments: &Arguments) -> Result<Study, Failure> {
    let study = match (&arguments.file, &arguments.preset) {
        (Some(file), _) => {
            let name = file.display();
            let text = std::fs::read_to_string(file).map_err(|error| {
                Failure::input(format!(
                    "{name} could not be read: {error}; give the path of a TOML file"
                ))
            })?;
            Study::from_toml(&text).map_err(|error| Failure::input(format!("{name} is not a valid study: {error}")))?
        }
        (None, Some(name)) => presets::preset(name).map_err(Failure::input)?,
        (None, None) => Study::of_flags(),
    };
    let texts = |list: &[String]| list.iter().map(|text| Value::from(text.as_str())).collect();
    let exchanges = arguments.exchanges.as_deref().map(exchanges).unwrap_or_default();
    if arguments.exchanges.is_some() && exchanges.is_empty() {
        return Err(Failure::input(
            "--exchanges is an empty list: name at least one strategy",
        ));
    }
    let changes = Changes {
        nodes: arguments.nodes.clone(),
        lists: vec![
            ("exchange", texts(&exchanges)),
            ("split", texts(&arguments.splits)),
            ("seed", arguments.seeds.iter().map(|&seed| Value::from(seed)).collect()),
        ],
        job: arguments.job.clone(),
        target: arguments.target.or(arguments.job.target_accuracy),
    };
    study.changed(&changes).map_err(Failure::input)
}

/// Splits a list of strategies at spaces, or at commas if it has no spaces. A strategy's own text may contain commas.
fn exchanges(text: &str) -> Vec<String> {
    let by_space = text.trim().contains(char::is_whitespace);
    let parts = text.split(|letter: char| letter.is_whitespace() || (!by_space && letter == ','));
    parts.filter(|part| !part.is_empty()).map(String::from).collect()
}

/// Connects to the cluster that the flags name, and returns it with the number of its nodes that are not silent.
async fn cluster(arguments: &Arguments) -> Result<Option<(Arc<Contact>, usize)>, Failure> {
    if arguments.cluster.is_empty() {
        return Ok(None);
    }
    let named = args::Cluster {
        cluster: arguments.cluster.clone(),
        security: arguments.security.clone(),
    };
    let contact = access::contact(&named).await?;
    match contact.ask(Request::Nodes).await? {
        Reply::Nodes(nodes) => {
            let there = nodes.iter().filter(|node| node.state != SILENT).count();
            Ok(Some((Arc::new(contact), there)))
        }
        other => Err(unexpected(other)),
    }
}

/// Checks all runs for users' mistakes before the first one begins. Runs with equal data, model, minibatch and number
/// of nodes are checked once.
fn check(runs: &[Planned], flags: &args::ComputeFlags) -> Result<(), Failure> {
    let mut checked: Vec<(String, usize)> = Vec::new();
    for run in runs {
        let what = format!("{} {} {}", run.job.data, run.job.model, run.job.minibatch);
        if !checked.contains(&(what.clone(), run.nodes)) {
            LocalRun::check(run.job.clone(), flags, run.nodes)?;
            checked.push((what, run.nodes));
        }
    }
    Ok(())
}

/// The place where a study's runs are made.
enum StudySite {
    /// A study's runs are made on this machine, each on a new local cluster.
    Here(args::ComputeFlags, Machine),
    /// A study's runs are made on an existing cluster.
    Cluster(Arc<Contact>, Machine),
}

/// One execution of `tau study`: the study, its stored results, and the place of its runs.
struct Sitting {
    study: Study,
    runs: Vec<Planned>,
    store: Store,
    place: StudySite,
    json: bool,
}

impl Sitting {
    /// Makes the runs of the study that have no record yet, then writes the study's report.
    async fn hold(mut self, folder: &Path) -> Result<(), Failure> {
        let all = std::mem::take(&mut self.runs);
        let (total, mut spent, mut made) = (all.len(), Duration::ZERO, 0);
        for run in &all {
            if self.store.has(run) {
                continue;
            }
            let done = all.iter().filter(|run| self.store.has(run)).count();
            self.say(&progress(run, done, total, spent, made));
            let started = Instant::now();
            let ended = self.make(run).await;
            if interrupt::asked() {
                self.report(folder, total)?;
                let done = all.iter().filter(|run| self.store.has(run)).count();
                return Err(Failure::Failed(format!(
                    "interrupted: {done} of {total} runs are kept in {}; run the same command again to make the \
                     remaining runs",
                    folder.display()
                )));
            }
            if let (Err(_), StudySite::Cluster(contact, _)) = (&ended, &self.place) {
                // A failed run is a result. An unreachable cluster is none, and ends the study.
                contact.ask(Request::Nodes).await?;
            }
            (spent, made) = (spent + started.elapsed(), made + 1);
            self.keep(run, ended)?;
        }
        let written = self.report(folder, total)?;
        let names: Vec<String> = written.iter().map(|path| path.display().to_string()).collect();
        self.say(&format!("{total} runs; the report was written to {}", names.join(", ")));
        let failed = self.store.rows.iter().filter(|row| row.error.is_some()).count();
        if failed > 0 {
            self.say(&format!(
                "{failed} of the runs failed: the report gives the reasons, and --retry repeats the failed runs"
            ));
        }
        if self.json {
            output::line(&EventLine {
                event: "report",
                record: &serde_json::json!({ "runs": total, "files": names }),
            });
        }
        Ok(())
    }

    /// Returns the reader of messages while a run of the study goes on: a person at a terminal, else none.
    fn audience(&self) -> Audience {
        if !self.json && std::io::stderr().is_terminal() {
            Audience::People
        } else {
            Audience::Nobody
        }
    }

    fn say(&self, text: &str) {
        if !self.json {
            notice::say(text);
        }
    }

    async fn make(&self, planned: &Planned) -> Result<Finished, Failure> {
        let scratch = Scratch::new(self.store.scratch())?;
        let out = OutFolder::check(&scratch.0)?;
        match &self.place {
            StudySite::Here(flags, _) => {
                let run = LocalRun::check(planned.job.clone(), flags, planned.nodes)?;
                let page = RunPage::default();
                let ended = run.run(&out, self.audience(), OnFailure::Drop, &page).await;
                ended.map(|(finished, _)| finished)
            }
            StudySite::Cluster(contact, _) => {
                wait_until_idle(contact).await;
                let job = What::Job(Box::new(planned.job.clone()));
                let run = starting::begin(contact, job, false, self.audience()).await?;
                follow::follow(contact, run, &out, self.audience()).await
            }
        }
    }

    /// Stores the result of a run, or the reason of its failure, in the study's folder.
    fn keep(&mut self, run: &Planned, ended: Result<Finished, Failure>) -> Result<(), Failure> {
        let (result, error) = match ended {
            Ok(finished) => (Some(measured(&finished)?), None),
            Err(failure) => (None, Some(failure.reasons().join("; "))),
        };
        if let Some(error) = &error {
            self.say(&format!("  failed: {error}"));
        }
        let (StudySite::Here(_, machine) | StudySite::Cluster(_, machine)) = &self.place;
        let row = Row {
            experiment: run.experiment.clone(),
            nodes: run.nodes,
            job: job_file::keys_of(&run.job),
            machine: machine.clone(),
            result,
            error,
            run: String::new(),
        };
        self.store.add(row)?;
        if self.json
            && let Some(record) = self.store.rows.last()
        {
            output::line(&EventLine { event: "run", record });
        }
        Ok(())
    }

    fn report(&self, folder: &Path, total: usize) -> Result<Vec<std::path::PathBuf>, Failure> {
        let material = Material {
            title: self.study.title.clone(),
            experiments: self.study.experiments.clone(),
            rows: self.store.rows.clone(),
            missing: total.saturating_sub(self.store.rows.len()),
            failed: Vec::new(),
        };
        report::write(folder, &material, None)
    }
}

/// Waits for nodes that are slower to end the last run than the one that reported its result. If the cluster stays
/// busy, the start of the next run fails with the reason.
async fn wait_until_idle(contact: &Contact) {
    let since = Instant::now();
    let is_busy = |answer: &Answer| match &answer.reply {
        Ok(Reply::Status(Some(status))) => status.outcome.is_none(),
        _ => false,
    };
    while since.elapsed() < IDLE_LIMIT && !interrupt::asked() {
        if !contact.ask_each(Request::Status).await.iter().any(is_busy) {
            return;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Converts the result of a run to the measurements that a study stores.
fn measured(finished: &Finished) -> Result<Measured, Failure> {
    let value = serde_json::to_value(finished).map_err(Failure::work)?;
    serde_json::from_value(value).map_err(Failure::work)
}

fn progress(run: &Planned, done: usize, total: usize, spent: Duration, made: u32) -> String {
    let left = if made == 0 {
        String::new()
    } else {
        let seconds = (spent / made).as_secs_f64() * (total - done) as f64;
        format!(", about {} left", in_words(seconds))
    };
    format!(
        "run {} of {total}{left}: {}, {} on {}, {} split, seed {}",
        done + 1,
        run.experiment,
        run.job.exchange,
        quantity::of(run.nodes, "node"),
        run.job.split,
        run.job.seed
    )
}

fn in_words(seconds: f64) -> String {
    match seconds {
        long if long >= 5400.0 => format!("{:.1} hours", long / 3600.0),
        some if some >= 90.0 => format!("{:.0} minutes", some / 60.0),
        few => quantity::of(few.ceil().max(1.0) as usize, "second"),
    }
}

/// A temporary folder for the model of the current run, which a study does not keep. Dropping this value removes it;
/// the next study removes one that a killed process left.
struct Scratch(std::path::PathBuf);

impl Scratch {
    fn new(path: std::path::PathBuf) -> Result<Self, Failure> {
        match std::fs::remove_dir_all(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Failure::work(error)),
            _ => Ok(Self(path)),
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strategies_with_commas_are_separated_by_spaces() {
        assert_eq!(exchanges("strom,ring"), ["strom", "ring"]);
        assert_eq!(
            exchanges(" server:every=1,async  ring:every=4,best "),
            ["server:every=1,async", "ring:every=4,best"]
        );
        assert!(exchanges(" , ").is_empty());
    }

    #[test]
    fn time_left_is_said_in_words() {
        assert_eq!(in_words(0.4), "1 second");
        assert_eq!(in_words(12.0), "12 seconds");
        assert_eq!(in_words(600.0), "10 minutes");
        assert_eq!(in_words(7200.0), "2.0 hours");
    }
}
