//! What leaves a worker, and when.

pub mod tau_controller;
