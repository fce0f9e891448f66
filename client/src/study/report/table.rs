//! The report as CSV for other programs, with one line for every run.

use std::collections::BTreeSet;

use protocol::stats::RUN_FIGURES;

use super::Material;
use crate::study::row::Row;

/// Columns that a report's CSV table has for every run, before the columns of figures.
const COLUMNS: [&str; 11] = [
    "experiment",
    "nodes",
    "accuracy",
    "loss",
    "samples",
    "seconds",
    "samples_per_second",
    "seconds_to_target",
    "replicas_agree",
    "missing",
    "bytes_sent",
];

pub(super) fn csv(material: &Material) -> String {
    let keys: BTreeSet<&str> = material
        .rows
        .iter()
        .flat_map(|row| row.job.keys())
        .map(String::as_str)
        .collect();
    let mut writer = csv::Writer::from_writer(Vec::new());
    let jobs = keys.iter().map(|key| format!("job.{key}"));
    // Writes to memory do not fail, and all lines have the same number of columns.
    let _ = writer.write_record(
        COLUMNS
            .into_iter()
            .chain(RUN_FIGURES.iter().map(|figure| figure.name))
            .chain(["trouble"])
            .map(String::from)
            .chain(jobs),
    );
    for experiment in &material.experiments {
        for row in material.rows_of(experiment) {
            let figures = RUN_FIGURES.iter().map(|figure| {
                let value = row.result.as_ref().and_then(|run| (figure.of)(&run.figures));
                value.map(|value| value.to_string()).unwrap_or_default()
            });
            let values = values(row, experiment.target).into_iter().chain(figures);
            let values = values.chain([row.trouble().unwrap_or_default()]);
            let job = keys.iter().map(|key| row.key(key).to_string());
            let _ = writer.write_record(values.chain(job));
        }
    }
    let bytes = writer.into_inner().unwrap_or_default();
    String::from_utf8(bytes).unwrap_or_default()
}

fn values(row: &Row, target: Option<f64>) -> [String; COLUMNS.len()] {
    let of = |text: fn(&crate::study::row::Measured) -> String| row.result.as_ref().map(text).unwrap_or_default();
    let to_target = row.result.as_ref().zip(target);
    let to_target = to_target.and_then(|(result, target)| result.seconds_to(target));
    [
        row.experiment.clone(),
        row.nodes.to_string(),
        of(|run| run.accuracy.map(|accuracy| accuracy.to_string()).unwrap_or_default()),
        of(|run| run.loss.map(|loss| loss.to_string()).unwrap_or_default()),
        of(|run| run.samples.to_string()),
        of(|run| run.seconds.to_string()),
        of(|run| run.samples_per_second.to_string()),
        to_target.map(|seconds| seconds.to_string()).unwrap_or_default(),
        of(|run| run.replicas_agree.to_string()),
        of(|run| run.missing.join(" ")),
        of(|run| run.bytes_sent.to_string()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::plan::Study;
    use crate::study::row::tests::row;

    #[test]
    fn every_run_is_a_line_with_its_job() {
        let mut study = Study::of_flags();
        study.experiments[0].name = "e".into();
        let mut failed = row("ring", 3, 2, 0.1, 3.0);
        (failed.result, failed.error) = (None, Some("a, \"b\"".into()));
        let material = Material {
            title: "t".into(),
            experiments: study.experiments,
            rows: vec![row("strom", 3, 1, 0.9, 2.0), failed],
            missing: 0,
            failed: Vec::new(),
        };
        let text = csv(&material);
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let names = reader.headers().unwrap().clone();
        let lines: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
        let value = |line: usize, name: &str| {
            let at = names.iter().position(|other| other == name).unwrap();
            lines[line][at].to_string()
        };
        assert_eq!(lines.len(), 2);
        assert_eq!(
            (value(1, "accuracy"), value(1, "job.exchange")),
            ("0.9".into(), "strom".into())
        );
        assert_eq!(
            (value(0, "trouble"), value(0, "accuracy")),
            ("failed: a, \"b\"".into(), String::new())
        );
    }
}
