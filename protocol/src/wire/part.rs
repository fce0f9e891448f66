//! A part of a round: dense steps of some neighbouring weights, added up over the members that the part has passed.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Unreadable;
use crate::log::batch::Header;
use crate::log::bundle::BUNDLED_MAX;

/// Header of a section of a round's sum: the round, the position of the section, and the batches that are added up in
/// it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PartHead {
    /// Number of the round (some training steps, after which every worker makes a batch) whose batches are added up.
    pub round: u64,
    /// Fingerprint of the members whose batches are added up, and of the path that the sum takes from node to node.
    /// Nodes compare it to check that they agree on both.
    pub members: u64,
    /// Number, from 0, of the section of the weights that the part is about: the part sums up the round's changes of
    /// these weights.
    pub piece: u32,
    /// True if all members that have something to add to the part have done so.
    pub whole: bool,
    /// The headers of the batches that are in the sum.
    pub headers: Vec<Header>,
}

/// The sum of a round's batches for one section of the weights, on its way from node to node. A round is some training
/// steps, after which every worker makes a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundPart {
    pub head: PartHead,
    /// The encoded sum: the movement of each weight of the section. Nodes add their batches to it until the part is
    /// whole, and from then on pass it on unchanged.
    pub steps: Arc<[u8]>,
}

impl RoundPart {
    pub(super) fn encode(&self) -> Result<Vec<u8>, Unreadable> {
        let mut contents = super::encode(&self.head)?;
        contents.extend_from_slice(&self.steps);
        Ok(contents)
    }

    pub(super) fn decode(contents: &[u8]) -> Result<Self, Unreadable> {
        let (head, steps) = postcard::take_from_bytes::<PartHead>(contents).map_err(|_| Unreadable)?;
        if head.headers.len() > BUNDLED_MAX {
            return Err(Unreadable);
        }
        Ok(Self {
            head,
            steps: steps.into(),
        })
    }
}
