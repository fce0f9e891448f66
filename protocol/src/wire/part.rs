//! A part of a round: some neighbouring weights' steps, added up over those members that it has passed.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Unreadable;
use crate::log::batch::Header;
use crate::log::bundle::BUNDLED_MAX;

/// Which part of which round it is, and whose batches are in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PartHead {
    /// The round.
    pub round: u64,
    /// The fingerprint of the members among whom the round is added up, and of the way that it takes.
    pub members: u64,
    /// Its number, from 0.
    pub piece: u32,
    /// Whether all members that have something to add have done so.
    pub whole: bool,
    /// The headers of the batches that are in it.
    pub headers: Vec<Header>,
}

/// A part of a round on its way.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundPart {
    /// What it is.
    pub head: PartHead,
    /// The steps, encoded; they stay as they are while a whole part is handed on.
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
