//! Selects the charts of an experiment from the settings in which its runs differ.

use super::Section;
use super::chart::{self, Axis, Bar, ChartLine, Style};
use super::figures::{SECONDS, SPEED, StudyFigure, how_good, taken};
use crate::output::quality_metric::QualityMetric;
use crate::output::quantity;
use crate::output::text_layout::capitalised;
use crate::study::plan::Reference;
use crate::study::row::Point;
use crate::study::series::{Group, Series, node_counts};
use crate::study::statistics::Summary;

/// A chart of a report, with its title and legend.
pub(super) struct Picture {
    pub(super) title: String,
    pub(super) svg: String,
    /// Names and colour indices of a chart's lines; empty where bars carry their names.
    pub(super) legend: Vec<(String, Option<usize>)>,
}

/// Function that returns the horizontal position of an evaluation in a chart, such as its seconds.
type Position = fn(&Point) -> f64;

const TIME: Axis = Axis {
    name: "seconds",
    number: plain,
    from_zero: true,
    whole: false,
};
const SAMPLES: Axis = Axis {
    name: "samples",
    number: short,
    ..TIME
};
const NODES: Axis = Axis {
    name: "nodes",
    from_zero: false,
    whole: true,
    ..TIME
};
/// Returns the chart axis for the quality of models.
fn good(metric: QualityMetric) -> Axis {
    Axis {
        name: metric.name(),
        number: match metric {
            QualityMetric::Accuracy => percent,
            QualityMetric::R2 | QualityMetric::Loss => plain,
        },
        from_zero: false,
        ..TIME
    }
}

/// Returns all charts of one section of a report, which covers an experiment on one dataset.
pub(super) fn pictures(section: &Section<'_>) -> Vec<Picture> {
    let series = &section.series;
    let counts = node_counts(series);
    let mut all = Vec::new();
    if counts.len() > 1 {
        all.extend(by_nodes(section));
    }
    let splits = series.iter().any(|one| one.keys.contains_key("split"));
    let most = counts.last().copied().unwrap_or(1);
    if splits {
        all.push(by_split(section, most));
    }
    for &nodes in counts.iter().rev() {
        all.extend(courses(section, nodes));
    }
    // There are no bar charts of the accuracy: bars begin at zero, so small differences would not show. The curves show
    // them.
    for figure in taken() {
        all.extend(compared(section, &figure, most));
    }
    all
}

