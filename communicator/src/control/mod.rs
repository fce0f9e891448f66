//! The control plane: small messages between actors on different machines, over sessions of `ractor_cluster`.
//!
//! Of that crate we use sessions, remote actors and process groups. What it leaves open is done here or by the node:
//! connections come from our own transport, finished; nodes are named uniquely; nobody is dialled behind our back;
//! whether a peer is alive is told by our own beats.

mod connection;
mod gate;
mod payload;
mod sessions;

pub use connection::{Connection, ConnectionError};
pub use gate::{CallError, Gate, GateActor, GateMessage, Routes, call, gate_of};
pub use payload::Payload;
pub use sessions::{SessionEvent, Sessions, StartError};
