//! Settings by which a model is spread over machines. The model is cut into groups of layers and each group into slices
//! of neurons; each slice of a group lies on a machine of its own. The machines that together hold the whole model are
//! a pipeline and train as one worker.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::Threshold;
use crate::text_options::{TextOptions, within};

/// Most groups of neighbouring layers that a model can be cut into, for a pipeline of machines.
pub const GROUPS_MAX: usize = 16;
/// Most slices of neurons that a group of layers can be divided into, for machines that compute side by side.
pub const SLICES_MAX: u8 = 16;
/// Most stages of a pipeline, which are the slices of all groups of layers.
pub const STAGES_MAX: usize = 64;
/// Most micro-batches that a minibatch can be cut into.
pub const MICRO_MAX: u8 = 64;
/// Default number of micro-batches of a minibatch. `MICRO_OF_SLICES` is the default for a model that is only cut into
/// slices (parts of the same layers): all its machines compute at the same time anyway, and a second micro-batch is
/// enough to compute on while the first one's results are on their way.
const MICRO: u8 = 4;
const MICRO_OF_SLICES: u8 = 2;
/// Most minibatches that a pipeline may have in flight (begun and not finished) besides the oldest one.
pub const IN_FLIGHT_MAX: u8 = 4;

/// Settings by which a model is spread over the machines of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PipelineSpec {
    /// Layers at which the model is cut into groups for the machines of a pipeline.
    pub cut: Cut,
    /// Number of slices of neurons that each group of layers is divided into.
    pub slices: u8,
    /// Number of micro-batches that a minibatch is cut into, so that all machines of a pipeline have something to do.
    pub micro: u8,
    /// Number of minibatches that a pipeline has in flight (begun and not finished) besides the oldest one; none if the
    /// job leaves the number to be decided.
    pub in_flight: Option<u8>,
    /// Rule for τ, the magnitude of the weight changes that machines with the same group of layers exchange.
    pub threshold: Threshold,
}

/// Choice of the layers at which a model is cut into groups, the stages of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cut {
    /// Cut of a model: into as few groups of layers as the machines' memory allows, larger ones for faster machines.
    /// Nodes decide when all have reported their memory and speed.
    Auto,
    /// Cut of a model: into this number of groups of layers, as equal as possible.
    Into(u8),
    /// Cut of a model: at these layers, where the groups after the first begin.
    At(Cuts),
}

/// Layers of a model at which its groups of layers after the first begin, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cuts {
    layers: [u16; GROUPS_MAX - 1],
    count: u8,
}

impl Cuts {
    /// Creates the list of layers at which a model is cut into groups. `None` if the layers do not rise from 1 on, or
    /// are too many.
    pub fn at(cuts: impl IntoIterator<Item = u16>) -> Option<Self> {
        let (mut layers, mut count, mut before) = ([0; GROUPS_MAX - 1], 0, 0);
        for layer in cuts {
            *layers.get_mut(usize::from(count)).filter(|_| layer > before)? = layer;
            (count, before) = (count + 1, layer);
        }
        Some(Self { layers, count })
    }

    /// Returns the layers at which the model's groups after the first begin, in rising order.
    pub fn layers(&self) -> impl Iterator<Item = u16> + '_ {
        self.layers.iter().take(usize::from(self.count)).copied()
    }
}

impl Cut {
    /// Returns the number of groups of layers that a model is cut into, one after the other in a pipeline; `None` if
    /// the number is left to the nodes.
    #[must_use]
    pub fn groups(&self) -> Option<usize> {
        match self {
            Self::Auto => None,
            Self::Into(groups) => Some(usize::from(*groups)),
            Self::At(cuts) => Some(usize::from(cuts.count) + 1),
        }
    }

    /// Returns the layers at which the model is cut: those of this setting, or `cut`, on which the nodes have decided,
    /// if the job left them open ([`Cut::Auto`]).
    #[must_use]
    pub fn decided(self, cut: Self) -> Self {
        match self {
            Self::Auto => cut,
            given => given,
        }
    }
}

