//! The layers of one stretch on the CPU, as far as a worker holds them: what comes in goes there, and slopes come back.

use std::collections::BTreeMap;

use dfdx::prelude::{Cpu, Gradients};
use protocol::model::{OwnStretch, Partition, Portion};

use crate::network::{Network, There};
use crate::ops::matmul::Into;
use crate::ops::{
    self, CpuLayer, MeanLoss, OpError, Owed, Parameters, Pass, Seed, Statistics, Threads, WayBack, from_rows, values,
};
use crate::program::Program;

/// What a worker holds of a stretch.
pub(super) struct Layers {
    /// Which stretch it is.
    pub(super) number: usize,
    /// Numbers of one sample that come to it.
    pub(super) inputs: usize,
    network: Network<CpuLayer>,
    /// The same where nothing is trained.
    forward: Network<CpuLayer>,
    /// Parts that have gone there, by the step of their minibatch. Each keeps the weights that it went with.
    under_way: BTreeMap<(u64, u16), (There<CpuLayer>, Pass)>,
}

/// What came back of a part.
pub(super) struct Returned {
    pub(super) loss: f32,
    /// The slopes at what had come in; nothing where that were samples.
    pub(super) slopes: Vec<f32>,
    /// The gradient of the portion's weights, in the memory that was lent for it, as far as it is known.
    pub(super) gradient: Vec<f32>,
    /// What of it is still to be computed.
    pub(super) owed: Vec<Owed>,
}

impl Layers {
    /// What a portion has of a stretch.
    pub(super) fn new(partition: &Partition, portion: &Portion, own: &OwnStretch, threads: Threads) -> Self {
        let layers = &portion.layout.layers[own.layers.clone()];
        let holders = partition.stretches()[own.number].holders();
        let before = &partition.whole().layers[..own.before];
        let program = Program::of_stretch(before, layers, portion.number - holders.start);
        Self {
            number: own.number,
            inputs: layers.first().map_or(0, |layer| layer.input.elements()),
            network: ops::network(program.clone(), threads),
            forward: ops::network(program.for_evaluation(), threads),
            under_way: BTreeMap::new(),
        }
    }

    /// Forgets what is under way.
    pub(super) fn clear(&mut self) {
        self.under_way.clear();
    }

    /// A part of a minibatch goes through. What comes out is kept for the way back.
    pub(super) fn there(
        &mut self,
        part: (u64, u16),
        parameters: &Parameters,
        key: u64,
        inputs: Vec<f32>,
    ) -> Result<&[f32], OpError> {
        let pass = pass(parameters, key);
        let there = self.network.there(&pass, self.rows(inputs)?, Gradients::leaky())?;
        self.under_way.insert(part, (there, pass));
        Ok(values(&self.under_way[&part].0.outputs))
    }

    /// Slopes have come for what a part's outputs were; what becomes of the gradient that others have written. None if no such part
    /// is under way.
    pub(super) fn back(
        &mut self,
        part: (u64, u16),
        (slopes, loss): (Vec<f32>, f32),
        into: Into,
        memory: Vec<f32>,
    ) -> Result<Option<Returned>, OpError> {
        let Some((there, pass)) = self.under_way.remove(&part) else {
            return Ok(None);
        };
        pass.back.begins(into, 1.0);
        let inputs = there.inputs.clone();
        let descent = there.back(&Seed::new(slopes, loss, memory), &pass)?;
        self.returned(&inputs, descent, &pass).map(Some)
    }

    /// A part, which is so much of a minibatch, goes through the last layers and, by its loss, back at once.
    pub(super) fn judge(
        &mut self,
        (parameters, key, inputs): (&Parameters, u64, Vec<f32>),
        (loss, share): (&MeanLoss, f32),
        into: Into,
        memory: Vec<f32>,
    ) -> Result<Returned, OpError> {
        let pass = pass(parameters, key);
        pass.back.begins(into, share);
        let inputs = self.rows(inputs)?;
        let lent = parameters.lend_gradient(memory)?;
        let descent = self.network.descend(loss, &pass, inputs.clone(), lent)?;
        self.returned(&inputs, descent, &pass)
    }

    fn returned(
        &self,
        inputs: &ops::Rows,
        mut descent: crate::network::Descent<f32>,
        pass: &Pass,
    ) -> Result<Returned, OpError> {
        let slopes = if self.number == 0 {
            Vec::new()
        } else {
            std::mem::take(&mut **descent.gradients.get_or_alloc_mut(inputs)?)
        };
        Ok(Returned {
            loss: values(&descent.loss)[0],
            slopes,
            gradient: pass.parameters.take_gradient(descent.gradients)?,
            owed: pass.back.take_owed(),
        })
    }

    /// What comes out where nothing is trained.
    pub(super) fn forward(&self, parameters: &Parameters, inputs: Vec<f32>) -> Result<Vec<f32>, OpError> {
        let pass = pass(parameters, 0);
        let outputs = self.forward.forward(&pass, self.rows(inputs)?)?;
        Ok(values(&outputs).to_vec())
    }

    /// Numbers as rows of what one sample is before these layers.
    fn rows(&self, inputs: Vec<f32>) -> Result<ops::Rows, OpError> {
        from_rows(&Cpu::default(), inputs.len() / self.inputs.max(1), self.inputs, inputs)
    }
}

/// What a pass through the layers is computed with.
fn pass(parameters: &Parameters, key: u64) -> Pass {
    Pass {
        parameters: parameters.clone(),
        key,
        statistics: Statistics::Minibatch,
        back: WayBack::of_part(),
    }
}
