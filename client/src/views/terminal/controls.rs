//! State of the terminal view that keys control: the sort order, the selected node and the form of the charts.

use std::cmp::Ordering;
use std::ops::Range;

use protocol::stats::FIGURES;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::timeline::{Node, Nodes};

/// Order of the nodes in the terminal's table: names ascending, figures descending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    #[default]
    Name,
    /// Nodes are sorted by the figure of this name.
    By(&'static str),
}

impl Sort {
    fn next(self) -> Self {
        let mut figures = FIGURES.iter().filter(|figure| figure.sorts);
        if let Self::By(name) = self {
            figures.find(|figure| figure.name == name);
        }
        figures.next().map_or(Self::Name, |figure| Self::By(figure.name))
    }

    /// Returns the figure of a node to sort by; `None` for a silent node, or in the order of names.
    fn figure(self, node: &Node) -> Option<f64> {
        let Self::By(name) = self else {
            return None;
        };
        let figure = FIGURES.iter().find(|figure| figure.name == name)?;
        node.figure(figure)
            .filter(|figure| !node.is_silent() && !figure.is_nan())
    }

    fn order(self, one: &Node, other: &Node) -> Ordering {
        match (self.figure(one), self.figure(other)) {
            (Some(one), Some(other)) => other.total_cmp(&one),
            (one, other) => other.is_some().cmp(&one.is_some()),
        }
    }
}

/// Quantity on the horizontal axis of the charts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Over {
    #[default]
    Samples,
    Seconds,
}

/// State of the terminal view that keys control.
#[derive(Clone, Debug, Default)]
pub(crate) struct Controls {
    pub(super) sort: Sort,
    pub(super) over: Over,
    /// True if losses are drawn on a linear axis instead of a logarithmic one.
    pub(super) linear: bool,
    /// True if the help on columns and keys covers the view.
    pub(super) help: bool,
    /// True if the selected node is shown alone, with all its figures.
    pub(super) alone: bool,
    /// Name of the node that the user has selected, which stays selected when the order changes.
    picked: Option<String>,
    /// Index of the first node that the table shows; `room` is the number of nodes that fitted at the last drawing.
    first: usize,
    room: usize,
}

