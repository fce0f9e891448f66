//! A model cut into groups of neighbouring layers, so that each machine holds the weights of one group only.
//!
//! A portion has a flat index space of its own, which is that of the whole model with everything else left out: tensors stay
//! in the order of their keys. Its weights begin with the same numbers as in the whole model, and its digest is its part of
//! the whole model's, so that what the groups have come to adds up to what one machine would have.

use std::ops::Range;

use thiserror::Error;

use super::layout::{activations, placed};
use super::{Layer, Layout, PlacedLayer, TensorSlot, initial_counts_at};
use crate::digest::Digest;
use crate::job::{Cut, GROUPS_MAX};

/// Where a model is cut.
#[derive(Clone, Debug, PartialEq)]
pub struct Partition {
    whole: Layout,
    /// The layers of each group.
    groups: Vec<Range<usize>>,
}

/// Why a model cannot be cut so.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PartitionError {
    /// There are fewer layers with weights than groups.
    #[error("{groups} groups need as many layers with weights, and the model has {layers}: ask for fewer groups")]
    TooFew {
        /// How many are wanted.
        groups: usize,
        /// How many there can be.
        layers: usize,
    },
    /// A group begins where none can.
    #[error("no group can begin at layer {layer}: groups begin at layers with weights, which are {those}")]
    NoWeights {
        /// The layer.
        layer: usize,
        /// Where groups can begin.
        those: String,
    },
    /// Something in the model needs all samples of a minibatch and all layers at one place.
    #[error("the model has a batchnorm, whose means are measured through all layers: take groupnorm or layernorm")]
    BatchNorm,
    /// The number of groups was left to nodes, and none has decided.
    #[error("it is not decided into how many groups the network is cut")]
    Undecided,
}

/// The layers that one machine holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Portion {
    /// Which group it is, from 0.
    pub group: usize,
    /// How many groups there are.
    pub groups: usize,
    /// Its layers and tensors, in an index space of their own.
    pub layout: Layout,
    /// How many layers lie before it.
    pub before: usize,
    /// Where each of its tensors begins in the whole model.
    places: Vec<usize>,
}

impl Partition {
    /// Cuts a model as a job says.
    pub fn new(whole: Layout, cut: Cut) -> Result<Self, PartitionError> {
        if !whole.statistics.is_empty() {
            return Err(PartitionError::BatchNorm);
        }
        let starts: Vec<usize> = starts(&whole.layers).collect();
        let begins = match cut {
            Cut::Fitting => return Err(PartitionError::Undecided),
            Cut::Into(groups) => balanced(&whole, &starts, usize::from(groups))?,
            Cut::At(cuts) => {
                let cuts = cuts.layers().map(usize::from);
                std::iter::once(0).chain(cuts).collect()
            }
        };
        if let Some(&layer) = begins.iter().skip(1).find(|layer| !starts.contains(layer)) {
            let those: Vec<String> = starts.iter().skip(1).map(usize::to_string).collect();
            let those = those.join(", ");
            return Err(PartitionError::NoWeights { layer, those });
        }
        let ends = begins.iter().skip(1).copied().chain([whole.layers.len()]);
        let groups = begins.iter().copied().zip(ends).map(|(from, to)| from..to).collect();
        Ok(Self { whole, groups })
    }

    /// How many groups there are.
    #[must_use]
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// The model that is cut.
    #[must_use]
    pub fn whole(&self) -> &Layout {
        &self.whole
    }

    /// What a group holds.
    ///
    /// # Panics
    /// If there is no such group.
    #[must_use]
    pub fn portion(&self, group: usize) -> Portion {
        let layers = &self.whole.layers[self.groups[group].clone()];
        let is_own = |tensor: &&TensorSlot| layers.iter().any(|layer| has(layer, &tensor.key));
        let own: Vec<&TensorSlot> = self.whole.tensors.iter().filter(is_own).collect();
        Portion {
            group,
            groups: self.groups(),
            layout: placed(layers.to_vec(), own.iter().map(|&tensor| tensor.clone()).collect()),
            before: self.groups[group].start,
            places: own.iter().map(|tensor| tensor.offset).collect(),
        }
    }

    /// The portions of all groups, in order.
    pub fn portions(&self) -> impl Iterator<Item = Portion> + '_ {
        (0..self.groups()).map(|group| self.portion(group))
    }

    /// The digest of the whole model's first weights, of which no more than one tensor is held at a time.
    #[must_use]
    pub fn first_digest(&self, seed: u64) -> Digest {
        let tensors = self.whole.tensors.iter();
        tensors.fold(Digest::default(), |sum, tensor| {
            let counts = initial_counts_at(tensor, tensor.offset, seed);
            sum + Digest::of_neighbours(tensor.offset as u64, &counts)
        })
    }
}

