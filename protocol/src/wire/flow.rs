//! Messages between the workers of a pipeline, which hold the layers of one network together: activations forward,
//! gradients backward, and a few messages besides.
//!
//! The worker of the first stage leads. Every message belongs to a *generation* of the pipeline. A generation begins
//! when the leader sends [`FlowBody::Join`], each stage passes it on and the last stage answers [`FlowBody::Ready`].
//! Messages of another generation are obsolete: a worker that receives one drops it, and answers [`FlowBody::Reset`]
//! unless it leads.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Unreadable;
use crate::job::Cut;
use crate::log::cursor::CursorAdvance;

/// A worker's place among the workers that hold the layers of one network together: pipeline and stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageAddress {
    /// Number of the pipeline: of the group of nodes that hold one network together.
    pub pipeline: u32,
    /// Number of the stage (a part of the network) within its pipeline, from 0.
    pub stage: u8,
}

/// A worker's pipeline and stage, and the division of the network into stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PipelineAssignment {
    /// The pipeline and stage that the worker has.
    pub place: StageAddress,
    /// The division of the network into stages.
    pub cut: Cut,
    /// Number of pipelines in the run.
    pub pipelines: u32,
}

/// A message between the workers of a pipeline, such as activations or gradients.
#[derive(Clone, Debug, PartialEq)]
pub struct Flow {
    /// Everything of the message but its numbers: pipeline, sender, receiver, generation and kind.
    pub head: FlowHead,
    /// Activations or gradients that the message carries, as `f32` in four bytes each: one row for each sample.
    pub numbers: Arc<[u8]>,
}

/// Head of a message within a pipeline: everything but its numbers, such as sender, receiver and kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlowHead {
    /// Number of the pipeline that the message belongs to.
    pub pipeline: u32,
    /// The stage whose worker receives the message.
    pub to: u8,
    /// The stage whose worker sent the message.
    pub from: u8,
    /// Number of the pipeline's generation, which lasts from the joining of all its workers to the loss of one.
    /// Messages of other generations are dropped.
    pub generation: u64,
    /// Kind of the message, with the values that messages of this kind have.
    pub body: FlowBody,
}

/// Kind of a message within a pipeline, with the values that messages of this kind have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FlowBody {
    /// Begins a new generation of a pipeline, in which all its workers have joined. Each stage passes the message on to
    /// the next, up to the last stage.
    Join,
    /// Reports to the pipeline's leader that the last stage has joined the generation.
    Ready,
    /// Reports that the sender knows nothing of the present generation of the pipeline, which must begin again.
    Reset,
    /// Begins a minibatch. The leader, which chooses minibatches, sends it to each stage.
    Lead(Box<Lead>),
    /// The sender's activations for a micro-batch, sent to the workers that compute the next layer range.
    Forward {
        /// The step in which the minibatch is trained.
        step: u64,
        /// The number of the micro-batch within its minibatch.
        micro_batch: u16,
        /// The layer range that takes the activations as input.
        layer_range: u8,
    },
    /// The gradients of a micro-batch's loss with respect to the outputs of a layer range, sent to the workers that
    /// computed these. Holds only the contribution of the sender's neurons.
    Backward {
        /// The step in which the minibatch is trained.
        step: u64,
        /// The number of the micro-batch within its minibatch.
        micro_batch: u16,
        /// The layer range whose outputs the gradients belong to.
        layer_range: u8,
        /// The mean loss of the micro-batch.
        loss: f32,
    },
    /// Evaluation samples, with their activations after the layers so far (computed with the shared weights), sent to
    /// the workers that compute the next layer range.
    Measure(EvalBatch),
    /// Totals of an evaluation in a pipeline, sent from the end of the network to the leader.
    EvalTotals(EvalTotals),
    /// Announces that there are no further minibatches. The pipeline's leader sends it to each stage.
    End {
        /// The last step that the pipeline's leader has made. Later steps that have begun are abandoned.
        done: u64,
    },
}

impl FlowBody {
    /// Returns the training step that the message's numbers belong to; none for messages outside of a step.
    #[must_use]
    pub fn step(&self) -> Option<u64> {
        match *self {
            Self::Forward { step, .. } | Self::Backward { step, .. } => Some(step),
            _ => None,
        }
    }
}

