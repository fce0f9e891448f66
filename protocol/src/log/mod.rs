//! The history of a replica. A [`batch`] is named by its origin and sequence; consecutive batches of one origin make a
//! [`merged_range`], batches of several origins a [`bundle`]. A [`frontier`] says which batches a replica has applied,
//! and a [`cursor`] which samples they were learned from.

pub mod batch;
pub mod bundle;
pub mod checksum;
pub mod cursor;
pub mod frontier;
pub mod merged_range;