impl Portion {
    /// Whether it takes samples, and not what another portion has made of them.
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.group == 0
    }

    /// Whether its outputs are the model's.
    #[must_use]
    pub fn is_last(&self) -> bool {
        self.group + 1 == self.groups
    }

    /// Its weights at the beginning of a run: the whole model's.
    #[must_use]
    pub fn initial_counts(&self, seed: u64) -> Vec<i32> {
        let mut counts = Vec::with_capacity(self.layout.weights);
        for (tensor, place) in self.tensors() {
            counts.extend(initial_counts_at(tensor, place, seed));
        }
        counts
    }

    /// What its counts add to the whole model's digest.
    ///
    /// # Panics
    /// If there are fewer than it has weights.
    #[must_use]
    pub fn digest(&self, counts: &[i32]) -> Digest {
        self.tensors().fold(Digest::default(), |sum, (tensor, place)| {
            sum + Digest::of_neighbours(place as u64, &counts[tensor.range()])
        })
    }

    /// Its tensors, and where each begins in the whole model.
    pub fn tensors(&self) -> impl Iterator<Item = (&TensorSlot, usize)> {
        self.layout.tensors.iter().zip(self.places.iter().copied())
    }

    /// Numbers of one sample that come to it, and that leave it.
    #[must_use]
    pub fn borders(&self) -> (usize, usize) {
        let layers = &self.layout.layers;
        let first = layers.first().map_or(0, |layer| layer.input.elements());
        (first, self.layout.outputs())
    }
}

/// The layers at which a group can begin: the first one, and all with weights but the first of those, before which there
/// would be none.
fn starts(layers: &[PlacedLayer]) -> impl Iterator<Item = usize> + '_ {
    let weighty = layers.iter().enumerate().filter(|(_, layer)| layer.weights() > 0);
    std::iter::once(0).chain(weighty.skip(1).map(|(at, _)| at))
}

/// Whether a tensor is a layer's, or one of those within it.
fn has(layer: &PlacedLayer, key: &str) -> bool {
    key.strip_prefix(layer.path.as_str())
        .is_some_and(|rest| rest.starts_with('.'))
}

/// Where groups begin so that the largest is as small as can be, by what it computes and what it holds.
fn balanced(whole: &Layout, starts: &[usize], groups: usize) -> Result<Vec<usize>, PartitionError> {
    let layers = starts.len();
    if groups > layers {
        return Err(PartitionError::TooFew { groups, layers });
    }
    let ends = starts.iter().skip(1).copied().chain([whole.layers.len()]);
    let costs: Vec<f64> = starts
        .iter()
        .zip(ends)
        .map(|(&from, to)| cost(whole, from..to))
        .collect();
    // Of all ways to cut the first so many pieces into so many groups, the best one's largest group, and where its last begins.
    let sum = |from: usize, to: usize| costs[from..to].iter().sum::<f64>();
    let mut best: Vec<Vec<(f64, usize)>> = vec![(0..=layers).map(|to| (sum(0, to), 0)).collect()];
    for group in 1..groups {
        let row = (0..=layers).map(|to| {
            let ways = (group..to).map(|from| (best[group - 1][from].0.max(sum(from, to)), from));
            ways.min_by(|one, other| one.0.total_cmp(&other.0))
                .unwrap_or((f64::INFINITY, 0))
        });
        let row = row.collect();
        best.push(row);
    }
    let mut to = layers;
    let mut begins = Vec::with_capacity(groups);
    for row in best.iter().rev() {
        to = row[to].1;
        begins.push(starts[to]);
    }
    begins.reverse();
    Ok(begins)
}

/// What some layers take of all that the model computes for a sample and of all that it holds.
fn cost(whole: &Layout, layers: Range<usize>) -> f64 {
    let share =
        |of: &dyn Fn(&[PlacedLayer]) -> u64| of(&whole.layers[layers.clone()]) as f64 / of(&whole.layers).max(1) as f64;
    share(&work) + share(&|layers| layers.iter().map(|layer| layer.weights() as u64).sum())
}

