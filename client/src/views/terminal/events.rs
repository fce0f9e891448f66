//! List of the newest events of a run in the terminal, the newest last.

use protocol::stats::Severity;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders};

use crate::output::quantity;
use crate::output::text_layout::cut;
use crate::timeline::{Happened, Timeline, TimelineEntry};

/// Draws as many of the run's newest events as fit, below a line with a title.
pub(super) fn draw(timeline: &Timeline, frame: &mut Frame, area: Rect) {
    let block = Block::new()
        .borders(Borders::TOP)
        .border_style(Style::new().dim())
        .title(Span::from("events ").style(Style::new().not_dim()));
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let nodes = timeline.nodes().iter();
    let now = nodes.map(|node| node.record.time).fold(0.0, f64::max);
    let mut newest: Vec<&Happened> = timeline.happened_after(0).rev().take(inner.height.into()).collect();
    newest.reverse();
    for (happened, row) in newest.into_iter().zip(inner.rows()) {
        let age = format!("{:>7} ago  ", quantity::clock((now - happened.time).max(0.0)));
        let width = usize::from(row.width).saturating_sub(age.chars().count());
        let text = cut(&happened.what.sentence(), width);
        let line = Line::from(vec![age.dim(), Span::styled(text, style(&happened.what))]);
        frame.render_widget(line, row);
    }
}

/// Returns the number of the run's events to show, at most `most`.
pub(super) fn count(timeline: &Timeline, most: usize) -> usize {
    timeline.happened_after(0).rev().take(most).count()
}

fn style(what: &TimelineEntry) -> Style {
    match what.severity() {
        Severity::News => Style::new(),
        Severity::Warning => Style::new().fg(Color::Yellow),
        Severity::Error => Style::new().fg(Color::Red),
    }
}
