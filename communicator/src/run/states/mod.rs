//! Data of a run in each of its states. The files beside this folder act on it.

mod exchanging;
mod finishing;
mod preparing;
mod seat;
mod settling;

pub(super) use exchanging::Exchanging;
pub(super) use finishing::{Finishing, LastCheckpoint, Saver};
pub(super) use preparing::{OfferState, Preparing};
pub(super) use seat::Seat;
pub(super) use settling::Settling;
