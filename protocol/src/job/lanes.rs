//! How a model is spread over machines: cut into groups of layers, each of which lies on a machine of its own. Machines that
//! hold all groups together are a lane, and train as one worker.

use std::fmt;
use std::str::FromStr;

use super::Threshold;
use crate::text_options::{TextOptions, within};

/// The most groups of layers.
pub const GROUPS_MAX: usize = 16;
/// The most parts of a minibatch.
const MICRO_MAX: f64 = 64.0;
/// Parts of a minibatch when the job leaves it open.
const MICRO: u8 = 4;

/// A model in groups of layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lanes {
    /// Where it is cut.
    pub cut: Cut,
    /// Into how many parts a minibatch is cut, so that all machines of a lane have something to do.
    pub micro: u8,
    /// What decides τ among the machines that hold the same group.
    pub threshold: Threshold,
}

/// Where a model is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Into so many groups, as equal as can be.
    Into(u8),
    /// At these layers.
    At(Cuts),
}

/// The layers at which groups after the first begin, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cuts {
    layers: [u16; GROUPS_MAX - 1],
    count: u8,
}

impl Cuts {
    /// The layers, in order.
    pub fn layers(&self) -> impl Iterator<Item = u16> + '_ {
        self.layers[..usize::from(self.count)].iter().copied()
    }
}

impl Cut {
    /// How many groups there are.
    #[must_use]
    pub fn groups(&self) -> usize {
        match self {
            Self::Into(groups) => usize::from(*groups),
            Self::At(cuts) => usize::from(cuts.count) + 1,
        }
    }
}

impl Lanes {
    /// What the text behind `layers:` says.
    pub(super) fn from_options(options: &mut TextOptions<'_>, threshold: Threshold) -> Result<Self, String> {
        let groups = options.number("groups")?;
        let cuts = options.text("cuts").map(Cut::from_str).transpose()?;
        let cut = match (groups, cuts) {
            (Some(_), Some(_)) => return Err("give either groups or cuts, not both".into()),
            (None, None) => return Err("say how many groups there are, as in 'layers:groups=3'".into()),
            (None, Some(cut)) => cut,
            (Some(groups), None) => {
                let groups = groups.round();
                within("groups", groups, 2.0..=GROUPS_MAX as f64, "a number from 2 to 16")?;
                Cut::Into(groups as u8)
            }
        };
        let micro = options.number("micro")?.map_or(f64::from(MICRO), f64::round);
        within("micro", micro, 1.0..=MICRO_MAX, "a number of parts from 1 to 64")?;
        Ok(Self {
            cut,
            micro: micro as u8,
            threshold,
        })
    }
}

impl FromStr for Cut {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("cuts must be rising numbers of layers, as in 'cuts=2+4', at most 15, not '{text}'");
        let mut cuts = Cuts {
            layers: [0; GROUPS_MAX - 1],
            count: 0,
        };
        let mut before = 0;
        for layer in text.split('+') {
            let layer: u16 = layer.trim().parse().map_err(|_| wrong())?;
            let place = cuts.layers.get_mut(usize::from(cuts.count)).ok_or_else(wrong)?;
            if layer <= before {
                return Err(wrong());
            }
            (*place, before) = (layer, layer);
            cuts.count += 1;
        }
        Ok(Self::At(cuts))
    }
}

impl fmt::Display for Lanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cut {
            Cut::Into(groups) => write!(f, "layers:groups={groups}")?,
            Cut::At(cuts) => {
                let layers: Vec<String> = cuts.layers().map(|layer| layer.to_string()).collect();
                write!(f, "layers:cuts={}", layers.join("+"))?;
            }
        }
        if self.micro == MICRO {
            Ok(())
        } else {
            write!(f, ",micro={}", self.micro)
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
            "layers:groups=3",
            "layers:groups=2,micro=1",
            "layers:cuts=2+4",
            "layers:cuts=7,micro=64",
        ] {
            assert_eq!(read(text).unwrap().to_string(), text);
        }
        let Exchange::Layers(lanes) = read("layers:cuts=2+4").unwrap() else {
            panic!("these are layers");
        };
        assert_eq!((lanes.cut.groups(), lanes.micro), (3, 4));
    }

    #[test]
    fn what_means_nothing_is_refused() {
        for (text, why) in [
            ("layers", "how many groups"),
            ("layers:groups=1", "from 2 to 16"),
            ("layers:groups=17", "from 2 to 16"),
            ("layers:groups=2,cuts=3", "not both"),
            ("layers:cuts=4+2", "rising"),
            ("layers:cuts=0", "rising"),
            ("layers:cuts=1+2+3+4+5+6+7+8+9+10+11+12+13+14+15+16", "at most 15"),
            ("layers:groups=2,micro=0", "from 1 to 64"),
            ("layers:groups=2,deep", "no option 'deep'"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
