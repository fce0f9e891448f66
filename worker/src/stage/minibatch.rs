//! A minibatch on its way through the layer ranges of a network: forward, micro-batch by micro-batch, and back.
//!
//! Each owner of a layer range sends its outputs for a micro-batch to all owners of the next one, which need all of
//! them; each gets gradients back from all of those, and adds them up.

use protocol::job::model::LayerRange;
use protocol::rng::splitmix64;
use protocol::wire::flow::{Flow, FlowBody, Lead};

use super::gathering::{added_up, columns, side_by_side};
use super::{Advance, DeferredGradient, Layers, Returned, StageArrays, StageModel};
use crate::model::ops::matmul::WriteMode;
use crate::task::augmentation;
use crate::trainer::{PipelineViolation, TrainError};

/// Message of a pipeline in decoded form: activations or gradients with their purpose and the stage that made them.
pub(super) struct Piece {
    body: FlowBody,
    from: usize,
    numbers: Vec<f32>,
}

impl Piece {
    /// Creates the input for the first layers, which names a micro-batch instead of holding activations: each worker of
    /// these layers takes the samples from its own data.
    pub(super) fn samples(step: u64, micro_batch: u16) -> Self {
        Self {
            body: FlowBody::Forward {
                step,
                micro_batch,
                layer_range: 0,
            },
            from: 0,
            numbers: Vec::new(),
        }
    }
}

/// The minibatch whose gradient a pipeline stage is computing, with its progress.
pub(super) struct MinibatchProgress {
    lead: Lead,
    /// For each layer range that this worker holds, the number of micro-batches that have come back through it.
    done: Vec<u16>,
    loss: f32,
    /// True once the gradient of the minibatch is complete, postponed weight gradients included.
    is_complete: bool,
}

impl MinibatchProgress {
    /// Starts the record of a minibatch's progress, for a worker that holds `held` layer ranges.
    pub(super) fn new(lead: Lead, held: usize) -> Self {
        Self {
            lead,
            done: vec![0; held],
            loss: 0.0,
            is_complete: false,
        }
    }

    pub(super) fn step(&self) -> u64 {
        self.lead.step
    }

    /// True if the gradient of the minibatch is complete.
    pub(super) fn is_done(&self) -> bool {
        self.is_complete
    }

    pub(super) fn loss(&self) -> f32 {
        self.loss
    }

    /// True if all micro-batches have come back through all layer ranges of this worker.
    pub(super) fn is_back(&self) -> bool {
        self.done.iter().all(|&done| done >= self.lead.micro_batches)
    }

    /// Returns the write mode for the weight gradient of the next micro-batch that comes back through a layer range:
    /// the first one overwrites the gradient, later ones are added.
    fn written(&self, at: usize) -> WriteMode {
        if self.done[at] > 0 {
            WriteMode::Add
        } else {
            WriteMode::Overwrite
        }
    }
}

impl<L: Layers> StageModel<L> {
    /// Sends a micro-batch through the first layers. Each worker with neurons of these layers does so.
    fn send_forward(&mut self, lead: &Lead, micro_batch: u16, weights: &L::Weights) -> Result<(), TrainError> {
        let (own, key) = (micro_batch_of(lead, micro_batch), micro_batch_key(lead, micro_batch));
        let inputs = augmentation::gathered(&self.dataset, self.augment, own, key, &mut self.loss.answers);
        if micro_batch + 1 < lead.micro_batches {
            self.own.push_front(Piece::samples(lead.step, micro_batch + 1));
        }
        self.forward_range(lead, (micro_batch, 0), weights, inputs)
    }

    /// Returns the index of a layer range among those that this worker holds; `None` if it does not hold that one.
    pub(super) fn slice_of(&self, layer_range: u8) -> Option<usize> {
        self.slices
            .iter()
            .position(|one| one.number() == usize::from(layer_range))
    }

    pub(super) fn is_last(&self, layer_range: u8) -> bool {
        usize::from(layer_range) + 1 == self.layer_ranges.len()
    }

    /// Returns the layer range that feeds this one; `None` for the first.
    pub(super) fn before(&self, layer_range: u8) -> Option<&LayerRange> {
        self.layer_ranges.get(usize::from(layer_range).checked_sub(1)?)
    }

    /// Returns how many values a message from this stage must hold, or `None` if the message cannot be for this worker.
    fn numbers_of(&self, body: &FlowBody, from: usize) -> Option<usize> {
        let rows = |step, micro_batch| {
            let lead = self
                .pipeline
                .begun(step)
                .filter(|lead| micro_batch < lead.micro_batches)?;
            Some(micro_batch_of(lead, micro_batch).len())
        };
        match *body {
            FlowBody::Forward {
                step,
                micro_batch,
                layer_range,
            } => {
                self.slice_of(layer_range)?;
                Some(rows(step, micro_batch)? * self.before(layer_range)?.share(from)?.len())
            }
            FlowBody::Backward {
                step,
                micro_batch,
                layer_range,
                ..
            } => {
                self.slice_of(layer_range)?;
                let after = self.layer_ranges.get(usize::from(layer_range) + 1)?;
                let own = self.layer_ranges[usize::from(layer_range)].share(self.stage.number)?;
                after
                    .owners()
                    .contains(&from)
                    .then_some(rows(step, micro_batch)? * own.len())
            }
            _ => None,
        }
    }

