//! A run as the client sees it: it is started, followed to its end, and its files are fetched and kept in a folder.

pub(crate) mod ending;
pub(crate) mod fetch;
pub(crate) mod folder;
pub(crate) mod follow;
pub(crate) mod interrupt;
pub(crate) mod journal;
pub(crate) mod out_folder;
pub(crate) mod starting;
