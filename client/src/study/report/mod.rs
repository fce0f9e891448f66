//! Report of several runs: an HTML page with charts, the same content as Markdown, and a CSV table for other programs.

mod chart;
mod charts;
mod figures;
mod html;
mod markdown;
mod table;

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use super::plan::{DEFAULT_NAME, Experiment};
use super::row::Row;
use super::series::{Series, node_counts, series_of, varying_keys};
use super::statistics::Summary;
use crate::failure::Failure;
use crate::output::quality_metric::QualityMetric;
use crate::output::quantity;
use crate::views::page::report::REPORT;
use figures::how_good;

/// Name of the experiment under which a report shows single runs, which belong to no study.
pub(crate) const RUNS: &str = "runs";

/// Content of a report: its title, experiments and results.
#[derive(Clone, Debug, Default)]
pub(crate) struct Material {
    pub(crate) title: String,
    pub(crate) experiments: Vec<Experiment>,
    pub(crate) rows: Vec<Row>,
    /// Number of a study's planned runs that are not done yet.
    pub(crate) missing: usize,
    /// Runs that left no result, as one sentence each for the report.
    pub(crate) failed: Vec<String>,
}

impl Material {
    /// Returns the records of an experiment's runs, in an order that does not depend on the order in which they were
    /// made.
    fn rows_of(&self, experiment: &Experiment) -> Vec<&Row> {
        let own = self.rows.iter().filter(|row| row.experiment == experiment.name);
        let mut rows: Vec<&Row> = own.collect();
        rows.sort_by(|one, other| (one.nodes, &one.job).cmp(&(other.nodes, &other.job)));
        rows
    }

    /// Returns the description of every machine that a run was measured on.
    fn machines(&self) -> Vec<String> {
        let mut all: Vec<String> = self.rows.iter().map(|row| row.machine.to_string()).collect();
        all.sort();
        all.dedup();
        all
    }

    /// Returns a sentence for each run that is excluded from the report's averages, with the reason.
    fn troubles(&self) -> Vec<String> {
        let mut all = self.failed.clone();
        for experiment in &self.experiments {
            let rows = self.rows_of(experiment);
            let keys = varying_keys(&rows);
            for row in &rows {
                let Some(trouble) = row.trouble() else {
                    continue;
                };
                if !row.run.is_empty() {
                    all.push(format!("run {} of {}: {trouble}", row.run, row.key("data")));
                    continue;
                }
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

/// Writes a report's files to a folder, each atomically, and returns their paths. `page` replaces the HTML page, for a
/// report of a single run.
pub(crate) fn write(folder: &Path, material: &Material, page: Option<String>) -> Result<Vec<PathBuf>, Failure> {
    let files = [
        (REPORT, page.unwrap_or_else(|| html::page(material))),
        ("report.md", markdown::text(material)),
        ("runs.csv", table::csv(material)),
    ];
    files
        .into_iter()
        .map(|(name, text)| write_file(folder, name, &text))
        .collect()
}

fn write_file(folder: &Path, name: &str, text: &str) -> Result<PathBuf, Failure> {
    let place = folder.join(name);
    whole_file::write(&place, |file| file.write_all(text.as_bytes())).map_err(|error| {
        Failure::Failed(format!(
            "{} could not be written ({error}): free disk space, and run the same command again",
            place.display()
        ))
    })?;
    Ok(place)
}

/// Section of a report: the runs of an experiment on one dataset, grouped into series. Figures of different datasets
/// are not comparable.
struct Section<'a> {
    /// Heading of a report's section; `None` where the report's title says as much.
    name: Option<String>,
    experiment: &'a Experiment,
    rows: Vec<&'a Row>,
    series: Vec<Series<'a>>,
}

impl Section<'_> {
    /// Returns the noun for the rows of the section's table: single runs, or strategies.
    fn compared(&self) -> &'static str {
        if self.experiment.name == RUNS {
            "run"
        } else {
            "strategy"
        }
    }

    /// Returns the kind of figure that measures the quality of this section's models.
    fn quality_metric(&self) -> QualityMetric {
        let results = || self.rows.iter().filter_map(|row| row.result.as_ref());
        let accuracy = results().find_map(|result| result.accuracy);
        let mae = results().find_map(|result| result.mae);
        QualityMetric::of(accuracy, mae, results().find_map(|result| result.loss)).0
    }
}

fn sections(material: &Material) -> Vec<Section<'_>> {
    let mut sections = Vec::new();
    for experiment in &material.experiments {
        let rows = material.rows_of(experiment);
        let data: BTreeSet<&str> = rows.iter().map(|row| row.key("data")).collect();
        for one in &data {
            let rows: Vec<&Row> = rows.iter().copied().filter(|row| row.key("data") == *one).collect();
            let others = data.iter().filter(|other| *other != one);
            let name = data_name(one, &others.copied().collect::<Vec<_>>());
            let name = match (&*experiment.name, data.len()) {
                (RUNS, _) => Some(name),
                (DEFAULT_NAME, 1) => None,
                (experiment, 1) => Some(experiment.into()),
                (experiment, _) => Some(format!("{experiment}: {name}")),
            };
            sections.push(Section {
                name,
                experiment,
                series: series_of(&rows),
                rows,
            });
        }
    }
    sections
}

