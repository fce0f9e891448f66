//! The live view of a cluster: a line on the run, a table of its nodes and a curve of its loss.
//!
//! It knows neither clock nor network: it is fed with records, one per node and second, and draws what they say.

mod curve;
mod fit;
mod header;
mod history;
mod nodes;
pub(crate) mod screen;
mod table;
#[cfg(test)]
mod tests;
mod units;

use protocol::stats::StatsRecord;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::text::Text;

use history::History;
use nodes::Nodes;

/// The fewest lines a curve can be read in, its border and axes included. With less, nodes get them all.
const CURVE_LINES: u16 = 8;
/// The fewest lines of nodes beside a curve: where there are fewer, it is left out.
const TABLE_LINES: u16 = 5;

/// All that is known of a cluster and its run.
#[derive(Debug, Default)]
pub(crate) struct StatsView {
    nodes: Nodes,
    history: History,
    /// How many samples the run will train, where that is known.
    total: Option<u64>,
    /// What the run waits for.
    waiting: Vec<String>,
    /// What else there is to say.
    said: Option<String>,
}

impl StatsView {
    /// A view of nothing yet.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Says how many samples the run will train. It is forgotten when another run begins.
    pub(crate) fn expect_samples(&mut self, total: u64) {
        self.total = Some(total);
    }

    /// Says what the run waits for, one sentence each.
    pub(crate) fn waits_for(&mut self, waiting: &[String]) {
        self.waiting = waiting.to_vec();
    }

    /// Says something below all else, or nothing any more.
    pub(crate) fn says(&mut self, said: Option<String>) {
        self.said = said;
    }

    /// Takes in records, each node's in the order of their seconds. They may come second by second or one by one, and
    /// the past of a run may come all at once.
    pub(crate) fn update(&mut self, records: &[StatsRecord]) {
        for record in records {
            if self.nodes.is_past(record) {
                continue;
            }
            if self.nodes.begins_run(record) {
                *self = Self {
                    nodes: self.nodes.of_next_run(),
                    ..Self::default()
                };
            } else if self.nodes.begins_round(record) {
                self.history.extend(self.nodes.progress());
            }
            self.nodes.update(record);
        }
    }

    /// Draws everything that fits.
    pub(crate) fn draw(&self, frame: &mut Frame) {
        let notes = self.notes();
        // One line for the run, and at least one for its nodes.
        let notes_lines = u16::try_from(notes.len()).unwrap_or(u16::MAX);
        let notes_lines = notes_lines.min(frame.area().height.saturating_sub(2));
        let halves = [Constraint::Fill(1), Constraint::Length(notes_lines)];
        let [area, last] = Layout::vertical(halves).areas(frame.area());
        frame.render_widget(Text::from(notes.join("\n")), last);
        let room = area.height.saturating_sub(1);
        // A line for the titles, and one for every node.
        let wanted = u16::try_from(self.nodes.len()).unwrap_or(u16::MAX).saturating_add(1);
        let table = if room >= TABLE_LINES + CURVE_LINES {
            wanted.min(room - CURVE_LINES)
        } else {
            room
        };
        let lines = [Constraint::Length(1), Constraint::Length(table), Constraint::Fill(1)];
        let [top, middle, bottom] = Layout::vertical(lines).areas(area);
        header::draw(&self.nodes, self.total, frame, top);
        table::draw(&self.nodes, frame, middle);
        if bottom.height >= CURVE_LINES {
            let points: Vec<_> = self.history.points().chain(self.nodes.progress()).collect();
            curve::draw(&points, frame, bottom);
        }
    }

    fn notes(&self) -> Vec<String> {
        let waiting = self.waiting.iter().map(|reason| format!("waiting: {reason}"));
        waiting.chain(self.said.clone()).collect()
    }
}
