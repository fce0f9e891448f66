//! The learning task: the loss on the data, augmented images, and the check that job, model and data go together.

pub(crate) mod augmentation;
pub mod job_layout;
pub mod objective;