/// Returns the short name of a dataset: its kind and its file name without folder and options, or the whole
/// specification if another dataset has the same short name.
fn data_name(data: &str, others: &[&str]) -> String {
    fn short(data: &str) -> String {
        let path = data.split('?').next().unwrap_or(data);
        let (kind, path) = path.split_once(':').unwrap_or(("", path));
        let file = path.trim_end_matches('/').rsplit('/').next().unwrap_or(path);
        if kind.is_empty() {
            file.into()
        } else {
            format!("{kind}:{file}")
        }
    }
    let name = short(data);
    if others.iter().any(|other| short(other) == name) {
        data.into()
    } else {
        name
    }
}

/// Returns a sentence that names the strategy with the best quality of models, among the runs of a report's section on
/// the largest number of nodes, and the fastest one. `None` if there is only one strategy.
fn winner(section: &Section<'_>) -> Option<String> {
    let nodes = *node_counts(&section.series).last()?;
    let metric = section.quality_metric();
    let good = how_good(metric);
    let mut found: Vec<(&str, Summary, f64)> = section
        .series
        .iter()
        .filter_map(|series| {
            let group = series.at(nodes)?;
            let summary = group.summary(|run| good.of(run, None).filter(|figure| figure.is_finite()))?;
            let seconds = group.summary(|run| Some(run.seconds))?.mean;
            Some((series.label.as_str(), summary, seconds))
        })
        .collect();
    found.sort_by(|one, other| other.1.mean.total_cmp(&one.1.mean));
    let extreme = match metric {
        QualityMetric::Accuracy | QualityMetric::R2 => "highest",
        QualityMetric::Loss => {
            found.reverse();
            "lowest"
        }
    };
    let [(best, first, seconds), (next, second, _), ..] = found[..] else {
        return None;
    };
    let (first_text, second_text) = ((good.text)(first.mean), (good.text)(second.mean));
    let spread = first.deviation.into_iter().chain(second.deviation).fold(0.0, f64::max);
    let on = quantity::of(nodes, "node");
    let name = good.name;
    let ranked = if first_text == second_text || (first.mean - second.mean).abs() <= spread {
        format!(
            "On {on} there is no clear winner: {best} has the {extreme} {name} with {first_text}, but {next} is as \
             good within the standard deviation ({second_text})"
        )
    } else if first.deviation.is_none() {
        format!(
            "On {on}, {best} has the best {name}, {first_text}; {next} is second with {second_text} (one run each, so \
             the order may be chance)"
        )
    } else {
        format!("On {on}, {best} has the best {name}, {first_text}; {next} is second with {second_text}")
    };
    let fastest = found.iter().min_by(|one, other| one.2.total_cmp(&other.2))?;
    Some(if fastest.0 == best {
        format!(
            "{ranked}; {best} was also the fastest, with {}.",
            quantity::seconds(seconds)
        )
    } else {
        format!(
            "{ranked}; the fastest was {} with {}.",
            fastest.0,
            quantity::seconds(fastest.2)
        )
    })
}

/// Describes the settings that all runs of an experiment share.
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
        "target_loss",
    ];
    let varying = varying_keys(&section.rows);
    let said = SAID.iter().filter(|key| !varying.contains(key));
    let parts = said.filter_map(|key| {
        let value = section.rows[0].key(key);
        (!value.is_empty()).then(|| format!("{} {value}", key.replace('_', " ")))
    });
    parts.collect::<Vec<_>>().join("; ")
}

/// Formats the number of cores per node, for each number of nodes. Where a node has less than one core, the lack of
/// cores explains a run's figures better than any strategy does.
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

#[cfg(test)]
mod tests {
    use super::super::plan::Study;
    use super::super::row::tests::row;
    use super::*;

    fn material(name: &str, rows: Vec<Row>) -> Material {
        let mut experiments = Study::of_flags().experiments;
        experiments[0].name = name.into();
        let rows = rows.into_iter().map(|row| Row {
            experiment: name.into(),
            ..row
        });
        Material {
            title: "A title".into(),
            experiments,
            rows: rows.collect(),
            missing: 0,
            failed: vec!["run 07 of csv:iris.csv: failed: it diverged".into()],
        }
    }

