//! What a run has in each of its states. What it does there is in the files beside this folder.

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
