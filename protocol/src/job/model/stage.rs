//! A model cut into groups of neighbouring layers, and those into slices of neurons, so that each machine holds a stage of
//! the weights only: a slice of a group.
//!
//! A stage has a flat index space of its own, which is that of the whole model with everything else left out: tensors stay
//! in the order of their keys. Its weights begin with the same numbers as in the whole model, and its digest is its part of
//! the whole model's, so that what stages have come to adds up to what one machine would have.

use std::ops::Range;

use thiserror::Error;

use super::layer_range::{LayerRange, layer_ranges, owned};
use super::layout::placed;
use super::memory::activations;
use super::{Layer, Layout, PlacedLayer, TensorSlot, initial_counts_at};
use crate::job::{Cut, Cuts, PipelineSpec, STAGES_MAX};
use crate::log::batch::BATCH_BYTES_MAX;
use crate::weights::digest::Digest;

/// Where a model is cut.
#[derive(Clone, Debug, PartialEq)]
pub struct Partition {
    whole: Layout,
    cut: Cut,
    /// The layers of each group.
    groups: Vec<Range<usize>>,
    /// Into how many slices each group is divided.
    slices: usize,
    layer_ranges: Vec<LayerRange>,
}

/// Why a model cannot be cut so.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PartitionError {
    /// There are fewer layers with weights than groups.
    #[error(
        "{groups} groups need at least {groups} layers with weights, but the model has {layers}: ask for fewer \
         groups"
    )]
    TooFew {
        /// How many are wanted.
        groups: usize,
        /// How many there can be.
        layers: usize,
    },
    /// A group begins where none can.
    #[error("no group can begin at layer {layer}: groups can begin at these layers with weights: {those}")]
    NoWeights {
        /// The layer.
        layer: usize,
        /// Where groups can begin.
        those: String,
    },
    /// Something in the model needs all samples of a minibatch and all layers at one place.
    #[error(
        "a network that is split over nodes cannot have batchnorm, which needs all layers on one node: use \
         groupnorm or layernorm"
    )]
    BatchNorm,
    /// Some machines would hold nothing.
    #[error(
        "no layer of group {group} can be divided into {slices} slices: only dense and conv layers with at least \
         {slices} neurons can, except the model's last layer; ask for fewer groups or no slices"
    )]
    Undivided {
        /// The group, from 1.
        group: usize,
        /// How many slices are wanted.
        slices: usize,
    },
    /// More machines than a pipeline can have.
    #[error("{groups} groups of {slices} slices are more than 64 pipeline stages: ask for fewer groups or slices")]
    TooMany {
        /// How many groups are wanted.
        groups: usize,
        /// How many slices of each.
        slices: usize,
    },
    /// More layers than messages can name.
    #[error("the model has more than 255 layers with weights, which is too many for slices: ask for groups only")]
    TooDeep,
    /// The number of groups was left to nodes, and none has decided.
    #[error("the number of groups that the network is split into is not decided yet")]
    Undecided,
}

/// What one machine holds: a slice of a group.
#[derive(Clone, Debug, PartialEq)]
pub struct PipelineStage {
    /// Which it is, from 0: slice by slice, group by group.
    pub number: usize,
    /// Where the model is cut.
    pub cut: Cut,
    /// Its layers and tensors, in an index space of their own.
    pub layout: Layout,
    /// What it has of the model's layer ranges, in order.
    pub layer_ranges: Vec<StageSlice>,
    /// Where each of its tensors begins in the whole model.
    places: Vec<usize>,
}

/// What a stage has of a layer range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageSlice {
    /// Which layer range it is.
    pub number: usize,
    /// Its layers among those of the stage.
    pub layers: Range<usize>,
    /// How many layers of the model lie before it.
    pub before: usize,
}

impl Partition {
    /// Cuts a model as a job says.
    pub fn new(whole: Layout, pipelines: &PipelineSpec) -> Result<Self, PartitionError> {
        if !whole.statistics.is_empty() {
            return Err(PartitionError::BatchNorm);
        }
        let slices = usize::from(pipelines.slices);
        let starts: Vec<usize> = starts(&whole.layers, slices).collect();
        let begins = match pipelines.cut {
            Cut::Auto => return Err(PartitionError::Undecided),
            Cut::Into(groups) => {
                let alike = vec![1.0; usize::from(groups)];
                balanced(&whole, &starts, |layers| cost(&whole, layers), &alike)?
            }
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
        let groups: Vec<Range<usize>> = begins.iter().copied().zip(ends).map(|(from, to)| from..to).collect();
        if groups.len() * slices > STAGES_MAX {
            let groups = groups.len();
            return Err(PartitionError::TooMany { groups, slices });
        }
        let layer_ranges = layer_ranges(&whole, &groups, slices);
        if layer_ranges.len() > LAYER_RANGES_MAX {
            return Err(PartitionError::TooDeep);
        }
        let holds = |stage: usize| {
            layer_ranges
                .iter()
                .any(|layer_range| layer_range.owners().contains(&stage))
        };
        if let Some(empty) = (0..groups.len() * slices).find(|&stage| !holds(stage)) {
            let group = empty / slices + 1;
            return Err(PartitionError::Undivided { group, slices });
        }
        Ok(Self {
            whole,
            cut: pipelines.cut,
            groups,
            slices,
            layer_ranges,
        })
    }

    /// Where to cut a model into as many groups as there are speeds, so that machines that are so fast, group by group, take as
    /// long as each other, as far as that can be.
    pub fn by_speed(whole: &Layout, slices: u8, speeds: &[f64]) -> Result<Cut, PartitionError> {
        let starts: Vec<usize> = starts(&whole.layers, usize::from(slices)).collect();
        let begins = balanced(whole, &starts, |layers| work(&whole.layers[layers]) as f64, speeds)?;
        let layers: Result<Vec<u16>, _> = begins.iter().skip(1).map(|&layer| u16::try_from(layer)).collect();
        let cuts = layers.ok().and_then(Cuts::at);
        cuts.map(Cut::At).ok_or(PartitionError::TooDeep)
    }

    /// How many stages there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.groups.len() * self.slices
    }

