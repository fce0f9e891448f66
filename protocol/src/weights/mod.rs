//! What a model's weights are made of: counts on the [`lattice`], their [`changes`], [`sums`] and [`dense`] steps, an
//! [`encoding`] of each as few bytes, and the [`digest`] of all counts.

pub mod changes;
pub mod contribution;
pub mod dense;
pub mod digest;
pub mod encoding;
pub mod lattice;
pub mod sums;