    /// Decodes a message of the pipeline; `None` if it cannot be for this worker.
    pub(super) fn read(&self, flow: &Flow) -> Option<Piece> {
        let (body, from) = (flow.head.body.clone(), usize::from(flow.head.from));
        let numbers = flow.numbers(self.numbers_of(&body, from)?).ok()?;
        Some(Piece { body, from, numbers })
    }

    /// Advances a minibatch by one piece of work: a message's activations or gradients, or one postponed weight
    /// gradient.
    pub(super) fn advance_minibatch(
        &mut self,
        progress: &mut MinibatchProgress,
        mut arrays: StageArrays<'_, L>,
    ) -> Result<Advance, TrainError> {
        if progress.is_done() {
            return Ok(Advance::Done);
        }
        // Once all micro-batches are back, the other workers have all that they need and count this minibatch as
        // trained, whatever messages still come.
        if !progress.is_back()
            && let Some(piece) = self.own.pop_front().or_else(|| self.received.pop_front())
        {
            self.take(progress, piece, &mut arrays)?;
            return Ok(Advance::Worked);
        }
        // The other workers have no work for this one now.
        if self.compute_deferred(arrays.gradient) {
            return Ok(Advance::Worked);
        }
        if progress.is_back() {
            progress.is_complete = true;
            return Ok(Advance::Done);
        }
        Ok(Advance::Waits)
    }

    /// Computes one postponed weight gradient. Returns false if there was none.
    fn compute_deferred(&mut self, gradient: &mut L::Gradient) -> bool {
        let Some(DeferredGradient {
            at,
            deferred,
            write_mode,
        }) = self.deferred.pop_front()
        else {
            return false;
        };
        self.slices[at].compute_deferred(deferred, write_mode, gradient);
        true
    }

    /// Processes activations or gradients that have arrived, once those of all workers with the same layers have come.
    fn take(
        &mut self,
        progress: &mut MinibatchProgress,
        piece: Piece,
        arrays: &mut StageArrays<'_, L>,
    ) -> Result<(), TrainError> {
        let (step, in_flight) = match piece.body {
            FlowBody::Forward { step, layer_range, .. } if !self.is_last(layer_range) => {
                (step, self.pipeline.in_flight())
            }
            // Gradients are computed for one minibatch after the other.
            FlowBody::Forward { step, .. } | FlowBody::Backward { step, .. } => (step, 0),
            _ => return Err(PipelineViolation::Numbers.into()),
        };
        if step > progress.lead.step.saturating_add(in_flight as u64) {
            self.later.push(piece);
            return Ok(());
        }
        let Some(lead) = self.pipeline.begun(step).cloned() else {
            // The minibatch was given up meanwhile, or completed before its announcement was processed.
            return Ok(());
        };
        let Piece { body, from, numbers } = piece;
        match body {
            FlowBody::Forward {
                micro_batch,
                layer_range: 0,
                ..
            } => self.send_forward(&lead, micro_batch, arrays.own),
            FlowBody::Forward {
                micro_batch,
                layer_range,
                ..
            } => {
                let before = self.before(layer_range).ok_or(PipelineViolation::Numbers)?;
                let shares = before.shares().to_vec();
                let from = from - before.owners().start;
                let key = (step, micro_batch, layer_range);
                let Some(pieces) = self.forward.take(key, from, shares.len(), numbers)? else {
                    return Ok(());
                };
                let inputs = side_by_side(pieces, &shares);
                if self.is_last(layer_range) {
                    self.run_loss_head(progress, micro_batch, inputs, arrays)
                } else {
                    self.forward_range(&lead, (micro_batch, layer_range), arrays.own, inputs)
                }
            }
            FlowBody::Backward {
                micro_batch,
                layer_range,
                loss,
                ..
            } => {
                let after = self.layer_ranges[usize::from(layer_range) + 1].owners();
                let key = (step, micro_batch, layer_range);
                let Some(pieces) = self.backward.take(key, from - after.start, after.len(), numbers)? else {
                    return Ok(());
                };
                self.backward_range(progress, (micro_batch, layer_range), (added_up(pieces), loss), arrays)
            }
            _ => Ok(()),
        }
    }

    /// Runs a micro-batch forward through this worker's part of some layers and sends the outputs to all workers that
    /// hold the next ones.
    fn forward_range(
        &mut self,
        lead: &Lead,
        (micro_batch, layer_range): (u16, u8),
        weights: &L::Weights,
        inputs: Vec<f32>,
    ) -> Result<(), TrainError> {
        let (at, step) = (self.slice_of(layer_range).ok_or(PipelineViolation::Numbers)?, lead.step);
        let outputs =
            self.slices[at].forward((step, micro_batch), weights, micro_batch_key(lead, micro_batch), inputs)?;
        let layer_range = layer_range + 1;
        let body = FlowBody::Forward {
            step,
            micro_batch,
            layer_range,
        };
        let from = self.stage.number;
        for to in self.layer_ranges[usize::from(layer_range)].owners() {
            if to == from {
                self.own.push_back(Piece {
                    body: body.clone(),
                    from,
                    numbers: outputs.to_vec(),
                });
            } else {
                self.pipeline.send(to as u8, body.clone(), &outputs);
            }
        }
        Ok(())
    }

