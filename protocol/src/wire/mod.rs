//! What nodes, workers and clients say to each other, and how it is framed. Only the handshake of a session and the files
//! that one crate alone reads and writes are declared where they are used.
//!
//! Nodes and clients speak [`control`], within [`bounds`]; nodes tell each other of a run with [`run_beat`] and a
//! [`run_plan`], from which its [`topology`] follows, and of its batches on a [`link`], of rounds that are added up on
//! their way by [`part`], of passes by [`prefix`], of a network's layers on several nodes by [`flow`], and by
//! [`snapshot`] where nothing else helps; a node and its workers speak [`attach`]. All but the control plane travels in
//! [`frame`]s. Messages are in postcard, and whole: what follows the last byte of one is refused.

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

/// The contents of a message do not say what they should.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the contents of a message could not be encoded or decoded")]
pub struct Unreadable;

/// Encodes a message.
pub fn encode(message: &impl Serialize) -> Result<Vec<u8>, Unreadable> {
    postcard::to_stdvec(message).map_err(|_| Unreadable)
}

/// Decodes bytes that are one message, to the last of them.
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
