//! The control plane: small messages between actors on different machines, over sessions of `ractor_cluster`.
//!
//! Of that crate we use sessions, remote actors and process groups. What it leaves open is done here or by the node:
//! connections come from our own transport, finished, and both ends prove their names on them; nobody is dialled behind our
//! back; whether a peer is alive is told by our own beats. What others send is bounded in size, number and time before the
//! crate sees it, and what they are told before it is queued.

mod connection;
mod connections;
mod endpoint;
mod envelope;
mod frames;
mod identity;
mod payload;
mod pump;
mod session_hello;
mod session_stream;
mod sessions;

pub use connection::{Caller, Connection, ConnectionError};
pub use connections::Refusal;
pub use endpoint::{CallError, Endpoint, EndpointActor, EndpointMessage, Routes};
pub use envelope::Envelope;
pub use identity::{Identity, NoKey, Role, VerifiedPeer};
pub use payload::Payload;
pub(crate) use payload::encoded_length;
pub use sessions::{OpenError, SessionEvent, Sessions, StartError};
