//! A model cut into groups of neighbouring layers, and each group into slices of neurons, so that each machine of a
//! pipeline holds only one stage of the weights: one slice of one group.
//!
//! A stage has a flat index space of its own: that of the whole model without the weights of other stages, still sorted
//! by key. Its weights start with the same numbers as in the whole model, and its digest is its part of the whole
//! model's digest, so the digests of all stages add up to that of the whole model.

use std::ops::Range;

use thiserror::Error;

use super::layer_range::{LayerRange, layer_ranges, owned};
use super::layout::placed;
use super::memory::activations;
use super::{Layer, Layout, PlacedLayer, TensorSlot, initial_counts_at};
use crate::job::{Cut, Cuts, PipelineSpec, STAGES_MAX};
use crate::log::batch::BATCH_BYTES_MAX;
use crate::weights::digest::Digest;

/// A model's cut into pipeline stages: groups of layers, each divided into slices of neurons.
#[derive(Clone, Debug, PartialEq)]
pub struct Partition {
    whole: Layout,
    cut: Cut,
    /// Layers of the model that belong to each group, the part of the model on one machine or, with slices, on several.
    groups: Vec<Range<usize>>,
    /// Number of slices of neurons that each group of layers is divided into.
    slices: usize,
    layer_ranges: Vec<LayerRange>,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PartitionError {
    /// Reason why a model cannot be cut: the job asks for more groups than the model has layers with weights.
    #[error(
        "{groups} groups need at least {groups} layers with weights, but the model has {layers}: ask for fewer \
         groups"
    )]
    TooFew {
        /// Number of groups of layers that the job asks for.
        groups: usize,
        /// Most groups of layers that the model can be cut into.
        layers: usize,
    },
    /// Reason why a model cannot be cut: a group is to begin at a layer where no group can begin.
    #[error("no group can begin at layer {layer}: groups can begin at these layers with weights: {those}")]
    NoWeights {
        /// Layer at which the job asks for a group to begin.
        layer: usize,
        /// Layers at which a group of layers can begin, separated by commas, for the error message.
        those: String,
    },
    /// Reason why a model cannot be cut: it has a batchnorm, which needs all samples of a minibatch and all layers on
    /// one machine.
    #[error(
        "a network that is split over nodes cannot have batchnorm, which needs all layers on one node: use \
         groupnorm or layernorm"
    )]
    BatchNorm,
    /// Reason why a model cannot be cut: a group of layers cannot be divided into this number of slices, as some
    /// machines would hold nothing.
    #[error(
        "no layer of group {group} can be divided into {slices} slices: only dense and conv layers with at least \
         {slices} neurons can, except the model's last layer; ask for fewer groups or no slices"
    )]
    Undivided {
        /// Number, from 1, of the group of layers that cannot be divided.
        group: usize,
        /// Number of slices that the job asks for in each group of layers.
        slices: usize,
    },
    /// Reason why a model cannot be cut: the job asks for more stages than a pipeline can have.
    #[error("{groups} groups of {slices} slices are more than 64 pipeline stages: ask for fewer groups or slices")]
    TooMany {
        /// Number of groups of layers that the job asks for.
        groups: usize,
        /// Number of slices that the job asks for in each group of layers.
        slices: usize,
    },
    /// Reason why a model cannot be cut: it has more layer ranges (layers without a message between machines) than
    /// messages can number.
    #[error("the model has more than 255 layers with weights, which is too many for slices: ask for groups only")]
    TooDeep,
    /// Reason why a model cannot be cut yet: the job left the number of groups to the nodes, and they have not decided.
    #[error("the number of groups that the network is split into is not decided yet")]
    Undecided,
}

/// Pipeline stage: the slice of a group of layers that one machine holds.
#[derive(Clone, Debug, PartialEq)]
pub struct PipelineStage {
    /// Number of the stage in the pipeline, from 0: all slices of the first group of layers, then those of the next.
    pub number: usize,
    /// Choice of the layers at which the whole model is cut.
    pub cut: Cut,
    /// Layers and tensors of the stage. Its indices count the stage's own weights only, from 0.
    pub layout: Layout,
    /// The stage's parts of all layer ranges (layers computed without a message between machines) that it computes, in
    /// order.
    pub layer_ranges: Vec<StageSlice>,
    /// Index in the whole model at which each of the stage's tensors begins.
    places: Vec<usize>,
}

/// A pipeline stage's part of a layer range, with the place of its layers in the stage and in the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageSlice {
    /// Number of the layer range (layers computed without a message between machines): its place, from 0, in the list
    /// of all layer ranges of the model.
    pub number: usize,
    /// Layers of the layer range, as indices into the pipeline stage's layers.
    pub layers: Range<usize>,
    /// Number of the model's layers that come before this layer range.
    pub before: usize,
}

impl Partition {
    /// Cuts a model into the pipeline stages that a job asks for.
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

    /// Returns the cut of a model into one group of layers for each of `speeds`, so that machines of these speeds,
    /// group by group, take as equal a time as possible.
    pub fn by_speed(whole: &Layout, slices: u8, speeds: &[f64]) -> Result<Cut, PartitionError> {
        let starts: Vec<usize> = starts(&whole.layers, usize::from(slices)).collect();
        let begins = balanced(whole, &starts, |layers| work(&whole.layers[layers]) as f64, speeds)?;
        let layers: Result<Vec<u16>, _> = begins.iter().skip(1).map(|&layer| u16::try_from(layer)).collect();
        let cuts = layers.ok().and_then(Cuts::at);
        cuts.map(Cut::At).ok_or(PartitionError::TooDeep)
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.groups.len() * self.slices
    }

