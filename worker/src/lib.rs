//! Tau's worker: datasets, models on dfdx, the residual and its quantiser, and the thread that trains.
//!
//! From the outside in: a [`training_thread`] runs a [`training`] loop over a [`trainer`]. That is a replica on a
//! [`backend`], the CPU's or a GPU's: both carry out the operations of one [`program`] in a [`network`] on dfdx's
//! [`tape`], the CPU by [`ops`] and the [`quantise`] pass, a GPU by kernels. What it emits leaves as
//! encoded batches; weights as floats, residual and dfdx live here and nowhere else. A [`process`] is all of that, attached
//! to its node.

pub mod assembly;
mod augmentation;
pub mod backend;
mod control_group;
pub mod dataset;
pub mod device;
pub mod difference;
pub mod emission;
pub mod evaluate;
pub mod fake_trainer;
pub mod first_weights;
pub mod job_layout;
pub mod learning;
pub mod measuring;
pub mod memory;
pub mod model_file;
pub mod network;
pub mod objective;
pub mod onnx;
pub mod ops;
mod parallel;
pub mod pipeline;
pub mod predict;
pub mod process;
pub mod program;
pub mod quantise;
pub mod sampling;
mod speed;
pub mod stage;
pub mod state_file;
pub mod tape;
mod thread_time;
pub mod train_error;
pub mod trainer;
pub mod training;
pub mod training_thread;
