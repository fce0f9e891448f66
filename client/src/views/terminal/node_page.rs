//! Page of one node in the terminal view, with all its figures.

use protocol::stats::{FIGURES, Unit};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Borders, Row, Table};

use super::columns::round_trip;
use super::units::{known, precise, with_its_unit};
use crate::output::quantity;
use crate::timeline::Node;

/// Width in characters of a figure with its name, on the page of one node.
const FIGURE_WIDTH: u16 = 39;
const NAME_WIDTH: usize = 21;

pub(super) fn draw(node: &Node, frame: &mut Frame, area: Rect) {
    let figures = figures(node);
    let across = usize::from((area.width / FIGURE_WIDTH).clamp(1, 4));
    let lines = u16::try_from(figures.len().div_ceil(across)).unwrap_or(u16::MAX);
    let trouble = u16::from(node.trouble.is_some());
    let listed = |number: usize| u16::try_from(number + 2).unwrap_or(u16::MAX);
    let room = area.height.saturating_sub(1 + trouble + lines);
    let processes = listed(node.record.processes.len()).min(room / 2);
    let peers = listed(node.record.peers.len()).min(room - processes);
    let parts = [1, trouble, lines, peers, processes].map(Constraint::Length);
    let [top, warning, middle, peers, processes] = Layout::vertical(parts).areas(area);
    frame.render_widget(title(node), top);
    if let Some(trouble) = &node.trouble {
        let line = Line::from(format!("last warning or error: {trouble}"));
        frame.render_widget(line.style(Style::new().fg(Color::Yellow)), warning);
    }
    let columns = Layout::horizontal(vec![Constraint::Length(FIGURE_WIDTH); across]).split(middle);
    for (column, figures) in columns.iter().zip(figures.chunks(lines.max(1).into())) {
        let lines = figures.iter().map(|(name, value)| {
            let name = Span::from(format!("{name:<NAME_WIDTH$}")).dim();
            Line::from(vec![name, Span::from(value.clone())])
        });
        frame.render_widget(Text::from(lines.collect::<Vec<_>>()), *column);
    }
    draw_peers(node, frame, peers);
    draw_processes(node, frame, processes);
}

fn title(node: &Node) -> Line<'static> {
    let state = match node.silent {
        Some(seconds) => format!("silent for {seconds:.0} s"),
        None => node.state().into(),
    };
    let mut parts = vec![format!("node {}", node.record.node), state];
    if let Some(member) = &node.member {
        parts.push(member.address.clone());
        parts.push(member.device.clone());
        parts.push(quantity::of(member.workers, "worker"));
    }
    Line::from(parts.join("  ")).bold().underlined()
}

/// Returns the lines of a single node's page: the name of each of its figures, and the value as text with its unit.
fn figures(node: &Node) -> Vec<(&'static str, String)> {
    let record = &node.record;
    // Figures of the last second do not apply to a silent node.
    let now = |text: String| if node.is_silent() { String::new() } else { text };
    let mut lines = vec![("round trip", now(known(round_trip(node), |ms| format!("{ms:.1} ms"))))];
    for figure in FIGURES.iter().filter(|figure| figure.applies_to(record, true)) {
        let Some(title) = figure.title else {
            continue;
        };
        let (title, unit) = if figure.unit == Unit::Quality && record.mae.is_some() {
            ("eval R²", Unit::Loss)
        } else {
            (title, figure.unit)
        };
        let value = known((figure.of)(record), |value| with_its_unit(unit, value));
        lines.push((title, if figure.lasts { value } else { now(value) }));
        if figure.is_rate {
            let rate = known(node.rate(figure), |rate| format!("{}/s", with_its_unit(unit, rate)));
            lines.push(("  per second", now(rate)));
        }
    }
    let digest = Some(&record.digest).filter(|digest| !digest.is_empty());
    lines.push(("digest", known(digest, Clone::clone)));
    lines
}

fn draw_peers(node: &Node, frame: &mut Frame, area: Rect) {
    let rows = node.record.peers.iter().map(|peer| {
        [
            peer.node.clone(),
            quantity::bytes(peer.bytes_in as f64),
            quantity::bytes(peer.bytes_out as f64),
            precise(peer.lag as f64),
            precise(peer.queue as f64),
        ]
    });
    let titles = ["peer", "received", "sent", "lag, batches", "queue, batches"];
    draw_list("peers", titles, rows.collect(), frame, area);
}

fn draw_processes(node: &Node, frame: &mut Frame, area: Rect) {
    let rows = node.record.processes.iter().map(|one| {
        [
            one.process.clone(),
            quantity::seconds(one.cpu_seconds),
            quantity::bytes(one.memory_peak_bytes as f64),
            quantity::bytes(one.disk_read_bytes as f64),
            quantity::bytes(one.disk_write_bytes as f64),
        ]
    });
    let titles = ["process", "cpu time", "peak memory", "disk read", "disk written"];
    draw_list("processes", titles, rows.collect(), frame, area);
}

/// Draws a small table with a heading, which says how many of the rows fit.
fn draw_list(heading: &str, titles: [&'static str; 5], rows: Vec<[String; 5]>, frame: &mut Frame, area: Rect) {
    let room = usize::from(area.height.saturating_sub(2));
    let all = rows.len();
    let block = Block::new().borders(Borders::TOP).border_style(Style::new().dim());
    let heading = if all > room {
        format!("{heading}, {room} of {all} ")
    } else {
        format!("{heading} ")
    };
    let widths = [
        Constraint::Length(16),
        Constraint::Length(12),
        Constraint::Length(14),
        Constraint::Length(14),
        Constraint::Length(16),
    ];
    let table = Table::new(rows.into_iter().take(room).map(Row::new), widths)
        .header(Row::new(titles).style(Style::new().dim()))
        .block(block.title(heading));
    frame.render_widget(table, area);
}
