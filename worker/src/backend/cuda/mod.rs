//! The GPU backend: weights, optimiser state, activations and the dataset live on the device, and every computation of
//! a step happens there. Only sample indices, emitted changes and a few numbers cross the bus.
//!
//! ```text
//!  trainer ── forward, loss, backward ──▶ dfdx's tape ──▶ layers ── products ──▶ cuBLASLt
//!     └───── update, compare, emit ─────▶ kernels/*.cu      (waited for once a step)
//! ```
//!
//! CUDA's libraries are loaded when a GPU is opened, so the same binary also runs without them.

mod abi;
mod address;
mod backend;
mod border;
mod compiler;
mod dataset;
mod error;
mod evaluator;
mod gpu;
mod gradient_source;
mod inbox;
mod kernels;
mod layers;
mod loss;
mod memory;
mod model;
mod muon;
mod products;
mod recorded;
mod speed;
mod stage;
mod tensor_address;
mod weights;
mod whole;

pub use backend::CudaBackend;
pub use error::GpuError;
pub use evaluator::CudaEvaluator;
pub use gpu::Gpu;
pub use stage::CudaStageTrainer;
pub use whole::CudaTrainer;
