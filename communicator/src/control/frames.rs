//! Checks each frame before a session of `ractor_cluster` receives it. Pure.
//!
//! That crate believes the name in its own handshake, makes an actor for every remote actor that it is told of, and
//! answers every ping. Tau's processes have one actor that others can reach, so this module knows the few kinds of
//! frames that they send to each other, and how many; any other frame ends the connection.
//!
//! A frame is a protobuf message. Its outermost field says what the frame is for, and the field within that what it
//! says.

use std::time::Duration;

use thiserror::Error;

use super::identity::VerifiedPeer;
use crate::meter::Meter;

/// Maximum length in bytes of a frame on the control plane.
pub(super) const FRAME_BYTES_MAX: usize = 1 << 20;
/// Maximum length in bytes of a frame that carries no message to an actor.
const SMALL_BYTES_MAX: usize = 512;
/// Maximum number of frames of `ractor_cluster`'s handshake on a connection; each side sends three.
const HANDSHAKES_MAX: u32 = 4;
/// Maximum number of frames about actors that start, end, and join groups. A process has one such actor, which does
/// each of these once.
const ACTORS_MAX: u32 = 8;
/// Pings and answers to pings that a peer may send per second; honest peers send at most one of each.
const PINGS_A_SECOND: u32 = 4;
/// Pings and answers to pings that a peer may send in a burst.
const PINGS_AT_ONCE: u32 = 64;

/// Protobuf field numbers of the outermost message of a frame of `ractor_cluster`.
mod outer {
    pub(super) const AUTH: u64 = 1;
    pub(super) const NODE: u64 = 2;
    pub(super) const CONTROL: u64 = 3;
}

/// Protobuf field numbers of a handshake message of `ractor_cluster`.
mod auth {
    pub(super) const NAME: u64 = 1;
    pub(super) const SERVER_CHALLENGE: u64 = 4;
    /// Field of the sender's name in the handshake messages `NAME` and `SERVER_CHALLENGE`.
    pub(super) const NAME_IN: u64 = 1;
}

/// Protobuf field numbers of `ractor_cluster`'s messages about actors, groups and pings.
mod control {
    pub(super) const SPAWN: u64 = 1;
    pub(super) const TERMINATE: u64 = 2;
    pub(super) const PING: u64 = 3;
    pub(super) const PONG: u64 = 4;
    pub(super) const PG_JOIN: u64 = 5;
    pub(super) const PG_LEAVE: u64 = 6;
    pub(super) const READY: u64 = 9;
}

/// Reason for which an incoming frame is rejected and its connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(super) enum FrameError {
    #[error("the peer sent a malformed frame: bring all nodes and clients to the same release")]
    Malformed,
    #[error("the peer sent a frame that exceeds the size limit")]
    TooLong,
    #[error("the peer uses another name in its session than the name it has proven")]
    OtherName,
    #[error("the peer sent more frames of one kind than the limit allows")]
    TooMany,
    #[error("the peer sent a frame of an unexpected kind")]
    OutOfPlace,
}

/// Rules for the frames that come on one connection, with counts of the frames so far.
#[derive(Debug)]
pub(super) struct FrameRules {
    name: String,
    handshakes: u32,
    actors: u32,
    pings: Meter,
}

impl FrameRules {
    pub(super) fn new(peer: VerifiedPeer) -> Self {
        Self {
            name: session_name(&peer.to_string()),
            handshakes: 0,
            actors: 0,
            pings: Meter::new(PINGS_A_SECOND, PINGS_AT_ONCE),
        }
    }

    /// Checks that an incoming frame may pass to the session: that its form, size, kind and name are those of an honest
    /// peer's frame, and that not too many of its kind have come.
    pub(super) fn check(&mut self, frame: &[u8], now: Duration) -> Result<(), FrameError> {
        let (kind, content) = only_field(frame)?;
        if kind == outer::NODE {
            return Ok(());
        }
        if frame.len() > SMALL_BYTES_MAX {
            return Err(FrameError::TooLong);
        }
        let (says, content) = only_field(content)?;
        match (kind, says) {
            (outer::AUTH, auth::NAME | auth::SERVER_CHALLENGE) => {
                count(&mut self.handshakes, HANDSHAKES_MAX)?;
                self.check_name(content)
            }
            (outer::AUTH, _) => count(&mut self.handshakes, HANDSHAKES_MAX),
            (outer::CONTROL, control::PING | control::PONG) => {
                let rare = self.pings.try_spend(1, now);
                rare.then_some(()).ok_or(FrameError::TooMany)
            }
            (
                outer::CONTROL,
                control::SPAWN | control::TERMINATE | control::PG_JOIN | control::PG_LEAVE | control::READY,
            ) => count(&mut self.actors, ACTORS_MAX),
            _ => Err(FrameError::OutOfPlace),
        }
    }

    /// Checks that a handshake message gives the name that the peer has proven: `ractor_cluster` lets a session
    /// displace an older one with the same name.
    fn check_name(&self, mut content: &[u8]) -> Result<(), FrameError> {
        let mut named = false;
        while !content.is_empty() {
            let (number, value) = field(&mut content)?;
            if number == auth::NAME_IN {
                if value != Some(self.name.as_bytes()) {
                    return Err(FrameError::OtherName);
                }
                named = true;
            }
        }
        named.then_some(()).ok_or(FrameError::OtherName)
    }
}

/// Returns the name that `ractor_cluster` gives to the session of a process with this name: `name@host`, where the host
/// is named like the process.
pub(super) fn session_name(name: &str) -> String {
    format!("{name}@{name}")
}

