//! What can be said at all: the bounds of everything that one node tells another, whatever the sender's name.
//!
//! Texts and lists whose limits are part of their types ([`crate::bounded`]) are refused while they are decoded. For the
//! rest each message has a `check` of its own. What fails it no honest process of this release sends, so whoever receives it
//! need not act on it, and may think its part about the sender. Numbers are bounded so that sums of as many as there can be
//! participants do not overflow.

mod measured;
mod run;

use std::time::Duration;

use thiserror::Error;

pub use measured::PROCESSES_MAX;
use measured::check_processes;

use crate::bounded::{COUNT_MAX, NAME_BYTES_MAX};
use crate::ids::NodeId;
use crate::job::data::DataInfo;
use crate::job::model::Shape;
use crate::job::split::SLOTS_MAX;
use crate::job::{GROUPS_MAX, Job, STAGES_MAX};
use crate::stats::measured::{Course, Evaluation};
use crate::stats::{FIGURES, Figure, PeerRecord, StatsRecord, Unit};
use crate::wire::control::{Beat, ControlMessage, FoundCheckpoint, NodeInfo, Offer, Request};
use crate::wire::run_plan::{Participant, Resumed, RunPlan, StageTakeover};

/// Runs in a beat: the one that a node is in, and the one before.
const RUNS_MAX: usize = 2;
/// Members of a cluster, and participants of a run.
pub const MEMBERS_MAX: usize = 1024;
/// Workers of one node.
pub const WORKERS_MAX: usize = 256;
/// Samples of a dataset: each has a number of 32 bits.
const ROWS_MAX: u64 = u32::MAX as u64;
/// Any time that something takes.
pub const TIME_MAX: Duration = Duration::from_hours(100 * 365 * 24);

/// Letters of a name that somebody has chosen for a node.
const CHOSEN_NAME_MAX: usize = 32;
/// Hex digits of a node's id that its name for people ends with, unless somebody has chosen one.
const NAME_DIGITS: usize = 6;

/// A message beyond its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{0} is invalid or exceeds its limit")]
pub struct OutOfBounds(pub &'static str);

/// A node's name for people: the machine's, and enough of the id to tell nodes of one machine apart.
#[must_use]
pub fn node_name(host: &str, id: NodeId) -> String {
    let host: String = host
        .trim()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .take(32)
        .collect();
    let host = if host.is_empty() { "node" } else { &host };
    format!("{host}-{}", &id.to_string()[..NAME_DIGITS])
}

/// Whether a node can have this name: it stands in tables, logs and file names.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let ordinary = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(ordinary)
}

/// A name that somebody has chosen for a node, or what is wrong with it.
pub fn chosen_name(text: &str) -> Result<String, String> {
    let begins = text.starts_with(|c: char| c.is_ascii_alphanumeric());
    if is_name(text) && begins && text.len() <= CHOSEN_NAME_MAX {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "a node's name must consist of at most {CHOSEN_NAME_MAX} letters, digits, '-', '.' and '_', and begin \
             with a letter or digit"
        ))
    }
}

fn within(holds: bool, what: &'static str) -> Result<(), OutOfBounds> {
    if holds { Ok(()) } else { Err(OutOfBounds(what)) }
}

fn name(text: &str) -> Result<(), OutOfBounds> {
    within(text.len() <= NAME_BYTES_MAX, "the length of a name")
}

fn counts<const N: usize>(numbers: [u64; N]) -> Result<(), OutOfBounds> {
    within(numbers.iter().all(|&number| number <= COUNT_MAX), "a count")
}

fn time(seconds: f64) -> Result<(), OutOfBounds> {
    within((0.0..=TIME_MAX.as_secs_f64()).contains(&seconds), "a duration")
}

impl ControlMessage {
    /// Whether this can be said.
    pub fn check(&self) -> Result<(), OutOfBounds> {
        match self {
            Self::Beat(beat) => beat.check(),
            Self::Answer { answer: Ok(offer), .. } => offer.check(),
            Self::FoundCheckpoint { found, .. } => found.as_ref().map_or(Ok(()), |found| found.check()),
            Self::Stats(record) => record.check(),
            // A job or a reason that could be read is bounded.
            Self::Echo { .. }
            | Self::Answer { answer: Err(_), .. }
            | Self::Abort { .. }
            | Self::Unwelcome(_)
            | Self::Prepare { .. }
            | Self::Find { .. }
            | Self::Order { .. }
            | Self::Leaving(_) => Ok(()),
        }
    }

