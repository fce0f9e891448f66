//! The identity of a process: a key pair that it draws when it starts, and a name that follows from the public key.
//!
//! All members hold the same credentials, which tell members from strangers, but not one member from another. A name
//! that is the digest of a public key can be proven by the holder of the private key only, so no process can speak in
//! another's name.

use std::fmt;

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use protocol::ids::NodeId;

/// Length of a public key in bytes.
pub(super) const KEY_BYTES: usize = 32;
/// Length of a signature in bytes.
pub(super) const SIGNATURE_BYTES: usize = 64;

/// Role of a process on the control plane: member of the cluster or client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A member of the cluster, which sends and receives messages.
    Node,
    /// A process that only sends requests.
    Client,
}

impl Role {
    /// Returns the byte that stands for the role on the wire.
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

/// Proven name of a process on the control plane: its role, and an id that follows from its public key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VerifiedPeer {
    Node(NodeId),
    Client(u64),
}

impl VerifiedPeer {
    /// Returns the name that belongs to a public key.
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

    /// Returns the id of this peer if it is a node; `None` for a client.
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

/// The operating system gave no randomness for a key pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no key could be made: the operating system's random number generator failed")]
pub struct NoKey;

/// The key pair of this process, with which it proves its name.
pub struct Identity {
    pair: Ed25519KeyPair,
    role: Role,
}

impl Identity {
    /// Draws a new key pair.
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

    /// Returns this process's public key.
    pub(super) fn key(&self) -> [u8; KEY_BYTES] {
        let mut key = [0; KEY_BYTES];
        key.copy_from_slice(self.pair.public_key().as_ref());
        key
    }

    pub(super) fn sign(&self, message: &[u8]) -> [u8; SIGNATURE_BYTES] {
        let mut signature = [0; SIGNATURE_BYTES];
        signature.copy_from_slice(self.pair.sign(message).as_ref());
        signature
    }
}

/// Prints the name, never the private key.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Identity").field(&self.peer()).finish()
    }
}

/// Returns true if the holder of this key has signed the message.
pub(super) fn is_signed(key: &[u8; KEY_BYTES], message: &[u8], signature: &[u8; SIGNATURE_BYTES]) -> bool {
    UnparsedPublicKey::new(&ED25519, key).verify(message, signature).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_belongs_to_the_process_that_can_sign_for_it() {
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
