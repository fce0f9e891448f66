//! A report of runs: a page with pictures, the same as text, and a table for other programs.

mod chart;
mod charts;
mod figures;
mod html;
mod markdown;
mod table;

use std::io::Write as _;
use std::path::{Path, PathBuf};

use super::plan::Experiment;
use super::row::Row;
use super::series::{Series, series_of, varying_keys};
use crate::failure::Failure;
use crate::judged::Judged;

/// What a report is made of.
#[derive(Clone, Debug)]
pub(crate) struct Material {
    pub(crate) title: String,
    pub(crate) experiments: Vec<Experiment>,
    pub(crate) rows: Vec<Row>,
    /// Runs that are still to be made.
    pub(crate) missing: usize,
}

impl Material {
    /// The rows of an experiment, in an order that does not depend on when they were run.
    fn rows_of(&self, experiment: &Experiment) -> Vec<&Row> {
        let own = self.rows.iter().filter(|row| row.experiment == experiment.name);
        let mut rows: Vec<&Row> = own.collect();
        rows.sort_by(|one, other| (one.nodes, &one.job).cmp(&(other.nodes, &other.job)));
        rows
    }

    /// Every machine that something was measured on.
    fn machines(&self) -> Vec<String> {
        let mut all: Vec<String> = self.rows.iter().map(|row| row.machine.to_string()).collect();
        all.sort();
        all.dedup();
        all
    }

    /// The runs that are not averaged with the others, and why.
    fn troubles(&self) -> Vec<String> {
        let mut all = Vec::new();
        for experiment in &self.experiments {
            let rows = self.rows_of(experiment);
            let keys = varying_keys(&rows);
            for row in &rows {
                let Some(trouble) = row.trouble() else {
                    continue;
                };
                let values: Vec<&str> = keys.iter().chain(&["seed"]).map(|key| row.key(key)).collect();
                all.push(format!(
                    "{}, {} nodes, {} (seed last): {trouble}",
                    row.experiment,
                    row.nodes,
                    values.join(" · ")
                ));
            }
        }
        all
    }
}

/// Writes the report's files to a folder, each at once, and says which.
pub(crate) fn write(folder: &Path, material: &Material) -> Result<Vec<PathBuf>, Failure> {
    let files = [
        ("report.html", html::page(material)),
        ("report.md", markdown::text(material)),
        ("runs.csv", table::csv(material)),
    ];
    files
        .into_iter()
        .map(|(name, text)| write_file(folder, name, &text))
        .collect()
}

/// Writes only the page.
pub(crate) fn write_page(folder: &Path, material: &Material) -> Result<(), Failure> {
    write_file(folder, "report.html", &html::page(material)).map(drop)
}

fn write_file(folder: &Path, name: &str, text: &str) -> Result<PathBuf, Failure> {
    let place = folder.join(name);
    whole_file::write(&place, |file| file.write_all(text.as_bytes())).map_err(|error| {
        Failure::Failed(format!(
            "{} could not be written ({error}): make room, and give the same command again",
            place.display()
        ))
    })?;
    Ok(place)
}

/// An experiment with its rows and series.
struct Section<'a> {
    experiment: &'a Experiment,
    rows: Vec<&'a Row>,
    series: Vec<Series<'a>>,
}

impl Section<'_> {
    /// What models of this experiment are judged by.
    fn judged(&self) -> Judged {
        let mut results = self.rows.iter().filter_map(|row| row.result.as_ref());
        Judged::by(results.find_map(|result| result.mae))
    }
}

fn sections(material: &Material) -> Vec<Section<'_>> {
    let sections = material.experiments.iter().map(|experiment| {
        let rows = material.rows_of(experiment);
        let series = series_of(&rows);
        Section {
            experiment,
            rows,
            series,
        }
    });
    sections.filter(|section| !section.rows.is_empty()).collect()
}

/// What all runs of an experiment have in common.
fn common(section: &Section<'_>) -> String {
    const SAID: &[&str] = &[
        "data",
        "model",
        "exchange",
        "split",
        "optimiser",
        "lr_schedule",
        "minibatch",
        "epochs",
        "max_seconds",
        "target_accuracy",
    ];
    let varying = varying_keys(&section.rows);
    let said = SAID.iter().filter(|key| !varying.contains(key));
    let parts = said.filter_map(|key| {
        let value = section.rows[0].key(key);
        (!value.is_empty()).then(|| format!("{} {value}", key.replace('_', " ")))
    });
    parts.collect::<Vec<_>>().join("; ")
}

/// How many cores a node had, which explains more than any strategy where there are fewer than one.
fn cores_by_nodes(section: &Section<'_>) -> String {
    let mut all: Vec<(usize, usize)> = section.rows.iter().map(|row| (row.nodes, row.machine.cores)).collect();
    all.sort_unstable();
    all.dedup();
    let parts = all.iter().filter(|(_, cores)| *cores > 0).map(|&(nodes, cores)| {
        let share = cores as f64 / nodes as f64;
        format!("{nodes}: {share:.1}")
    });
    parts.collect::<Vec<_>>().join(", ")
}