    /// Whether there are none, which cannot be.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
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

    /// The layer ranges that are gone through one after the other.
    #[must_use]
    pub fn layer_ranges(&self) -> &[LayerRange] {
        &self.layer_ranges
    }

    /// Numbers of a sample that one machine sends to another, at most.
    #[must_use]
    pub fn widest(&self) -> usize {
        let between = self.layer_ranges.iter().rev().skip(1);
        let shares = between.flat_map(|layer_range| layer_range.shares().iter().map(Range::len));
        shares.max().unwrap_or(0)
    }

    /// Whether what passes between two machines fits into messages, with so many samples at a time.
    #[must_use]
    pub fn fits_messages(&self, samples: usize) -> bool {
        // A message names its samples, too, and says a few things more.
        let bytes = samples.saturating_mul(self.widest()).saturating_mul(size_of::<f32>());
        bytes <= BATCH_BYTES_MAX / 2
    }

    /// What a machine holds.
    ///
    /// # Panics
    /// If there is no such stage.
    #[must_use]
    pub fn stage(&self, number: usize) -> PipelineStage {
        assert!(
            number < self.len(),
            "the number of a pipeline stage must be below {}",
            self.len()
        );
        let mut layer_ranges = Vec::new();
        let mut layers: Vec<(PlacedLayer, Option<Range<usize>>)> = Vec::new();
        for (at, layer_range) in self.layer_ranges.iter().enumerate() {
            let owners = layer_range.owners();
            if !owners.contains(&number) {
                continue;
            }
            let all = &self.whole.layers[layer_range.layers.clone()];
            let begins = layers.len();
            layers.extend(owned(all, number - owners.start, owners.len()));
            layer_ranges.push(StageSlice {
                number: at,
                layers: begins..layers.len(),
                before: layer_range.layers.start,
            });
        }
        let own = self.whole.tensors.iter().filter_map(|tensor| {
            let (_, rows) = layers.iter().find(|(layer, _)| has(layer, &tensor.key))?;
            Some(part_of_tensor(tensor, rows.clone()))
        });
        let (tensors, places) = own.unzip();
        PipelineStage {
            number,
            cut: self.cut,
            layout: placed(layers.into_iter().map(|(layer, _)| layer).collect(), tensors),
            layer_ranges,
            places,
        }
    }

    /// All stages, in order.
    pub fn stages(&self) -> impl Iterator<Item = PipelineStage> + '_ {
        (0..self.len()).map(|number| self.stage(number))
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

/// Some rows of a tensor, or all, and where they begin in the whole model.
fn part_of_tensor(tensor: &TensorSlot, rows: Option<Range<usize>>) -> (TensorSlot, usize) {
    let mut part = tensor.clone();
    let Some((rows, all)) = rows.zip(part.dims.first_mut()) else {
        return (part, tensor.offset);
    };
    let row = tensor.elements() / *all;
    *all = rows.len();
    (part, tensor.offset + rows.start * row)
}

impl PipelineStage {
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
}

/// The layers at which a group can begin: the first one, and all with weights but the first of those, before which there
/// would be none. The last of them is not divided, and is no group of its own where others are.
fn starts(layers: &[PlacedLayer], slices: usize) -> impl Iterator<Item = usize> + '_ {
    let weighty = layers.iter().enumerate().filter(|(_, layer)| layer.weights() > 0);
    let weighty: Vec<usize> = weighty.map(|(at, _)| at).collect();
    let most = weighty.len().saturating_sub(usize::from(slices > 1));
    std::iter::once(0).chain(weighty.into_iter().take(most).skip(1))
}

/// Whether a tensor is a layer's, or one of those within it.
fn has(layer: &PlacedLayer, key: &str) -> bool {
    key.strip_prefix(layer.path.as_str())
        .is_some_and(|rest| rest.starts_with('.'))
}

/// Where as many groups begin as there are speeds, so that the one that takes longest takes as little as can be.
fn balanced(
    whole: &Layout,
    starts: &[usize],
    cost: impl Fn(Range<usize>) -> f64,
    speeds: &[f64],
) -> Result<Vec<usize>, PartitionError> {
    let (layers, groups) = (starts.len(), speeds.len());
    if groups > layers {
        return Err(PartitionError::TooFew { groups, layers });
    }
    let ends = starts.iter().skip(1).copied().chain([whole.layers.len()]);
    let costs: Vec<f64> = starts.iter().zip(ends).map(|(&from, to)| cost(from..to)).collect();
    // Of all ways to cut the first so many pieces into so many groups, the best one's largest group, and where its last begins.
    let time = |group: usize, from: usize, to: usize| costs[from..to].iter().sum::<f64>() / speeds[group];
    let mut best: Vec<Vec<(f64, usize)>> = vec![(0..=layers).map(|to| (time(0, 0, to), 0)).collect()];
    for group in 1..groups {
        let row = (0..=layers).map(|to| {
            let ways = (group..to).map(|from| (best[group - 1][from].0.max(time(group, from, to)), from));
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

impl Layout {
    /// Products that the model computes for one sample, about.
    #[must_use]
    pub fn products(&self) -> u64 {
        work(&self.layers)
    }
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

/// The most layer ranges: messages name them with a byte.
const LAYER_RANGES_MAX: usize = u8::MAX as usize;

const _: () = assert!(STAGES_MAX <= u8::MAX as usize);

#[cfg(test)]
mod tests;
