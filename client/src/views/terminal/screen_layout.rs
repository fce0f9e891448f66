//! Layout of the terminal view: distributes the lines of a screen, and omits the least important parts first.

use super::charts;

/// Fewest lines of the table of nodes, with its titles, where charts are shown as well; with less room the charts are
/// omitted.
const TABLE_LINES: u16 = 5;
/// Fewest lines of the list of events, with its title; `EVENTS_LINES_MAX` is the most where charts are shown as well.
const EVENTS_LINES: u16 = 3;
const EVENTS_LINES_MAX: u16 = 31;

/// Number of lines of each part of the terminal view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ScreenLayout {
    pub(super) header: u16,
    pub(super) notes: u16,
    pub(super) table: u16,
    pub(super) charts: u16,
    pub(super) events: u16,
    pub(super) keys: u16,
}

impl ScreenLayout {
    /// Returns the layout of a terminal of `height` lines, for these numbers of notes, nodes and events.
    pub(super) fn of(height: u16, notes: u16, nodes: u16, events: u16) -> Self {
        let header = if height >= 8 { 2 } else { height.min(1) };
        let keys = u16::from(height >= 6);
        // The table of nodes keeps at least one line.
        let notes = notes.min(height.saturating_sub(header + keys + 2));
        let room = height - header - keys - notes;
        let wanted = nodes.saturating_add(1);
        let least = wanted.min(TABLE_LINES);
        let mut parts = Self {
            header,
            notes,
            keys,
            ..Self::default()
        };
        if room < least + charts::LINES {
            parts.table = wanted.min(room);
            // Without charts there may be room for events.
            let left = room - parts.table;
            if left >= EVENTS_LINES {
                parts.events = left.min(events.saturating_add(1));
            }
        } else {
            let few = if room >= least + charts::LINES + EVENTS_LINES {
                EVENTS_LINES
            } else {
                0
            };
            parts.table = wanted.min(room - charts::LINES - few);
            let rest = room - parts.table;
            if few > 0 {
                parts.events = (rest / 4).clamp(EVENTS_LINES, EVENTS_LINES_MAX);
            }
            parts.charts = rest - parts.events;
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ordinary_screen_has_everything_and_a_tall_one_more_of_it() {
        let ordinary = ScreenLayout::of(24, 0, 3, 9);
        let expected = ScreenLayout {
            header: 2,
            notes: 0,
            table: 4,
            charts: 13,
            events: 4,
            keys: 1,
        };
        assert_eq!(ordinary, expected);
        let tall = ScreenLayout::of(60, 1, 3, 20);
        assert_eq!((tall.table, tall.charts, tall.events), (4, 39, 13));
        let crowded = ScreenLayout::of(24, 0, 100, 9);
        assert_eq!((crowded.table, crowded.charts, crowded.events), (10, 8, 3));
    }

    #[test]
    fn events_go_first_then_curves_then_all_but_nodes() {
        let of = |height| ScreenLayout::of(height, 0, 10, 9);
        assert_eq!((of(19).events, of(19).charts, of(19).table), (3, 8, 5));
        assert_eq!((of(18).events, of(18).charts, of(18).table), (0, 8, 7));
        assert_eq!((of(15).events, of(15).charts, of(15).table), (0, 0, 11));
        assert_eq!((of(5).header, of(5).keys, of(5).table), (1, 0, 4));
        assert_eq!(of(1).header, 1);
    }

    #[test]
    fn every_line_is_given_out_once() {
        for height in 0..80 {
            for notes in [0, 1, 5, 200] {
                for nodes in [0, 1, 3, 40, u16::MAX] {
                    let parts = ScreenLayout::of(height, notes, nodes, 9);
                    let sum = parts.header + parts.notes + parts.table + parts.charts + parts.events + parts.keys;
                    assert!(sum <= height, "{height} {notes} {nodes}: {parts:?}");
                    assert!(parts.table > 0 || height < 2, "{height} {notes} {nodes}: {parts:?}");
                }
            }
        }
    }
}
