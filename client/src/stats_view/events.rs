//! What has happened, the newest last.

use protocol::stats::Gravity;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders};

use super::header::short_name;
use crate::chronicle::{Chronicle, Happened, Happening};
use crate::fit::cut;
use crate::quantity;

/// Draws the newest for which there is room, below a line of their own.
pub(super) fn draw(chronicle: &Chronicle, frame: &mut Frame, area: Rect) {
    let block = Block::new()
        .borders(Borders::TOP)
        .border_style(Style::new().dim())
        .title(Span::from("events ").style(Style::new().not_dim()));
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let nodes = chronicle.nodes().iter();
    let now = nodes.map(|node| node.record.time).fold(0.0, f64::max);
    let mut newest: Vec<&Happened> = chronicle.happened_after(0).rev().take(inner.height.into()).collect();
    newest.reverse();
    for (happened, row) in newest.into_iter().zip(inner.rows()) {
        let age = format!("{:>7} ago  ", quantity::clock((now - happened.time).max(0.0)));
        let width = usize::from(row.width).saturating_sub(age.chars().count());
        let text = cut(&text(&happened.what), width);
        let line = Line::from(vec![age.dim(), Span::styled(text, style(&happened.what))]);
        frame.render_widget(line, row);
    }
}

/// How many there are to show, at most so many.
pub(super) fn count(chronicle: &Chronicle, most: usize) -> usize {
    chronicle.happened_after(0).rev().take(most).count()
}

fn text(what: &Happening) -> String {
    match what {
        Happening::Followed { run } => format!("run {} is followed", short_name(run)),
        Happening::Joined { node } => format!("{node} joined"),
        Happening::Silent { node } => format!("{node} fell silent"),
        Happening::Back { node } => format!("{node} is back"),
        Happening::Said { node, saying } => format!("{node}: {}", saying.text),
        Happening::Waiting { reasons } if reasons.is_empty() => "nothing is waited for any more".into(),
        Happening::Waiting { reasons } => format!("waiting for {}", reasons.join("; ")),
        Happening::StopAsked => "the run was asked to stop".into(),
        Happening::Finished { reason } => format!("the run finished: {reason}"),
        Happening::Failed { reason } => format!("the run failed: {reason}"),
    }
}

fn style(what: &Happening) -> Style {
    let colour = match what {
        Happening::Silent { .. } | Happening::Waiting { .. } => Color::Yellow,
        Happening::Failed { .. } => Color::Red,
        Happening::Said { saying, .. } => match saying.gravity {
            Gravity::News => return Style::new(),
            Gravity::Warning => Color::Yellow,
            Gravity::Error => Color::Red,
        },
        _ => return Style::new(),
    };
    Style::new().fg(colour)
}
