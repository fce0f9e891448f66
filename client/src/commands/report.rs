//! `tau report`: writes a report of past runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use protocol::job::JobDraft;
use protocol::stats::EventLine;

use crate::args::Report as Arguments;
use crate::failure::Failure;
use crate::output::{self, notice, quantity};
use crate::run::folder::{JOB, RESULT};
use crate::run::journal::EVENTS;
use crate::settings::job_file;
use crate::study::machine::Machine;
use crate::study::plan::Experiment;
use crate::study::report::{self, Material, RUNS};
use crate::study::row::{Measured, Row};
use crate::study::store;
use crate::views::page;

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let mut material = Material {
        title: "Runs".into(),
        ..Material::default()
    };
    for folder in &arguments.folders {
        take(folder, &mut material).map_err(|why| not_a_run(folder, &why))?;
    }
    std::fs::create_dir_all(&arguments.out).map_err(|error| {
        Failure::input(format!(
            "the folder {} cannot be created: {error}; give another folder with --out",
            arguments.out.display()
        ))
    })?;
    let page = match &arguments.folders[..] {
        [folder] if is_run(folder) => Some(page::report::of_folder(folder).map_err(|why| not_a_run(folder, &why))?),
        _ => None,
    };
    let written = report::write(&arguments.out, &material, page)?;
    let files: Vec<String> = written.iter().map(|path| path.display().to_string()).collect();
    if arguments.json {
        output::line(&EventLine {
            event: "report",
            record: &serde_json::json!({ "runs": material.rows.len(), "files": files }),
        });
    } else {
        let without = match material.failed.len() {
            0 => String::new(),
            some => format!(", and {some} without a result"),
        };
        notice::say(&format!(
            "{}{without}; the report was written to {}",
            quantity::of(material.rows.len(), "run"),
            files.join(", ")
        ));
    }
    Ok(())
}

fn not_a_run(folder: &Path, why: &str) -> Failure {
    Failure::input(format!(
        "{} is not the folder of a run or a study: {why}",
        folder.display()
    ))
}

/// Adds the contents of a folder to the material of a report. The folder is that of a study, of one run, or of several
/// runs.
fn take(folder: &Path, material: &mut Material) -> Result<(), String> {
    let Some((study, rows)) = store::load(folder)? else {
        let runs = runs_in(folder);
        if runs.is_empty() {
            return take_run(folder, material);
        }
        return runs.iter().try_for_each(|run| take_run(run, material));
    };
    material.title = if material.experiments.is_empty() {
        study.title.clone()
    } else {
        format!("{}; {}", material.title, study.title)
    };
    let planned = study.runs().map_or(0, |runs| runs.len());
    material.missing += planned.saturating_sub(rows.len());
    // Two studies may have experiments of the same name: the later one's get the folder as a suffix.
    let taken = |name: &str| material.experiments.iter().any(|known| known.name == name);
    let mut names = BTreeMap::new();
    let mut own: Vec<Experiment> = study.experiments;
    for experiment in &mut own {
        if taken(&experiment.name) {
            let new = format!("{} ({})", experiment.name, folder.display());
            names.insert(std::mem::replace(&mut experiment.name, new.clone()), new);
        }
    }
    material.experiments.extend(own);
    material.rows.extend(rows.into_iter().map(|row| Row {
        experiment: names.get(&row.experiment).cloned().unwrap_or(row.experiment),
        ..row
    }));
    Ok(())
}

/// Returns true if the folder is that of a run, which may have failed.
fn is_run(folder: &Path) -> bool {
    folder.join(RESULT).is_file() || folder.join(JOB).is_file()
}

/// Returns the folders of runs directly within a folder, without links such as `latest`.
fn runs_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    let mut runs: Vec<PathBuf> = paths.filter(|path| !path.is_symlink() && is_run(path)).collect();
    runs.sort();
    runs
}

/// Describes a run that left no result, with the reason of its failure if its events hold one.
fn without_result(folder: &Path) -> String {
    let job = std::fs::read_to_string(folder.join(JOB)).unwrap_or_default();
    let data = JobDraft::from_toml(&job).ok().and_then(|draft| draft.resolve().ok());
    let of = data.map_or_else(String::new, |job| format!(" of {}", job.data));
    let events = std::fs::read_to_string(folder.join(EVENTS)).unwrap_or_default();
    let failed = events.lines().rev().find_map(|line| {
        let event: serde_json::Value = serde_json::from_str(line).ok()?;
        (event["event"] == "failed").then(|| format!("failed: {}", event["reason"].as_str().unwrap_or_default()))
    });
    let why =
        failed.unwrap_or_else(|| "no result: the run is still training, or no client followed it to its end".into());
    let run = folder.file_name().unwrap_or_default().display();
    format!("run {run}{of}: {why}")
}

fn take_run(folder: &Path, material: &mut Material) -> Result<(), String> {
    if folder.join(JOB).is_file() && !folder.join(RESULT).is_file() {
        material.failed.push(without_result(folder));
        return Ok(());
    }
    let read = |name: &str| {
        let place = folder.join(name);
        std::fs::read_to_string(&place).map_err(|error| format!("{name} in this folder could not be read: {error}"))
    };
    let result: Measured = serde_json::from_str(&read(RESULT)?).map_err(|error| format!("{RESULT}: {error}"))?;
    let draft = JobDraft::from_toml(&read(JOB)?).map_err(|error| format!("{JOB}: {}", error.message()))?;
    let job = draft.resolve().map_err(|error| format!("{JOB}: {error}"))?;
    if !material.experiments.iter().any(|known| known.name == RUNS) {
        material.experiments.push(Experiment {
            name: RUNS.into(),
            target: job.target_accuracy,
            ..Experiment::default()
        });
    }
    material.rows.push(Row {
        experiment: RUNS.into(),
        nodes: result.nodes + result.missing.len(),
        job: job_file::keys_of(&job),
        // A run's folder does not say which machine the run was made on.
        machine: Machine {
            processor: "machines that the run folders do not name".into(),
            version: crate::version::VERSION.into(),
            ..Machine::default()
        },
        result: Some(result),
        error: None,
        run: folder.file_name().unwrap_or_default().display().to_string(),
    });
    Ok(())
}
