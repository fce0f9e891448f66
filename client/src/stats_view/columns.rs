//! The columns of the table of nodes, and what they mean.

use super::controls::Sort;
use super::units::{known, loss, percent, precise, short, tau};
use crate::quantity;
use crate::timeline::{Node, Nodes};

/// One column.
pub(super) struct Column {
    pub(super) title: &'static str,
    /// The title with its unit, where there is room for it.
    pub(super) long: &'static str,
    /// What it means, for whoever asks.
    pub(super) meaning: &'static str,
    pub(super) sort: Option<Sort>,
    /// Where space is short, the highest are left out first.
    rank: u8,
    /// The least width in short form. Words may take more, up to the most.
    least: usize,
    most: usize,
    /// Words begin at the left; numbers end at the right.
    pub(super) words: bool,
    /// Whether it is of the last second: who is silent has no such figure.
    of_now: bool,
    text: fn(&Node) -> String,
}

impl Column {
    const fn number(
        (title, long): (&'static str, &'static str),
        (width, rank): (usize, u8),
        meaning: &'static str,
        text: fn(&Node) -> String,
    ) -> Self {
        Self {
            title,
            long,
            meaning,
            sort: None,
            rank,
            least: width,
            most: width,
            words: false,
            of_now: true,
            text,
        }
    }

    const fn words(
        title: &'static str,
        (least, most, rank): (usize, usize, u8),
        meaning: &'static str,
        text: fn(&Node) -> String,
    ) -> Self {
        let mut column = Self::number((title, title), (least, rank), meaning, text);
        column.most = most;
        column.words = true;
        column.lasting()
    }

    const fn sorts(mut self, sort: Sort) -> Self {
        self.sort = Some(sort);
        self
    }

    /// It stays as it was when a node is silent.
    const fn lasting(mut self) -> Self {
        self.of_now = false;
        self
    }

    pub(super) fn text(&self, node: &Node) -> String {
        if self.of_now && node.is_silent() {
            String::new()
        } else {
            (self.text)(node)
        }
    }

    fn longest(&self, nodes: &Nodes) -> usize {
        let lengths = nodes.iter().map(|node| self.text(node).chars().count());
        lengths.max().unwrap_or(0)
    }
}

/// All columns, as they stand side by side.
const COLUMNS: [Column; 22] = [
    Column::words("node", (6, 16, 0), "name of the node", |node| node.record.node.clone()).sorts(Sort::Name),
    Column::words(
        "state",
        (5, 11, 2),
        "phase of the node; silent: time since its last record",
        state,
    ),
    Column::number(
        ("smp/s", "samples/s"),
        (5, 1),
        "samples trained per second, in the last second",
        |node| precise(node.record.samples_per_second),
    )
    .sorts(Sort::Speed),
    Column::number(
        ("smp", "samples"),
        (5, 16),
        "samples trained by the node in this run",
        |node| precise(node.record.samples as f64),
    )
    .lasting(),
    Column::number(
        ("loss", "loss"),
        (5, 3),
        "mean training loss of the last second",
        |node| known(node.record.loss, loss),
    )
    .sorts(Sort::Loss)
    .lasting(),
    Column::number(
        ("acc%", "accuracy %"),
        (4, 4),
        "newest accuracy on validation (or else test) samples, percent",
        |node| known(node.record.accuracy, |accuracy| percent(accuracy, 2)),
    )
    .lasting(),
    Column::number(
        ("R²", "eval R²"),
        (5, 4),
        "newest R² on validation (or else test) samples",
        |node| known(node.record.accuracy, loss),
    )
    .lasting(),
    Column::number(
        ("τ", "τ"),
        (6, 11),
        "size of one weight change; none if batches are dense",
        |node| tau(node.record.tau),
    )
    .lasting(),
    Column::number(
        ("den%", "density %"),
        (4, 10),
        "share of the weights that a batch changes, percent",
        |node| percent(node.record.density, 2),
    ),
    Column::number(
        ("in", "in B/s"),
        (4, 7),
        "bytes received per second, from other nodes",
        |node| known(node.rate_in, short),
    ),
    Column::number(
        ("out", "out B/s"),
        (4, 6),
        "bytes sent per second, to other nodes",
        |node| known(node.rate_out, short),
    ),
    Column::number(
        ("stale", "staleness"),
        (5, 9),
        "age of others' gradients on arrival, in rounds of batches",
        |node| short(node.record.staleness),
    )
    .sorts(Sort::Staleness),
    Column::number(
        ("lag", "lag"),
        (4, 5),
        "batches that peers have and the node has not applied",
        |node| short(node.record.frontier_lag as f64),
    )
    .sorts(Sort::Lag),
    Column::number(("que", "queue"), (4, 14), "batches waiting to be sent", |node| {
        short(node.record.queue as f64)
    }),
    Column::number(
        ("ex%", "exchange %"),
        (3, 13),
        "share of the workers' time that the exchange takes, percent",
        |node| percent(node.record.exchange_share, 0),
    ),
    Column::number(
        ("wt%", "waited %"),
        (3, 17),
        "share of the workers' time spent waiting for rounds, percent",
        |node| percent(node.record.waited_share, 0),
    ),
    Column::number(("cpu", "cores"), (4, 8), "processor cores kept busy", |node| {
        short(node.record.cpu)
    })
    .sorts(Sort::Cpu),
    Column::number(("mem", "memory B"), (4, 12), "memory in use, bytes", |node| {
        short(node.record.memory_bytes as f64)
    }),
    Column::number(("gpu", "GPUs"), (4, 15), "GPUs kept busy", |node| {
        short(node.record.gpu)
    }),
    Column::number(("gmem", "GPU mem B"), (4, 18), "memory of GPUs in use, bytes", |node| {
        short(node.record.gpu_memory_bytes as f64)
    }),
    Column::number(
        ("rtt", "rtt ms"),
        (4, 19),
        "round-trip time from the node that answers this view, ms",
        |node| known(round_trip(node), short),
    ),
    Column::words("device", (3, 12, 20), "CPU or GPU that the node computes on", |node| {
        node.member
            .as_ref()
            .map_or_else(String::new, |member| member.device.clone())
    }),
];

