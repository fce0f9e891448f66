//! Tau's worker: opens datasets, runs models on dfdx, trains them on a CPU or GPU, and emits what it learns as batches.
//!
//! Each module imports only the modules above it in this list:
//!
//! - `machine`: threads and memory of this machine
//! - [`dataset`]: samples, read from files into memory; `task`: the loss on these samples
//! - [`model`]: a network as operations on dfdx's [tape](model::tape), on a CPU; [`module`]: networks that are the user's
//!   code; [`model_file`]: saved models
//! - [`trainer`]: the interface between the training loop and a device; [`learning`], [`emission`], [`sampling`]: the
//!   decisions of a worker: how a gradient moves the weights, which part of the residual leaves and when, which samples
//!   come next
//! - [`pipeline`], [`stage`]: one worker's part in a model that is spread over several workers
//! - [`backend`]: training on a CPU and on a GPU, around one replica; [`evaluate`]: measuring a model and predicting
//!   with it
//! - [`training`]: the training loops, which are pure, and the threads that run them; [`process`]: the worker process
//!   that is attached to a node

pub mod backend;
pub mod dataset;
pub mod emission;
pub mod evaluate;
pub mod learning;
pub mod machine;
pub mod model;
pub mod model_file;
pub mod module;
pub mod pipeline;
pub mod process;
pub mod sampling;
pub mod stage;
pub mod task;
pub mod trainer;
pub mod training;