/// Products that some layers compute for one sample, about.
fn work(layers: &[PlacedLayer]) -> u64 {
    let of = |layer: &PlacedLayer| {
        let block = layer.block.as_ref();
        let within = block.map_or(0, |block| work(&block.body) + work(&block.skip));
        let positions = match (&layer.layer, layer.output) {
            (Layer::Conv { .. }, super::Shape::Image { height, width, .. }) => height * width,
            _ => 1,
        };
        let own = layer
            .parameters
            .as_ref()
            .map_or(0, |(weights, _)| weights.len() * positions);
        within + own as u64
    };
    layers.iter().map(of).sum::<u64>() + activations(layers)
}

const _: () = assert!(GROUPS_MAX <= u8::MAX as usize);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Shape, initial_counts};

    fn layout(model: &str, input: Shape) -> Layout {
        Layout::new(&model.parse().unwrap(), input, 10).unwrap()
    }

    fn cut(text: &str) -> Cut {
        text.parse().unwrap()
    }

    const DEEP: &str =
        "dense 30, relu, dense 20, dropout 0.1, relu, dense 20, relu, dense 20, relu, dense 20, relu, dense";

    #[test]
    fn portions_are_the_whole_model_and_begin_as_it_does() {
        let image = Shape::Image {
            channels: 2,
            height: 8,
            width: 8,
        };
        let blocks = "conv 4 3x3 pad 1, relu, residual [ conv 8 3x3 pad 1 stride 2, groupnorm 2 ], relu, maxpool 2, dense 7, relu, dense";
        for (model, input) in [(DEEP, Shape::Flat(9)), (blocks, image)] {
            let whole = layout(model, input);
            let counts = initial_counts(&whole, 5);
            for groups in 1..=4 {
                let partition = Partition::new(whole.clone(), Cut::Into(groups)).unwrap();
                assert_eq!(partition.groups(), usize::from(groups));
                assert_eq!(partition.first_digest(5), Digest::of_counts(&counts));
                let mut digest = Digest::default();
                let mut seen = vec![0; whole.weights];
                for portion in partition.portions() {
                    let own = portion.initial_counts(5);
                    assert_eq!(own.len(), portion.layout.weights);
                    digest += portion.digest(&own);
                    for (tensor, place) in portion.tensors() {
                        assert_eq!(
                            own[tensor.range()],
                            counts[place..][..tensor.elements()],
                            "{}",
                            tensor.key
                        );
                        seen[place..][..tensor.elements()].fill(1);
                    }
                    let last = portion.layout.layers.last().unwrap();
                    assert_eq!(portion.borders().1, last.output.elements());
                }
                assert!(seen.iter().all(|&seen| seen == 1), "{model} in {groups}");
                assert_eq!(digest, Digest::of_counts(&counts));
            }
        }
    }

    #[test]
    fn a_portion_knows_where_its_layers_weights_lie() {
        let whole = layout(DEEP, Shape::Flat(9));
        let partition = Partition::new(whole, cut("5+11")).unwrap();
        let portion = partition.portion(1);
        assert_eq!((portion.before, portion.layout.layers.len()), (5, 6));
        let keys: Vec<&str> = portion
            .layout
            .tensors
            .iter()
            .map(|tensor| tensor.key.as_str())
            .collect();
        assert_eq!(keys, ["5.bias", "5.weight", "7.bias", "7.weight", "9.bias", "9.weight"]);
        let first = &portion.layout.layers[0];
        assert_eq!(first.parameters, Some((20..420, 0..20)));
    }

    #[test]
    fn groups_are_as_equal_as_can_be() {
        let whole = layout("dense 40, relu, dense 40, relu, dense 40, relu, dense", Shape::Flat(40));
        let partition = Partition::new(whole, Cut::Into(3)).unwrap();
        let layers: Vec<_> = partition.groups.clone();
        assert_eq!(
            layers,
            [0..2, 2..4, 4..7],
            "the last one is small, and goes with another"
        );
    }

    #[test]
    fn what_cannot_be_cut_is_refused_with_a_sentence() {
        let refused = |model: &str, cut| {
            Partition::new(layout(model, Shape::Flat(9)), cut)
                .unwrap_err()
                .to_string()
        };
        let few = refused("dense 5, relu, dense", Cut::Into(3));
        assert!(
            few.contains("3 groups need as many layers with weights, and the model has 2"),
            "{few}"
        );
        let wrong = refused(DEEP, cut("1"));
        assert!(
            wrong.contains("no group can begin at layer 1") && wrong.contains("2, 5, 7, 9, 11"),
            "{wrong}"
        );
        assert!(refused("dense 5, batchnorm, relu, dense", Cut::Into(2)).contains("groupnorm"));
    }
}
