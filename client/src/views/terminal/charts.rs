//! Charts in the terminal: losses, and the quality of the model where there is room.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Block, Borders, Chart, Dataset, GraphType};

use super::controls::{Controls, Over};
use super::units::{UNKNOWN, loss, percent, precise};
use crate::output::quality_metric::QualityMetric;
use crate::output::quantity;
use crate::timeline::Timeline;

/// Lines of the smallest chart that is readable, with its border and axes.
pub(super) const LINES: u16 = 8;
/// Width of the terminal, in columns, from which on two charts stand side by side.
const SIDE_BY_SIDE: u16 = 120;

const TRAINING: Color = Color::Cyan;
const EVALUATION: Color = Color::Yellow;
const QUALITY: Color = Color::Green;

/// One curve of a chart in the terminal.
struct Series {
    name: &'static str,
    colour: Color,
    points: Vec<(f64, f64)>,
}

impl Series {
    /// Creates a chart's curve from the finite points, without points that go back in x.
    fn new(name: &'static str, colour: Color, points: impl Iterator<Item = (f64, f64)>) -> Self {
        let mut kept: Vec<(f64, f64)> = Vec::new();
        for (x, y) in points.filter(|(x, y)| x.is_finite() && y.is_finite()) {
            if kept.last().is_none_or(|&(before, _)| before <= x) {
                kept.push((x, y));
            }
        }
        Self {
            name,
            colour,
            points: kept,
        }
    }
}

pub(super) fn draw(timeline: &Timeline, controls: &Controls, frame: &mut Frame, area: Rect) {
    let over = controls.over;
    let evaluations = || timeline.evaluations().iter();
    let of_evaluation = |samples: u64, seconds: f64| match over {
        Over::Samples => samples as f64,
        Over::Seconds => seconds,
    };
    let training = timeline.curve().points().iter().map(|point| match over {
        Over::Samples => (point.samples, point.loss),
        Over::Seconds => (point.seconds, point.loss),
    });
    let eval_losses = evaluations().map(|one| (of_evaluation(one.samples, one.seconds), one.loss));
    let losses = Plot {
        title: "loss",
        series: vec![
            Series::new("training", TRAINING, training),
            Series::new("eval", EVALUATION, eval_losses),
        ],
        logarithmic: !controls.linear,
        most: f64::INFINITY,
        label: loss,
        over,
    };
    let newest = evaluations().last();
    let (metric, _) = QualityMetric::of(
        newest.and_then(|one| one.accuracy),
        newest.and_then(|one| one.mae),
        newest.map(|one| one.loss),
    );
    let quality = evaluations().filter_map(|one| {
        let figure = match metric {
            QualityMetric::Accuracy | QualityMetric::R2 => one.accuracy?,
            QualityMetric::Loss => one.loss,
        };
        Some((of_evaluation(one.samples, one.seconds), figure))
    });
    let is_share = metric == QualityMetric::Accuracy;
    let quality = Plot {
        title: match metric {
            QualityMetric::Accuracy => "eval accuracy",
            QualityMetric::R2 => "eval R²",
            QualityMetric::Loss => "eval loss",
        },
        series: vec![Series::new(if is_share { "%" } else { "" }, QUALITY, quality)],
        logarithmic: metric == QualityMetric::Loss && !controls.linear,
        most: if metric == QualityMetric::Loss {
            f64::INFINITY
        } else {
            1.0
        },
        label: if is_share { |share| percent(share, 2) } else { loss },
        over,
    };
    let places = losses.series.iter().chain(&quality.series);
    let last = places.filter_map(|series| series.points.last()).map(|point| point.0);
    // Both charts have the same horizontal axis, so that they can be compared.
    let Some([_, last]) = bounds(last.chain([0.0])) else {
        return;
    };
    let halves = [Constraint::Fill(1), Constraint::Fill(1)];
    if area.width >= SIDE_BY_SIDE {
        let [left, right] = Layout::horizontal(halves).spacing(2).areas(area);
        losses.draw(last, frame, left);
        quality.draw(last, frame, right);
    } else if area.height >= 2 * LINES {
        let [above, below] = Layout::vertical(halves).areas(area);
        losses.draw(last, frame, above);
        quality.draw(last, frame, below);
    } else {
        losses.draw(last, frame, area);
    }
}

/// A chart in the terminal, with its series and axes.
struct Plot {
    title: &'static str,
    series: Vec<Series>,
    /// True if the chart's vertical axis is logarithmic as long as all values are positive.
    logarithmic: bool,
    /// Highest possible value on the chart's vertical axis.
    most: f64,
    label: fn(f64) -> String,
    over: Over,
}

