//! Arithmetic on a model's weights: counts on the [`lattice`], their [`changes`], [`sums`] and [`dense`] steps, the
//! [`encoding`] of each as few bytes, the [`digest`] of all counts, and the [`contribution`] of a worker to a round.

pub mod changes;
pub mod contribution;
pub mod dense;
pub mod digest;
pub mod encoding;
pub mod lattice;
pub mod sums;
