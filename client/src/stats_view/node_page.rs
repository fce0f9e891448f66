//! One node alone, with all that is known of it.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Borders, Row, Table};

use super::columns::round_trip;
use super::units::{UNKNOWN, known, loss, percent, precise, tau};
use crate::quantity;
use crate::timeline::Node;

/// The width of a figure with its name.
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

/// Every figure with its name and its unit.
fn figures(node: &Node) -> Vec<(&'static str, String)> {
    let record = &node.record;
    // What is of the last second is not so any more.
    let now = |text: String| if node.is_silent() { String::new() } else { text };
    let share = |share: f64| now(format!("{} %", percent(share, 2)));
    let bytes = |bytes: u64| quantity::bytes(bytes as f64);
    let rate = |rate: Option<f64>| now(known(rate, |rate| format!("{}/s", quantity::bytes(rate))));
    let count = |count: u64| now(precise(count as f64));
    vec![
        ("round trip", now(known(round_trip(node), |ms| format!("{ms:.1} ms")))),
        (
            "speed",
            now(format!("{} samples/s", precise(record.samples_per_second))),
        ),
        ("trained", format!("{} samples", precise(record.samples as f64))),
        ("training loss", known(record.loss, loss)),
        match record.mae {
            None => (
                "eval accuracy",
                known(record.accuracy, |share| format!("{} %", percent(share, 2))),
            ),
            Some(_) => ("eval R²", known(record.accuracy, loss)),
        },
        ("τ", tau(record.tau)),
        ("density", share(record.density)),
        ("received", bytes(record.bytes_in)),
        ("  per second", rate(node.rate_in)),
        ("sent", bytes(record.bytes_out)),
        ("  per second", rate(node.rate_out)),
        ("on the wire, in", bytes(record.wire_in)),
        ("on the wire, out", bytes(record.wire_out)),
        ("staleness", now(format!("{} rounds", precise(record.staleness)))),
        ("lag", format!("{} batches", count(record.frontier_lag))),
        ("queue", format!("{} batches", count(record.queue))),
        ("exchange", share(record.exchange_share)),
        ("waiting for rounds", share(record.waited_share)),
        ("emission paused", share(record.paused_share)),
        ("cores busy", now(precise(record.cpu))),
        ("memory", now(bytes(record.memory_bytes))),
        ("GPUs busy", now(precise(record.gpu))),
        ("GPU memory", now(bytes(record.gpu_memory_bytes))),
        (
            "digest",
            if record.digest.is_empty() {
                UNKNOWN.into()
            } else {
                record.digest.clone()
            },
        ),
    ]
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

/// A small table with a heading; the last line says how many do not fit.
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