fn legend(series: &[Series<'_>]) -> Vec<(String, Option<usize>)> {
    let entries = series.iter().enumerate();
    entries.map(|(at, one)| (one.label.clone(), Some(at))).collect()
}

/// Draws two charts of how models' quality developed, one over samples and one over seconds, with one line for every
/// run.
fn courses(section: &Section<'_>, nodes: usize) -> Vec<Picture> {
    let (series, metric) = (&section.series, section.quality_metric());
    let over = |axis: Axis, place: Position| {
        let mut lines = Vec::new();
        for (at, one) in series.iter().enumerate() {
            for result in one.at(nodes).iter().flat_map(|group| &group.sound) {
                let points = result.evaluations.iter().filter_map(|one| {
                    let figure = match metric {
                        QualityMetric::Accuracy | QualityMetric::R2 => one.accuracy,
                        QualityMetric::Loss => one.loss,
                    };
                    Some((place(one), figure?))
                });
                lines.push(ChartLine {
                    colour: Some(at),
                    style: Style::Thin,
                    points: points.collect(),
                    title: one.label.clone(),
                    deviations: Vec::new(),
                });
            }
        }
        let title = format!(
            "{} over {}, {}",
            capitalised(metric.name()),
            axis.name,
            quantity::of(nodes, "node")
        );
        (!lines.is_empty()).then(|| Picture {
            svg: chart::lines(&title, axis, good(metric), &lines),
            title,
            legend: legend(series),
        })
    };
    let pictures = [over(SAMPLES, |one| one.samples as f64), over(TIME, |one| one.seconds)];
    pictures.into_iter().flatten().collect()
}

/// Draws the charts with the number of nodes on the horizontal axis: time, speed-up and the quality of models.
fn by_nodes(section: &Section<'_>) -> Vec<Picture> {
    let series = &section.series;
    let by = |figure: &StudyFigure, y: Axis, published: fn(&Reference) -> &[f64]| {
        let mut lines: Vec<ChartLine> = (0..)
            .zip(series)
            .map(|(at, one)| line(one, at, |group| group.summary(|run| figure.of(run, None))))
            .collect();
        lines.extend(references(section, published));
        over_nodes(format!("{} by nodes", capitalised(figure.name)), y, section, &lines)
    };
    vec![
        by(
            &SECONDS,
            Axis {
                number: |seconds| format!("{} s", plain(seconds)),
                ..TIME
            },
            |reference| &reference.seconds,
        ),
        speed_up(section),
        by(
            &how_good(section.quality_metric()),
            good(section.quality_metric()),
            |reference| &reference.accuracy,
        ),
    ]
}

/// Builds a chart of lines over the number of nodes, with a legend.
fn over_nodes(title: String, y: Axis, section: &Section<'_>, lines: &[ChartLine]) -> Picture {
    let dashed = lines.iter().filter(|line| line.style == Style::Dashed);
    let names = dashed.map(|line| (line.title.clone(), None));
    Picture {
        svg: chart::lines(&title, NODES, y, lines),
        title,
        legend: legend(&section.series).into_iter().chain(names).collect(),
    }
}

/// Returns other authors' published results by number of nodes as dashed lines; `published` selects the figure.
fn references(section: &Section<'_>, published: fn(&Reference) -> &[f64]) -> impl Iterator<Item = ChartLine> {
    let all = section.experiment.references.iter().map(move |reference| {
        let places = reference.nodes.iter().map(|&nodes| nodes as f64);
        let points = places.zip(published(reference).iter().copied()).collect();
        dashed(reference.name.clone(), points)
    });
    all.filter(|line| !line.points.is_empty())
}

fn dashed(title: String, points: Vec<(f64, f64)>) -> ChartLine {
    ChartLine {
        colour: None,
        style: Style::Dashed,
        points,
        title,
        deviations: Vec::new(),
    }
}

fn line(series: &Series<'_>, colour: usize, of: impl Fn(&Group<'_>) -> Option<Summary>) -> ChartLine {
    let found: Vec<(f64, Summary)> = series
        .groups
        .iter()
        .filter_map(|group| Some((group.nodes as f64, of(group)?)))
        .collect();
    ChartLine {
        colour: Some(colour),
        style: Style::Thick,
        points: found.iter().map(|(nodes, summary)| (*nodes, summary.mean)).collect(),
        title: series.label.clone(),
        deviations: found.iter().map(|(_, summary)| summary.deviation).collect(),
    }
}

/// Draws the chart of the speed-up: samples per second divided by those on the fewest nodes, with a line for the ideal.
fn speed_up(section: &Section<'_>) -> Picture {
    let series = &section.series;
    let counts = node_counts(series);
    let (fewest, most) = (counts[0] as f64, counts[counts.len() - 1] as f64);
    let mut lines = vec![dashed("ideal".into(), vec![(fewest, 1.0), (most, most / fewest)])];
    for (at, one) in series.iter().enumerate() {
        let speed = |group: &Group<'_>| group.summary(|run| SPEED.of(run, None));
        if let Some(base) = one.at(counts[0]).and_then(speed) {
            lines.push(line(one, at, |group| {
                let summary = speed(group)?;
                Some(Summary {
                    mean: summary.mean / base.mean,
                    deviation: summary.deviation.map(|deviation| deviation / base.mean),
                    ..summary
                })
            }));
        }
    }
    lines.extend(references(section, |reference| &reference.speed_up));
    let factor = Axis {
        name: "times",
        number: |times| format!("{} ×", plain(times)),
        ..TIME
    };
    over_nodes("Speed-up in samples/s by nodes".into(), factor, section, &lines)
}

fn bar(
    label: String,
    colour: Option<usize>,
    group: &Group<'_>,
    figure: &StudyFigure,
    target: Option<f64>,
) -> Option<Bar> {
    let of = |run: &crate::study::row::Measured| figure.of(run, target);
    let summary = group.summary(of)?;
    Some(Bar {
        label,
        colour,
        mean: summary.mean,
        deviation: summary.deviation,
        singles: group.figures(of),
        text: (figure.text)(summary.mean),
    })
}

