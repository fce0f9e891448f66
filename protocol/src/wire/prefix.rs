//! What the first workers of a pass have come to, added up: on its way from worker to worker.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Unreadable;
use crate::ids::OriginId;
use crate::weights::digest::Digest;

/// Whose differences are in a prefix, and whom it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefixHead {
    /// The pass, by its sender's count.
    pub pass: u64,
    /// The digest of the weights that the differences are from: others' mean nothing to who has other weights.
    pub shared: Digest,
    /// The last who added its own.
    pub from: OriginId,
    /// Who goes on from it.
    pub to: OriginId,
    /// Of how many workers it is.
    pub count: u32,
}

/// The sum of some workers' differences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// Whose they are.
    pub head: PrefixHead,
    /// The steps, encoded.
    pub steps: Arc<[u8]>,
}

impl Prefix {
    /// The contents of a frame.
    pub fn encode(&self) -> Result<Vec<u8>, Unreadable> {
        let mut contents = super::encode(&self.head)?;
        contents.extend_from_slice(&self.steps);
        Ok(contents)
    }

    /// The prefix that a frame holds. Its steps are not read yet.
    pub fn decode(contents: &[u8]) -> Result<Self, Unreadable> {
        let (head, steps) = postcard::take_from_bytes(contents).map_err(|_| Unreadable)?;
        Ok(Self {
            head,
            steps: steps.into(),
        })
    }
}
