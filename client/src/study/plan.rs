//! Plan of a study: experiments whose job keys have one or several values, and a run for every combination of these.
//! Pure.

use protocol::job::{Job, JobDraft, JobErrors};
use protocol::rng::CounterRng;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::settings::toml_error;

/// Name of the experiment in a study that is described by flags alone.
pub(crate) const DEFAULT_NAME: &str = "study";

/// Largest number of runs in a study; more would take weeks.
const RUNS_MAX: usize = 10_000;

/// A study, in which strategies are compared: its experiments, as people write them and as its folder keeps them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Study {
    /// Heading of the study's report.
    pub(crate) title: String,
    /// Seed for the order of a study's runs. The order is random because machines drift over time, for example as they
    /// heat up, and this must not favour a strategy.
    #[serde(default = "one")]
    pub(crate) order: u64,
    /// Experiments of the study. Runs are compared only with other runs of the same experiment.
    #[serde(rename = "experiment")]
    pub(crate) experiments: Vec<Experiment>,
}

/// An experiment of a study: runs under the same conditions that are compared with each other.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Experiment {
    pub(crate) name: String,
    /// Text on an experiment for the report: its question, and the meaning of its figures.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) about: String,
    /// Numbers of nodes with which an experiment's runs are made, each of which is tried.
    #[serde(default = "three")]
    pub(crate) nodes: Vec<usize>,
    /// Accuracy for which a report gives the time to reach it, read from the evaluations. Runs do not stop there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) target: Option<f64>,
    /// Published results that the report draws beside the measured ones.
    #[serde(default, rename = "reference", skip_serializing_if = "Vec::is_empty")]
    pub(crate) references: Vec<Reference>,
    /// Job keys of an experiment, each with one value or a list of values that are all tried.
    #[serde(flatten)]
    pub(crate) job: Table,
}

/// Published results of other authors, one figure for each number of nodes or for each split.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Reference {
    pub(crate) name: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) nodes: Vec<usize>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) split: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) accuracy: Vec<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) seconds: Vec<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) speed_up: Vec<f64>,
}

/// One planned run of a study: its experiment, number of nodes and job.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Planned {
    pub(crate) experiment: String,
    pub(crate) nodes: usize,
    pub(crate) job: Job,
}

/// Settings from the command line of `tau study` that replace those of every experiment in the study.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changes {
    pub(crate) nodes: Vec<usize>,
    /// Job keys from the command line with a list of values, each of which is tried in every experiment.
    pub(crate) lists: Vec<(&'static str, Vec<Value>)>,
    /// Job keys from the command line with a single value, which replaces that of every experiment.
    pub(crate) job: JobDraft,
    pub(crate) target: Option<f64>,
}

fn one() -> u64 {
    1
}

fn three() -> Vec<usize> {
    vec![3]
}

impl Study {
    /// Parses a study. An error is a sentence that names the wrong line.
    pub(crate) fn from_toml(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| toml_error::sentence(text, &error))
    }

    pub(crate) fn to_toml(&self) -> Result<String, String> {
        toml::to_string(self).map_err(|error| error.to_string())
    }

    /// Returns a study with one experiment, for studies that are described by flags alone.
    pub(crate) fn of_flags() -> Self {
        let job = Table::from_iter([
            ("exchange".into(), Value::from("strom")),
            ("split".into(), Value::from("random")),
            ("seed".into(), Value::from(1)),
        ]);
        Self {
            title: "A study".into(),
            order: one(),
            experiments: vec![Experiment {
                name: DEFAULT_NAME.into(),
                nodes: three(),
                job,
                ..Experiment::default()
            }],
        }
    }

    /// Replaces the settings of every experiment of a study with those from the command line.
    pub(crate) fn changed(mut self, changes: &Changes) -> Result<Self, String> {
        let single = Table::try_from(&changes.job).map_err(|error| error.to_string())?;
        for experiment in &mut self.experiments {
            if !changes.nodes.is_empty() {
                experiment.nodes.clone_from(&changes.nodes);
            }
            experiment.target = changes.target.or(experiment.target);
            experiment.job.extend(single.clone());
            for (key, values) in changes.lists.iter().filter(|(_, values)| !values.is_empty()) {
                experiment.job.insert((*key).into(), Value::Array(values.clone()));
            }
        }
        Ok(self)
    }

    /// Returns all runs of the study in random order, or a sentence for each mistake in the study.
    pub(crate) fn runs(&self) -> Result<Vec<Planned>, Vec<String>> {
        let mut runs = Vec::new();
        let mut errors = Vec::new();
        if self.experiments.is_empty() {
            errors.push("the study has no [[experiment]]".into());
        }
        for experiment in &self.experiments {
            let named = self.experiments.iter().filter(|other| other.name == experiment.name);
            if named.count() > 1 {
                errors.push(format!("two experiments are named '{}'", experiment.name));
            }
            match experiment.runs() {
                Ok(more) => runs.extend(more),
                Err(more) => errors.extend(more.into_iter().map(|error| format!("{}: {error}", experiment.name))),
            }
        }
        if runs.len() > RUNS_MAX {
            errors.push(format!(
                "the study has {} runs, but at most {RUNS_MAX} are allowed",
                runs.len()
            ));
        }
        errors.dedup();
        if !errors.is_empty() {
            return Err(errors);
        }
        CounterRng::new(self.order, 0).shuffle(&mut runs);
        Ok(runs)
    }
}