impl Controls {
    /// Returns the nodes in the sort order; nodes with equal figures are in the order of their names.
    pub(super) fn sorted<'a>(&self, nodes: &'a Nodes) -> Vec<&'a Node> {
        let mut sorted: Vec<&Node> = nodes.iter().collect();
        sorted.sort_by(|one, other| self.sort.order(one, other));
        sorted
    }

    /// Returns the index in `sorted` of the node that the user has selected.
    pub(super) fn picked(&self, sorted: &[&Node]) -> Option<usize> {
        let picked = self.picked.as_ref()?;
        sorted.iter().position(|node| node.record.node == *picked)
    }

    /// Returns the indices of the nodes that the table shows where `room` nodes fit. The selected node is among them.
    pub(super) fn window(&mut self, sorted: &[&Node], room: usize) -> Range<usize> {
        self.room = room;
        if let Some(picked) = self.picked(sorted) {
            self.first = self.first.clamp((picked + 1).saturating_sub(room.max(1)), picked);
        }
        self.first = self.first.min(sorted.len().saturating_sub(room));
        self.first..sorted.len().min(self.first + room)
    }

    /// Handles a key in the terminal view, and returns true if it asks to leave. Ctrl-C is handled here because the
    /// terminal raises no signal in raw mode.
    pub(crate) fn press(&mut self, key: KeyEvent, nodes: &Nodes) -> bool {
        // Some terminals also report keys that are released.
        if key.kind == KeyEventKind::Release {
            return false;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return key.code == KeyCode::Char('c');
        }
        if std::mem::take(&mut self.help) {
            return false;
        }
        match key.code {
            KeyCode::Char('q' | 'Q') => return true,
            KeyCode::Esc => return !self.goes_back(),
            KeyCode::Char('?' | 'h') => self.help = true,
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('l') => self.linear = !self.linear,
            KeyCode::Char('x') => {
                self.over = match self.over {
                    Over::Samples => Over::Seconds,
                    Over::Seconds => Over::Samples,
                };
            }
            KeyCode::Enter => {
                if self.picked(&self.sorted(nodes)).is_none() {
                    self.pick(nodes, |_, _| 0);
                }
                self.alone = !self.alone && self.picked.is_some();
            }
            KeyCode::Up => self.pick(nodes, |at, _| at.map_or(0, |at| at.saturating_sub(1))),
            KeyCode::Down => self.pick(nodes, |at, _| at.map_or(0, |at| at + 1)),
            KeyCode::PageUp => {
                let page = self.room.max(1);
                self.pick(nodes, |at, _| at.unwrap_or(0).saturating_sub(page));
            }
            KeyCode::PageDown => {
                let page = self.room.max(1);
                self.pick(nodes, |at, _| at.unwrap_or(0) + page);
            }
            KeyCode::Home => self.pick(nodes, |_, _| 0),
            KeyCode::End => self.pick(nodes, |_, last| last),
            _ => {}
        }
        false
    }

    /// Closes the page of a single node, or else clears the selection. Returns false if there was nothing to undo.
    fn goes_back(&mut self) -> bool {
        std::mem::take(&mut self.alone) || self.picked.take().is_some()
    }

    /// Selects a node of the sorted table. `place` computes its index from the index of the node selected before, if
    /// any, and the last index.
    fn pick(&mut self, nodes: &Nodes, place: impl Fn(Option<usize>, usize) -> usize) {
        let sorted = self.sorted(nodes);
        if let Some(last) = sorted.len().checked_sub(1) {
            let place = place(self.picked(&sorted), last).min(last);
            self.picked = Some(sorted[place].record.node.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::stats::StatsRecord;

    use super::*;
    use crate::timeline::Timeline;

    /// Builds a timeline of nodes with these speeds and losses.
    fn timeline(nodes: &[(&str, f64, Option<f64>)]) -> Timeline {
        let records = nodes.iter().map(|&(node, speed, loss)| StatsRecord {
            node: node.into(),
            run: "run".into(),
            time: 1.0,
            samples_per_second: speed,
            loss,
            ..StatsRecord::default()
        });
        let mut timeline = Timeline::default();
        timeline.take(&records.collect::<Vec<_>>());
        timeline
    }

    fn five() -> Timeline {
        let loss = Some(0.5);
        timeline(&[
            ("a", 1.0, loss),
            ("b", 5.0, loss),
            ("c", 3.0, loss),
            ("d", 4.0, loss),
            ("e", 2.0, loss),
        ])
    }

    fn names(controls: &Controls, timeline: &Timeline) -> String {
        let sorted = controls.sorted(timeline.nodes());
        sorted.iter().map(|node| &*node.record.node).collect()
    }

    fn pressed(controls: &mut Controls, timeline: &Timeline, keys: &[KeyCode]) {
        for &key in keys {
            assert!(!controls.press(KeyEvent::from(key), timeline.nodes()), "{key:?}");
        }
    }

    #[test]
    fn nodes_are_sorted_by_what_was_asked_for_and_then_by_name() {
        let timeline = timeline(&[
            ("a", 1.0, None),
            ("b", 3.0, Some(0.5)),
            ("c", 1.0, Some(f64::NAN)),
            ("d", f64::NAN, Some(0.7)),
        ]);
        let mut controls = Controls::default();
        let sort = KeyCode::Char('s');
        let mut orders = Vec::new();
        for _ in 0..7 {
            orders.push(names(&controls, &timeline));
            pressed(&mut controls, &timeline, &[sort]);
        }
        assert_eq!(orders, ["abcd", "bacd", "dbac", "abcd", "abcd", "abcd", "abcd"]);
        assert_eq!(controls.sort, Sort::By("samples_per_second"));
    }

    #[test]
    fn the_picked_node_moves_within_the_list_and_stays_picked_where_it_goes() {
        let timeline = five();
        let mut controls = Controls::default();
        let picked = |controls: &Controls| controls.picked(&controls.sorted(timeline.nodes()));
        assert_eq!(picked(&controls), None);
        let mut places = Vec::new();
        for key in [
            KeyCode::Down,
            KeyCode::Up,
            KeyCode::Down,
            KeyCode::End,
            KeyCode::Down,
            KeyCode::Up,
            KeyCode::Home,
        ] {
            pressed(&mut controls, &timeline, &[key]);
            places.extend(picked(&controls));
        }
        assert_eq!(places, [0, 0, 1, 4, 4, 3, 0]);
        pressed(&mut controls, &timeline, &[KeyCode::Char('s')]);
        assert_eq!(
            picked(&controls),
            Some(4),
            "sorting by speed must keep the picked node, which is now last"
        );
    }

    #[test]
    fn the_window_goes_only_as_far_as_it_must() {
        let timeline = five();
        let sorted = Controls::default().sorted(timeline.nodes());
        let mut controls = Controls::default();
        assert_eq!(controls.window(&sorted, 2), 0..2);
        let mut windows = Vec::new();
        for key in [
            KeyCode::Down,
            KeyCode::Down,
            KeyCode::Down,
            KeyCode::Up,
            KeyCode::Up,
            KeyCode::PageDown,
            KeyCode::End,
        ] {
            pressed(&mut controls, &timeline, &[key]);
            windows.push(controls.window(&sorted, 2));
        }
        assert_eq!(windows, [0..2, 0..2, 1..3, 1..3, 0..2, 1..3, 3..5]);
        assert_eq!(controls.window(&sorted, 0).len(), 0);
        assert_eq!(controls.window(&sorted, 9), 0..5);
        assert_eq!(
            controls.window(&sorted[..1], 9),
            0..1,
            "a shorter list of nodes must fill the window from its start"
        );
    }

    #[test]
    fn escape_goes_back_step_by_step_and_leaves_in_the_end() {
        let timeline = five();
        let mut controls = Controls::default();
        pressed(&mut controls, &timeline, &[KeyCode::Enter]);
        assert!(controls.alone);
        pressed(&mut controls, &timeline, &[KeyCode::Char('?'), KeyCode::Esc]);
        assert!(controls.alone && !controls.help, "any key must close the help");
        pressed(&mut controls, &timeline, &[KeyCode::Esc, KeyCode::Esc]);
        assert!(!controls.alone && controls.picked.is_none());
        assert!(controls.press(KeyEvent::from(KeyCode::Esc), timeline.nodes()));
    }

    #[test]
    fn enter_opens_and_closes_and_nothing_opens_where_there_is_no_node() {
        let timeline = five();
        let mut controls = Controls::default();
        pressed(
            &mut controls,
            &timeline,
            &[KeyCode::Down, KeyCode::Down, KeyCode::Enter],
        );
        assert!(controls.alone);
        pressed(&mut controls, &timeline, &[KeyCode::Enter]);
        assert!(!controls.alone && controls.picked.as_deref() == Some("b"));
        let mut controls = Controls::default();
        pressed(
            &mut controls,
            &Timeline::default(),
            &[KeyCode::Enter, KeyCode::Down, KeyCode::End, KeyCode::PageUp],
        );
        assert!(!controls.alone);
    }

    #[test]
    fn scale_and_axis_go_to_and_fro() {
        let mut controls = Controls::default();
        let keys = [KeyCode::Char('l'), KeyCode::Char('x')];
        pressed(&mut controls, &Timeline::default(), &keys);
        assert!(controls.linear && controls.over == Over::Seconds);
        pressed(&mut controls, &Timeline::default(), &keys);
        assert!(!controls.linear && controls.over == Over::Samples);
    }

    #[test]
    fn q_and_control_c_leave_and_keys_that_are_let_go_do_nothing() {
        let timeline = five();
        let key = |code, modifiers| Controls::default().press(KeyEvent::new(code, modifiers), timeline.nodes());
        assert!(key(KeyCode::Char('q'), KeyModifiers::NONE));
        assert!(key(KeyCode::Char('Q'), KeyModifiers::SHIFT));
        assert!(key(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(!key(KeyCode::Char('c'), KeyModifiers::NONE));
        let mut explained = Controls {
            help: true,
            ..Controls::default()
        };
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert!(
            explained.press(control_c, timeline.nodes()),
            "Ctrl-C must leave even while the help is open"
        );
        let released = KeyEvent::new_with_kind(KeyCode::Char('q'), KeyModifiers::NONE, KeyEventKind::Release);
        assert!(!Controls::default().press(released, timeline.nodes()));
    }
}