    /// Whether a node says this in its own name.
    #[must_use]
    pub fn is_from(&self, node: NodeId) -> bool {
        match self {
            Self::Beat(beat) => beat.from.id == node,
            Self::Echo { from, .. } | Self::FoundCheckpoint { from, .. } | Self::Answer { from, .. } => *from == node,
            Self::Prepare { coordinator, .. } | Self::Find { coordinator, .. } => *coordinator == node,
            Self::Leaving(leaving) => *leaving == node,
            // No id is in these. What a node is called it says in its beats, and whoever hears a record compares the two.
            Self::Stats(_) | Self::Order { .. } | Self::Abort { .. } | Self::Unwelcome(_) => true,
        }
    }
}

impl Request {
    /// Whether this can be asked.
    pub fn check(&self) -> Result<(), OutOfBounds> {
        match self {
            // A job that could be read is bounded, and so is all else.
            Self::Resume { changes, .. } => within(
                changes.to_toml().is_ok_and(|text| text.len() <= Job::TEXT_BYTES_MAX),
                "a job",
            ),
            Self::StartTraining { .. }
            | Self::Nodes
            | Self::Order(_)
            | Self::Status
            | Self::InspectData(_)
            | Self::Stats { .. } => Ok(()),
        }
    }
}

impl NodeInfo {
    /// Whether a node can be so.
    pub fn check(&self) -> Result<(), OutOfBounds> {
        let Self {
            id: _,
            name: called,
            address: _,
            version: _,
            device: _,
            workers,
            since,
        } = self;
        within(is_name(called), "a node's name")?;
        within(*workers <= WORKERS_MAX, "the number of workers")?;
        counts([*since])
    }
}

impl Beat {
    /// Whether a node's state can be so.
    pub fn check(&self) -> Result<(), OutOfBounds> {
        let Self {
            from,
            number,
            members,
            runs,
        } = self;
        from.check()?;
        counts([*number])?;
        within(members.len() <= MEMBERS_MAX, "the number of cluster members")?;
        members.iter().try_for_each(NodeInfo::check)?;
        within(runs.len() <= RUNS_MAX, "the number of runs")?;
        runs.iter().try_for_each(crate::wire::run_beat::RunBeat::check)
    }
}

impl Participant {
    /// Whether a participant can be so.
    pub fn check(&self) -> Result<(), OutOfBounds> {
        let Self {
            node: _,
            name: called,
            address: _,
            workers,
            guest: _,
            takes,
            life,
        } = self;
        within(is_name(called), "a participant's name")?;
        within((1..=WORKERS_MAX).contains(workers), "the number of workers")?;
        // Each restart and each takeover has a participant of its own.
        within((*life as usize) < MEMBERS_MAX, "the number of restarts")?;
        let Some(StageTakeover { place: _, turn }) = takes else {
            return Ok(());
        };
        within((*turn as usize) < MEMBERS_MAX, "the number of takeovers")
    }
}

impl RunPlan {
    /// Whether a run can begin so: guests come last, ordered by their ids, and nobody twice.
    pub fn check(&self) -> Result<(), OutOfBounds> {
        let Self {
            job: _,
            data,
            first: _,
            participants,
            resumed,
            left_out: _,
            chosen: _,
            succeeds: _,
        } = self;
        data.check()?;
        within(
            (1..=MEMBERS_MAX).contains(&participants.len()),
            "the number of participants",
        )?;
        participants.iter().try_for_each(Participant::check)?;
        let founders = participants.iter().take_while(|one| !one.guest).count();
        let (founders, guests) = participants.split_at(founders);
        within(!founders.is_empty(), "the number of founders")?;
        within(
            guests.iter().all(|one| one.guest) && guests.is_sorted_by(|one, next| one.node < next.node),
            "the order of guests",
        )?;
        let mut nodes: Vec<NodeId> = founders.iter().chain(guests).map(|one| one.node).collect();
        nodes.sort_unstable();
        within(
            nodes.is_sorted_by(|one, next| one < next),
            "a participant that is listed twice",
        )?;
        let topology = self.topology();
        within(!self.job.exchange.leaves_cut_open(), "the undecided split of a network")?;
        within(topology.stages() <= STAGES_MAX, "the number of pipeline stages")?;
        within(
            founders.len().is_multiple_of(topology.stages()),
            "the number of nodes for whole pipelines",
        )?;
        within(
            founders.iter().all(|one| one.takes.is_none()),
            "a pipeline stage taken over by a founder",
        )?;
        within(
            guests.iter().all(|guest| topology.admits(guest)),
            "the pipeline stage that a guest takes over",
        )?;
        within(
            resumed.is_empty() || resumed.len() == topology.stages(),
            "the number of checkpoints",
        )?;
        resumed.iter().try_for_each(Resumed::check)
    }
}