impl Experiment {
    fn runs(&self) -> Result<Vec<Planned>, Vec<String>> {
        let mut errors = Vec::new();
        if self.nodes.is_empty() || self.nodes.contains(&0) {
            errors.push("nodes must be a list of one or more numbers, each at least 1".into());
        }
        for reference in &self.references {
            errors.extend(reference.mistake());
        }
        let mut combinations = vec![Table::new()];
        for (key, value) in &self.job {
            let values = match value {
                Value::Array(values) => values.clone(),
                single => vec![single.clone()],
            };
            if values.is_empty() {
                errors.push(format!("the list of {key} is empty"));
            }
            if combinations.len().saturating_mul(values.len().max(1)) > RUNS_MAX {
                errors.push(format!("the experiment has more than {RUNS_MAX} runs"));
                break;
            }
            combinations = combinations
                .iter()
                .flat_map(|table| {
                    values.iter().map(|value| {
                        let mut table = table.clone();
                        table.insert(key.clone(), value.clone());
                        table
                    })
                })
                .collect();
        }
        let mut runs: Vec<Planned> = Vec::new();
        for table in combinations {
            match job_of(table) {
                Ok(job) => runs.extend(self.nodes.iter().map(|&nodes| Planned {
                    experiment: self.name.clone(),
                    nodes,
                    job: job.clone(),
                })),
                Err(more) => errors.extend(more),
            }
        }
        if let Some(twice) = runs.iter().enumerate().find(|(at, run)| runs[..*at].contains(run)) {
            errors.push(format!(
                "run {} of the experiment occurs twice: remove the repeated value from its list",
                twice.0 + 1
            ));
        }
        errors.sort();
        errors.dedup();
        if errors.is_empty() { Ok(runs) } else { Err(errors) }
    }
}

impl Reference {
    /// Returns a message if the published results are not given either by number of nodes or by split, or if a list
    /// lacks a figure.
    fn mistake(&self) -> Option<String> {
        let places = self.nodes.len().max(self.split.len());
        let fits = |figures: &[f64]| figures.is_empty() || figures.len() == places;
        let all = [&self.accuracy, &self.seconds, &self.speed_up];
        let one_axis = self.nodes.is_empty() != self.split.is_empty();
        (!one_axis || !all.iter().all(|figures| fits(figures))).then(|| {
            format!(
                "reference '{}' needs either nodes or split, and in each list of figures one figure \
                              per entry",
                self.name
            )
        })
    }
}

fn job_of(table: Table) -> Result<Job, Vec<String>> {
    let draft: JobDraft = table
        .try_into()
        .map_err(|error: toml::de::Error| vec![error.message().trim().replace('\n', "; ")])?;
    draft.resolve().map_err(|JobErrors(errors)| {
        let sentences = errors.iter();
        sentences
            .map(|error| format!("{}: {}", error.key, error.message))
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STUDY: &str = r#"
        title = "Two things"

        [[experiment]]
        name = "one"
        nodes = [1, 3]
        exchange = ["strom", "ring"]
        seed = [1, 2]
        epochs = 2
    "#;

    fn mistakes(text: &str) -> String {
        match Study::from_toml(text) {
            Ok(study) => study.runs().unwrap_err().join("; "),
            Err(error) => error,
        }
    }

    #[test]
    fn every_combination_is_a_run_in_an_order_of_its_own() {
        let study = Study::from_toml(STUDY).unwrap();
        let runs = study.runs().unwrap();
        assert_eq!(runs.len(), 8);
        assert!(runs.iter().all(|run| run.job.epochs == 2));
        let on_three = runs.iter().filter(|run| run.nodes == 3);
        assert_eq!(on_three.count(), 4);
        assert_eq!(study.runs().unwrap(), runs, "the same seed, the same order");
        let other = Study {
            order: 2,
            ..study.clone()
        };
        assert_ne!(other.runs().unwrap(), runs);
        assert_eq!(Study::from_toml(&study.to_toml().unwrap()).unwrap(), study);
    }

    #[test]
    fn a_command_line_changes_every_experiment() {
        let changes = Changes {
            nodes: vec![2],
            lists: vec![
                ("split", vec!["random".into(), "class".into()]),
                ("exchange", Vec::new()),
            ],
            job: JobDraft {
                epochs: Some(1),
                ..JobDraft::default()
            },
            target: Some(0.9),
        };
        let runs = Study::from_toml(STUDY)
            .unwrap()
            .changed(&changes)
            .unwrap()
            .runs()
            .unwrap();
        assert_eq!(runs.len(), 8, "two exchanges, two seeds, two splits");
        assert!(runs.iter().all(|run| (run.nodes, run.job.epochs) == (2, 1)));
    }

    #[test]
    fn mistakes_are_named_and_make_no_runs() {
        let with = |line: &str| mistakes(&format!("title = \"t\"\n[[experiment]]\nname = \"e\"\n{line}"));
        assert!(with("exchange = [\"gossip\"]").contains("e: exchange: "));
        assert!(with("exchange = []").contains("the list of exchange is empty"));
        assert!(with("nodes = []").contains("nodes must be"));
        assert!(with("nodes = [0]").contains("nodes must be"));
        assert!(with("colour = 3").contains("colour"));
        assert!(with("seed = [1, 1]").contains("twice"));
        let many = |key: &str| format!("{key} = {:?}", (1..=200).collect::<Vec<_>>());
        assert!(with(&format!("{}\n{}", many("seed"), many("epochs"))).contains("more than 10000 runs"));
        assert!(with("[[experiment]]\nname = \"e\"").contains("two experiments are named 'e'"));
        assert!(with("[[experiment.reference]]\nname = \"r\"\nnodes = [1]\naccuracy = [0.5, 0.6]").contains("'r'"));
        assert!(mistakes("title = \"t\"\nexperiment = []").contains("no [[experiment]]"));
        assert!(mistakes("title = 5").contains("line 1"));
    }
}
