//! The network: a layout is lowered to a [`program`], whose operations ([`ops`]) run on dfdx's [`tape`].

pub mod evaluation;
pub mod measuring;
pub mod network;
pub mod ops;
pub mod program;
pub mod tape;
