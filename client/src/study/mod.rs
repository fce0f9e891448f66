//! A study: many runs one after the other, and a report that puts them side by side.
//!
//! A [`plan`] says which runs there are; a [`store`] keeps what has come out, a [`row`] a run; a [`report`] draws it.

pub(crate) mod machine;
pub(crate) mod plan;
pub(crate) mod presets;
pub(crate) mod report;
pub(crate) mod row;
pub(crate) mod series;
pub(crate) mod statistics;
pub(crate) mod store;
