//! The report as Markdown, with tables that are readable as plain text.

use std::fmt::Write as _;

use super::figures::{figures, how_good};
use super::{Material, Section, common, cores_by_nodes, sections, winner};
use crate::output::quantity;

pub(super) fn text(material: &Material) -> String {
    let mut out = format!("# {}\n\n", material.title);
    for machine in material.machines() {
        let _ = writeln!(out, "Measured on: {machine}.");
    }
    let _ = writeln!(
        out,
        "{}; figures are means ± standard deviations over seeds if there are several.\n",
        quantity::of(material.rows.len(), "run")
    );
    if material.missing > 0 {
        let _ = writeln!(out, "**{} planned runs have not been made yet.**\n", material.missing);
    }
    let troubles = material.troubles();
    if !troubles.is_empty() {
        out.push_str("The means leave these runs out:\n\n");
        for trouble in troubles {
            let _ = writeln!(out, "- {trouble}");
        }
        out.push('\n');
    }
    for section in &sections(material) {
        experiment(&mut out, section);
    }
    out
}

fn experiment(out: &mut String, section: &Section<'_>) {
    let experiment = section.experiment;
    if let Some(name) = &section.name {
        let _ = writeln!(out, "## {name}\n");
    }
    if !experiment.about.is_empty() {
        let _ = writeln!(out, "{}\n", experiment.about.trim());
    }
    let _ = writeln!(out, "{}.", common(section));
    let cores = cores_by_nodes(section);
    if !cores.is_empty() {
        let _ = writeln!(out, "CPU cores per node, by number of nodes: {cores}.");
    }
    if let Some(target) = experiment.target {
        let _ = writeln!(out, "Target: {}.", section.quality_metric().text(target));
    }
    if let Some(winner) = winner(section) {
        let _ = writeln!(out, "\n{winner}");
    }
    let _ = write!(out, "\n| {} | nodes | runs |", section.compared());
    let metric = section.quality_metric();
    for figure in figures(metric) {
        let _ = write!(out, " {} |", figure.name);
    }
    out.push_str("\n|---|---|---|");
    out.push_str(&"---|".repeat(figures(metric).count()));
    out.push('\n');
    for series in &section.series {
        for group in &series.groups {
            let troubled = match group.troubled {
                0 => String::new(),
                some => format!(" ({some} left out)"),
            };
            let label = series.label.replace('|', "\\|");
            let _ = write!(out, "| {label} | {} | {}{troubled} |", group.nodes, group.sound.len());
            for figure in figures(metric) {
                let text = group.summary(|run| figure.of(run, experiment.target)).map(|summary| {
                    let deviation = summary
                        .deviation
                        .map(|deviation| format!(" ± {}", (figure.text)(deviation)));
                    format!("{}{}", (figure.text)(summary.mean), deviation.unwrap_or_default())
                });
                let _ = write!(out, " {} |", text.unwrap_or_else(|| "–".into()));
            }
            out.push('\n');
        }
    }
    for series in &section.series {
        if let Some(about) = &series.about {
            let _ = writeln!(out, "\n{}: {about}.", series.label);
        }
    }
    for reference in &experiment.references {
        let places = reference.nodes.iter().map(|nodes| format!("{nodes} nodes"));
        let places: Vec<String> = places.chain(reference.split.iter().cloned()).collect();
        let said = |figures: &[f64], text: fn(f64) -> String| {
            let pairs = places
                .iter()
                .zip(figures)
                .map(|(place, &figure)| format!("{place}: {}", text(figure)));
            pairs.collect::<Vec<_>>().join(", ")
        };
        let parts = [
            said(&reference.accuracy, how_good(metric).text),
            said(&reference.seconds, quantity::seconds),
            said(&reference.speed_up, |figure| format!("{figure:.1} times")),
        ];
        let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        let _ = writeln!(out, "\n{}: {}.", reference.name, parts.join("; "));
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::plan::{Reference, Study};
    use crate::study::row::tests::row;

    #[test]
    fn a_table_has_a_line_for_every_group_and_what_others_published() {
        let mut study = Study::of_flags();
        study.experiments[0].name = "e".into();
        study.experiments[0].references.push(Reference {
            name: "theirs".into(),
            nodes: vec![1, 10],
            accuracy: vec![0.9864, 0.9265],
            seconds: vec![396.64, 282.17],
            ..Reference::default()
        });
        let rows = [(1, 0.9), (2, 0.8)].map(|(seed, accuracy)| row("strom", 3, seed, accuracy, 2.0));
        let material = Material {
            title: "Title".into(),
            experiments: study.experiments,
            rows: [&rows[..], &[row("ring", 1, 1, 0.7, 1.0)]].concat(),
            missing: 0,
            failed: Vec::new(),
        };
        let text = text(&material);
        assert!(
            text.contains("| strom | 3 | 2 | 85.00 % ± 7.07 % | 2.0 s ± 0.00 s |"),
            "{text}"
        );
        assert!(text.contains("| ring | 1 | 1 | 70.00 % | 1.0 s |"), "{text}");
        assert!(
            text.contains("theirs: 1 nodes: 98.64 %, 10 nodes: 92.65 %; 1 nodes: 397 s, 10 nodes: 282 s."),
            "{text}"
        );
    }
}
