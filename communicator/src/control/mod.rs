//! The control plane: small messages between actors on different machines, over sessions of `ractor_cluster`.
//!
//! Tau uses that crate's sessions, remote actors and process groups. The rest is done here or by the node: Tau's own
//! transport makes the connections, and both ends prove their names on them; the crate dials nothing by itself; beats
//! tell which peers are alive. Incoming bytes are bounded in size, number and time before the crate sees them, and
//! outgoing bytes before they are queued.

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
