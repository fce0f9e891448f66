//! The sum of the first workers' differences in a pass of sequential averaging, on its way from worker to worker.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Unreadable;
use crate::ids::OriginId;
use crate::weights::digest::Digest;

/// Header of a prefix, which is the sum of some workers' differences in sequential averaging. It names the pass, the
/// worker that added its difference last, and the worker that goes on from the sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefixHead {
    /// Number of the pass (one walk of the sum through all workers) that the sum belongs to, as counted by the worker
    /// that sends it.
    pub pass: u64,
    /// Digest (checksum) of the shared weights that the workers' own weights were compared with. A worker with other
    /// shared weights cannot use the sum.
    pub shared: Digest,
    /// The origin (worker) that added its difference to the sum last.
    pub from: OriginId,
    /// The origin (worker) that goes on from the sum.
    pub to: OriginId,
    /// Number of workers whose differences are in the sum.
    pub count: u32,
}

/// The exact sum of the differences of some workers between their own and their shared weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefix {
    pub head: PrefixHead,
    /// The encoded sum of the differences, as a movement of each weight.
    pub steps: Arc<[u8]>,
}

impl Prefix {
    /// Encodes the sum of differences and its header as the contents of a frame.
    pub fn encode(&self) -> Result<Vec<u8>, Unreadable> {
        let mut contents = super::encode(&self.head)?;
        contents.extend_from_slice(&self.steps);
        Ok(contents)
    }

    /// Decodes a sum of differences and its header from the contents of a frame. The sum itself stays encoded.
    pub fn decode(contents: &[u8]) -> Result<Self, Unreadable> {
        let (head, steps) = postcard::take_from_bytes(contents).map_err(|_| Unreadable)?;
        Ok(Self {
            head,
            steps: steps.into(),
        })
    }
}
