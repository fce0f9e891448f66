//! The commands of `tau`, one file for each.

mod access;
pub(crate) mod checkpoint;
pub(crate) mod credentials;
pub(crate) mod doctor;
pub(crate) mod down;
pub(crate) mod evaluate;
pub(crate) mod export;
pub(crate) mod manual;
pub(crate) mod node;
pub(crate) mod nodes;
pub(crate) mod page;
pub(crate) mod predict;
pub(crate) mod report;
pub(crate) mod show;
pub(crate) mod start;
pub(crate) mod stats;
pub(crate) mod stop;
pub(crate) mod study;
pub(crate) mod token;
pub(crate) mod train;
pub(crate) mod up;
pub(crate) mod worker;

use std::error::Error;
use std::str::FromStr;

use crate::failure::Failure;

/// Parses the value of an optional flag.
fn parsed<T: FromStr<Err: Error>>(text: Option<&str>) -> Result<Option<T>, Failure> {
    text.map(str::parse).transpose().map_err(Failure::bad)
}
