//! Who a process is: a key pair that it draws when it starts, and a name that follows from its public half.
//!
//! All members hold the same credentials: those tell members from strangers, but no member from another. A name that is the
//! digest of a key can be proven by whoever holds the key and by nobody else, so nobody can speak in another's name.

use std::fmt;

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use protocol::ids::NodeId;

/// Bytes of a public key, and of a signature.
pub(super) const KEY_BYTES: usize = 32;
pub(super) const SIGNATURE_BYTES: usize = 64;

/// What a process is on the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A member that says and is told things.
    Node,
    /// Somebody who asks.
    Client,
}

impl Role {
    /// The byte that names it on the wire.
    pub(super) fn byte(self) -> u8 {
        match self {
            Self::Node => b'n',
            Self::Client => b'c',
        }
    }

    pub(super) fn of_byte(byte: u8) -> Option<Self> {
        [Self::Node, Self::Client].into_iter().find(|role| role.byte() == byte)
    }
}

/// The name of a process that has proven it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VerifiedPeer {
    /// A node.
    Node(NodeId),
    /// A client.
    Client(u64),
}

impl VerifiedPeer {
    /// The name that belongs to a key.
    pub(super) fn of_key(role: Role, key: &[u8; KEY_BYTES]) -> Self {
        let digest = digest(&SHA256, key);
        let number = digest
            .as_ref()
            .iter()
            .take(8)
            .fold(0, |n, &byte| n << 8 | u64::from(byte));
        match role {
            Role::Node => Self::Node(NodeId(number)),
            Role::Client => Self::Client(number),
        }
    }

    /// The node's name, if it is one.
    #[must_use]
    pub fn node(self) -> Option<NodeId> {
        match self {
            Self::Node(node) => Some(node),
            Self::Client(_) => None,
        }
    }
}

impl fmt::Display for VerifiedPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(node) => write!(f, "{node}"),
            Self::Client(number) => write!(f, "client-{number:016x}"),
        }
    }
}

/// The system gave no randomness for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no key could be made: the operating system's random number generator failed")]
pub struct NoKey;

/// A process's own name, with what proves it.
pub struct Identity {
    pair: Ed25519KeyPair,
    role: Role,
}

impl Identity {
    /// Draws a new one.
    pub fn draw(role: Role) -> Result<Self, NoKey> {
        let pair = Ed25519KeyPair::generate().map_err(|_| NoKey)?;
        Ok(Self { pair, role })
    }

    #[must_use]
    pub fn peer(&self) -> VerifiedPeer {
        VerifiedPeer::of_key(self.role, &self.key())
    }

    pub(super) fn role(&self) -> Role {
        self.role
    }

    /// The public half.
    pub(super) fn key(&self) -> [u8; KEY_BYTES] {
        let mut key = [0; KEY_BYTES];
        key.copy_from_slice(self.pair.public_key().as_ref());
        key
    }

    /// Signs.
    pub(super) fn sign(&self, message: &[u8]) -> [u8; SIGNATURE_BYTES] {
        let mut signature = [0; SIGNATURE_BYTES];
        signature.copy_from_slice(self.pair.sign(message).as_ref());
        signature
    }
}

/// Never prints the key.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Identity").field(&self.peer()).finish()
    }
}

/// Whether the holder of a key has signed this.
pub(super) fn is_signed(key: &[u8; KEY_BYTES], message: &[u8], signature: &[u8; SIGNATURE_BYTES]) -> bool {
    UnparsedPublicKey::new(&ED25519, key).verify(message, signature).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_belongs_to_whoever_can_sign_for_it() {
        let (one, other) = (Identity::draw(Role::Node).unwrap(), Identity::draw(Role::Node).unwrap());
        assert_ne!(one.peer(), other.peer());
        assert_eq!(one.peer(), VerifiedPeer::of_key(Role::Node, &one.key()));
        let signature = one.sign(b"message");
        assert!(is_signed(&one.key(), b"message", &signature));
        assert!(!is_signed(&one.key(), b"other message", &signature));
        assert!(!is_signed(&other.key(), b"message", &signature));
    }

    #[test]
    fn nodes_and_clients_have_different_names() {
        let key = [7; KEY_BYTES];
        let (node, client) = (
            VerifiedPeer::of_key(Role::Node, &key),
            VerifiedPeer::of_key(Role::Client, &key),
        );
        assert!(node.node().is_some() && client.node().is_none());
        assert_eq!(node.to_string().len(), 16);
        assert!(client.to_string().starts_with("client-"));
    }
}