impl Resumed {
    /// Whether a checkpoint can be so.
    pub fn check(&self) -> Result<(), OutOfBounds> {
        let Self {
            run: _,
            digest: _,
            frontier: _,
            samples,
            slots,
        } = self;
        within((1..=SLOTS_MAX).contains(slots), "the number of slots")?;
        counts([*samples])
    }
}

impl FoundCheckpoint {
    /// Whether a checkpoint can be so.
    pub fn check(&self) -> Result<(), OutOfBounds> {
        let Self { resumed, stage, job: _ } = self;
        within(usize::from(*stage) < STAGES_MAX, "the number of a pipeline stage")?;
        resumed.check()
    }
}

impl Offer {
    /// Whether a node can offer this.
    pub fn check(&self) -> Result<(), OutOfBounds> {
        let Self {
            data,
            digest: _,
            workers,
            groups,
            // Any number can be.
            speed: _,
            memory_bytes: _,
            gpu_bytes: _,
        } = self;
        within(
            (1..=GROUPS_MAX).contains(&usize::from(*groups)),
            "the number of layer groups",
        )?;
        within(*workers <= WORKERS_MAX, "the number of workers")?;
        data.check()
    }
}

impl DataInfo {
    /// Whether a dataset can be so.
    pub fn check(&self) -> Result<(), OutOfBounds> {
        let Self {
            hash: _,
            input,
            target,
            train,
            test,
            validation,
            most_frequent,
        } = self;
        within(
            most_frequent <= test,
            "the number of samples of the most frequent class",
        )?;
        let sides = match *input {
            Shape::Flat(length) => [length, 1, 1],
            Shape::Image {
                channels,
                height,
                width,
            } => [channels, height, width],
        };
        let size = sides.iter().try_fold(1usize, |size, &side| size.checked_mul(side));
        within(
            size.is_some_and(|size| size as u64 <= COUNT_MAX),
            "the shape of a sample",
        )?;
        within(target.outputs() as u64 <= COUNT_MAX, "the number of outputs")?;
        within(
            [*train, *test, *validation].into_iter().max() <= Some(ROWS_MAX),
            "the number of samples",
        )
    }
}

impl StatsRecord {
    /// Whether a node's second can be so. A loss or a norm that is no number is what a run that diverges has.
    pub fn check(&self) -> Result<(), OutOfBounds> {
        // All numbers but the times are figures, as a test of these demands.
        let Self {
            time: at,
            node,
            run,
            state,
            digest,
            seconds,
            evaluation,
            evaluations,
            processes,
            peers,
            ..
        } = self;
        for text in [node, run, state, digest] {
            name(text)?;
        }
        within(peers.len() <= MEMBERS_MAX, "the number of peers")?;
        peers.iter().try_for_each(PeerRecord::check)?;
        check_processes(processes)?;
        time(*seconds)?;
        within(evaluations.len() <= Course::MAX, "the number of evaluations")?;
        evaluations.iter().chain(evaluation).try_for_each(Evaluation::check)?;
        within(at.is_finite(), "the time of a record")?;
        FIGURES.iter().try_for_each(|figure| check_figure(figure, self))
    }
}

/// Whether a figure can be so. A loss or a norm that is no number is what a run that diverges has.
fn check_figure(figure: &Figure<StatsRecord>, record: &StatsRecord) -> Result<(), OutOfBounds> {
    let value = (figure.of)(record).unwrap_or_default();
    let is_valid = match figure.unit {
        Unit::Loss | Unit::Quality | Unit::Target | Unit::Norm => true,
        Unit::Samples | Unit::Bytes | Unit::Batches | Unit::Rounds => value <= COUNT_MAX as f64,
        _ => value.is_finite(),
    };
    within(is_valid, figure.name)
}

impl PeerRecord {
    /// Whether an exchange with a peer can be so.
    pub fn check(&self) -> Result<(), OutOfBounds> {
        let Self {
            node,
            bytes_in,
            bytes_out,
            lag,
            queue,
        } = self;
        name(node)?;
        counts([*bytes_in, *bytes_out, *lag, *queue])
    }
}

#[cfg(test)]
mod tests;
