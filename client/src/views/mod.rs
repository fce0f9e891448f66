//! Views of a timeline: in a terminal and in a browser.

pub(crate) mod page;
pub(crate) mod terminal;
pub(crate) mod watching;
