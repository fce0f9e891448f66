//! The exchange strategy of a job: which weight changes workers emit and when, and on which path nodes exchange them.

use std::fmt;

use super::{Cut, Density, PipelineSpec};
use crate::text_options::{TextOptions, within};
use crate::weights::lattice::Tau;

/// Exchange strategy of a job: which weight changes workers emit and when, and on which path nodes exchange them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Exchange {
    /// Strategy: after every step, each worker sends one-bit weight changes of ±τ to all nodes, without waiting for the
    /// others (Strom 2015).
    Strom(Threshold),
    /// Strategy: after a number of steps or an epoch, each worker sends the whole difference of its own weights from
    /// the shared ones.
    Rounds(Rounds),
    /// Strategy: the layers of one network lie on several machines. Machines that hold the same layers exchange weight
    /// changes of ±τ.
    Layers(PipelineSpec),
}

/// Exchange in rounds: at the end of each round, a worker emits the difference of its own weights from the shared ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rounds {
    /// Path on which the batches of a round travel between nodes, such as over one node or along a ring.
    pub topology: RoundTopology,
    /// Length of a worker's round, after which it sends: a number of steps, or an epoch.
    pub every: RoundLength,
    /// Rule for the part of its learned difference that each worker emits, if workers wait for each other's rounds.
    /// `None`: workers do not wait, and each emits all of its difference whenever its round ends.
    pub weighting: Option<RoundWeighting>,
}

/// Path on which the batches of a round travel between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundTopology {
    /// Path of a round's batches: every node sends its batches to every other node.
    Mesh,
    /// Path of a round's batches: all nodes send them to the first node, which adds them up and sends the sum to all
    /// nodes.
    Server,
    /// Path of a round's batches: their sum passes along all nodes to the first one, and each node adds its own batch.
    /// The first node sends the sum to all nodes.
    RingReduce,
    /// Path of a round's batches: their sum goes round all nodes in pieces, each starting at a different node, once to
    /// be added up and once to be distributed.
    Ring,
    /// Path between workers: the sum of their differences passes from worker to worker; each worker adds its own and
    /// goes on from the mean so far. The length of a round is the number of steps between two such passes. At the end
    /// of an epoch the mean of all workers goes to all nodes.
    Stepwise,
}

/// Length of a round: the training of a worker between two exchanges of differences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundLength {
    /// Length of a round: this number of steps.
    Steps(u32),
    /// Length of a round: one epoch, until a worker has been through its samples.
    Epoch,
}

/// Rule for the part of its learned difference that each worker emits in a round, if all workers wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundWeighting {
    /// Part of its learned difference that a worker emits in a round: equal for all workers, so that the mean of their
    /// differences is applied.
    Mean,
    /// Part of its learned difference that a worker emits in a round: in proportion to the loss of its last steps, so
    /// that the worker with most to learn counts most.
    Weighted,
    /// Part of its learned difference that a worker emits in a round: all of it if this worker has the lowest loss,
    /// else nothing.
    Best,
    /// Part of its learned difference that a worker emits in a round: all of it if this worker has the first slot
    /// (worker number), else nothing. This rule is for studies.
    First,
}

impl RoundWeighting {
    /// True if the part of its difference that a worker emits depends on the other workers' losses, so that all must
    /// announce theirs first.
    #[must_use]
    pub fn depends_on_losses(self) -> bool {
        self != Self::Mean
    }
}

/// Rule by which τ, the size of one weight change, is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Threshold {
    /// Rule for τ, the size of one weight change: τ is adjusted until a batch changes this fraction of the weights.
    Density(Density),
    /// Rule for τ, the size of one weight change: τ is fixed to this value.
    Fixed(Tau),
}

