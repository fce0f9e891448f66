//! Columns of the table of nodes in the terminal: entries of the [table of figures](protocol::stats::FIGURES), and some
//! columns of text.

use protocol::stats::{Figure, FigureColumn, StatsRecord, Unit};

use super::controls::Sort;
use super::units::{in_column, known, short};
use crate::output::quantity;
use crate::timeline::{Node, Nodes};

/// One column of the table of nodes.
#[derive(Clone, Copy)]
pub(super) struct Column {
    pub(super) title: &'static str,
    /// Title of the table's column with its unit, used where there is room.
    pub(super) long: &'static str,
    /// Explanation of the column for the help screen.
    pub(super) meaning: &'static str,
    pub(super) sort: Option<Sort>,
    /// Rank of the table's column: where space is short, columns with the highest rank are omitted first.
    rank: u8,
    /// Smallest width of the table's column in characters. A column of text with its short title is widened for its
    /// longest text up to `most` characters, and further only where room is left.
    least: usize,
    most: usize,
    /// True for a column of text, which is aligned left; numbers are aligned right.
    pub(super) words: bool,
    /// True if the column shows figures of the last second, which a silent node does not have.
    of_now: bool,
    content: Content,
}

#[derive(Clone, Copy)]
enum Content {
    Text(fn(&Node) -> String),
    Figure(&'static Figure<StatsRecord>, Unit),
}

impl Column {
    const fn words(
        title: &'static str,
        (least, most, rank): (usize, usize, u8),
        meaning: &'static str,
        text: fn(&Node) -> String,
    ) -> Self {
        Self {
            title,
            long: title,
            meaning,
            sort: None,
            rank,
            least,
            most,
            words: true,
            of_now: false,
            content: Content::Text(text),
        }
    }

    fn of_figure(figure: &'static Figure<StatsRecord>, numbers: bool) -> Option<Self> {
        let FigureColumn { title, long, rank } = figure.column?;
        let column = Self {
            title,
            long,
            meaning: figure.meaning,
            sort: figure.sorts.then_some(Sort::By(figure.name)),
            rank,
            least: width(figure.unit),
            most: width(figure.unit),
            words: false,
            of_now: figure.is_rate || !figure.lasts,
            content: Content::Figure(figure, figure.unit),
        };
        let is_r2 = figure.unit == Unit::Quality && numbers;
        Some(if is_r2 {
            Self {
                title: "R²",
                long: "eval R²",
                meaning: "Newest R² on validation (or else test) samples",
                least: width(Unit::Loss),
                content: Content::Figure(figure, Unit::Loss),
                ..column
            }
        } else {
            column
        })
    }

    pub(super) fn text(&self, node: &Node) -> String {
        if self.of_now && node.is_silent() {
            return String::new();
        }
        match self.content {
            Content::Text(text) => text(node),
            Content::Figure(figure, unit) => known(node.figure(figure), |value| in_column(unit, value)),
        }
    }

    fn longest(&self, nodes: &Nodes) -> usize {
        let lengths = nodes.iter().map(|node| self.text(node).chars().count());
        lengths.max().unwrap_or(0)
    }
}

/// Returns the number of characters that a value of this unit takes in a table's column, where it is written without
/// its unit.
fn width(unit: Unit) -> usize {
    match unit {
        Unit::Share => 3,
        Unit::Samples | Unit::SamplesPerSecond | Unit::Loss => 5,
        Unit::WeightChange => 6,
        _ => 4,
    }
}

const NODE: Column = Column {
    sort: Some(Sort::Name),
    ..Column::words("node", (6, 16, 0), "Name of the node", |node| node.record.node.clone())
};
const STATE: Column = Column::words(
    "state",
    (5, 11, 2),
    "Phase of the node; silent: time since its last record",
    state,
);
const ROUND_TRIP: Column = Column {
    long: "rtt ms",
    most: 4,
    words: false,
    of_now: true,
    ..Column::words(
        "rtt",
        (4, 4, 19),
        "Round-trip time from the node that answers this view, ms",
        |node| known(round_trip(node), short),
    )
};
const DEVICE: Column = Column::words("device", (3, 12, 20), "CPU or GPU that the node computes on", |node| {
    node.member
        .as_ref()
        .map_or_else(String::new, |member| member.device.clone())
});

fn state(node: &Node) -> String {
    match node.silent {
        Some(seconds) => format!("silent {}", quantity::clock(seconds)),
        None => node.state().into(),
    }
}

pub(super) fn round_trip(node: &Node) -> Option<f64> {
    node.member.as_ref()?.rtt_ms
}

/// A column of the table of nodes with the title and width that are shown.
pub(super) struct VisibleColumn {
    pub(super) column: Column,
    pub(super) title: String,
    pub(super) width: usize,
}

/// Returns the columns of the table of nodes, without those of figures that do not apply to these nodes.
pub(super) fn telling(nodes: &Nodes) -> Vec<Column> {
    let numbers = nodes.iter().any(|node| node.record.mae.is_some());
    let figures = nodes.figures().filter_map(|figure| Column::of_figure(figure, numbers));
    [NODE, STATE]
        .into_iter()
        .chain(figures)
        .chain([ROUND_TRIP, DEVICE])
        .collect()
}

/// Returns the columns of the table of nodes that fit into this width, and the gap between them. The columns have their
/// long titles if all of them fit that way, otherwise their short ones.
pub(super) fn shown(nodes: &Nodes, sort: Sort, width: usize) -> (Vec<VisibleColumn>, usize) {
    let all = telling(nodes);
    let visible = |column: Column, title: &str, most: usize| {
        let title = titled(&column, title, sort);
        let words = if column.words {
            column.longest(nodes).min(most)
        } else {
            0
        };
        let width = title.chars().count().max(column.least).max(words);
        VisibleColumn { column, title, width }
    };
    let long: Vec<VisibleColumn> = all
        .iter()
        .map(|&column| visible(column, column.long, usize::MAX))
        .collect();
    let gap = 2;
    if long.iter().map(|one| one.width + gap).sum::<usize>() <= width + gap {
        return (long, gap);
    }
    let short = all.iter().map(|&column| visible(column, column.title, column.most));
    let short: Vec<VisibleColumn> = short.collect();
    let sizes: Vec<(usize, u8)> = short.iter().map(|one| (one.width, one.column.rank)).collect();
    let kept = crate::output::text_layout::visible_parts(&sizes, 1, width);
    let kept = short.into_iter().zip(kept).filter(|(_, kept)| *kept);
    let mut kept: Vec<VisibleColumn> = kept.map(|(one, _)| one).collect();
    widen(&mut kept, nodes, width);
    (kept, 1)
}

/// Gives the remaining width of the table to columns of text that need it, the first column first.
fn widen(columns: &mut [VisibleColumn], nodes: &Nodes, width: usize) {
    let used: usize = columns.iter().map(|one| one.width + 1).sum();
    let mut spare = (width + 1).saturating_sub(used);
    for one in columns.iter_mut().filter(|one| one.column.words) {
        let more = one.column.longest(nodes).saturating_sub(one.width).min(spare);
        one.width += more;
        spare -= more;
    }
}

/// Returns the title of the table's column, with an arrow if nodes are sorted by this column.
fn titled(column: &Column, title: &str, sort: Sort) -> String {
    match column.sort {
        Some(Sort::Name) if sort == Sort::Name => format!("{title}▴"),
        Some(own) if own == sort => format!("{title}▾"),
        _ => title.into(),
    }
}