/// Charts one figure as bars: for each series of runs with the same settings, the runs on this many nodes.
fn compared(section: &Section<'_>, figure: &StudyFigure, nodes: usize) -> Option<Picture> {
    let target = section.experiment.target;
    let bars: Vec<Bar> = section
        .series
        .iter()
        .enumerate()
        .filter_map(|(at, one)| bar(one.label.clone(), Some(at), one.at(nodes)?, figure, target))
        .collect();
    let beside = match (figure.name, target) {
        ("time to target", Some(target)) => format!(" {}", section.quality_metric().text(target)),
        _ => String::new(),
    };
    let title = format!("{}{beside}, {}", capitalised(figure.name), quantity::of(nodes, "node"));
    let says_something = bars.iter().any(|bar| bar.mean > 0.0);
    says_something.then(|| Picture {
        svg: chart::bars(&title, &bars),
        title,
        legend: Vec::new(),
    })
}

/// Draws the chart of models' quality as bars, sorted by split (of the samples among workers), with the published
/// results of other authors for each split.
fn by_split(section: &Section<'_>, nodes: usize) -> Picture {
    let figure = how_good(section.quality_metric());
    let mut sorted: Vec<(usize, &Series<'_>)> = section.series.iter().enumerate().collect();
    sorted.sort_by_key(|(_, one)| one.keys.get("split").copied());
    let mut bars = Vec::new();
    let mut last = "";
    for (at, one) in sorted {
        let split = one.keys.get("split").copied().unwrap_or_default();
        if split != last {
            last = split;
            bars.extend(published(section, split));
        }
        bars.extend(
            one.at(nodes)
                .and_then(|group| bar(one.label.clone(), Some(at), group, &figure, None)),
        );
    }
    let title = format!("{} by split, {}", capitalised(figure.name), quantity::of(nodes, "node"));
    Picture {
        svg: chart::bars(&title, &bars),
        title,
        legend: Vec::new(),
    }
}

fn published(section: &Section<'_>, split: &str) -> Vec<Bar> {
    let references = section.experiment.references.iter();
    let found = references.flat_map(|reference| {
        let figures = reference.split.iter().zip(&reference.accuracy);
        let own = figures.filter(|(name, _)| *name == split);
        own.map(|(name, &accuracy)| Bar {
            label: format!("{} · {name}", reference.name),
            colour: None,
            mean: accuracy,
            deviation: None,
            singles: Vec::new(),
            text: section.quality_metric().text(accuracy),
        })
    });
    found.collect()
}

fn plain(number: f64) -> String {
    let text = format!("{number:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

fn short(number: f64) -> String {
    if number >= 1e6 {
        format!("{} M", plain(number / 1e6))
    } else if number >= 1e3 {
        format!("{} k", plain(number / 1e3))
    } else {
        plain(number)
    }
}

fn percent(number: f64) -> String {
    format!("{} %", plain(100.0 * number))
}

#[cfg(test)]
mod tests {
    use super::super::{Material, sections};
    use super::*;
    use crate::study::plan::Study;
    use crate::study::row::tests::row;

    #[test]
    fn pictures_follow_from_what_differs() {
        let mut study = Study::of_flags();
        study.experiments[0].name = "e".into();
        study.experiments[0].target = Some(0.3);
        let titles = |rows: Vec<crate::study::row::Row>| {
            let material = Material {
                title: "t".into(),
                experiments: study.experiments.clone(),
                rows,
                missing: 0,
                failed: Vec::new(),
            };
            let sections = sections(&material);
            let all: Vec<String> = pictures(&sections[0]).into_iter().map(|one| one.title).collect();
            all
        };
        let few = titles(vec![row("strom", 3, 1, 0.9, 2.0), row("ring", 3, 1, 0.8, 3.0)]);
        assert!(few.contains(&"Accuracy over samples, 3 nodes".into()), "{few:?}");
        assert!(few.contains(&"Time to target 30.00 %, 3 nodes".into()), "{few:?}");
        assert!(!few.iter().any(|title| title.contains("by nodes")), "{few:?}");
        let more = titles(vec![row("strom", 1, 1, 0.9, 6.0), row("strom", 3, 1, 0.8, 3.0)]);
        for title in ["Time by nodes", "Speed-up in samples/s by nodes", "Accuracy by nodes"] {
            assert!(more.contains(&title.into()), "{more:?}");
        }
    }
}
