//! The strategy by which nodes exchange what they learn.

use std::fmt;

use super::{Cut, Density, PipelineSpec};
use crate::text_options::{TextOptions, within};
use crate::weights::lattice::Tau;

/// An exchange strategy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Exchange {
    /// Changes of ±τ after every step, to everybody, without waiting (Strom 2015).
    Strom(Threshold),
    /// The whole difference every so many steps.
    Rounds(Rounds),
    /// The layers of one network on several machines, and changes of ±τ among those that hold the same ones.
    Layers(PipelineSpec),
}

/// An exchange in rounds: every so often a worker lets out the whole difference that it has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rounds {
    /// The topology of their exchange.
    pub topology: RoundTopology,
    /// How long a round is.
    pub every: RoundLength,
    /// Whether workers wait for each other's rounds, and which part of its difference each lets out. Those that do not wait
    /// let out all of it, whenever they come to it.
    pub weighting: Option<RoundWeighting>,
}

/// How rounds travel from worker to worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundTopology {
    /// From every node to every other.
    Mesh,
    /// To the first node, which adds them up, and from it to all.
    Server,
    /// Along all nodes, each of which adds its own, to the first, and from it to all.
    RingReduce,
    /// In pieces that each go along all nodes, beginning at different ones, and once more when they are added up.
    Ring,
    /// Differences pass from worker to worker, each of which goes on from the mean so far. A round's steps are those between
    /// two passes; at the end of an epoch the mean of all goes round.
    Stepwise,
}

/// How long a round is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundLength {
    /// So many steps.
    Steps(u32),
    /// Until a worker has been through its samples.
    Epoch,
}

/// Which part of its difference each worker lets out, where all wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundWeighting {
    /// Equal parts: the mean of all workers counts.
    Mean,
    /// In proportion to the loss of its last steps: who has most to learn counts most.
    Weighted,
    /// The worker with the lowest loss all of it, the others nothing.
    Best,
    /// The worker of the first slot all of it, the others nothing: what somebody's average has come to.
    First,
}

impl RoundWeighting {
    /// Whether a worker's share depends on the others' losses, so that all tell theirs first.
    #[must_use]
    pub fn depends_on_losses(self) -> bool {
        self != Self::Mean
    }
}

/// What decides τ.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Threshold {
    /// τ follows this fraction of weights changed in a batch.
    Density(Density),
    /// τ is fixed.
    Fixed(Tau),
}

/// A round on the mesh when the job leaves it open: a dense batch then costs less than the steps before it.
const EVERY_ON_MESH: RoundLength = RoundLength::Steps(16);
/// A round after which the best worker's weights count.
const EVERY_OF_BEST: RoundLength = RoundLength::Steps(64);
const EVERY_STEP: RoundLength = RoundLength::Steps(1);
const EVERY_MAX: f64 = 65_536.0;
const MEAN: RoundWeighting = RoundWeighting::Mean;