impl Plot {
    fn draw(mut self, last: f64, frame: &mut Frame, area: Rect) {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let logarithmic = self.logarithmic && points().all(|&(_, y)| y > 0.0);
        let block = Block::new()
            .borders(Borders::TOP)
            .border_style(Style::new().dim())
            .title(self.heading(logarithmic));
        if logarithmic {
            let points = self.series.iter_mut().flat_map(|series| &mut series.points);
            points.for_each(|(_, y)| *y = y.log10());
        }
        let points = || self.series.iter().flat_map(|series| &series.points);
        let x = [0.0, last];
        let Some(y) = bounds(points().map(|point| point.1)) else {
            frame.render_widget(block, area);
            return;
        };
        let y = below(y, self.most);
        let curves = self.series.iter().map(|series| {
            Dataset::default()
                .marker(Marker::Braille)
                .graph_type(GraphType::Line)
                .style(Style::new().fg(series.colour))
                .data(&series.points)
        });
        let value = |y: f64| (self.label)(if logarithmic { 10f64.powf(y) } else { y });
        let place = |x: f64| match self.over {
            Over::Samples => precise(x),
            Over::Seconds => quantity::clock(x),
        };
        // A low chart has no room for a third label.
        let middle = (area.height >= LINES).then(|| f64::midpoint(y[0], y[1]));
        let values = [Some(y[0]), middle, Some(y[1])].into_iter().flatten().map(value);
        let chart = Chart::new(curves.collect())
            .block(block)
            .x_axis(axis(x).labels(x.map(place)))
            .y_axis(axis(y).labels(values.collect::<Vec<_>>()));
        frame.render_widget(chart, area);
    }

    /// Returns the heading of a chart: its title with the names of the axes, and the newest value of each curve in its
    /// colour.
    fn heading(&self, logarithmic: bool) -> Line<'static> {
        let over = match self.over {
            Over::Samples => "samples",
            Over::Seconds => "time",
        };
        let scale = if logarithmic { ", log scale" } else { "" };
        let mut spans = vec![Span::from(format!("{} over {over}{scale} ", self.title))];
        for series in &self.series {
            let newest = series.points.last().map_or(UNKNOWN.into(), |&(_, y)| (self.label)(y));
            let text = match series.name {
                "%" => format!(" {newest} % "),
                name => format!(" {name} {newest} "),
            };
            spans.push(text.fg(series.colour));
        }
        Line::from(spans)
    }
}

fn axis(bounds: [f64; 2]) -> Axis<'static> {
    Axis::default().bounds(bounds).style(Style::new().dim())
}

/// Returns the smallest and the largest value as the bounds of a chart's axis, with a positive and finite length.
fn bounds(values: impl Iterator<Item = f64> + Clone) -> Option<[f64; 2]> {
    const LARGE: f64 = 1e300;
    let low = values.clone().reduce(f64::min)?.clamp(-LARGE, LARGE);
    let high = values.reduce(f64::max)?.clamp(-LARGE, LARGE);
    Some(if low < high {
        [low, high]
    } else {
        [low, low + low.abs().max(1.0)]
    })
}

/// Shifts the bounds of a chart's axis so that they do not exceed the highest possible value.
fn below([low, high]: [f64; 2], most: f64) -> [f64; 2] {
    let beyond = (high - most).max(0.0);
    [low - beyond, high - beyond]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_of_shares_ends_at_all() {
        assert_eq!(below(bounds([0.976].into_iter()).unwrap(), 1.0), [0.0, 1.0]);
        assert_eq!(below([0.5, 0.9], 1.0), [0.5, 0.9]);
        assert_eq!(below([2.0, 4.0], f64::INFINITY), [2.0, 4.0]);
    }

    #[test]
    fn curves_never_go_back_and_hold_only_numbers() {
        let points = [
            (1.0, 5.0),
            (3.0, 4.0),
            (2.0, 9.0),
            (4.0, f64::NAN),
            (f64::INFINITY, 1.0),
            (5.0, 3.0),
        ];
        let series = Series::new("training", TRAINING, points.into_iter());
        assert_eq!(series.points, [(1.0, 5.0), (3.0, 4.0), (5.0, 3.0)]);
    }

    #[test]
    fn an_axis_has_some_length() {
        assert_eq!(bounds([].into_iter()), None);
        assert_eq!(bounds([2.0].into_iter()), Some([2.0, 4.0]));
        assert_eq!(bounds([0.0, 0.0].into_iter()), Some([0.0, 1.0]));
        assert_eq!(bounds([3.0, -1.0].into_iter()), Some([-1.0, 3.0]));
    }
}
