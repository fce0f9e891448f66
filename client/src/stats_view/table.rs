//! The table of nodes.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Modifier, Style, Stylize};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Row, Table};

use super::fit::fitting;
use super::nodes::{Node, Nodes};
use super::units::{known, loss, percent, precise, short, tau};

/// One column. All of them fit into 80 characters with a space between.
struct Column {
    title: &'static str,
    width: u16,
    /// Where space is short, the highest are left out first.
    rank: u8,
    /// Words begin at the left and get what space is to spare; numbers end at the right.
    words: bool,
    text: fn(&Node) -> String,
}

impl Column {
    const fn words(title: &'static str, width: u16, rank: u8, text: fn(&Node) -> String) -> Self {
        let words = true;
        Self {
            title,
            width,
            rank,
            words,
            text,
        }
    }

    const fn number(title: &'static str, width: u16, rank: u8, text: fn(&Node) -> String) -> Self {
        let words = false;
        Self {
            title,
            width,
            rank,
            words,
            text,
        }
    }

    /// As wide as its texts are, but not less than its usual width.
    fn widest(&self, nodes: &Nodes) -> u16 {
        let longest = nodes.iter().map(|node| (self.text)(node).chars().count()).max();
        u16::try_from(longest.unwrap_or(0)).unwrap_or(u16::MAX).max(self.width)
    }

    fn cell(&self, text: String) -> Text<'static> {
        let text = Text::from(text);
        if self.words { text } else { text.right_aligned() }
    }
}

/// `in` and `out` are bytes per second, `stale` batches of others during a step, `lag` batches not applied, `ex%` the
/// share of the worker's time that the exchange takes.
const COLUMNS: [Column; 17] = [
    Column::words("node", 6, 0, |node| node.record.node.clone()),
    Column::words("state", 5, 2, |node| {
        if node.silent {
            "silent".into()
        } else {
            node.record.state.clone()
        }
    }),
    Column::number("smp/s", 5, 1, |node| precise(node.record.samples_per_second)),
    Column::number("loss", 5, 3, |node| known(node.record.loss, loss)),
    Column::number("acc%", 4, 4, |node| {
        known(node.record.accuracy, |accuracy| percent(accuracy, 2))
    }),
    Column::number("τ", 6, 9, |node| tau(node.record.tau)),
    Column::number("den%", 4, 8, |node| percent(node.record.density, 2)),
    Column::number("in", 4, 7, |node| known(node.rate_in, |rate| short(rate as f64))),
    Column::number("out", 4, 6, |node| known(node.rate_out, |rate| short(rate as f64))),
    Column::number("stale", 5, 12, |node| short(node.record.staleness)),
    Column::number("lag", 4, 5, |node| short(node.record.frontier_lag as f64)),
    Column::number("que", 4, 11, |node| short(node.record.queue as f64)),
    Column::number("ex%", 3, 10, |node| percent(node.record.exchange_share, 0)),
    Column::number("cpu", 3, 14, |node| short(node.record.cpu)),
    Column::number("mem", 4, 13, |node| short(node.record.memory_bytes as f64)),
    Column::number("gpu", 3, 15, |node| short(node.record.gpu)),
    Column::number("gmem", 4, 16, |node| short(node.record.gpu_memory_bytes as f64)),
];

pub(super) fn draw(nodes: &Nodes, frame: &mut Frame, area: Rect) {
    let sizes = COLUMNS
        .each_ref()
        .map(|column| (usize::from(column.width), column.rank));
    let kept = fitting(&sizes, 1, area.width.into());
    let columns: Vec<&Column> = COLUMNS
        .iter()
        .zip(kept)
        .filter(|(_, kept)| *kept)
        .map(|(column, _)| column)
        .collect();
    let titles = columns.iter().map(|column| column.cell(column.title.into()));
    let titles = Row::new(titles).style(Modifier::UNDERLINED);

    // The last line tells of nodes for which there is none.
    let lines = usize::from(area.height.saturating_sub(1));
    let shown = if nodes.len() > lines {
        lines.saturating_sub(1)
    } else {
        nodes.len()
    };
    let rows = nodes.iter().take(shown).map(|node| {
        let style = if node.silent { Style::new().dim() } else { Style::new() };
        Row::new(columns.iter().map(|column| column.cell((column.text)(node)))).style(style)
    });
    let table = Table::new(rows, widths(&columns, nodes, area.width))
        .header(titles)
        .column_spacing(1);
    frame.render_widget(table, area);
    if shown < nodes.len() && lines > 0 {
        let last = Rect {
            y: area.bottom() - 1,
            height: 1,
            ..area
        };
        frame.render_widget(Line::from(format!("and {} more", nodes.len() - shown)).dim(), last);
    }
}

/// Words get what the columns leave over, as far as they need it, the first column first.
fn widths(columns: &[&Column], nodes: &Nodes, width: u16) -> Vec<Constraint> {
    let gaps = columns.len().saturating_sub(1) as u16;
    let used: u16 = columns.iter().map(|column| column.width).sum();
    let mut spare = width.saturating_sub(used + gaps);
    let width = |column: &&Column| {
        let wanted = if column.words {
            column.widest(nodes)
        } else {
            column.width
        };
        let more = (wanted - column.width).min(spare);
        spare -= more;
        Constraint::Length(column.width + more)
    };
    columns.iter().map(width).collect()
}