fn count(counter: &mut u32, max: u32) -> Result<(), FrameError> {
    *counter += 1;
    if *counter > max {
        Err(FrameError::TooMany)
    } else {
        Ok(())
    }
}

/// Returns the only field of a Protobuf message, which must hold bytes. Several fields are an error: a decoder would
/// take the last one, or all of them, for valid.
fn only_field(mut bytes: &[u8]) -> Result<(u64, &[u8]), FrameError> {
    match field(&mut bytes)? {
        (number, Some(content)) if bytes.is_empty() => Ok((number, content)),
        _ => Err(FrameError::Malformed),
    }
}

/// Takes the next field from a Protobuf message: its number, and its contents if they are bytes.
fn field<'a>(bytes: &mut &'a [u8]) -> Result<(u64, Option<&'a [u8]>), FrameError> {
    const VARINT: u64 = 0;
    const FIXED_64: u64 = 1;
    const BYTES: u64 = 2;
    const FIXED_32: u64 = 5;
    let tag = varint(bytes)?;
    let length = match tag & 7 {
        VARINT => {
            varint(bytes)?;
            return Ok((tag >> 3, None));
        }
        FIXED_64 => 8,
        FIXED_32 => 4,
        BYTES => usize::try_from(varint(bytes)?).map_err(|_| FrameError::Malformed)?,
        _ => return Err(FrameError::Malformed),
    };
    let (content, rest) = bytes.split_at_checked(length).ok_or(FrameError::Malformed)?;
    *bytes = rest;
    Ok((tag >> 3, (tag & 7 == BYTES).then_some(content)))
}

fn varint(bytes: &mut &[u8]) -> Result<u64, FrameError> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first().ok_or(FrameError::Malformed)?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(FrameError::Malformed)
}

#[cfg(test)]
mod tests {
    use protocol::ids::NodeId;

    use super::*;

    const PEER: VerifiedPeer = VerifiedPeer::Node(NodeId(7));

    fn rules() -> FrameRules {
        FrameRules::new(PEER)
    }

    fn bytes(number: u8, content: &[u8]) -> Vec<u8> {
        let mut field = vec![number << 3 | 2];
        let mut length = content.len();
        while length >= 0x80 {
            field.push(length as u8 | 0x80);
            length >>= 7;
        }
        field.push(length as u8);
        field.extend_from_slice(content);
        field
    }

    fn frame(kind: u64, says: u64, content: &[u8]) -> Vec<u8> {
        bytes(kind as u8, &bytes(says as u8, content))
    }

    fn named(name: &str) -> Vec<u8> {
        let flags = [0x12, 2, 8, 1];
        [bytes(1, session_name(name).as_bytes()), flags.to_vec()].concat()
    }

    #[test]
    fn a_session_goes_by_the_name_that_was_proven() {
        let own = PEER.to_string();
        for kind in [auth::NAME, auth::SERVER_CHALLENGE] {
            let frame = |name: &str| frame(outer::AUTH, kind, &named(name));
            assert_eq!(rules().check(&frame(&own), Duration::ZERO), Ok(()));
            let other = frame(&VerifiedPeer::Node(NodeId(8)).to_string());
            assert_eq!(rules().check(&other, Duration::ZERO), Err(FrameError::OtherName));
        }
        // The name occurs twice: the last one would count.
        let twice = frame(
            outer::AUTH,
            auth::NAME,
            &[named(&own), named("0000000000000008")].concat(),
        );
        assert_eq!(rules().check(&twice, Duration::ZERO), Err(FrameError::OtherName));
        let two_messages = [
            frame(outer::AUTH, auth::NAME, &named(&own)),
            frame(outer::AUTH, auth::NAME, &named("0000000000000008")),
        ]
        .concat();
        assert_eq!(rules().check(&two_messages, Duration::ZERO), Err(FrameError::Malformed));
        assert_eq!(
            rules().check(&frame(outer::AUTH, auth::NAME, b""), Duration::ZERO),
            Err(FrameError::OtherName)
        );
    }

    #[test]
    fn actors_are_few_and_pings_are_rare() {
        let mut some = rules();
        let spawn = frame(outer::CONTROL, control::SPAWN, &[0x0a, 2, 8, 1]);
        for _ in 0..ACTORS_MAX {
            assert_eq!(some.check(&spawn, Duration::ZERO), Ok(()));
        }
        assert_eq!(some.check(&spawn, Duration::ZERO), Err(FrameError::TooMany));
        let many = frame(outer::CONTROL, control::SPAWN, &[0x0a, 2, 8, 1].repeat(200));
        assert_eq!(rules().check(&many, Duration::ZERO), Err(FrameError::TooLong));
        let ping = frame(outer::CONTROL, control::PING, b"");
        let mut pinged = rules();
        for second in 0..1000 {
            assert_eq!(pinged.check(&ping, Duration::from_secs(second)), Ok(()));
        }
        let flood = (0..1000).find_map(|_| pinged.check(&ping, Duration::from_secs(1000)).err());
        assert_eq!(flood, Some(FrameError::TooMany));
    }

    #[test]
    fn messages_pass_and_all_else_does_not() {
        let message = bytes(outer::NODE as u8, &vec![1; 100_000]);
        assert_eq!(rules().check(&message, Duration::ZERO), Ok(()));
        let sessions = frame(outer::CONTROL, 8, b"");
        assert_eq!(rules().check(&sessions, Duration::ZERO), Err(FrameError::OutOfPlace));
        for garbage in [&b""[..], &[0xff; 30], &[0x0a], &[0x0a, 5, 1], &[0x08, 1], &[0x0b, 1]] {
            assert_eq!(rules().check(garbage, Duration::ZERO), Err(FrameError::Malformed));
        }
    }
}