/// A minibatch as the leader announces it to the other stages, which do not choose minibatches.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Lead {
    /// The number of the training step, from 1.
    pub step: u64,
    /// Random key that decides the dropout of the step.
    pub key: u64,
    /// The learning rate, schedule included.
    pub learning_rate: f64,
    /// The number of micro-batches that the minibatch is cut into.
    pub micro_batches: u16,
    /// Numbers of the minibatch's samples, by which they are found in the training data.
    pub samples: Vec<u32>,
    /// Cursors after this minibatch, where they have advanced: the number of samples done in a shard of an epoch.
    pub cursors: Vec<CursorAdvance>,
}

/// Some evaluation samples that pass through a pipeline together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvalBatch {
    /// The number of this group of samples in the evaluation, from 0.
    pub number: u32,
    /// The layer range that the activations are for. The first layer range reads the samples themselves.
    pub layer_range: u8,
    /// Numbers of the evaluation samples, by which they are found in the dataset.
    pub samples: Vec<u32>,
    /// True for the last samples of the evaluation.
    pub last: bool,
}

/// Sums over evaluation samples, from which a model's scores follow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EvalTotals {
    /// Sum of the samples' losses.
    pub loss: f64,
    /// Number of samples that are predicted correctly.
    pub correct: u64,
    /// For each predicted number: the sums of squared errors, of absolute errors, of the true numbers, and of their
    /// squares.
    pub errors: Vec<[f64; 4]>,
}

impl Flow {
    /// Returns a pipeline message without activations or gradients.
    #[must_use]
    pub fn without_numbers(head: FlowHead) -> Self {
        Self {
            head,
            numbers: Arc::default(),
        }
    }

    /// Returns a pipeline message with these activations or gradients.
    #[must_use]
    pub fn with(head: FlowHead, numbers: &[f32]) -> Self {
        let mut bytes = vec![0; size_of_val(numbers)];
        for (to, number) in bytes.chunks_exact_mut(size_of::<f32>()).zip(numbers) {
            to.copy_from_slice(&number.to_le_bytes());
        }
        Self {
            head,
            numbers: bytes.into(),
        }
    }

    /// Decodes the activations or gradients of the message. Fails unless there are `count` of them.
    pub fn numbers(&self, count: usize) -> Result<Vec<f32>, Unreadable> {
        let (numbers, rest) = self.numbers.as_chunks::<{ size_of::<f32>() }>();
        if numbers.len() != count || !rest.is_empty() {
            return Err(Unreadable);
        }
        Ok(numbers.iter().copied().map(f32::from_le_bytes).collect())
    }

    /// Encodes the pipeline message as the contents of a frame.
    pub fn encode(&self) -> Result<Vec<u8>, Unreadable> {
        let mut contents = super::encode(&self.head)?;
        contents.extend_from_slice(&self.numbers);
        Ok(contents)
    }

    /// Decodes a pipeline message from the contents of a frame.
    pub fn decode(contents: &[u8]) -> Result<Self, Unreadable> {
        let (head, numbers) = postcard::take_from_bytes(contents).map_err(|_| Unreadable)?;
        Ok(Self {
            head,
            numbers: numbers.into(),
        })
    }

    /// Reads only the pipeline and stage that a message is for from the contents of its frame.
    pub fn addressed(contents: &[u8]) -> Result<(u32, u8), Unreadable> {
        let (address, _) = postcard::take_from_bytes(contents).map_err(|_| Unreadable)?;
        Ok(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_survives_the_wire_and_its_address_can_be_read_alone() {
        let head = FlowHead {
            pipeline: 300,
            to: 2,
            from: 3,
            generation: 9,
            body: FlowBody::Backward {
                step: 7,
                micro_batch: 1,
                layer_range: 4,
                loss: 0.5,
            },
        };
        let flow = Flow::with(head, &[1.5, -0.0, f32::MIN_POSITIVE]);
        let contents = flow.encode().unwrap();
        assert_eq!(Flow::decode(&contents), Ok(flow.clone()));
        assert_eq!(Flow::addressed(&contents), Ok((300, 2)));
        assert_eq!(flow.numbers(3).unwrap(), [1.5, -0.0, f32::MIN_POSITIVE]);
        assert_eq!((flow.numbers(2), flow.numbers(4)), (Err(Unreadable), Err(Unreadable)));
        assert_eq!(Flow::decode(&contents[..3]), Err(Unreadable));
        let torn = Flow::decode(&contents[..contents.len() - 1]).unwrap();
        assert_eq!(torn.numbers(3), Err(Unreadable));
    }
}