fn state(node: &Node) -> String {
    match node.silent {
        Some(seconds) => format!("silent {}", quantity::clock(seconds)),
        None => node.state().into(),
    }
}

pub(super) fn round_trip(node: &Node) -> Option<f64> {
    node.member.as_ref()?.rtt_ms
}

/// A column as it is shown.
pub(super) struct VisibleColumn {
    pub(super) column: &'static Column,
    pub(super) title: String,
    pub(super) width: usize,
}

/// The columns that have something to tell of these nodes: where nobody has a GPU, two of zeros would not, and one node alone
/// exchanges nothing with others.
pub(super) fn telling(nodes: &Nodes) -> Vec<&'static Column> {
    let gpus = nodes.iter().any(|node| node.record.gpu_memory_bytes > 0);
    let numbers = nodes.iter().any(|node| node.record.mae.is_some());
    let several = nodes.len() > 1;
    let wanted = |column: &&Column| match column.title {
        "in" | "out" | "ex%" => several,
        "gpu" | "gmem" => gpus,
        "acc%" => !numbers,
        "R²" => numbers,
        _ => true,
    };
    COLUMNS.iter().filter(wanted).collect()
}

/// The columns that fit, and the gap between them: with titles in full where all of them do.
pub(super) fn shown(nodes: &Nodes, sort: Sort, width: usize) -> (Vec<VisibleColumn>, usize) {
    let all = telling(nodes);
    let long: Vec<VisibleColumn> = all
        .iter()
        .map(|&column| {
            let title = titled(column, column.long, sort);
            let width = title.chars().count().max(column.least);
            let width = if column.words {
                width.max(column.longest(nodes))
            } else {
                width
            };
            VisibleColumn { column, title, width }
        })
        .collect();
    let gap = 2;
    if long.iter().map(|one| one.width + gap).sum::<usize>() <= width + gap {
        return (long, gap);
    }
    let short = all.iter().map(|&column| {
        let title = titled(column, column.title, sort);
        let most = column.longest(nodes).min(column.most);
        let width = title
            .chars()
            .count()
            .max(column.least)
            .max(if column.words { most } else { 0 });
        VisibleColumn { column, title, width }
    });
    let short: Vec<VisibleColumn> = short.collect();
    let sizes: Vec<(usize, u8)> = short.iter().map(|one| (one.width, one.column.rank)).collect();
    let kept = crate::text_layout::visible_parts(&sizes, 1, width);
    let kept = short.into_iter().zip(kept).filter(|(_, kept)| *kept);
    let mut kept: Vec<VisibleColumn> = kept.map(|(one, _)| one).collect();
    widen(&mut kept, nodes, width);
    (kept, 1)
}

/// Words get what the columns leave over, as far as they need it, the first column first.
fn widen(columns: &mut [VisibleColumn], nodes: &Nodes, width: usize) {
    let used: usize = columns.iter().map(|one| one.width + 1).sum();
    let mut spare = (width + 1).saturating_sub(used);
    for one in columns.iter_mut().filter(|one| one.column.words) {
        let more = one.column.longest(nodes).saturating_sub(one.width).min(spare);
        one.width += more;
        spare -= more;
    }
}

/// A title, with a mark where it is the one by which nodes are sorted.
fn titled(column: &Column, title: &str, sort: Sort) -> String {
    match column.sort {
        Some(Sort::Name) if sort == Sort::Name => format!("{title}▴"),
        Some(own) if own == sort => format!("{title}▾"),
        _ => title.into(),
    }
}