/// Default length of a round of the strategy `mesh`. A batch that moves all weights then costs less than the steps of
/// its round.
const EVERY_ON_MESH: RoundLength = RoundLength::Steps(16);
/// Default length of a round in the strategy `best`, in which only the worker with the lowest loss emits what it has
/// learned.
const EVERY_OF_BEST: RoundLength = RoundLength::Steps(64);
const EVERY_STEP: RoundLength = RoundLength::Steps(1);
const EVERY_MAX: f64 = 65_536.0;
const MEAN: RoundWeighting = RoundWeighting::Mean;

/// Entry of the table of exchange strategies: name, path of the batches, default length of a round and default
/// weighting of the workers.
type Named = (&'static str, RoundTopology, RoundLength, RoundWeighting);

/// Strategies in rounds by name. Options behind the name replace the defaults given here.
const NAMED: [Named; 7] = [
    ("mesh", RoundTopology::Mesh, EVERY_ON_MESH, MEAN),
    ("server", RoundTopology::Server, EVERY_STEP, MEAN),
    ("ring-reduce", RoundTopology::RingReduce, EVERY_STEP, MEAN),
    ("ring", RoundTopology::Ring, EVERY_STEP, MEAN),
    ("stepwise", RoundTopology::Stepwise, EVERY_STEP, MEAN),
    ("downpour", RoundTopology::Server, RoundLength::Epoch, MEAN),
    ("best", RoundTopology::Server, EVERY_OF_BEST, RoundWeighting::Best),
];

/// Weightings of the workers' differences by name; `None` for `async`, where no worker waits.
const WEIGHTINGS: [(&str, Option<RoundWeighting>); 5] = [
    ("mean", Some(MEAN)),
    ("weighted", Some(RoundWeighting::Weighted)),
    ("best", Some(RoundWeighting::Best)),
    ("first", Some(RoundWeighting::First)),
    ("async", None),
];

/// Exchange strategies with a description each, one line of help per entry.
pub const STRATEGIES: [(&str, &str); 10] = [
    (
        "strom",
        "one-bit weight changes to all nodes after every step, without waiting for other workers",
    ),
    (
        "mesh",
        "the mean of all workers' changes every 16 steps; every node sends to every other node",
    ),
    (
        "server",
        "the mean of all workers' changes every step, summed by the first node as a parameter server",
    ),
    (
        "ring-reduce",
        "the mean of all workers' changes every step, summed from node to node; the first node sends the sum to all",
    ),
    (
        "ring",
        "the mean of all workers' changes every step, summed in pieces around a ring of nodes: fewest bytes per node",
    ),
    (
        "stepwise",
        "each step passes the mean of the changes so far from worker to worker; every epoch ends with the mean of \
         all",
    ),
    (
        "downpour",
        "the mean of all workers' changes every epoch, summed by a server; 'downpour:weighted' weights workers by \
         loss",
    ),
    (
        "best",
        "the weights of the worker with the lowest loss every 64 steps, sent by a server",
    ),
    (
        "WAY[:every=N|epoch][,mean|weighted|best|first|async]",
        "any combination of these, with WAY one of mesh, server, ring-reduce or ring",
    ),
    (
        "layers[:groups=N|cuts=A+B][,slices=M][,micro=K][,ahead=A]",
        "one network split over several machines by groups of layers and slices of neurons, if it does not fit one \
         machine",
    ),
];

impl Exchange {
    /// Reads an exchange strategy from its text. `threshold` is the job's rule for τ, for strategies that have a τ.
    pub(super) fn from_text(text: &str, threshold: Threshold) -> Result<Self, String> {
        let mut options = TextOptions::parse(text);
        let named = NAMED.iter().find(|(name, ..)| *name == options.name);
        let exchange = match (options.name, named) {
            ("strom", _) => Self::Strom(threshold),
            ("layers", _) => Self::Layers(PipelineSpec::from_options(&mut options, threshold)?),
            (_, Some(&(_, topology, every, weighting))) => rounds(topology, every, weighting, &mut options)?,
            (unknown, None) => return Err(format!("there is no exchange '{unknown}'; use one of: {}", forms())),
        };
        options.finish(forms())?;
        Ok(exchange)
    }

    /// True if the strategy makes workers wait for each other's rounds.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.weighting().is_some()
    }

    /// True if the strategy lets workers receive each other's batches only once per epoch.
    #[must_use]
    pub fn has_rounds_of_an_epoch(&self) -> bool {
        let is_long =
            |rounds: &Rounds| rounds.every == RoundLength::Epoch || rounds.topology == RoundTopology::Stepwise;
        matches!(self, Self::Rounds(rounds) if is_long(rounds))
    }

    /// True if the sum of the workers' differences passes from worker to worker between rounds, as with `stepwise`.
    #[must_use]
    pub fn has_passes(&self) -> bool {
        matches!(self, Self::Rounds(rounds) if rounds.topology == RoundTopology::Stepwise)
    }

    /// Returns the rule for the part of its learned difference that each worker emits in a round; `None` if workers do
    /// not wait for each other.
    #[must_use]
    pub fn weighting(&self) -> Option<RoundWeighting> {
        match self {
            Self::Strom(_) | Self::Layers(_) => None,
            Self::Rounds(rounds) => rounds.weighting,
        }
    }

    /// Returns the rule by which the strategy chooses τ, the size of one weight change; `None` for a strategy without
    /// τ.
    #[must_use]
    pub fn threshold(&self) -> Option<Threshold> {
        match self {
            Self::Strom(threshold) | Self::Layers(PipelineSpec { threshold, .. }) => Some(*threshold),
            Self::Rounds(_) => None,
        }
    }

    /// Returns the strategy with this cut of the model into groups of layers if the job left the cut to the nodes; else
    /// the strategy with its own cut.
    #[must_use]
    pub fn decided(&self, cut: Cut) -> Self {
        match self {
            Self::Layers(pipelines) => Self::Layers(pipelines.decided(cut)),
            other => *other,
        }
    }

    /// True if the job leaves it to the nodes to decide where the model is cut into groups of layers.
    #[must_use]
    pub fn leaves_cut_open(&self) -> bool {
        self.pipelines().is_some_and(|pipelines| pipelines.cut == Cut::Auto)
    }

    /// Returns the number of pipeline stages that the model is cut into: one if it is not cut, or if the nodes have not
    /// yet decided on the cut.
    #[must_use]
    pub fn stages(&self) -> usize {
        self.pipelines().and_then(PipelineSpec::stages).unwrap_or(1)
    }

    /// True if each node saves only the stage that it holds, so that the model has to be assembled from several files.
    #[must_use]
    pub fn saves_stages(&self) -> bool {
        self.pipelines().is_some()
    }

    /// Returns the number of copies of the model that are held by `nodes` nodes with `workers` workers on each.
    #[must_use]
    pub fn copies(&self, nodes: usize, workers: usize) -> usize {
        match self.pipelines() {
            Some(pipelines) => nodes.div_ceil(pipelines.stages().unwrap_or(nodes)),
            None => nodes * workers,
        }
    }

    /// Returns the pipeline settings of the strategy `layers`; `None` for other strategies.
    #[must_use]
    pub fn pipelines(&self) -> Option<&PipelineSpec> {
        match self {
            Self::Layers(pipelines) => Some(pipelines),
            Self::Strom(_) | Self::Rounds(_) => None,
        }
    }
}

