//! `tau doctor`: checks this machine or a cluster for problems that prevent training, and suggests remedies.

mod cluster;
mod data;
mod machine;

use protocol::stats::EventLine;
use serde::Serialize;

use super::{access, parsed};
use crate::args::Doctor;
use crate::failure::Failure;
use crate::settings::config_file::ConfigFile;
use crate::{output, runtime};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Ok,
    Warning,
    Problem,
}

/// Result of one check of `tau doctor`, such as the comparison of clocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Finding {
    level: Level,
    /// Sentence that says what a check of `tau doctor` found.
    found: String,
    /// Remedy that `tau doctor` advises, if its check found something wrong.
    advice: Option<String>,
}

fn ok(found: impl Into<String>) -> Finding {
    Finding {
        level: Level::Ok,
        found: found.into(),
        advice: None,
    }
}

fn warning(found: impl Into<String>, advice: impl Into<String>) -> Finding {
    Finding {
        level: Level::Warning,
        found: found.into(),
        advice: Some(advice.into()),
    }
}

fn problem(found: impl Into<String>, advice: impl Into<String>) -> Finding {
    Finding {
        level: Level::Problem,
        ..warning(found, advice)
    }
}

pub(crate) fn run(arguments: &Doctor) -> Result<(), Failure> {
    let asked = !arguments.cluster.cluster.is_empty() || !ConfigFile::read()?.cluster.is_empty();
    let data = parsed(arguments.data.as_deref())?;
    runtime::run_async(async {
        let mut findings = machine::machine().await;
        match (asked, data) {
            (true, data) => {
                let contact = access::contact(&arguments.cluster).await?;
                findings.extend(cluster::cluster(&contact).await);
                if let Some(data) = data {
                    findings.extend(data::on_nodes(&contact, &data).await?);
                }
            }
            (false, Some(data)) => findings.push(data::here(data).await),
            (false, None) => {}
        }
        for finding in &findings {
            tell(finding, arguments.json);
        }
        let problems = findings
            .iter()
            .filter(|finding| finding.level == Level::Problem)
            .count();
        match problems {
            0 => Ok(()),
            1 => Err(Failure::Failed("1 problem was found".into())),
            several => Err(Failure::Failed(format!("{several} problems were found"))),
        }
    })
}

fn tell(finding: &Finding, json: bool) {
    if json {
        output::line(&EventLine {
            event: "finding",
            record: finding,
        });
        return;
    }
    let level = match finding.level {
        Level::Ok => "ok",
        Level::Warning => "warning",
        Level::Problem => "problem",
    };
    let advice = finding
        .advice
        .as_ref()
        .map_or(String::new(), |advice| format!(": {advice}"));
    output::text(&format!("{level:<8} {}{advice}\n", finding.found));
}
