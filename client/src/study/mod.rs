//! Studies: many runs one after the other, and a report that compares them.
//!
//! A [`plan`] lists the runs, a [`store`] keeps their results as one [`row`] per run, and a [`report`] shows them.

pub(crate) mod machine;
pub(crate) mod plan;
pub(crate) mod presets;
pub(crate) mod report;
pub(crate) mod row;
pub(crate) mod series;
pub(crate) mod statistics;
pub(crate) mod store;