impl PipelineSpec {
    /// Reads the settings of a pipeline from the options behind `layers:` in a job.
    pub(super) fn from_options(options: &mut TextOptions<'_>, threshold: Threshold) -> Result<Self, String> {
        let slices = options.number("slices")?.map_or(1.0, f64::round);
        within("slices", slices, 1.0..=f64::from(SLICES_MAX), "a number from 1 to 16")?;
        let slices = slices as u8;
        let groups = options.number("groups")?;
        let cuts = options.text("cuts").map(Cut::from_str).transpose()?;
        let cut = match (groups, cuts) {
            (Some(_), Some(_)) => return Err("give either groups or cuts, not both".into()),
            (None, None) => Cut::Auto,
            (None, Some(cut)) => cut,
            (Some(groups), None) => {
                let groups = groups.round();
                if groups == 1.0 && slices == 1 {
                    return Err(
                        "one group holds the whole network: divide the group into slices, or ask for more groups"
                            .into(),
                    );
                }
                within("groups", groups, 1.0..=GROUPS_MAX as f64, "a number from 1 to 16")?;
                Cut::Into(groups as u8)
            }
        };
        let stages = cut.groups().unwrap_or(1) * usize::from(slices);
        if stages > STAGES_MAX {
            return Err(format!(
                "a network can be split into {STAGES_MAX} pipeline stages at most, not {stages}"
            ));
        }
        let usual = usual_micro(cut, slices);
        let micro = options.number("micro")?.map_or(f64::from(usual), f64::round);
        within(
            "micro",
            micro,
            1.0..=f64::from(MICRO_MAX),
            "a number of micro-batches from 1 to 64",
        )?;
        let micro = micro as u8;
        let in_flight = options.number("ahead")?.map(f64::round);
        if let Some(in_flight) = in_flight {
            within(
                "ahead",
                in_flight,
                0.0..=f64::from(IN_FLIGHT_MAX),
                "a number from 0 to 4",
            )?;
        }
        Ok(Self {
            cut,
            slices,
            micro,
            in_flight: in_flight.map(|in_flight| in_flight as u8),
            threshold,
        })
    }

    /// Returns the number of machines in a pipeline; `None` if the number of groups is left to the nodes.
    #[must_use]
    pub fn stages(&self) -> Option<usize> {
        self.cut.groups().map(|groups| groups * usize::from(self.slices))
    }

    /// Returns the smallest number of groups of layers that these pipeline settings allow.
    #[must_use]
    pub fn fewest_groups(&self) -> u8 {
        if self.slices > 1 { 1 } else { 2 }
    }

    /// Returns the pipeline settings with this cut of the model into groups of layers if the job left the cut to the
    /// nodes; else with their own cut.
    #[must_use]
    pub fn decided(&self, cut: Cut) -> Self {
        Self {
            cut: self.cut.decided(cut),
            ..*self
        }
    }

    /// Returns the number of minibatches in flight besides the oldest one in each of `pipelines` pipelines, so that
    /// machines do not wait between minibatches. Where the job leaves the number open it is 1 for a single pipeline of
    /// several groups with micro-batches, else 0: several pipelines make each other's gradients stale enough, without
    /// micro-batches the result is to be that of one machine, and slices of one group do not wait for each other's
    /// turn.
    #[must_use]
    pub fn in_flight(&self, pipelines: usize) -> u8 {
        let waits = self.cut.groups() != Some(1) && self.micro > 1;
        self.in_flight.unwrap_or(u8::from(pipelines < 2 && waits))
    }
}

fn usual_micro(cut: Cut, slices: u8) -> u8 {
    match cut {
        Cut::Auto | Cut::Into(1) if slices > 1 => MICRO_OF_SLICES,
        _ => MICRO,
    }
}

impl FromStr for Cut {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("cuts must be at most 15 layer numbers in rising order, as in 'cuts=2+4', not '{text}'");
        let layers: Result<Vec<u16>, _> = text.split('+').map(|layer| layer.trim().parse()).collect();
        let layers = layers.map_err(|_| wrong())?;
        Cuts::at(layers).map(Self::At).ok_or_else(wrong)
    }
}

