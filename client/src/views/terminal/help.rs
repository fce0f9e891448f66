//! Help on columns and keys, which covers the terminal view until a key is pressed.

use ratatui::Frame;
use ratatui::layout::Constraint;
use ratatui::style::Stylize;
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Clear};

use super::columns::telling;
use crate::timeline::Nodes;

const KEYS: [&str; 3] = [
    "s sort by the next marked column   ↑ ↓ PageUp PageDown Home End pick a node",
    "⏎ details of the picked node, and back   Esc back   q leave",
    "l log or linear loss   x curves over samples or time   any key closes help",
];
/// Mark of columns that nodes can be sorted by, on the help screen.
const SORTS: &str = "▾";

pub(super) fn draw(nodes: &Nodes, frame: &mut Frame) {
    let mut lines: Vec<Line> = telling(nodes)
        .into_iter()
        .map(|column| {
            let title = if column.long == column.title {
                column.title.to_owned()
            } else {
                format!("{}, {}", column.title, column.long)
            };
            let mark = if column.sort.is_some() { SORTS } else { " " };
            Line::from(vec![
                Span::from(mark).dim(),
                format!("{title:<17} ").bold(),
                Span::from(column.meaning),
            ])
        })
        .collect();
    let screen = frame.area();
    let room = usize::from(screen.height);
    // On a small screen the border is omitted first, then the keys.
    let bordered = room >= lines.len() + KEYS.len() + 2;
    if room >= lines.len() + KEYS.len() + 3 {
        lines.push(Line::default());
    }
    lines.extend(KEYS.map(Line::from));
    let widest = lines.iter().map(Line::width).max().unwrap_or(0) + 4;
    let height = lines.len() + if bordered { 2 } else { 0 };
    let length = |number: usize| Constraint::Length(u16::try_from(number).unwrap_or(u16::MAX));
    let area = screen.centered(length(widest), length(height));
    frame.render_widget(Clear, area);
    let block = if bordered {
        Block::bordered().title(" columns and keys ")
    } else {
        Block::new()
    };
    frame.render_widget(Text::from(lines), block.inner(area));
    frame.render_widget(block, area);
}