/// A name, and what it says of rounds.
type Named = (&'static str, RoundTopology, RoundLength, RoundWeighting);

/// The strategies in rounds, by name: what each leaves open can be said behind it.
const NAMED: [Named; 7] = [
    ("mesh", RoundTopology::Mesh, EVERY_ON_MESH, MEAN),
    ("server", RoundTopology::Server, EVERY_STEP, MEAN),
    ("ring-reduce", RoundTopology::RingReduce, EVERY_STEP, MEAN),
    ("ring", RoundTopology::Ring, EVERY_STEP, MEAN),
    ("stepwise", RoundTopology::Stepwise, EVERY_STEP, MEAN),
    ("downpour", RoundTopology::Server, RoundLength::Epoch, MEAN),
    ("best", RoundTopology::Server, EVERY_OF_BEST, RoundWeighting::Best),
];

/// The ways to share differences out, by name; none where nobody waits.
const WEIGHTINGS: [(&str, Option<RoundWeighting>); 5] = [
    ("mean", Some(MEAN)),
    ("weighted", Some(RoundWeighting::Weighted)),
    ("best", Some(RoundWeighting::Best)),
    ("first", Some(RoundWeighting::First)),
    ("async", None),
];

/// What there is, a line each.
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
    /// The strategy that a text names. `threshold` is what the job says of τ, for the one that has a τ.
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

    /// Whether workers wait for each other's rounds.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.weighting().is_some()
    }

    /// Whether workers hear of each other once in an epoch.
    #[must_use]
    pub fn has_rounds_of_an_epoch(&self) -> bool {
        let is_long =
            |rounds: &Rounds| rounds.every == RoundLength::Epoch || rounds.topology == RoundTopology::Stepwise;
        matches!(self, Self::Rounds(rounds) if is_long(rounds))
    }

    /// Whether differences pass from worker to worker between rounds.
    #[must_use]
    pub fn has_passes(&self) -> bool {
        matches!(self, Self::Rounds(rounds) if rounds.topology == RoundTopology::Stepwise)
    }

    /// Which part of its difference each worker lets out, where they wait for each other.
    #[must_use]
    pub fn weighting(&self) -> Option<RoundWeighting> {
        match self {
            Self::Strom(_) | Self::Layers(_) => None,
            Self::Rounds(rounds) => rounds.weighting,
        }
    }

    /// What decides τ, where there is one.
    #[must_use]
    pub fn threshold(&self) -> Option<Threshold> {
        match self {
            Self::Strom(threshold) | Self::Layers(PipelineSpec { threshold, .. }) => Some(*threshold),
            Self::Rounds(_) => None,
        }
    }

    /// The same, where it is decided where the model is cut.
    #[must_use]
    pub fn decided(&self, cut: Cut) -> Self {
        match self {
            Self::Layers(pipelines) => Self::Layers(pipelines.decided(cut)),
            other => *other,
        }
    }

    /// Whether nodes are to decide where the model is cut.
    #[must_use]
    pub fn leaves_cut_open(&self) -> bool {
        self.pipelines().is_some_and(|pipelines| pipelines.cut == Cut::Auto)
    }

    /// The number of stages that the model is cut into, as far as that is decided: one if it is not cut.
    #[must_use]
    pub fn stages(&self) -> usize {
        self.pipelines().and_then(PipelineSpec::stages).unwrap_or(1)
    }

    /// Whether each node saves the stage that it holds, so that the model has to be put together from several files.
    #[must_use]
    pub fn saves_stages(&self) -> bool {
        self.pipelines().is_some()
    }

    /// The number of copies of the model that this many nodes hold with this many workers each.
    #[must_use]
    pub fn copies(&self, nodes: usize, workers: usize) -> usize {
        match self.pipelines() {
            Some(pipelines) => nodes.div_ceil(pipelines.stages().unwrap_or(nodes)),
            None => nodes * workers,
        }
    }

    /// How the model is spread over machines, where it is.
    #[must_use]
    pub fn pipelines(&self) -> Option<&PipelineSpec> {
        match self {
            Self::Layers(pipelines) => Some(pipelines),
            Self::Strom(_) | Self::Rounds(_) => None,
        }
    }
}

/// What there is, for people who ask.
#[cfg(feature = "clap")]
pub(super) fn help() -> String {
    let strategies = STRATEGIES.map(|(name, what)| format!("- {name}: {what}"));
    let lines = strategies.join("\n");
    format!(
        "Strategy by which nodes exchange weight changes [default: strom, or mesh:every=epoch,async for a run that one \
         worker finishes in some seconds]\n{lines}"
    )
}

/// The names of all that there is.
fn forms() -> String {
    STRATEGIES.map(|(name, _)| name).join(", ")
}

/// An exchange in rounds, with what a strategy's name says of those that the text leaves open.
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

/// How differences are shared out; none where nobody waits.
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

/// The shortest name.
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
        // A name that has a rule of its own does not stand for another.
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
