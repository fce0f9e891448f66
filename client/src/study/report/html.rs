//! The report as one HTML page without network access or scripts, in light and dark, readable on a phone.

use std::fmt::Write as _;

use super::chart::{COLOURS, escape};
use super::charts::pictures;
use super::figures::{StudyFigure, figures, how_good, taken};
use super::{Material, Section, common, cores_by_nodes, sections, winner};
use crate::output::quantity;
use crate::study::series::Group;

const STYLE: &str = include_str!("report.css");

pub(super) fn page(material: &Material) -> String {
    let title = escape(&material.title);
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
    );
    head(&mut out, material);
    let sections = sections(material);
    for section in &sections {
        experiment(&mut out, section);
    }
    meanings(&mut out, &sections);
    out.push_str("</body>\n</html>\n");
    out
}

fn head(out: &mut String, material: &Material) {
    for machine in material.machines() {
        let _ = writeln!(out, "<p class=\"machine\">Measured on: {}</p>", escape(&machine));
    }
    let _ = writeln!(
        out,
        "<p class=\"machine\">{}; figures are means, with standard deviations over seeds if there are several. Thin \
         lines and small dots are single runs; dashed lines are published results or the ideal.</p>",
        quantity::of(material.rows.len(), "run")
    );
    if material.missing > 0 {
        let _ = writeln!(
            out,
            "<p class=\"trouble\">{} planned runs have not been made yet.</p>",
            material.missing
        );
    }
    let troubles = material.troubles();
    if !troubles.is_empty() {
        out.push_str("<div class=\"trouble\">The means leave these runs out:<ul>");
        for trouble in troubles {
            let _ = write!(out, "<li>{}</li>", escape(&trouble));
        }
        out.push_str("</ul></div>\n");
    }
}

fn experiment(out: &mut String, section: &Section<'_>) {
    out.push_str("<section>\n");
    if let Some(name) = &section.name {
        let _ = writeln!(out, "<h2>{}</h2>", escape(name));
    }
    if !section.experiment.about.is_empty() {
        let _ = writeln!(out, "<p>{}</p>", escape(section.experiment.about.trim()));
    }
    let _ = writeln!(out, "<p class=\"job\">{}</p>", escape(&common(section)));
    let cores = cores_by_nodes(section);
    if !cores.is_empty() {
        let _ = writeln!(
            out,
            "<p class=\"job\">CPU cores per node, by number of nodes: {cores}</p>"
        );
    }
    if let Some(winner) = winner(section) {
        let _ = writeln!(out, "<p>{}</p>", escape(&winner));
    }
    table(out, section);
    legend(out, section);
    out.push_str("<div class=\"pictures\">\n");
    for picture in pictures(section) {
        let _ = write!(
            out,
            "<figure><figcaption>{}</figcaption>{}",
            escape(&picture.title),
            picture.svg
        );
        if !picture.legend.is_empty() {
            out.push_str("<div class=\"legend\">");
            for (name, colour) in picture.legend {
                let sign = colour.map_or_else(
                    || "<i class=\"dashes\"></i>".to_string(),
                    |colour| format!("<i style=\"background:var(--c{})\"></i>", colour % COLOURS),
                );
                let _ = write!(out, "<span>{sign}{}</span>", escape(&name));
            }
            out.push_str("</div>");
        }
        out.push_str("</figure>\n");
    }
    out.push_str("</div>\n</section>\n");
}

