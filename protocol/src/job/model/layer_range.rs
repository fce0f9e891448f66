//! Layer ranges: consecutive layers that a stage computes without a message from another node.
//!
//! A group that is not divided into slices is one layer range. In a divided group every layer with weights begins a
//! layer range: the layer needs the whole output of the layers before it, which lies on several machines. The layers
//! after it work number by number or channel by channel, so their inputs and outputs stay divided in the same way.

use std::ops::Range;

use super::{Layer, Layout, PlacedLayer, Shape};

/// Layer range: consecutive layers that one or several pipeline stages compute without a message between them, and the
/// division of their output among these stages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerRange {
    /// Layers of the model that belong to this layer range.
    pub layers: Range<usize>,
    /// Number of the first pipeline stage that the layer range is divided among.
    first: usize,
    /// For each stage that the layer range is divided among, the range of a sample's output numbers that the stage
    /// computes.
    shares: Vec<Range<usize>>,
}

impl LayerRange {
    /// Returns the numbers of the pipeline stages that this layer range is divided among.
    #[must_use]
    pub fn owners(&self) -> Range<usize> {
        self.first..self.first + self.shares.len()
    }

    /// Returns the range of a sample's output numbers that a pipeline stage computes; `None` if the stage has no part
    /// in this layer range.
    #[must_use]
    pub fn share(&self, stage: usize) -> Option<Range<usize>> {
        self.shares.get(stage.checked_sub(self.first)?).cloned()
    }

    /// Returns, for each pipeline stage that holds a part of this layer range, the range of a sample's output numbers
    /// that the stage computes.
    #[must_use]
    pub fn shares(&self) -> &[Range<usize>] {
        &self.shares
    }

    /// Returns the number of values that this layer range outputs for one sample.
    #[must_use]
    pub fn outputs(&self) -> usize {
        self.shares.last().map_or(0, |share| share.end)
    }
}

/// Returns the layer ranges of a model (runs of layers without a message between machines). The model is cut into
/// groups of layers, each of which is divided into `slices` slices.
pub(super) fn layer_ranges(whole: &Layout, groups: &[Range<usize>], slices: usize) -> Vec<LayerRange> {
    let last = whole.layers.iter().rposition(|layer| layer.weights() > 0);
    let mut found = Vec::new();
    for (group, layers) in groups.iter().enumerate() {
        let weighty = layers.clone().filter(|&at| whole.layers[at].weights() > 0);
        // Layers before the group's first layer with weights are computed by all stages that hold a slice of that
        // layer.
        let begins = std::iter::once(layers.start).chain(weighty.skip(1));
        let begins: Vec<usize> = if slices == 1 {
            vec![layers.start]
        } else {
            begins.collect()
        };
        let ends = begins.iter().skip(1).copied().chain([layers.end]);
        for (from, to) in begins.iter().copied().zip(ends) {
            let outputs = whole.layers[to - 1].output.elements();
            // The last layer with weights is usually narrow, and the loss needs its whole output in one place.
            let is_last = last.is_none_or(|last| to > last);
            let channels = neurons(&whole.layers[from..to]).filter(|&channels| !is_last && channels >= slices);
            let shares = match channels {
                Some(channels) if slices > 1 => (0..slices)
                    .map(|slice| scaled(part(channels, slice, slices), outputs / channels))
                    .collect(),
                _ => std::iter::once(0..outputs).collect(),
            };
            found.push(LayerRange {
                layers: from..to,
                first: group * slices,
                shares,
            });
        }
    }
    found
}

/// Returns the number of neurons or channels by which layers are divided among machines; `None` if they cannot be
/// divided.
fn neurons(layers: &[PlacedLayer]) -> Option<usize> {
    let divides = layers.iter().find(|layer| layer.weights() > 0)?;
    match (&divides.layer, divides.output) {
        (Layer::Dense(_), Shape::Flat(neurons)) => Some(neurons),
        (Layer::Conv { .. }, Shape::Image { channels, .. }) => Some(channels),
        _ => None,
    }
}

/// Divides `all` things into `parts` parts as equal as possible, and returns the range of the part with number `part`.
fn part(all: usize, part: usize, parts: usize) -> Range<usize> {
    all * part / parts..all * (part + 1) / parts
}

fn scaled(range: Range<usize>, by: usize) -> Range<usize> {
    range.start * by..range.end * by
}

/// Returns the layers of a layer range as one of the stages that share it holds them, each with the rows of its weights
/// that the stage has; `None` for all rows.
pub(super) fn owned(layers: &[PlacedLayer], owner: usize, owners: usize) -> Vec<(PlacedLayer, Option<Range<usize>>)> {
    let whole = |layer: &PlacedLayer| (layer.clone(), None);
    let Some(all) = neurons(layers).filter(|_| owners > 1) else {
        return layers.iter().map(whole).collect();
    };
    let rows = part(all, owner, owners);
    let narrowed = |shape: Shape| match shape {
        Shape::Image { height, width, .. } => Shape::Image {
            channels: rows.len(),
            height,
            width,
        },
        Shape::Flat(numbers) => Shape::Flat(numbers / all * rows.len()),
    };
    let divides = layers.iter().position(|layer| layer.weights() > 0);
    let mut owned = Vec::with_capacity(layers.len());
    for (at, layer) in layers.iter().enumerate() {
        let mut own = layer.clone();
        let mut of_weights = None;
        if divides.is_some_and(|divides| at >= divides) {
            own.output = narrowed(layer.output);
        }
        if divides.is_some_and(|divides| at > divides) {
            own.input = narrowed(layer.input);
        }
        if divides == Some(at) {
            match &mut own.layer {
                Layer::Dense(out) => *out = Some(rows.len()),
                Layer::Conv { out, .. } => *out = rows.len(),
                _ => {}
            }
            of_weights = Some(rows.clone());
        }
        owned.push((own, of_weights));
    }
    owned
}
