//! What a replica has applied: a [`batch`] is named by its origin and sequence; consecutive ones of an origin make a
//! [`merged_range`], those of several origins a [`bundle`]. A [`frontier`] says which batches a replica has, a [`cursor`]
//! which samples they were learned from.

pub mod batch;
pub mod bundle;
pub mod checksum;
pub mod cursor;
pub mod frontier;
pub mod merged_range;