fn table(out: &mut String, section: &Section<'_>) {
    let _ = write!(
        out,
        "<div class=\"wide\"><table><thead><tr><th>{}</th><th>nodes</th><th>runs</th>",
        section.compared()
    );
    let metric = section.quality_metric();
    for figure in figures(metric) {
        let _ = write!(
            out,
            "<th title=\"{}\">{}</th>",
            escape(figure.about),
            escape(figure.name)
        );
    }
    out.push_str("</tr></thead><tbody>\n");
    for (at, series) in section.series.iter().enumerate() {
        for group in &series.groups {
            let _ = write!(
                out,
                "<tr><th><i style=\"background:var(--c{})\"></i>{}</th><td>{}</td><td>{}</td>",
                at % COLOURS,
                escape(&series.label),
                group.nodes,
                runs(group)
            );
            for figure in figures(metric) {
                let target = section.experiment.target;
                let summary = group.summary(|run| figure.of(run, target));
                let text = summary.map_or_else(
                    || "–".into(),
                    |summary| {
                        let mean = escape(&(figure.text)(summary.mean));
                        let deviation = summary.deviation.map(|deviation| (figure.text)(deviation));
                        deviation.map_or(mean.clone(), |deviation| {
                            format!("{mean}<small>±{}</small>", escape(&deviation))
                        })
                    },
                );
                let _ = write!(out, "<td>{text}</td>");
            }
            out.push_str("</tr>\n");
        }
    }
    out.push_str("</tbody></table></div>\n");
}

/// Writes a definition list of the series whose labels leave out the settings in which they differ: each label with
/// these settings.
fn legend(out: &mut String, section: &Section<'_>) {
    let named = section.series.iter();
    let named: Vec<(&str, &str)> = named
        .filter_map(|series| Some((&*series.label, series.about.as_deref()?)))
        .collect();
    if !named.is_empty() {
        out.push_str("<dl>");
        for (name, about) in named {
            let _ = write!(out, "<dt>{}</dt><dd>{}</dd>", escape(name), escape(about));
        }
        out.push_str("</dl>\n");
    }
}

/// Formats the number of a group's runs that count in averages, and the number of those left out.
fn runs(group: &Group<'_>) -> String {
    match group.troubled {
        0 => group.sound.len().to_string(),
        troubled => format!("{} <b class=\"bad\">({troubled} left out)</b>", group.sound.len()),
    }
}

fn meanings(out: &mut String, sections: &[Section<'_>]) {
    let mut good: Vec<StudyFigure> = sections
        .iter()
        .map(|section| how_good(section.quality_metric()))
        .collect();
    good.dedup_by_key(|figure| figure.name);
    out.push_str("<section><h2>Meaning of the figures</h2><dl>");
    for figure in good.into_iter().chain(taken()) {
        let _ = write!(out, "<dt>{}</dt><dd>{}</dd>", escape(figure.name), escape(figure.about));
    }
    out.push_str("</dl></section>\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::plan::Study;
    use crate::study::row::tests::row;

    #[test]
    fn a_page_stands_alone_and_shows_hostile_text_as_text() {
        let hostile = "<script>alert('x')</script>";
        let mut study = Study::of_flags();
        study.experiments[0].name = "e".into();
        study.experiments[0].about = hostile.into();
        let mut bad = row("ring", 3, 2, 0.1, 3.0);
        bad.result.as_mut().unwrap().missing.push(hostile.into());
        let material = Material {
            title: hostile.into(),
            experiments: study.experiments,
            rows: vec![row("strom", 3, 1, 0.9, 2.0), row("ring", 3, 1, 0.8, 3.0), bad],
            missing: 2,
            failed: Vec::new(),
        };
        let page = page(&material);
        assert!(!page.contains("<script"), "{page}");
        assert!(!page.contains("http://") && !page.contains("https://"));
        assert!(page.contains("2 planned runs have not been made yet"));
        assert!(page.contains("the run lost these nodes: &lt;script&gt;"));
        assert!(
            page.contains("(1 left out)"),
            "the mean must leave out a run with missing nodes"
        );
        assert!(page.contains("80.00 %"), "the mean over the remaining runs");
        for tag in ["section", "table", "div", "figure", "svg", "g", "html"] {
            let opened = page.matches(&format!("<{tag} ")).count() + page.matches(&format!("<{tag}>")).count();
            assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{tag}");
        }
    }
}
