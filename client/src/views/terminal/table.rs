//! Table of the nodes in the terminal view.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Modifier, Style, Stylize};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Row, Table};

use super::columns::{VisibleColumn, shown};
use super::controls::Controls;
use crate::timeline::{Node, Nodes};

pub(super) fn draw(nodes: &Nodes, controls: &mut Controls, frame: &mut Frame, area: Rect) {
    let (columns, gap) = shown(nodes, controls.sort, area.width.into());
    let titles = columns.iter().map(|one| cell(one, one.title.clone()));
    let titles = Row::new(titles).style(Modifier::UNDERLINED);

    // Where not all nodes fit, the last line says which nodes are shown.
    let lines = usize::from(area.height.saturating_sub(1));
    let all_fit = nodes.len() <= lines;
    let sorted = controls.sorted(nodes);
    let window = controls.window(&sorted, if all_fit { lines } else { lines.saturating_sub(1) });
    let picked = controls.picked(&sorted);
    let rows = window.clone().map(|place| {
        let node = sorted[place];
        let cells = columns.iter().map(|one| cell(one, one.column.text(node)));
        Row::new(cells).style(style(node, picked == Some(place)))
    });
    let widths = columns
        .iter()
        .map(|one| Constraint::Length(u16::try_from(one.width).unwrap_or(u16::MAX)));
    let table = Table::new(rows, widths.collect::<Vec<_>>())
        .header(titles)
        .column_spacing(gap as u16);
    frame.render_widget(table, area);
    if !all_fit && lines > 0 {
        let last = Rect {
            y: area.bottom() - 1,
            height: 1,
            ..area
        };
        let text = format!("{} to {} of {} nodes", window.start + 1, window.end, nodes.len());
        frame.render_widget(Line::from(text).dim(), last);
    }
}

fn cell(column: &VisibleColumn, text: String) -> Text<'static> {
    let text = Text::from(text);
    if column.column.words {
        text
    } else {
        text.right_aligned()
    }
}

fn style(node: &Node, picked: bool) -> Style {
    let style = if node.is_silent() {
        Style::new().dim()
    } else {
        Style::new()
    };
    if picked { style.reversed() } else { style }
}
