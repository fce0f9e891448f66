//! Connections to other nodes: TLS 1.3 on one port, on which both sides prove that they hold the cluster's credentials.
//!
//! The plane that a connection is for (control or data) is agreed on within the handshake. No process without the
//! credentials gets past it, and strangers can make a node keep only a limited number of half-open connections, each
//! for a limited time. Plain text is spoken only on request, and only within one machine.

mod accept;
mod credentials;
mod dial;
mod half_open;
mod security;
pub(crate) mod tls;
pub(crate) mod wire;

#[cfg(test)]
mod tests;

pub use accept::{AcceptLimits, Accepted, Acceptor};
pub use credentials::{Credentials, CredentialsError};
pub(crate) use dial::speaks_tls;
pub use dial::{DialError, dial};
pub(crate) use half_open::{HalfOpen, HelloReceived};
pub use security::{Connection, NotLoopback, Security, Stream};
pub use tls::Plane;
