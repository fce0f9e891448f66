//! Layer ranges: neighbouring layers that a machine goes through without a word from others.
//!
//! Where groups are not divided, a group is a layer range. Where they are, every layer with weights begins one: it needs all
//! that the layers before it have made, and those are divided among machines. What comes after it, number by number or
//! channel by channel, is divided as it is.

use std::ops::Range;

use super::{Layer, Layout, PlacedLayer, Shape};

/// Neighbouring layers, and how they are divided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerRange {
    /// Which of the model's layers.
    pub layers: Range<usize>,
    /// The first of the stages that it is divided among.
    first: usize,
    /// Which of a sample's numbers after its last layer each of those makes.
    shares: Vec<Range<usize>>,
}

impl LayerRange {
    /// The stages that it is divided among.
    #[must_use]
    pub fn owners(&self) -> Range<usize> {
        self.first..self.first + self.shares.len()
    }

    /// Which of a sample's numbers after its last layer a stage makes.
    #[must_use]
    pub fn share(&self, stage: usize) -> Option<Range<usize>> {
        self.shares.get(stage.checked_sub(self.first)?).cloned()
    }

    /// The same of all holders, in order.
    #[must_use]
    pub fn shares(&self) -> &[Range<usize>] {
        &self.shares
    }

    /// Numbers of a sample after its last layer.
    #[must_use]
    pub fn outputs(&self) -> usize {
        self.shares.last().map_or(0, |share| share.end)
    }
}

/// The layer ranges of a model in groups, each of which is divided into so many slices.
pub(super) fn layer_ranges(whole: &Layout, groups: &[Range<usize>], slices: usize) -> Vec<LayerRange> {
    let last = whole.layers.iter().rposition(|layer| layer.weights() > 0);
    let mut found = Vec::new();
    for (group, layers) in groups.iter().enumerate() {
        let weighty = layers.clone().filter(|&at| whole.layers[at].weights() > 0);
        // What lies before the first of them is computed by all that begin with it.
        let begins = std::iter::once(layers.start).chain(weighty.skip(1));
        let begins: Vec<usize> = if slices == 1 {
            vec![layers.start]
        } else {
            begins.collect()
        };
        let ends = begins.iter().skip(1).copied().chain([layers.end]);
        for (from, to) in begins.iter().copied().zip(ends) {
            let outputs = whole.layers[to - 1].output.elements();
            // The last layer is narrow as a rule, and the loss wants all of it at one place.
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

/// The neurons or channels of the layer that a layer range is divided by; none if it cannot be.
fn neurons(layers: &[PlacedLayer]) -> Option<usize> {
    let divides = layers.iter().find(|layer| layer.weights() > 0)?;
    match (&divides.layer, divides.output) {
        (Layer::Dense(_), Shape::Flat(neurons)) => Some(neurons),
        (Layer::Conv { .. }, Shape::Image { channels, .. }) => Some(channels),
        _ => None,
    }
}

/// One of so many parts of a number of things, as equal as can be.
fn part(all: usize, part: usize, parts: usize) -> Range<usize> {
    all * part / parts..all * (part + 1) / parts
}

fn scaled(range: Range<usize>, by: usize) -> Range<usize> {
    range.start * by..range.end * by
}

/// The layers of a layer range as one holder of it has them, each with the rows of its weights that are there; all of them
/// where nothing is said.
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