    fn on(data: &str, mae: Option<f64>, seed: u32, accuracy: f64) -> Row {
        let mut row = row("strom", 3, seed, accuracy, 2.0);
        row.job.insert("data".into(), data.into());
        row.result.as_mut().unwrap().mae = mae;
        row.run = format!("{seed:016x}");
        row
    }

    #[test]
    fn runs_on_different_data_are_in_sections_of_their_own() {
        let rows = vec![
            on("csv:a/iris.csv?label=species", None, 1, 0.9),
            on("csv:houses.csv", Some(3.0), 2, 0.5),
            on("npz:b/x.npz", None, 3, 0.8),
            on("npz:c/x.npz", None, 4, 0.7),
        ];
        let material = material(RUNS, rows);
        let sections = sections(&material);
        let found: Vec<(&str, QualityMetric)> = sections
            .iter()
            .map(|section| (section.name.as_deref().unwrap(), section.quality_metric()))
            .collect();
        assert_eq!(
            found,
            [
                ("csv:iris.csv", QualityMetric::Accuracy),
                ("csv:houses.csv", QualityMetric::R2),
                ("npz:b/x.npz", QualityMetric::Accuracy),
                ("npz:c/x.npz", QualityMetric::Accuracy),
            ]
        );
        for text in [html::page(&material), markdown::text(&material)] {
            assert!(text.contains("it diverged"), "a run that failed is named: {text}");
        }
    }

    #[test]
    fn runs_without_accuracy_are_compared_by_their_loss() {
        let rows = [("strom", 0.5), ("ring", 0.25)].map(|(name, loss)| {
            let mut row = row(name, 3, 1, 0.0, 2.0);
            let result = row.result.as_mut().unwrap();
            (result.accuracy, result.loss) = (None, Some(loss));
            result.evaluations.iter_mut().for_each(|one| one.accuracy = None);
            row
        });
        let with = material(DEFAULT_NAME, [&rows[..], &[row("gossip", 3, 1, 0.9, 2.0)]].concat());
        let markdown = markdown::text(&with);
        assert!(markdown.contains("| ring | 3 | 1 | – |"), "{markdown}");
        let without = material(DEFAULT_NAME, rows.to_vec());
        let sections = sections(&without);
        assert_eq!(sections[0].quality_metric(), QualityMetric::Loss);
        assert_eq!(
            winner(&sections[0]).unwrap(),
            "On 3 nodes, ring has the best eval loss, 0.2500; strom is second with 0.5000 (one run each, so the order \
             may be chance); ring was also the fastest, with 2.0 s."
        );
        let markdown = markdown::text(&without);
        assert!(markdown.contains("| ring | 3 | 1 | 0.2500 |"), "{markdown}");
        let page = html::page(&without);
        assert!(page.contains("Eval loss over samples"), "{page}");
    }

    #[test]
    fn a_sentence_says_who_won() {
        let won = |rows: &[(&str, u32, f64, f64)]| {
            let rows = rows
                .iter()
                .map(|&(name, seed, good, seconds)| row(name, 3, seed, good, seconds));
            let material = material(DEFAULT_NAME, rows.collect());
            let sections = sections(&material);
            assert_eq!(
                sections[0].name, None,
                "a study's only section must have no heading of its own"
            );
            winner(&sections[0])
        };
        assert_eq!(won(&[("strom", 1, 0.9, 2.0)]), None);
        assert_eq!(
            won(&[
                ("strom", 1, 0.90, 2.0),
                ("strom", 2, 0.91, 2.0),
                ("ring", 1, 0.8, 3.0),
                ("ring", 2, 0.82, 3.0)
            ])
            .unwrap(),
            "On 3 nodes, strom has the best accuracy, 90.50 %; ring is second with 81.00 %; strom was also the fastest, \
             with 2.0 s."
        );
        let close = won(&[
            ("strom", 1, 0.90, 2.0),
            ("strom", 2, 0.96, 2.0),
            ("ring", 1, 0.92, 1.0),
            ("ring", 2, 0.93, 1.0),
        ]);
        let close = close.unwrap();
        assert_eq!(
            close,
            "On 3 nodes there is no clear winner: strom has the highest accuracy with 93.00 %, but ring is as good \
             within the standard deviation (92.50 %); the fastest was ring with 1.0 s."
        );
        let single = won(&[("strom", 1, 0.9, 2.0), ("ring", 1, 0.8, 3.0)]).unwrap();
        assert!(
            single.contains("(one run each, so the order may be chance)"),
            "{single}"
        );
    }
}
