//! A run, seen by a client: begun, followed to its end, its files fetched and kept in a folder.

pub(crate) mod ending;
pub(crate) mod fetch;
pub(crate) mod folder;
pub(crate) mod follow;
pub(crate) mod interrupt;
pub(crate) mod journal;
pub(crate) mod out_folder;
pub(crate) mod starting;