/// Returns the help text of the key `exchange`, with a line for each strategy.
#[cfg(feature = "clap")]
pub(super) fn help() -> String {
    let strategies = STRATEGIES.map(|(name, what)| format!("- {name}: {what}"));
    let lines = strategies.join("\n");
    format!(
        "Strategy by which nodes exchange weight changes [default: strom, or mesh:every=epoch,async for a run that one \
         worker finishes in some seconds]\n{lines}"
    )
}

fn forms() -> String {
    STRATEGIES.map(|(name, _)| name).join(", ")
}

/// Reads an exchange strategy with rounds. The path, default length and default weighting are those of the strategy's
/// name.
fn rounds(
    topology: RoundTopology,
    every: RoundLength,
    weighting: RoundWeighting,
    options: &mut TextOptions<'_>,
) -> Result<Exchange, String> {
    let rounds = Rounds {
        topology,
        every: RoundLength::from_options(every, options)?,
        weighting: shares_from_options(weighting, options)?,
    };
    if rounds.weighting.is_none() && matches!(topology, RoundTopology::Ring | RoundTopology::RingReduce) {
        return Err(
            "'ring' and 'ring-reduce' sum the changes of all workers and cannot be 'async': use 'mesh' or 'server'"
                .into(),
        );
    }
    if topology == RoundTopology::Stepwise
        && (rounds.weighting != Some(RoundWeighting::Mean) || rounds.every == RoundLength::Epoch)
    {
        return Err("'stepwise' takes only a number of steps, as in 'stepwise:every=4', and only the mean".into());
    }
    Ok(Exchange::Rounds(rounds))
}

