//! The live view of a cluster in a terminal: progress of its run, a table of its nodes, charts, and events.

mod charts;
mod columns;
pub(crate) mod controls;
mod events;
mod header;
mod help;
mod node_page;
pub(crate) mod screen;
mod screen_layout;
mod table;
mod units;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Stylize;
use ratatui::text::{Line, Text};

use crate::output::text_layout;
use crate::timeline::Timeline;
use controls::Controls;
use screen_layout::ScreenLayout;

const KEYS: &str = "q leave  ? help  s sort  ↑↓ pick  ⏎ node  l log/linear  x samples/time";
const NODE_KEYS: &str = "q leave  ? help  ↑↓ another node  ⏎ back";
/// Largest number of lines for notes in the terminal view, such as the reasons why the run waits.
const NOTES_LINES_MAX: usize = 6;

/// Draws all parts of the terminal view that fit.
pub(crate) fn draw(timeline: &Timeline, controls: &mut Controls, said: Option<&str>, frame: &mut Frame) {
    let screen = frame.area();
    let notes = notes(timeline, said, screen.width);
    let count = |number: usize| u16::try_from(number).unwrap_or(u16::MAX);
    let events = count(events::count(timeline, screen.height.into()));
    let parts = ScreenLayout::of(
        screen.height,
        count(notes.height()),
        count(timeline.nodes().len()),
        events,
    );
    let sorted = controls.sorted(timeline.nodes());
    let alone = controls
        .picked(&sorted)
        .filter(|_| controls.alone)
        .map(|picked| sorted[picked]);
    let lengths = [
        Constraint::Length(parts.header),
        Constraint::Length(parts.notes),
        Constraint::Fill(1),
        Constraint::Length(parts.keys),
    ];
    let [top, below, body, keys] = Layout::vertical(lengths).areas(screen);
    header::draw(timeline, frame, top);
    frame.render_widget(notes, below);
    let shown = if let Some(node) = alone {
        node_page::draw(node, frame, body);
        NODE_KEYS
    } else {
        draw_cluster(timeline, controls, parts, frame, body);
        KEYS
    };
    frame.render_widget(Line::from(shown).dim(), keys);
    if controls.help {
        help::draw(timeline.nodes(), frame);
    }
}

fn draw_cluster(timeline: &Timeline, controls: &mut Controls, parts: ScreenLayout, frame: &mut Frame, area: Rect) {
    let lengths = [parts.table, parts.charts, parts.events].map(Constraint::Length);
    let [nodes, curves, happened] = Layout::vertical(lengths).areas(area);
    if nodes.height > 0 {
        table::draw(timeline.nodes(), controls, frame, nodes);
    }
    if curves.height > 0 {
        charts::draw(timeline, controls, frame, curves);
    }
    if happened.height > 0 {
        events::draw(timeline, frame, happened);
    }
}

/// Returns the notes of the terminal view, wrapped to the width of the screen.
fn notes(timeline: &Timeline, said: Option<&str>, width: u16) -> Text<'static> {
    let notes = header::notes(timeline, said).into_iter();
    let lines = notes.flat_map(|(text, style)| {
        let lines = wrapped(&text, width.into()).into_iter();
        lines.map(move |line| Line::styled(line, style))
    });
    Text::from(lines.take(NOTES_LINES_MAX).collect::<Vec<_>>())
}

/// Wraps text to `width` characters, between words where possible and inside longer words otherwise.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let lines = text_layout::wrapped(text, width);
    let mut pieces = Vec::new();
    for line in lines.lines() {
        let letters: Vec<char> = line.chars().collect();
        pieces.extend(letters.chunks(width).map(String::from_iter));
    }
    pieces
}

#[cfg(test)]
mod tests;
