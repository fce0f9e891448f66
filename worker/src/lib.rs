//! Tau's worker: datasets, models on dfdx, the residual and its quantiser, and the thread that trains.
//!
//! Each room imports only those above it in this list:
//!
//! - `machine`: threads and memory of this machine
//! - [`dataset`]: samples, from files to memory; `task`: which loss on which samples
//! - [`model`]: a network as operations on dfdx's [tape](model::tape), on a CPU; [`model_file`]: what is saved of it
//! - [`trainer`]: the interface between the training loop and a device; [`learning`], [`emission`], [`sampling`]: what a
//!   worker decides: how a gradient moves weights, what leaves and when, which samples come next
//! - [`pipeline`], [`stage`]: one worker's part in a model that is spread over several
//! - [`backend`]: the same work on a CPU and on a GPU, around one replica; [`evaluate`]: measuring and predicting with it
//! - [`training`]: the loops, pure, and the threads that run them; [`process`]: all of it, attached to a node

pub mod backend;
pub mod dataset;
pub mod emission;
pub mod evaluate;
pub mod learning;
pub mod machine;
pub mod model;
pub mod model_file;
pub mod pipeline;
pub mod process;
pub mod sampling;
pub mod stage;
pub mod task;
pub mod trainer;
pub mod training;
