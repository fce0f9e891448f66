//! The settings that a job left open and that the nodes decided for the run, for people and scripts.

use std::collections::BTreeMap;

use protocol::job::{JobDraft, Trainers};
use protocol::wire::control::RunStatus;

use crate::output::quantity;

/// Returns the settings that the nodes decided because the user had not set them, with their values as in a job file.
pub(crate) fn settings(status: &RunStatus) -> BTreeMap<String, toml::Value> {
    let draft = toml::Table::try_from(JobDraft::from(&*status.job)).unwrap_or_default();
    let is_chosen = |key: &str| status.chosen.iter().any(|chosen| **chosen == *key);
    draft.into_iter().filter(|(key, _)| is_chosen(key)).collect()
}

/// Returns one line for people with the settings that the nodes decided because the user had not set them; none if
/// there are no such settings.
pub(crate) fn line(status: &RunStatus) -> Option<String> {
    let settings = settings(status);
    let text = |key: &str| settings.get(key).map(ToString::to_string);
    let words = |key: &str| Some(text(key)?.trim_matches('"').to_owned());
    let job = &status.job;
    let mut said: Vec<String> = Vec::new();
    said.extend(words("model"));
    said.extend(words("optimiser"));
    said.extend(words("exchange").map(|exchange| format!("exchange {exchange}")));
    if settings.contains_key("epochs") || settings.contains_key("minibatch") {
        let steps = (status.train * u64::from(job.epochs)).div_ceil(u64::from(job.step_samples()));
        said.push(format!(
            "{} of {}, {} with minibatch {}",
            quantity::of(job.epochs as usize, "epoch"),
            quantity::of(status.train as usize, "row"),
            quantity::of(steps as usize, "step"),
            job.minibatch
        ));
    }
    let trainers = job.trainers.among(status.workers);
    if settings.contains_key("trainers") && job.trainers != Trainers::All && trainers < status.workers {
        said.push(format!(
            "only {trainers} of {} trains because the run is short; another worker takes over if that one is lost",
            quantity::of(status.workers, "worker")
        ));
    }
    (!said.is_empty()).then(|| format!("chosen by the nodes: {}", said.join(" · ")))
}