    /// True if there are no pipeline stages, which cannot happen.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Returns the number of groups of layers that the model is cut into.
    #[must_use]
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Returns the layout of the whole model that is cut.
    #[must_use]
    pub fn whole(&self) -> &Layout {
        &self.whole
    }

    /// Returns the layer ranges in the order in which samples go through them.
    #[must_use]
    pub fn layer_ranges(&self) -> &[LayerRange] {
        &self.layer_ranges
    }

    /// Returns the most numbers of one sample that one machine sends to another.
    #[must_use]
    pub fn widest(&self) -> usize {
        let between = self.layer_ranges.iter().rev().skip(1);
        let shares = between.flat_map(|layer_range| layer_range.shares().iter().map(Range::len));
        shares.max().unwrap_or(0)
    }

    /// True if the activations of `samples` samples that pass between two machines fit into one message.
    #[must_use]
    pub fn fits_messages(&self, samples: usize) -> bool {
        // Half of the limit remains for the message's header and the numbers of its samples.
        let bytes = samples.saturating_mul(self.widest()).saturating_mul(size_of::<f32>());
        bytes <= BATCH_BYTES_MAX / 2
    }

    /// Returns the pipeline stage with this number.
    ///
    /// # Panics
    /// If the number is not below the number of stages.
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

    /// Returns all pipeline stages, in order.
    pub fn stages(&self) -> impl Iterator<Item = PipelineStage> + '_ {
        (0..self.len()).map(|number| self.stage(number))
    }

    /// Returns the digest of the whole model's initial weights, of which no more than one tensor is in memory at a
    /// time.
    #[must_use]
    pub fn first_digest(&self, seed: u64) -> Digest {
        let tensors = self.whole.tensors.iter();
        tensors.fold(Digest::default(), |sum, tensor| {
            let counts = initial_counts_at(tensor, tensor.offset, seed);
            sum + Digest::of_neighbours(tensor.offset as u64, &counts)
        })
    }
}

/// Returns the part of a tensor that a pipeline stage holds, as a tensor of its own: the given rows, or all for `None`.
/// The number beside it is the index in the whole model at which this part begins.
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
    /// Returns the pipeline stage's initial weights as counts (whole steps of 2^-20), the same as in the whole model.
    #[must_use]
    pub fn initial_counts(&self, seed: u64) -> Vec<i32> {
        let mut counts = Vec::with_capacity(self.layout.weights);
        for (tensor, place) in self.tensors() {
            counts.extend(initial_counts_at(tensor, place, seed));
        }
        counts
    }

    /// Returns the amount that the stage's weights, given as counts (whole steps of 2^-20), add to the whole model's
    /// digest.
    ///
    /// # Panics
    /// If there are fewer counts than the stage has weights.
    #[must_use]
    pub fn digest(&self, counts: &[i32]) -> Digest {
        self.tensors().fold(Digest::default(), |sum, (tensor, place)| {
            sum + Digest::of_neighbours(place as u64, &counts[tensor.range()])
        })
    }

    /// Returns the stage's tensors, each with the index in the whole model at which it begins.
    pub fn tensors(&self) -> impl Iterator<Item = (&TensorSlot, usize)> {
        self.layout.tensors.iter().zip(self.places.iter().copied())
    }
}

/// Returns the layers at which a group of layers can begin: the first layer, and every layer with weights except the
/// first such layer, before which there would be no weights. With slices the last layer with weights is left out,
/// because it is not divided and cannot be a group of its own.
fn starts(layers: &[PlacedLayer], slices: usize) -> impl Iterator<Item = usize> + '_ {
    let weighty = layers.iter().enumerate().filter(|(_, layer)| layer.weights() > 0);
    let weighty: Vec<usize> = weighty.map(|(at, _)| at).collect();
    let most = weighty.len().saturating_sub(usize::from(slices > 1));
    std::iter::once(0).chain(weighty.into_iter().take(most).skip(1))
}

/// True if the tensor with this key belongs to the layer, or to a layer inside the layer's residual block.
fn has(layer: &PlacedLayer, key: &str) -> bool {
    key.strip_prefix(layer.path.as_str())
        .is_some_and(|rest| rest.starts_with('.'))
}

/// Returns the layers at which groups of layers begin. There is one group for each of the machines with these speeds,
/// and the slowest group takes as little time as possible.
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
    // For the first `to` pieces in `group + 1` groups, `best` holds the smallest possible time of the slowest group and
    // the piece at which the last group begins.
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

/// Returns the layers' share of the model's computation for a sample, plus their share of the weights: the measure by
/// which a model is cut into groups of equal time.
fn cost(whole: &Layout, layers: Range<usize>) -> f64 {
    let share =
        |of: &dyn Fn(&[PlacedLayer]) -> u64| of(&whole.layers[layers.clone()]) as f64 / of(&whole.layers).max(1) as f64;
    share(&work) + share(&|layers| layers.iter().map(|layer| layer.weights() as u64).sum())
}

impl Layout {
    /// Returns about the number of multiplications that the model computes for one sample.
    #[must_use]
    pub fn products(&self) -> u64 {
        work(&self.layers)
    }
}

/// Returns about the number of multiplications that these layers compute for one sample.
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

/// Most layer ranges (layers computed without a message between machines) of a model: messages number them with one
/// byte.
const LAYER_RANGES_MAX: usize = u8::MAX as usize;

const _: () = assert!(STAGES_MAX <= u8::MAX as usize);

#[cfg(test)]
mod tests;