    /// Runs a micro-batch through the last layers: computes its loss and sends gradients back.
    fn run_loss_head(
        &mut self,
        progress: &mut MinibatchProgress,
        micro_batch: u16,
        inputs: Vec<f32>,
        arrays: &mut StageArrays<'_, L>,
    ) -> Result<(), TrainError> {
        let layer_range = (self.layer_ranges.len() - 1) as u8;
        let at = self.slice_of(layer_range).ok_or(PipelineViolation::Numbers)?;
        let own = micro_batch_of(&progress.lead, micro_batch);
        self.dataset.train.answers().gather(own, &mut self.loss.answers);
        let share = own.len() as f32 / progress.lead.samples.len() as f32;
        let forward = (arrays.own, micro_batch_key(&progress.lead, micro_batch), inputs);
        let returned =
            self.slices[at].run_loss_head(forward, (&self.loss, share), progress.written(at), arrays.gradient)?;
        self.returned(progress, at, micro_batch, returned);
        Ok(())
    }

    /// Runs a micro-batch backward through this worker's part of some layers, once all gradients of its outputs have
    /// come.
    fn backward_range(
        &mut self,
        progress: &mut MinibatchProgress,
        (micro_batch, layer_range): (u16, u8),
        came: (Vec<f32>, f32),
        arrays: &mut StageArrays<'_, L>,
    ) -> Result<(), TrainError> {
        let at = self.slice_of(layer_range).ok_or(PipelineViolation::Numbers)?;
        let returned = self.slices[at].backward(
            (progress.lead.step, micro_batch),
            came,
            progress.written(at),
            arrays.gradient,
        )?;
        self.returned(progress, at, micro_batch, returned.ok_or(PipelineViolation::Numbers)?);
        Ok(())
    }

    /// Completes a micro-batch's backward pass through some layers: sends the gradients on, and queues the weight
    /// gradients that can wait.
    fn returned(
        &mut self,
        progress: &mut MinibatchProgress,
        at: usize,
        micro_batch: u16,
        returned: Returned<L::Deferred>,
    ) {
        let Returned {
            loss,
            input_gradients,
            deferred,
        } = returned;
        let write_mode = progress.written(at);
        self.deferred
            .extend(deferred.into_iter().map(|deferred| DeferredGradient {
                at,
                deferred,
                write_mode,
            }));
        progress.done[at] += 1;
        // A micro-batch has one loss, however many layer ranges of this worker it comes through.
        if at == 0 && progress.lead.micro_batches == 1 {
            progress.loss = loss;
        } else if at == 0 {
            progress.loss +=
                loss * micro_batch_of(&progress.lead, micro_batch).len() as f32 / progress.lead.samples.len() as f32;
        }
        self.send_backward(
            progress.lead.step,
            (micro_batch, self.slices[at].number() as u8),
            loss,
            &input_gradients,
        );
    }

    /// Sends gradients to all workers that computed a part of the layers' inputs.
    fn send_backward(&mut self, step: u64, (micro_batch, layer_range): (u16, u8), loss: f32, output_gradients: &[f32]) {
        let Some(at) = usize::from(layer_range).checked_sub(1) else {
            return;
        };
        let (before, layer_range) = (&self.layer_ranges[at], at as u8);
        let body = FlowBody::Backward {
            step,
            micro_batch,
            layer_range,
            loss,
        };
        let from = self.stage.number;
        for (to, share) in before.owners().zip(before.shares()) {
            let piece = columns(output_gradients, before.outputs(), share);
            if to == from {
                self.own.push_back(Piece {
                    body: body.clone(),
                    from,
                    numbers: piece.into_owned(),
                });
            } else {
                self.pipeline.send(to as u8, body.clone(), &piece);
            }
        }
    }
}

/// Returns the samples of a micro-batch.
fn micro_batch_of(lead: &Lead, micro_batch: u16) -> &[u32] {
    let (all, micro_batches) = (lead.samples.len(), usize::from(lead.micro_batches.max(1)));
    let border = |micro_batch: usize| all * micro_batch / micro_batches;
    &lead.samples[border(usize::from(micro_batch))..border(usize::from(micro_batch) + 1)]
}

/// Returns the random key that decides dropout in a micro-batch. A minibatch that is not cut has the same key as on one
/// machine.
fn micro_batch_key(lead: &Lead, micro_batch: u16) -> u64 {
    if lead.micro_batches == 1 {
        lead.key
    } else {
        splitmix64(lead.key ^ u64::from(micro_batch))
    }
}
