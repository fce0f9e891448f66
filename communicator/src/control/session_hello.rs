//! The session hello: the first bytes on a connection of the control plane, in which both ends prove their names.
//!
//! `ractor_cluster` delivers messages without the session that they came by. So each end gives the other a secret for
//! this connection, its *token*: a message with the token was sent by the process that proved its name here, because no
//! other process knows the token.
//!
//! First both ends send their role, key and token; then each signs the other's together with its own. A signature is
//! for one connection of one process: its receiver cannot use it with a third.

use std::io;
use std::io::ErrorKind::{InvalidData, PermissionDenied};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::identity::{Identity, KEY_BYTES, Role, SIGNATURE_BYTES, VerifiedPeer, is_signed};
use crate::entropy;
use crate::transport::Stream;

/// First bytes of every message that is signed in a session hello, so that a signature is valid for nothing else. Both
/// ends sign and check exactly these bytes, so they must never change.
const PURPOSE: &[u8] = b"tau-control/2 greeting";
const TOKEN_BYTES: usize = 16;
const HELLO_BYTES: usize = 1 + KEY_BYTES + TOKEN_BYTES;

/// A secret that the two ends of a connection share; messages carry it to prove their sender.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Token([u8; TOKEN_BYTES]);

impl Token {
    /// Length of a token on the wire in bytes.
    pub(super) const BYTES: usize = TOKEN_BYTES;

    fn draw() -> io::Result<Self> {
        entropy::secret().map(Self)
    }

    pub(super) fn bytes(self) -> [u8; TOKEN_BYTES] {
        self.0
    }

    pub(super) fn of_bytes(bytes: [u8; TOKEN_BYTES]) -> Self {
        Self(bytes)
    }
}

/// Prints the type's name, never the secret.
impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

/// Result of a session hello, in which the two ends of a connection prove their names and give each other tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SessionHello {
    /// Proven name of the process at the other end.
    pub(super) peer: VerifiedPeer,
    /// Token that messages from the other end must carry.
    pub(super) ours: Token,
    /// Token that messages to the other end must carry.
    pub(super) theirs: Token,
}

/// The first message of either end in a session hello.
#[derive(Clone, Copy)]
struct Hello {
    role: Role,
    key: [u8; KEY_BYTES],
    token: Token,
}

impl Hello {
    fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[0] = self.role.byte();
        bytes[1..=KEY_BYTES].copy_from_slice(&self.key);
        bytes[1 + KEY_BYTES..].copy_from_slice(&self.token.bytes());
        bytes
    }

    fn decode(bytes: &[u8; HELLO_BYTES]) -> Option<Self> {
        let (role, rest) = bytes.split_first()?;
        let (key, rest) = rest.split_first_chunk()?;
        let (token, _) = rest.split_first_chunk()?;
        Some(Self {
            role: Role::of_byte(*role)?,
            key: *key,
            token: Token(*token),
        })
    }

    /// Returns the bytes of this hello that `signer` signs to prove its name.
    fn challenge(&self, signer: &Self) -> Vec<u8> {
        [PURPOSE, &self.encode(), &signer.encode()].concat()
    }
}

/// Exchanges session hellos with the other end, within a time limit, so that each end proves its name. Both ends do the
/// same.
pub(super) async fn exchange_hellos(
    stream: &mut Stream,
    identity: &Identity,
    limit: Duration,
) -> io::Result<SessionHello> {
    let session_hello = exchange(stream, identity);
    timeout(limit, session_hello)
        .await
        .unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut)))
}

async fn exchange(stream: &mut Stream, identity: &Identity) -> io::Result<SessionHello> {
    let own = Hello {
        role: identity.role(),
        key: identity.key(),
        token: Token::draw()?,
    };
    stream.write_all(&own.encode()).await?;
    stream.flush().await?;
    let mut bytes = [0; HELLO_BYTES];
    stream.read_exact(&mut bytes).await?;
    let other = Hello::decode(&bytes)
        .ok_or_else(|| io::Error::new(InvalidData, "the peer sent no valid session hello of this Tau release"))?;
    stream.write_all(&identity.sign(&other.challenge(&own))).await?;
    stream.flush().await?;
    let mut signature = [0; SIGNATURE_BYTES];
    stream.read_exact(&mut signature).await?;
    if !is_signed(&other.key, &own.challenge(&other), &signature) {
        return Err(io::Error::new(
            PermissionDenied,
            "the peer's signature does not prove its name",
        ));
    }
    Ok(SessionHello {
        peer: VerifiedPeer::of_key(other.role, &other.key),
        ours: own.token,
        theirs: other.token,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    fn pipe() -> (Stream, Stream) {
        let (one, other) = tokio::io::duplex(1 << 10);
        (Box::new(one), Box::new(other))
    }

    fn identity(role: Role) -> Identity {
        Identity::draw(role).unwrap()
    }

    #[tokio::test]
    async fn both_ends_learn_the_others_name_and_token() {
        let (mut here, mut there) = pipe();
        let (node, client) = (identity(Role::Node), identity(Role::Client));
        let (one, other) = tokio::join!(
            exchange_hellos(&mut here, &node, LIMIT),
            exchange_hellos(&mut there, &client, LIMIT)
        );
        let (one, other) = (one.unwrap(), other.unwrap());
        assert_eq!((one.peer, other.peer), (client.peer(), node.peer()));
        assert_eq!((one.ours, one.theirs), (other.theirs, other.ours));
        assert_ne!(one.ours, one.theirs);
    }

    /// A process between two others passes on all that they send: each believes, rightly, that it speaks with the
    /// other. Then the process shows one's signature to the other as its own.
    #[tokio::test]
    async fn a_signature_is_of_no_use_to_its_receiver() {
        let (victim, node, thief) = (identity(Role::Node), identity(Role::Node), identity(Role::Node));
        let (mut victims_end, mut to_victim) = pipe();
        let (mut nodes_end, mut to_node) = pipe();
        let stealing = async {
            // The thief sends the node a hello with the victim's key, and the victim one with its own key and the
            // node's token.
            let (mut victims, mut nodes) = ([0; HELLO_BYTES], [0; HELLO_BYTES]);
            to_victim.read_exact(&mut victims).await.unwrap();
            to_node.write_all(&victims).await.unwrap();
            to_node.read_exact(&mut nodes).await.unwrap();
            let mut forged = Hello::decode(&nodes).unwrap();
            forged.key = thief.key();
            to_victim.write_all(&forged.encode()).await.unwrap();
            let mut signature = [0; SIGNATURE_BYTES];
            to_victim.read_exact(&mut signature).await.unwrap();
            to_node.write_all(&signature).await.unwrap();
            let _ = to_node.read_exact(&mut signature).await;
            drop(to_victim);
        };
        let (_, deceived, ()) = tokio::join!(
            exchange_hellos(&mut victims_end, &victim, LIMIT),
            exchange_hellos(&mut nodes_end, &node, LIMIT),
            stealing
        );
        assert_eq!(deceived.unwrap_err().kind(), PermissionDenied);
    }

    #[tokio::test]
    async fn who_says_nothing_or_something_else_is_not_waited_for() {
        let node = identity(Role::Node);
        let (mut here, _there) = pipe();
        let error = exchange_hellos(&mut here, &node, Duration::from_millis(10))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let (mut here, mut there) = pipe();
        there.write_all(&[0; HELLO_BYTES]).await.unwrap();
        let error = exchange_hellos(&mut here, &node, LIMIT).await.unwrap_err();
        assert_eq!(error.kind(), InvalidData);
    }
}
