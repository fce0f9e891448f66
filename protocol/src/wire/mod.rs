//! Messages between nodes, workers and clients, and their framing. Only the handshake of a session, and files that a
//! single crate reads and writes, are declared elsewhere.
//!
//! Nodes and clients use [`control`], within [`bounds`]. Nodes tell each other of a run with [`run_beat`] and
//! [`run_plan`], from which the [`topology`] follows. They exchange batches on a [`link`], rounds that are added up on
//! their way as [`part`], sums of sequential averaging as [`prefix`], activations and gradients of pipelines as
//! [`flow`], and a [`snapshot`] if nothing else helps. A node and its workers use [`attach`]. Everything but the
//! control plane travels in [`frame`]s. Messages are encoded with postcard; bytes after the end of a message are
//! refused.

pub mod attach;
pub mod bounds;
pub mod control;
pub mod flow;
pub mod frame;
pub mod link;
pub mod part;
pub mod phase;
pub mod prefix;
pub mod run_beat;
pub mod run_plan;
pub mod snapshot;
pub mod topology;

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// Error for message contents that cannot be encoded or decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the contents of a message could not be encoded or decoded")]
pub struct Unreadable;

/// Encodes a message as the contents of a frame.
pub fn encode(message: &impl Serialize) -> Result<Vec<u8>, Unreadable> {
    postcard::to_stdvec(message).map_err(|_| Unreadable)
}

/// Decodes the contents of a frame, which must hold exactly one message.
pub fn decode<T: DeserializeOwned>(contents: &[u8]) -> Result<T, Unreadable> {
    match postcard::take_from_bytes(contents) {
        Ok((message, [])) => Ok(message),
        _ => Err(Unreadable),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_ends_where_its_contents_end() {
        let contents = encode(&(7u32, true)).unwrap();
        assert_eq!(decode(&contents), Ok((7u32, true)));
        assert_eq!(decode::<(u32, bool)>(&contents[..1]), Err(Unreadable));
        assert_eq!(decode::<u32>(&contents), Err(Unreadable));
    }
}