impl fmt::Display for PipelineSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cut = match self.cut {
            Cut::Auto => None,
            Cut::Into(groups) => Some(format!("groups={groups}")),
            Cut::At(cuts) => {
                let layers: Vec<String> = cuts.layers().map(|layer| layer.to_string()).collect();
                Some(format!("cuts={}", layers.join("+")))
            }
        };
        let slices = (self.slices != 1).then(|| format!("slices={}", self.slices));
        let micro = (self.micro != usual_micro(self.cut, self.slices)).then(|| format!("micro={}", self.micro));
        let in_flight = self.in_flight.map(|in_flight| format!("ahead={in_flight}"));
        let options: Vec<String> = cut.into_iter().chain(slices).chain(micro).chain(in_flight).collect();
        if options.is_empty() {
            f.write_str("layers")
        } else {
            write!(f, "layers:{}", options.join(","))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Density, Exchange};
    use super::*;

    fn read(text: &str) -> Result<Exchange, String> {
        Exchange::from_text(text, Threshold::Density(Density::Fraction(0.01)))
    }

    #[test]
    fn texts_say_what_they_mean() {
        for text in [
            "layers",
            "layers:micro=8",
            "layers:groups=3",
            "layers:groups=2,micro=1",
            "layers:cuts=2+4",
            "layers:cuts=7,micro=64",
            "layers:groups=2,ahead=0",
            "layers:groups=2,micro=1,ahead=1",
            "layers:slices=2",
            "layers:groups=1,slices=2",
            "layers:cuts=3,slices=4,micro=8",
        ] {
            assert_eq!(read(text).unwrap().to_string(), text);
        }
        let pipelines = |text: &str| *read(text).unwrap().pipelines().unwrap();
        for (text, in_flight) in [
            ("layers", [1, 0]),
            ("layers:micro=1", [0, 0]),
            ("layers:ahead=0", [0, 0]),
            ("layers:ahead=2", [2, 2]),
            ("layers:groups=1,slices=2", [0, 0]),
            ("layers:groups=2,slices=2", [1, 0]),
        ] {
            assert_eq!(
                [1, 3].map(|count| pipelines(text).in_flight(count)),
                in_flight,
                "{text}"
            );
        }
        let pipelines = pipelines("layers:cuts=2+4");
        assert_eq!((pipelines.cut.groups(), pipelines.micro), (Some(3), 4));
        let of_slices = *read("layers:slices=2").unwrap().pipelines().unwrap();
        assert_eq!(of_slices.micro, 2);
        assert_eq!(
            of_slices.decided(Cut::Into(2)).to_string(),
            "layers:groups=2,slices=2,micro=2"
        );
        assert_eq!(
            read("layers:groups=3,slices=2").unwrap().pipelines().unwrap().stages(),
            Some(6)
        );
    }

    #[test]
    fn stages_and_copies_of_a_model_follow_from_the_strategy() {
        for (text, stages, copies) in [
            ("strom", 1, 15),
            ("layers", 1, 1),
            ("layers:groups=2", 2, 3),
            ("layers:groups=3,slices=2", 6, 1),
        ] {
            let exchange = read(text).unwrap();
            assert_eq!((exchange.stages(), exchange.copies(5, 3)), (stages, copies), "{text}");
            assert_eq!(exchange.saves_stages(), text != "strom");
        }
    }

    #[test]
    fn what_means_nothing_is_refused() {
        for (text, why) in [
            ("layers:groups=1", "one group holds the whole network"),
            ("layers:groups=17", "from 1 to 16"),
            ("layers:groups=0", "from 1 to 16"),
            ("layers:groups=2,slices=0", "from 1 to 16"),
            ("layers:groups=2,slices=17", "from 1 to 16"),
            ("layers:groups=5,slices=16", "64 pipeline stages at most, not 80"),
            ("layers:groups=2,cuts=3", "not both"),
            ("layers:cuts=4+2", "rising"),
            ("layers:cuts=0", "rising"),
            ("layers:cuts=1+2+3+4+5+6+7+8+9+10+11+12+13+14+15+16", "at most 15"),
            ("layers:groups=2,micro=0", "from 1 to 64"),
            ("layers:groups=2,ahead=5", "from 0 to 4"),
            ("layers:groups=2,deep", "no option 'deep'"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