impl RoundLength {
    fn from_options(left_open: Self, options: &mut TextOptions<'_>) -> Result<Self, String> {
        if options.flag("every=epoch") {
            return Ok(Self::Epoch);
        }
        let Some(every) = options.number("every")?.map(f64::round) else {
            return Ok(left_open);
        };
        within(
            "every",
            every,
            1.0..=EVERY_MAX,
            "epoch, or a number of steps from 1 to 65536",
        )?;
        Ok(Self::Steps(every as u32))
    }
}

/// Reads the weighting of workers' differences from the options; `None` for `async`, where no worker waits.
fn shares_from_options(
    left_open: RoundWeighting,
    options: &mut TextOptions<'_>,
) -> Result<Option<RoundWeighting>, String> {
    let named: Vec<_> = WEIGHTINGS.into_iter().filter(|(name, _)| options.flag(name)).collect();
    match named[..] {
        [] => Ok(Some(left_open)),
        [(_, weighting)] => Ok(weighting),
        [(one, _), (other, _), ..] => Err(format!("'{one}' and '{other}' exclude each other")),
    }
}

impl fmt::Display for RoundTopology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mesh => "mesh",
            Self::Server => "server",
            Self::RingReduce => "ring-reduce",
            Self::Ring => "ring",
            Self::Stepwise => "stepwise",
        })
    }
}

impl fmt::Display for RoundLength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Steps(steps) => write!(f, "{steps}"),
            Self::Epoch => f.write_str("epoch"),
        }
    }
}

/// Writes the shortest text of a strategy with rounds that reads back as the same strategy.
impl fmt::Display for Rounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            topology,
            every,
            weighting,
        } = *self;
        let rule = WEIGHTINGS.iter().find(|(_, of)| *of == weighting);
        let rule = rule.map_or("", |(name, _)| name);
        let alike = |&&(_, named, often, _): &&Named| (named, often) == (topology, every);
        let is_whole = |&&(_, _, _, named): &&Named| Some(named) == weighting;
        let named = || NAMED.iter().filter(alike);
        if let Some((name, ..)) = named().find(is_whole) {
            return f.write_str(name);
        }
        let has_rule = |&&(_, named, _, rule): &&Named| named == topology && Some(rule) == weighting;
        // A name with a weighting of its own is not used for another weighting.
        let plain = named().find(|(.., named)| *named == RoundWeighting::Mean);
        match (NAMED.iter().find(has_rule), plain) {
            (Some((name, ..)), _) => write!(f, "{name}:every={every}"),
            (None, Some((name, ..))) => write!(f, "{name}:{rule}"),
            (None, None) => write!(f, "{topology}:every={every},{rule}"),
        }
    }
}

impl fmt::Display for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Strom(_) => f.write_str("strom"),
            Self::Rounds(rounds) => write!(f, "{rounds}"),
            Self::Layers(pipelines) => write!(f, "{pipelines}"),
        }
    }
}
