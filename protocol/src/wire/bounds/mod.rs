//! Limits of every message between nodes, and of the names of nodes. They apply to all senders.
//!
//! Texts and lists whose limits are part of their types ([`crate::bounded`]) are refused while they are decoded. Each
//! message checks the rest in a `check` of its own. No honest process of this release sends a message that fails the
//! check, so the receiver may ignore the message and draw its own conclusions about the sender. Numbers are limited so
//! that sums over the largest possible number of participants do not overflow.

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
use crate::weights::changes::WEIGHTS_MAX;
use crate::wire::control::{Beat, ControlMessage, FoundCheckpoint, NodeInfo, Offer, Request};
use crate::wire::run_plan::{Participant, Resumed, RunPlan, StageTakeover};

/// Maximum number of runs in a beat, a node's periodic state message: the current run, and the one before.
const RUNS_MAX: usize = 2;
/// Maximum number of members of a cluster, and of participants of a run.
pub const MEMBERS_MAX: usize = 1024;
/// Maximum number of workers of one node.
pub const WORKERS_MAX: usize = 256;
/// Maximum number of samples of a dataset: sample numbers have 32 bits.
const ROWS_MAX: u64 = u32::MAX as u64;
/// Maximum of every duration in a message between nodes: 100 years.
pub const TIME_MAX: Duration = Duration::from_hours(100 * 365 * 24);

/// Maximum number of letters of a node's name that a user has chosen.
const CHOSEN_NAME_MAX: usize = 32;
/// Number of hexadecimal digits of a node's id at the end of its default name.
const NAME_DIGITS: usize = 6;

/// Error of a message from another process that is invalid or exceeds a limit, with the name of the value at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{0} is invalid or exceeds its limit")]
pub struct OutOfBounds(pub &'static str);

/// Returns the default name of a node: the host's name, and enough of the id to tell nodes of one host apart.
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

/// Returns true if a node can have this name, which must be fit for tables, logs and file names.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let ordinary = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(ordinary)
}

/// Checks a name that a user has chosen for a node. The error says what a name must look like.
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
    /// Checks a message received from another node against the limits that honest nodes keep.
    pub fn check(&self) -> Result<(), OutOfBounds> {
        match self {
            Self::Beat(beat) => beat.check(),
            Self::Answer { answer: Ok(offer), .. } => offer.check(),
            Self::FoundCheckpoint { found, .. } => found.as_ref().map_or(Ok(()), |found| found.check()),
            Self::Stats(record) => record.check(),
            // Jobs and reasons have limits in their types.
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

    /// Returns true unless the message names another node than `node` as its sender; a message that names none may come
    /// from any node. A receiver uses this to refuse messages in a third node's name.
    #[must_use]
    pub fn is_from(&self, node: NodeId) -> bool {
        match self {
            Self::Beat(beat) => beat.from.id == node,
            Self::Echo { from, .. } | Self::FoundCheckpoint { from, .. } | Self::Answer { from, .. } => *from == node,
            Self::Prepare { coordinator, .. } | Self::Find { coordinator, .. } => *coordinator == node,
            Self::Leaving(leaving) => *leaving == node,
            // These messages hold no node id. Records hold a node's name, which the receiver compares with the name in
            // the node's beats.
            Self::Stats(_) | Self::Order { .. } | Self::Abort { .. } | Self::Unwelcome(_) => true,
        }
    }
}

impl Request {
    /// Checks a client's request against the limits that honest clients keep.
    pub fn check(&self) -> Result<(), OutOfBounds> {
        match self {
            // Jobs and everything else in requests have limits in their types.
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
    /// Checks a node's description, received from another process, against the limits that honest nodes keep.
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
    /// Checks a node's whole state, received from that node, against the limits that honest nodes keep.
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
    /// Checks the description of a run's participant, received from another node, against the limits of honest nodes.
    pub fn check(&self) -> Result<(), OutOfBounds> {
        let Self {
            node: _,
            name: called,
            address: _,
            workers,
            guest: _,
            lacks_first_weights: _,
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
    /// Checks that a plan received from another node can be that of a run: among other things, nodes that joined later
    /// come last, ordered by id, and no node is listed twice.
    pub fn check(&self) -> Result<(), OutOfBounds> {
        let Self {
            job: _,
            data,
            first: _,
            weights,
            participants,
            resumed,
            left_out: _,
            chosen: _,
            succeeds: _,
        } = self;
        data.check()?;
        within(*weights <= WEIGHTS_MAX as u64, "the number of weights")?;
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
        within(
            founders.iter().any(|one| !one.lacks_first_weights),
            "a run whose first weights no node has",
        )?;
        within(
            resumed.is_empty() && guests.iter().all(|one| !one.lacks_first_weights)
                || participants.iter().all(|one| !one.lacks_first_weights),
            "the nodes that lack the first weights",
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
    /// Checks the identity of a checkpoint to be resumed, received from another node, against the limits of honest
    /// nodes.
    pub fn check(&self) -> Result<(), OutOfBounds> {
        let Self {
            run: _,
            digest: _,
            first: _,
            frontier: _,
            samples,
            slots,
        } = self;
        within((1..=SLOTS_MAX).contains(slots), "the number of slots")?;
        counts([*samples])
    }
}

impl FoundCheckpoint {
    /// Checks the description of a checkpoint that another node found against the limits that honest nodes keep.
    pub fn check(&self) -> Result<(), OutOfBounds> {
        let Self { resumed, stage, job: _ } = self;
        within(usize::from(*stage) < STAGES_MAX, "the number of a pipeline stage")?;
        resumed.check()
    }
}

impl Offer {
    /// Checks a node's offer to take part in a run, received from that node, against the limits that honest nodes keep.
    pub fn check(&self) -> Result<(), OutOfBounds> {
        let Self {
            data,
            digest: _,
            workers,
            groups,
            weights,
            // These numbers have no limits.
            speed: _,
            memory_bytes: _,
            gpu_bytes: _,
        } = self;
        within(
            (1..=GROUPS_MAX).contains(&usize::from(*groups)),
            "the number of layer groups",
        )?;
        within(*weights <= WEIGHTS_MAX as u64, "the number of weights")?;
        within(*workers <= WORKERS_MAX, "the number of workers")?;
        data.check()
    }
}

impl DataInfo {
    /// Checks the description of a dataset, received from another node, against the limits that honest nodes keep.
    pub fn check(&self) -> Result<(), OutOfBounds> {
        let Self {
            hash: _,
            input,
            target,
            train,
            test,
            validation,
            most_frequent,
            code: _,
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
    /// Checks a node's record of statistics, received from that node, against the limits that honest nodes keep. Losses
    /// and norms may be NaN or infinite, as in a run that diverges.
    pub fn check(&self) -> Result<(), OutOfBounds> {
        // All numbers except the times are figures, as a test of the table of figures demands.
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

/// Checks one figure of a node's record of statistics against the limit for its unit. Losses and norms may be NaN or
/// infinite, as in a run that diverges.
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
    /// Checks a record of the data exchanged with a peer, received from another node, against the limits of honest
    /// nodes.
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
