//! What is learned: the loss on the data, changed images, and whether job, model and data go together.

pub(crate) mod augmentation;
pub mod job_layout;
pub mod objective;
