//! The curve of the loss.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};
use ratatui::symbols::Marker;
use ratatui::widgets::{Axis, Block, Borders, Chart, Dataset, GraphType};

use super::history::Point;
use super::units::{loss, precise};

pub(super) fn draw(points: &[Point], frame: &mut Frame, area: Rect) {
    let block = Block::new().borders(Borders::TOP).title("loss over samples");
    let (Some(samples), Some(losses)) = (
        bounds(points.iter().map(|point| point.samples)),
        bounds(points.iter().map(|point| point.loss)),
    ) else {
        frame.render_widget(block, area);
        return;
    };
    let points: Vec<(f64, f64)> = points.iter().map(|point| (point.samples, point.loss)).collect();
    let curve = Dataset::default()
        .marker(Marker::Braille)
        .graph_type(GraphType::Line)
        .style(Style::new().fg(Color::Cyan))
        .data(&points);
    let chart = Chart::new(vec![curve])
        .block(block)
        .x_axis(axis(samples, precise))
        .y_axis(axis(losses, loss));
    frame.render_widget(chart, area);
}

fn axis(bounds: [f64; 2], label: fn(f64) -> String) -> Axis<'static> {
    Axis::default()
        .bounds(bounds)
        .labels(bounds.map(label))
        .style(Style::new().dim())
}

/// The smallest and the largest, kept apart: an axis needs some length.
fn bounds(values: impl Iterator<Item = f64> + Clone) -> Option<[f64; 2]> {
    let low = values.clone().reduce(f64::min)?;
    let high = values.reduce(f64::max)?;
    Some(if low < high {
        [low, high]
    } else {
        [low, low + low.abs().max(1.0)]
    })
}
