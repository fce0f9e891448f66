//! What passes between the workers of a pipeline, which hold the layers of one network together: activations
//! forward, gradients backward, and a few messages besides.
//!
//! The worker of the first stage leads. Everything belongs to a *generation* of its pipeline: the leader calls, each hands
//! the call on, the last one answers. What is of another generation is over, and whoever hears it says that it has lost the
//! pipeline.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Unreadable;
use crate::job::Cut;
use crate::log::cursor::CursorAdvance;

/// A worker's place among those that hold the layers of one network together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageAddress {
    /// The pipeline.
    pub pipeline: u32,
    /// The stage of the network, from 0.
    pub stage: u8,
}

/// A worker's place, among how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PipelineAssignment {
    /// The place.
    pub place: StageAddress,
    /// Where the network is cut.
    pub cut: Cut,
    /// How many pipelines.
    pub pipelines: u32,
}

/// A message within a pipeline.
#[derive(Clone, Debug, PartialEq)]
pub struct Flow {
    /// Whom it is for, and what it says.
    pub head: FlowHead,
    /// Its numbers, in four bytes each: a row for each sample.
    pub numbers: Arc<[u8]>,
}

/// Whom a message is for, and what it says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlowHead {
    /// The pipeline.
    pub pipeline: u32,
    /// The stage whose worker it is for.
    pub to: u8,
    /// The stage whose worker it is from.
    pub from: u8,
    /// The generation of the pipeline that it belongs to.
    pub generation: u64,
    /// What it says.
    pub body: FlowBody,
}

/// What a message of a pipeline says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FlowBody {
    /// A new generation begins. Handed on to the last stage.
    Join,
    /// The last stage has heard the call.
    Ready,
    /// Its sender has heard nothing of the pipeline's present generation.
    Reset,
    /// A minibatch begins. The leader says so to each.
    Lead(Box<Lead>),
    /// What its sender has made of a micro-batch, for those that compute the next layer range.
    Forward {
        /// The number of the minibatch's step.
        step: u64,
        /// Which micro-batch.
        micro_batch: u16,
        /// The layer range that it is for.
        layer_range: u8,
    },
    /// The gradients of a micro-batch's loss at what came there, as far as its sender's neurons know.
    Backward {
        /// The number of the minibatch's step.
        step: u64,
        /// Which micro-batch.
        micro_batch: u16,
        /// The layer range that they are for.
        layer_range: u8,
        /// The mean loss of the micro-batch.
        loss: f32,
    },
    /// What the layers so far have made of evaluation samples, with the shared weights.
    Measure(EvalBatch),
    /// What was found of them where the network ends, for the leader.
    EvalTotals(EvalTotals),
    /// There are no further minibatches. The leader says so to each.
    End {
        /// The last step that the leader has made: what was begun after it is not gone on with.
        done: u64,
    },
}

impl FlowBody {
    /// The step of the minibatch that a message's numbers belong to.
    #[must_use]
    pub fn step(&self) -> Option<u64> {
        match *self {
            Self::Forward { step, .. } | Self::Backward { step, .. } => Some(step),
            _ => None,
        }
    }
}

/// A minibatch, for those that did not choose it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Lead {
    /// The number of the step, from 1.
    pub step: u64,
    /// What decides dropout in it.
    pub key: u64,
    /// The learning rate, schedule included.
    pub learning_rate: f64,
    /// Into how many micro-batches it is cut.
    pub micro_batches: u16,
    /// Its samples.
    pub samples: Vec<u32>,
    /// Which samples are done with it.
    pub cursors: Vec<CursorAdvance>,
}

/// Some evaluation samples.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvalBatch {
    /// The number of this minibatch in the evaluation, from 0.
    pub number: u32,
    /// The layer range that they are for: those of the first take samples as they are.
    pub layer_range: u8,
    /// Which they are.
    pub samples: Vec<u32>,
    /// Whether they are the last of the evaluation.
    pub last: bool,
}

/// What a model's outputs say about evaluation samples.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EvalTotals {
    /// The sum of the samples' losses.
    pub loss: f64,
    /// How many samples are predicted correctly.
    pub correct: u64,
    /// For each number to predict: the sums of squared and of absolute errors, of the numbers and of their squares.
    pub errors: Vec<[f64; 4]>,
}

impl Flow {
    /// A message without numbers.
    #[must_use]
    pub fn without_numbers(head: FlowHead) -> Self {
        Self {
            head,
            numbers: Arc::default(),
        }
    }

    /// A message with numbers.
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

    /// Its numbers, if there are so many.
    pub fn numbers(&self, count: usize) -> Result<Vec<f32>, Unreadable> {
        let (numbers, rest) = self.numbers.as_chunks::<{ size_of::<f32>() }>();
        if numbers.len() != count || !rest.is_empty() {
            return Err(Unreadable);
        }
        Ok(numbers.iter().copied().map(f32::from_le_bytes).collect())
    }

    /// The contents of a frame.
    pub fn encode(&self) -> Result<Vec<u8>, Unreadable> {
        let mut contents = super::encode(&self.head)?;
        contents.extend_from_slice(&self.numbers);
        Ok(contents)
    }

    /// The message that a frame holds.
    pub fn decode(contents: &[u8]) -> Result<Self, Unreadable> {
        let (head, numbers) = postcard::take_from_bytes(contents).map_err(|_| Unreadable)?;
        Ok(Self {
            head,
            numbers: numbers.into(),
        })
    }

    /// The pipeline and the stage that the contents of a frame are for.
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
